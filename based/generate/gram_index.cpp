#include "based/generate/gram_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "based/kernels/common/random_bits.h"

namespace based {
namespace {

constexpr std::array<size_t, 3> kGramLengths = {4, 3, 2};  // the longest is looked up first

}  // namespace

std::vector<int64_t> GramIndex::continuation(std::span<const int64_t> text, int64_t most) {
  add(text);
  std::vector<int64_t> drafts;
  for (size_t i = 0; i < kGramLengths.size(); ++i) {
    const size_t length = kGramLengths.at(i);
    if (text.size() <= length) continue;
    const size_t end = table(i)[place(text, text.size(), length)];
    if (end < length ||
        !std::equal(text.end() - static_cast<int64_t>(length), text.end(), text.begin() + static_cast<int64_t>(end - length)))
      continue;
    for (size_t at = end; drafts.size() < static_cast<size_t>(most); ++at)
      drafts.push_back(at < text.size() ? text[at] : drafts[at - text.size()]);
    break;
  }
  return drafts;
}

// Adds the grams that end before the text's end. The capacity depends on the text's length alone, and so does which grams are replaced.
void GramIndex::add(std::span<const int64_t> text) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(1024, 2 * text.size()));
  if (capacity_ != capacity || text.size() < added_) {
    capacity_ = capacity;
    ends_.assign(kGramLengths.size() * capacity_, 0);
    added_ = 0;
  }
  for (; added_ < text.size(); ++added_)
    for (size_t i = 0; i < kGramLengths.size(); ++i)
      if (added_ >= kGramLengths.at(i)) table(i)[place(text, added_, kGramLengths.at(i))] = added_;
}

// The place in its table of the gram with these `length` tokens before `end`.
size_t GramIndex::place(std::span<const int64_t> text, size_t end, size_t length) const {
  uint64_t bits = length;
  for (size_t at = end - length; at < end; ++at) bits = kernels::mixed_bits(bits + static_cast<uint64_t>(text[at]));
  return bits & (capacity_ - 1);
}

bool TextRepetition::repeats(std::span<const int64_t> text) {
  constexpr size_t block = kBlock;
  const size_t first = text.size() / block * block;  // token of the next token's block
  if (text.size() < counted_ || counted_ + block < first) {
    before_ = current_ = 0;
    counted_ = first < block ? 0 : first - block;  // earlier blocks do not matter
  }
  for (; counted_ < text.size(); ++counted_) {
    if (counted_ % block == 0) before_ = std::exchange(current_, 0);
    const std::vector<int64_t> predicted = index_.continuation(text.first(counted_), 1);
    current_ += !predicted.empty() && predicted[0] == text[counted_] ? 1 : 0;
  }
  const int64_t of_block = text.size() % block == 0 ? current_ : before_;
  return first > 0 && 2 * of_block >= kBlock;
}

}  // namespace based
