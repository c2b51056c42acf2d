// A model's folder with its tokenizer. Ids mean nothing without the tokenizer that the model was trained with. The weights' file therefore
// records the tokenizer's hash, and a state file records a hash of both.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "based/data/tokenizer.h"
#include "based/models/weights.h"

namespace based {

struct TextModel {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<LanguageModel> model;  // evaluation mode
  std::string hash;                      // hash of config, weights and tokenizer; state files record it
};

// Throws Error if the tokenizer has another number of tokens than the model, or another hash than the weights record. Weights of other
// programs record none; a warning then says that the tokenizer was not checked. `path` is the tokenizer's, for messages.
void require_same_tokenizer(const ModelFiles& files, const Tokenizer& tokenizer, const std::string& path);

// As load_model. Throws Error, before weights are read, if the folder's tokenizer is not the model's (require_same_tokenizer).
TextModel load_text_model(const std::string& folder, std::optional<torch::Dtype> dtype = {}, torch::Device device = torch::kCPU);

}  // namespace based
