// Text around token ids: prompts in, whole characters out, an end at a stop string.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "based/data/tokenizer.h"

namespace based {

// The tokenizer's ids as the models take them.
std::vector<int64_t> encode_ids(const Tokenizer& tokenizer, std::string_view text);

// Generated tokens as text. Holds back what may be the beginning of a stop string or of a character, so that nothing given out is taken
// back.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops);

  std::string push(int64_t id);  // text that is certain now
  std::string finish();          // the rest; nothing where a stop string was met
  bool stopped() const { return stopped_; }

 private:
  std::string release(const std::string& text);
  IncrementalDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace based
