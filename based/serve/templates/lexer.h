// Splits a template into text and tags, and tags into words.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "based/core/error.h"

namespace based::chat_template {

struct Word {
  enum class Kind { name, text, whole, real, symbol, end };
  Kind kind = Kind::end;
  std::string text;  // the decoded text of a string, else the spelling
  size_t at = 0;     // offset in Source::text
};

struct Piece {
  enum class Kind { text, output, statement };
  Kind kind = Kind::text;
  std::string text;         // for `text`
  std::vector<Word> words;  // for a tag; the last one is `end`
  size_t at = 0;
};

// A template's name and its text, with \n as the only line break.
struct Source {
  std::string name, text;

  std::string place(size_t at) const;                                  // "<name>:<line>:<column>", both counted from 1
  [[noreturn]] void fail(size_t at, const std::string& reason) const;  // throws Error
};

Source make_source(std::string_view text, std::string name);
// Applies trim_blocks, lstrip_blocks and the signs of white space control. Drops comments.
std::vector<Piece> split_source(const Source& source);

}  // namespace based::chat_template
