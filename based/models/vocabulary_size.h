// The size of a model's vocabulary, where something else decides it.
#pragma once
#include <string>

#include "based/core/config.h"

namespace based {

// Sets vocab_size in a model's table (model_table, models/config.h) to `size`, which is that of `source`: "the tokenizer". Throws
// UsageError, which names both numbers, where the table gives another one. The one of a preset gives way, which a message says.
void set_vocabulary_size(Config& model, int64_t size, const std::string& source);

}  // namespace based
