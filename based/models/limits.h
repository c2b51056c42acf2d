// Checks of a model's limits before it runs.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "based/models/config.h"

namespace based {

// Throws Error if `what`, a sequence of `tokens` tokens, is longer than the model's learned positions (max_positions).
void require_positions(const ModelConfig& config, int64_t tokens, const std::string& what);

// Throws Error that names `what` for an id outside 0 … vocab_size − 1.
void require_ids(const ModelConfig& config, std::span<const int64_t> ids, const std::string& what);

}  // namespace based
