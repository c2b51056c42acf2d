// A model's folder with the tokenizer in it. Ids mean nothing without the tokenizer that a model was trained with, so the two are bound:
// the weights' file records the tokenizer's hash, and a state file is of the two together.
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
  std::string hash;                      // of config, weights and tokenizer: state files carry it
};

// As load_model. Before weights are read, throws Error where the folder's tokenizer has another number of tokens than the model, or is not
// the one that the weights record; where they record none, as those of other programs, a warning says that this was not checked.
TextModel load_text_model(const std::string& folder, std::optional<torch::Dtype> dtype = {}, torch::Device device = torch::kCPU);

}  // namespace based
