// Drafts from the sequence's own text.
#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "based/generate/drafting.h"
#include "based/kernels/common/random_bits.h"

namespace based {
namespace {

constexpr std::array<size_t, 3> kGramLengths = {4, 3, 2};  // the longest is looked up first

// The place of the latest occurrence of each n-gram of a text. The tables are hashed without chains: a newer gram replaces an older one,
// and a place is compared with the text before it is used.
class GramIndex {
 public:
  // Up to `most` tokens that followed the latest occurrence of the text's last tokens. A draft that reaches the text's end continues with
  // its own tokens, so that a repetition is drafted beyond one period.
  std::vector<int64_t> continuation(const std::vector<int64_t>& text, int64_t most) {
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

 private:
  // Adds the grams that end before the text's end.
  void add(const std::vector<int64_t>& text) {
    if (capacity_ < text.size() || text.size() < added_) {
      capacity_ = std::bit_ceil(std::max<size_t>(1024, 2 * text.size()));
      ends_.assign(kGramLengths.size() * capacity_, 0);
      added_ = 0;
    }
    for (; added_ < text.size(); ++added_)
      for (size_t i = 0; i < kGramLengths.size(); ++i)
        if (added_ >= kGramLengths.at(i)) table(i)[place(text, added_, kGramLengths.at(i))] = added_;
  }

  std::span<size_t> table(size_t i) { return std::span(ends_).subspan(i * capacity_, capacity_); }
  // The place in its table of the gram with these `length` tokens before `end`.
  size_t place(const std::vector<int64_t>& text, size_t end, size_t length) const {
    uint64_t bits = length;
    for (size_t at = end - length; at < end; ++at) bits = kernels::mixed_bits(bits + static_cast<uint64_t>(text[at]));
    return bits & (capacity_ - 1);
  }

  size_t capacity_ = 0, added_ = 0;  // places of a table; the grams that end before this token have been added
  std::vector<size_t> ends_;         // the tables, one after another: the index after a gram's last token; 0: none
};

class NgramDrafter final : public Drafter {
 public:
  void draft(std::vector<Request>& requests) override {
    for (Request& request : requests) request.drafts = indices_[request.sequence].continuation(*request.tokens, request.most);
  }
  void forget(int64_t sequence) override { indices_.erase(sequence); }

 private:
  std::map<int64_t, GramIndex> indices_;
};

}  // namespace

std::unique_ptr<Drafter> make_ngram_drafter() { return std::make_unique<NgramDrafter>(); }

}  // namespace based
