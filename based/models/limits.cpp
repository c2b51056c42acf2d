#include "based/models/limits.h"

namespace based {

void require_positions(const ModelConfig& config, int64_t tokens, const std::string& what) {
  if (config.max_positions == 0 || tokens <= config.max_positions) return;
  throw Error(what + ": " + std::to_string(tokens) + " positions are needed, and the model has learnt " +
              std::to_string(config.max_positions) + " (max_positions); take fewer tokens");
}

void require_ids(const ModelConfig& config, std::span<const int64_t> ids, const std::string& what) {
  for (const int64_t id : ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    throw Error(what + ": token id " + std::to_string(id) + " is outside the model's vocabulary of " + std::to_string(config.vocab_size));
  }
}

}  // namespace based
