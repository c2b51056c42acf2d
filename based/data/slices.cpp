#include "based/data/slices.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace based {
namespace {

constexpr int kLeastTableBits = 6;
constexpr int64_t kTokensPerRead = int64_t{1} << 16;

uint64_t pair_key(int32_t first, int32_t second) {
  return uint64_t{static_cast<uint32_t>(first)} << 32 | uint64_t{static_cast<uint32_t>(second)};
}

// Calls `visit(i, key)` for every pair i that occurred earlier in its context.
template <class Visit>
void for_each_recurring_pair(const TokenPairs& pairs, Visit&& visit) {
  BASED_ASSERT(pairs.next.size() == pairs.tokens.size());
  PairTable last_context(static_cast<int64_t>(pairs.tokens.size()));  // the number of the context in which a pair occurred last
  auto start = pairs.context_starts.begin();
  int64_t context = 0;
  for (size_t i = 0; i < pairs.tokens.size(); ++i) {
    for (; start != pairs.context_starts.end() && *start <= static_cast<int64_t>(i); ++start) ++context;
    if (pairs.next[i] < 0) continue;
    const uint64_t key = pair_key(pairs.tokens[i], pairs.next[i]);
    int64_t& last = last_context.insert(key, -1);
    if (last == context) visit(i, key);
    last = context;
  }
}

}  // namespace

SliceSum& SliceSum::operator+=(const SliceSum& other) {
  tokens += other.tokens;
  nats += other.nats;
  return *this;
}

std::optional<double> SliceSum::perplexity() const {
  if (tokens == 0) return {};
  return std::exp(nats / static_cast<double>(tokens));
}

void SliceFigures::add(double nats, int64_t training_count) {
  for (SliceSum* sum : {&all, is_ar(training_count) ? &ar : &other}) ++sum->tokens, sum->nats += nats;
}

void SliceFigures::add(std::span<const float> nats, std::span<const int64_t> training_counts, std::span<const int32_t> labels) {
  BASED_ASSERT(nats.size() == labels.size() && training_counts.size() == labels.size());
  for (size_t i = 0; i < labels.size(); ++i)
    if (labels[i] != kNoLabel) add(nats[i], training_counts[i]);
}

SliceFigures& SliceFigures::operator+=(const SliceFigures& figures) {
  BASED_ASSERT(figures.threshold == threshold);
  all += figures.all;
  ar += figures.ar;
  other += figures.other;
  return *this;
}

std::optional<double> SliceFigures::ar_share() const {
  if (all.tokens == 0) return {};
  return static_cast<double>(ar.tokens) / static_cast<double>(all.tokens);
}

TokenPairs token_pairs(const TokenBatch& batch) { return {batch.tokens, batch.targets, batch.cu_seqlens}; }

PairTable::PairTable(int64_t expected) {
  resize(std::max(kLeastTableBits, static_cast<int>(std::bit_width(static_cast<uint64_t>(2 * expected)))));
}

size_t PairTable::slot(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (pair * 0x9E3779B97F4A7C15U) >> shift_;  // multiplicative hashing with 2^64 / golden ratio
  while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) slot = (slot + 1) & mask;
  return slot;
}

int64_t& PairTable::insert(uint64_t pair, int64_t value) {
  BASED_ASSERT(pair != kEmpty);
  if (2 * (size_ + 1) > static_cast<int64_t>(slots_.size())) resize(64 - shift_ + 1);
  Slot& found = slots_[slot(pair)];
  if (found.pair == kEmpty) found = {pair, value}, ++size_;
  return found.value;
}

void PairTable::resize(int bits) {
  std::vector<Slot> old(size_t{1} << bits);
  old.swap(slots_);
  shift_ = 64 - bits;
  for (const Slot& each : old)
    if (each.pair != kEmpty) slots_[slot(each.pair)] = each;
}

void Slices::collect(const TokenPairs& pairs) {
  BASED_ASSERT(training_tokens_ == 0);  // the training tokens that were counted did not count the new pairs
  for_each_recurring_pair(pairs, [&](size_t, uint64_t key) { counts_.insert(key, 0); });
}

bool Slices::count(const TokenDataset& train, const std::function<bool(int64_t)>& progress) {
  std::vector<int32_t> tokens;
  for (int64_t begin = 0; begin < train.tokens(); begin += kTokensPerRead) {
    const int64_t end = std::min(train.tokens(), begin + kTokensPerRead), first = std::max<int64_t>(0, begin - 1);
    tokens.resize(static_cast<size_t>(end - first));  // begins with the last token that was read before
    train.copy(first, tokens);
    count(tokens);
    training_tokens_ -= begin - first;
    if (progress && !progress(end)) return false;
  }
  return true;
}

void Slices::count(std::span<const int32_t> train) {
  for (size_t i = 1; i < train.size(); ++i)
    if (int64_t* times = counts_.find(pair_key(train[i - 1], train[i]))) ++*times;
  training_tokens_ += static_cast<int64_t>(train.size());
}

void Slices::add_count(int32_t first, int32_t second, int64_t times) {
  if (int64_t* count = counts_.find(pair_key(first, second))) *count += times;
}

std::vector<int64_t> Slices::training_counts(const TokenPairs& pairs) const {
  std::vector<int64_t> counts(pairs.tokens.size(), kNewPair);
  for_each_recurring_pair(pairs, [&](size_t i, uint64_t key) {
    const int64_t* count = counts_.find(key);
    BASED_ASSERT(count != nullptr);
    counts[i] = *count;
  });
  return counts;
}

}  // namespace based
