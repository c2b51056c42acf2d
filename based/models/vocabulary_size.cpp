#include "based/models/vocabulary_size.h"

#include "based/core/log.h"
#include "based/models/config.h"

namespace based {

void set_vocabulary_size(Config& model, int64_t size, const std::string& source) {
  const std::string source_size = source + " has " + std::to_string(size) + " tokens";
  if (const Config* given = model.find("vocab_size")) {
    const auto* number = std::get_if<int64_t>(&given->value());
    if (number == nullptr || *number != size)
      throw UsageError(given->where() + "model.vocab_size is " + given->to_json(-1) + ", but " + source_size +
                       ": leave the key out, or give that number; rows beyond the vocabulary are model.pad_vocab_multiple's");
  } else if (model.find("preset") != nullptr) {
    const int64_t preset = read_model_config(model).vocab_size;
    if (preset != size)
      log_info("the vocabulary of the preset has " + std::to_string(preset) + " tokens, and " + source_size + ", which the model takes");
  }
  model.set("vocab_size", Config(size));
}

}  // namespace based
