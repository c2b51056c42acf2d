#include "based/data/mixture.h"

#include <bit>
#include <cmath>
#include <span>

#include "based/core/hash.h"
#include "based/core/text.h"

namespace based {
namespace {

__extension__ using WideProduct = unsigned __int128;
constexpr int kShareBits = 52;

// floor(count · share), where `share` is in units of 2^-52.
int64_t share_of(int64_t count, uint64_t share) { return static_cast<int64_t>(static_cast<WideProduct>(count) * share >> kShareBits); }

}  // namespace

TokenMixture::TokenMixture(std::vector<WeightedSet> sets) : sets_(std::move(sets)), shares_(sets_.size()) {
  if (sets_.empty()) throw UsageError("data: there must be at least one set of tokens");
  double rest = 0;  // the weights from this set on
  for (size_t k = sets_.size(); k-- > 0;) {
    const WeightedSet& set = sets_[k];
    if (!std::isfinite(set.weight) || set.weight <= 0) {
      throw UsageError("data: the weight of " + set.data->path() + " must be a positive number, got " + std::to_string(set.weight));
    }
    rest += set.weight;
    shares_[k] = static_cast<uint64_t>(std::ldexp(set.weight / rest, kShareBits));
    if (set.data->tokenizer_hash() != sets_.front().data->tokenizer_hash()) {
      throw Error(set.data->path() + ": packed with another tokenizer (hash " + hex(set.data->tokenizer_hash()) + ") than " +
                  sets_.front().data->path() + " (hash " + hex(sets_.front().data->tokenizer_hash()) + "); pack it again");
    }
  }
  shares_.back() = uint64_t{1} << kShareBits;
}

int64_t TokenMixture::tokens() const {
  int64_t sum = 0;
  for (const WeightedSet& set : sets_) sum += set.data->tokens();
  return sum;
}

uint64_t TokenMixture::hash() const {
  if (sets_.size() == 1) return sets_.front().data->hash();
  std::vector<uint64_t> parts;
  for (const WeightedSet& set : sets_) {
    parts.push_back(set.data->hash());
    parts.push_back(std::bit_cast<uint64_t>(set.weight));
  }
  return xxh3_64(std::as_bytes(std::span(parts)));
}

TokenMixture::Place TokenMixture::place(int64_t position) const {
  BASED_ASSERT(position >= 0);
  size_t set = 0;
  for (;; ++set) {  // `position` counts the places that are left for this set and the sets after it
    const int64_t earlier = share_of(position, shares_[set]);
    if (share_of(position + 1, shares_[set]) > earlier) return {set, earlier};
    position -= earlier;
  }
}

}  // namespace based
