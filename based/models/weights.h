// A model's folder: config.json, model.safetensors, and the tokenizer's files beside them.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "based/models/language_model.h"

namespace based {

struct LoadedModel {
  std::shared_ptr<LanguageModel> model;  // evaluation mode
  std::string hash;                      // of config and weights as stored: state files carry it
};

// Both files are written whole or not at all; the weights first, so that a folder with a config.json is complete.
void save_model(const LanguageModel& model, const std::string& folder);

// Strict: missing, unexpected, misshapen and wrongly typed tensors are all listed in one Error. Weights keep their stored type unless
// `dtype` asks for another.
LoadedModel load_model(const std::string& folder, std::optional<torch::Dtype> dtype = {}, torch::Device device = torch::kCPU);

}  // namespace based
