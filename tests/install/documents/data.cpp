// docs/data.md
#include <string>
#include <vector>

#include "based/data/tokenizer.h"

void encode(const std::string& text) {
#include "docs/data.md.1"
}
