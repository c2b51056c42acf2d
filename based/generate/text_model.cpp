#include "based/generate/text_model.h"

#include "based/core/hash.h"
#include "based/core/log.h"
#include "based/core/profile.h"

namespace based {

void require_same_tokenizer(const ModelFiles& files, const Tokenizer& tokenizer, const std::string& path) {
  const char* const what_to_do = "; put the tokenizer that the model was trained with back into the folder";
  if (tokenizer.vocab_size() != files.config.vocab_size) {
    throw Error(path + ": has " + std::to_string(tokenizer.vocab_size()) + " tokens, the model of " + files.config_path + " " +
                std::to_string(files.config.vocab_size) + what_to_do);
  }
  if (!files.tokenizer) {
    log_warning(files.weights_path + ": does not record its tokenizer; that it is the one of " + path + " is not checked");
  } else if (*files.tokenizer != hex(tokenizer.hash())) {
    throw Error(path + ": is not the tokenizer of " + files.weights_path + " (its hash is " + hex(tokenizer.hash()) +
                ", the weights record " + *files.tokenizer + ")" + what_to_do);
  }
}

TextModel load_text_model(const std::string& folder, std::optional<torch::Dtype> dtype, torch::Device device) {
  const ProfileRange range(ProfileLevel::phases, "load model");
  const ModelFiles files = read_model_files(folder);
  TextModel loaded;
  loaded.tokenizer = make_tokenizer(folder);
  require_same_tokenizer(files, *loaded.tokenizer, vocabulary_file(folder));
  const LoadedModel weights = load_model(folder, dtype, device);
  loaded.model = weights.model;
  const std::string both = weights.hash + hex(loaded.tokenizer->hash());
  loaded.hash = xxh3_128(std::as_bytes(std::span(both))).hex();
  return loaded;
}

}  // namespace based
