// A model's folder: config.json, model.safetensors and the tokenizer's files.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "based/core/safetensors.h"
#include "based/models/language_model.h"
#include "based/ops/linear/quantised_linear.h"

namespace based {

// The description of a model that is read before its weights.
struct ModelFiles {
  std::string config_path, weights_path;
  ModelConfig config;                    // passed check_model_config
  std::optional<std::string> tokenizer;  // hash of the weights' tokenizer, if the weights' file records it
  torch::Dtype dtype;                    // the model's: that of weights that are neither quantised nor WideParameters
  std::optional<ops::WeightForm> form;   // set if linear layers are quantised (quantised.h)
};
ModelFiles read_model_files(const std::string& folder);  // throws Error

// The type in which a model with weights of the type `stored` runs if none is asked for: fp32 for fp16, in which the operators do not
// compute, otherwise the same.
torch::Dtype run_type(torch::Dtype stored);

// config.json: the fields of ModelConfig and, in models with quantised weights, kWeightFormKey.
struct StoredConfig {
  ModelConfig config;  // passed check_model_config
  std::optional<ops::WeightForm> form;
};
inline constexpr const char* kWeightFormKey = "weights";
StoredConfig read_stored_config(const std::string& path);  // throws Error, for a config as models are published with a hint at `convert`

// Throws UsageError for a model with quantised weights: `action`, such as "training", needs full ones.
void require_full_weights(const ModelFiles& files, const std::string& action);

struct LoadedModel {
  std::shared_ptr<LanguageModel> model;  // evaluation mode
  std::string hash;                      // covers the stored config and weights
};

// Writes both files atomically. The weights are written first, so that a folder with a config.json is complete. `tokenizer` is the hash of
// the tokenizer of the training data; it is recorded in the weights' file.
void save_model(const LanguageModel& model, const std::string& folder, std::optional<uint64_t> tokenizer = {});

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;
NamedTensors named_weights(const LanguageModel& model);  // the parameters themselves, not copies
// The same files, from weights that are not in a model: copies that later training steps do not change.
void save_model(const ModelConfig& config, const NamedTensors& weights, const std::string& folder, std::optional<uint64_t> tokenizer = {});
// The same from dense tensors in memory that others own.
void save_model(const ModelConfig& config, std::vector<TensorView> weights, const std::string& folder, std::optional<uint64_t> tokenizer);

// Writes config.json and model.safetensors as save_model does. `tokenizer`: as in ModelFiles.
void write_model_files(const Config& config, std::vector<TensorView> weights, const std::string& folder,
                       const std::optional<std::string>& tokenizer);

// Throws one Error that lists all missing, unexpected, misshapen and wrongly typed tensors.
void check_weights(const SafetensorsFile& file, const ModelFiles& files);

// Strict: one Error lists all missing, unexpected, misshapen and wrongly typed tensors, before memory is allocated. Weights get the
// run_type of their stored type unless `dtype` is given; a line in the log says so where the two differ. WideParameters are never narrower
// than fp32, whatever their stored type. Quantised weights stay quantised; such a model runs in fp32 or bf16 and without gradients, with
// int4 on the CPU only, and other requests are a UsageError.
LoadedModel load_model(const std::string& folder, std::optional<torch::Dtype> dtype = {}, torch::Device device = torch::kCPU);

}  // namespace based
