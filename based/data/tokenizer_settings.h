// The settings of tokenizer.json besides its tokens and merges.
#pragma once
#include <string>

#include "based/core/json.h"

namespace based {

// Throws Error as "<source>: <setting>: reason and remedy" for every setting that changes token ids or their text and is not implemented
// here, and for every unknown setting. The accepted settings describe a byte-level BPE without truncation or padding. Most were compared
// with the behaviour of the Python library `tokenizers`.
void refuse_other_settings(const Json& root, const std::string& source);

}  // namespace based
