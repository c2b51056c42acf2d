// Conversion between text and token ids: prompts to ids, and generated ids to whole characters up to a stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "based/data/tokenizer.h"

namespace based {

// The tokenizer's ids as the models take them.
std::vector<int64_t> encode_ids(const Tokenizer& tokenizer, std::string_view text);

// Converts generated tokens to text. Bytes that may begin a stop string or an incomplete character are held back, so that returned text is
// final.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops);

  std::string push(int64_t id);  // the text that is final after this token
  std::string finish();          // the rest; empty if a stop string was found
  bool stopped() const { return stopped_; }

 private:
  std::string release(const std::string& text);
  IncrementalDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace based
