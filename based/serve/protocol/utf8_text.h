// Text of replies. Models can generate any bytes; JSON is UTF-8.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace based {

// Replaces bytes that are not part of a character by U+FFFD, one for each longest beginning of a character, as Unicode recommends and as
// Python's decode(errors="replace") does.
std::string well_formed(std::string_view bytes);

// Makes well-formed text of bytes that arrive in pieces. A character that is not complete yet is held back. If it is still incomplete at
// the end, it is not part of the text, so that a text is the same in one piece and in many.
class Utf8Text {
 public:
  std::string push(std::string_view bytes);  // the characters that are complete now

 private:
  std::string held_;  // at most 3 bytes
};

// Counts characters of text that arrives as the bytes of tokens, for offsets of tokens in a text.
class CharacterCounter {
 public:
  // The index of the character that holds the first of these bytes, which follow those of earlier calls.
  int64_t push(std::string_view bytes);

 private:
  std::string held_;
  int64_t complete_ = 0;
};

}  // namespace based
