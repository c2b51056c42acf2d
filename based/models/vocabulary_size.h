// Setting of a model's vocabulary size from another source, such as the tokenizer.
#pragma once
#include <string>

#include "based/core/config.h"

namespace based {

// Sets vocab_size in a model's table (model_table, models/config.h) to `size`, the size of `source` ("the tokenizer"). Throws UsageError
// with both numbers if the table specifies another size. A preset's size is overridden, with a log message.
void set_vocabulary_size(Config& model, int64_t size, const std::string& source);

}  // namespace based
