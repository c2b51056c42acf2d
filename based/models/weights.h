// A model's folder: config.json, model.safetensors, and the tokenizer's files beside them.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "based/models/language_model.h"

namespace based {

// What a folder says of its model before weights are read.
struct ModelFiles {
  std::string config_path, weights_path;
  ModelConfig config;                    // checked
  std::optional<std::string> tokenizer;  // hash of the tokenizer that the weights belong to; none where they do not record it
  torch::Dtype dtype;                    // the embedding's
};
ModelFiles read_model_files(const std::string& folder);  // throws Error

struct LoadedModel {
  std::shared_ptr<LanguageModel> model;  // evaluation mode
  std::string hash;                      // of config and weights as stored
};

// Both files are written whole or not at all; the weights first, so that a folder with a config.json is complete. `tokenizer`: the hash of
// the one that ids were made with, which the weights' file then records.
void save_model(const LanguageModel& model, const std::string& folder, std::optional<uint64_t> tokenizer = {});

// Strict: missing, unexpected, misshapen and wrongly typed tensors are all listed in one Error, before memory is taken. Weights keep their
// stored type unless `dtype` asks for another; WideParameters stay in fp32 where that is narrower, in whatever type they are stored.
LoadedModel load_model(const std::string& folder, std::optional<torch::Dtype> dtype = {}, torch::Device device = torch::kCPU);

}  // namespace based
