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

// Throws Error where weights, states and buffers of such an engine take more than is free, naming `option` and the most slots that fit.
void require_memory(const ModelPlace& model, const EngineOptions& engine, const std::string& option);

}  // namespace based
