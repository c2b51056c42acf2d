// What tokenizer.json may say beside its tokens and merges.
#pragma once
#include <string>

#include "based/core/json.h"

namespace based {

// Throws Error as "<source>: <setting>: what is wrong and what to do" for every setting that changes the ids or the text of a token and
// that this tokenizer does not have, and for every one that it does not know: only a byte-level BPE of whole texts is left. Each setting
// was compared with what the Python `tokenizers` library makes of it.
void refuse_other_settings(const Json& root, const std::string& source);

}  // namespace based
