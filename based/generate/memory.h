// Whether an engine fits into a device's memory, known before anything is loaded.
#pragma once
#include <string>

#include "based/generate/engine.h"

namespace based {

struct ModelPlace {
  ModelConfig config;
  torch::Dtype dtype = torch::kFloat;
  torch::Device device = torch::kCPU;
};

// Whether the state of such a model grows with the sequence.
bool grows(const ModelConfig& config);

// The tokens of a cache (EngineOptions::cache_tokens) for which memory is free beside weights, states and buffers of such an engine: 0 or
// more. Of a model whose state does not grow, all that int64 holds.
int64_t cache_tokens_that_fit(const ModelPlace& model, const EngineOptions& engine);

// Throws Error where weights, states and buffers of such an engine take more than is free, naming `option` and the most slots that fit.
void require_memory(const ModelPlace& model, const EngineOptions& engine, const std::string& option);

}  // namespace based
