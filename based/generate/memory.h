// Whether an engine fits into a device's memory, known before anything is loaded.
#pragma once
#include <optional>
#include <string>

#include "based/generate/engine.h"

namespace based {

struct ModelPlace {
  ModelConfig config;
  torch::Dtype dtype = torch::kFloat;
  torch::Device device = torch::kCPU;
  std::optional<ops::WeightForm> form = {};  // set if the stored weights are quantised
};

// Estimated bytes: those that do not depend on the number of slots, those of one slot without its cache, and those of a token in the cache.
struct EngineBytes {
  double fixed = 0, slot = 0, cache_token = 0;
};
EngineBytes engine_bytes(const ModelPlace& model, const EngineOptions& engine);

// Whether the state of such a model grows with the sequence.
bool grows(const ModelConfig& config);

// The bytes of a sequence's state and ids after `tokens` tokens, without allocating a state. A state file is larger by its headers.
int64_t sequence_bytes(const ModelPlace& model, int64_t tokens);

// The largest EngineOptions::cache_tokens whose cache fits into free memory in addition to the weights, states and buffers of such an
// engine; 0 or more. INT64_MAX for a model whose state does not grow.
int64_t cache_tokens_that_fit(const ModelPlace& model, const EngineOptions& engine);

// Throws Error if weights, states and buffers of such an engine need more memory than is free; it names `option` and how many slots fit.
void require_memory(const ModelPlace& model, const EngineOptions& engine, const std::string& option);

}  // namespace based
