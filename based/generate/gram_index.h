// The n-grams of a text and where they occurred last.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace based {

// The place of the latest occurrence of each n-gram of a text. The tables are hashed without chains: a newer gram replaces an older one,
// and a place is compared with the text before it is used.
class GramIndex {
 public:
  // Up to `most` tokens that followed the latest occurrence of the text's last 4, 3 or 2 tokens. A draft that reaches the text's end
  // continues with its own tokens, so that a repetition is drafted beyond one period. The text must begin with the one of the call before,
  // or be shorter.
  std::vector<int64_t> continuation(std::span<const int64_t> text, int64_t most);

 private:
  void add(std::span<const int64_t> text);
  std::span<size_t> table(size_t i) { return std::span(ends_).subspan(i * capacity_, capacity_); }
  size_t place(std::span<const int64_t> text, size_t end, size_t length) const;

  size_t capacity_ = 0, added_ = 0;  // places of a table; the grams that end before this token have been added
  std::vector<size_t> ends_;         // the tables, one after another: the index after a gram's last token; 0: none
};

// Whether a text repeats itself, block by block of kBlock tokens.
class TextRepetition {
 public:
  static constexpr int64_t kBlock = 32;

  // Whether the block before that of the token after `text` repeats earlier text: at least half of its tokens were predicted by the grams
  // before them. False in the first block. The result depends on the text alone. A call takes the time of the tokens that `text` has more
  // than the text of the call before, if it begins with that text.
  bool repeats(std::span<const int64_t> text);
  // How many tokens may follow a text of this length in the block of the next token, at least 1.
  static int64_t left_in_block(size_t length) { return kBlock - static_cast<int64_t>(length) % kBlock; }

 private:
  GramIndex index_;
  size_t counted_ = 0;                // tokens of the text that have been compared with their prediction
  int64_t before_ = 0, current_ = 0;  // tokens that were predicted, of the last whole block and of the one at counted_
};

}  // namespace based
