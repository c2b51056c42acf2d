// Models as their authors published them: hazyresearch/based-*, attn-* and mamba-*, state-spaces/mamba-* and mamba2-*. A folder with their
// config.json and pytorch_model.bin or model.safetensors becomes a model's folder of this library, and back.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "based/core/safetensors.h"
#include "based/core/torch_file.h"
#include "based/models/language_model.h"
#include "based/models/published/mapping.h"

namespace based {

class PublishedModel {
 public:
  // Maps the files and compares all names, shapes and types. Throws Error that names the file and lists every fault.
  explicit PublishedModel(const std::string& folder);

  const ModelConfig& config() const { return mapping_.config; }
  const std::string& family() const { return mapping_.family; }  // "based", "attention", "mamba" or "mamba2"
  const std::string& weights_path() const { return weights_path_; }
  DType dtype() const;  // the embedding's type
  const std::vector<std::string>& warnings() const { return mapping_.warnings; }
  const std::vector<TensorView>& tensors() const { return torch_ ? torch_->tensors() : safetensors_->tensors(); }  // all of the file
  size_t dropped() const;  // number of tensors without a counterpart: counters of the authors' trainer, constants

  // Makes a tokenizer with fewer tokens than the model fit: the further rows of the embedding become padding, which is never sampled.
  // Mamba's authors, for example, count rows that no token of GPT-2 has. Throws Error for more tokens, or if no padding gives the same
  // number of rows.
  void fit_vocabulary(int64_t tokens);

  std::shared_ptr<LanguageModel> load(torch::Dtype dtype, torch::Device device = torch::kCPU) const;  // in evaluation mode

  // Creates the folder if it is absent. Writes config.json and model.safetensors, as save_model does, and beside them the authors' config
  // as source_config.json and, in source.safetensors, the tensors without a counterpart and the authors' names and shapes, in their order.
  // Weights keep their types.
  void save(const std::string& folder, std::optional<uint64_t> tokenizer) const;

 private:
  std::string config_path_, config_text_, weights_path_;
  std::unique_ptr<TorchFile> torch_;  // one of the two
  std::unique_ptr<SafetensorsFile> safetensors_;
  std::unique_ptr<published::SourceTensors> source_;
  published::Mapping mapping_;
};

enum class PublishedFormat { as_source, torch, safetensors };

// The way back: writes config.json and pytorch_model.bin or model.safetensors with the authors' names, shapes and order into the existing
// folder `out`, from a folder that PublishedModel::save wrote. Returns the path of the weights. Throws Error if a tensor is missing, has
// another size, or is not one of the source's.
std::string write_published(const std::string& folder, const std::string& out, PublishedFormat format);

}  // namespace based
