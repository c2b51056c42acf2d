// Perplexity by slices, as in the Based and Zoology papers. A predicted token is in the slice AR (associative recall) if the pair of the
// token before it and itself occurred earlier in its context, and at most `threshold` times in the training tokens. All other predicted
// tokens are in the slice Other.
//
// - A context is the tokens that the model is given: a training window with all documents in it, or a part of one if documents are
//   separate. Pairs of other contexts do not count. The first occurrence of a pair in a context is always Other; occurrences may overlap.
// - Ends of documents are tokens like any other.
// - Training counts are over all consecutive pairs of a training set in its stored order, also across ends of documents and of shards, each
//   once. They are exact, in 64 bits.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "based/data/loader.h"

namespace based {

inline constexpr int64_t kSliceThreshold = 1250;  // the papers', for about 10 billion training tokens
inline constexpr int64_t kNewPair = -1;           // the training count of a pair that did not occur earlier in its context

struct SliceSum {
  int64_t tokens = 0;
  double nats = 0;  // sum of −log p

  SliceSum& operator+=(const SliceSum& other);
  std::optional<double> perplexity() const;  // exp(nats / tokens); none for an empty slice
};

// The slices for one threshold. Sums over parts of the data, or over devices, can be added.
struct SliceFigures {
  int64_t threshold = kSliceThreshold;
  SliceSum all = {}, ar = {}, other = {};

  bool is_ar(int64_t training_count) const { return training_count >= 0 && training_count <= threshold; }
  void add(double nats, int64_t training_count);  // a predicted token, with its count from Slices
  // The same for n tokens: nats [n], training_counts [n], labels [n] with kNoLabel for positions without a prediction.
  void add(std::span<const float> nats, std::span<const int64_t> training_counts, std::span<const int32_t> labels);
  SliceFigures& operator+=(const SliceFigures& other);  // the thresholds must be equal
  std::optional<double> ar_share() const;               // AR tokens / all tokens; none without tokens
};

// The pairs of one or more contexts. Pair i is (tokens[i], next[i]); its prediction is the one of next[i].
struct TokenPairs {
  std::span<const int32_t> tokens, next;    // [n]; next[i] < 0: no pair
  std::span<const int64_t> context_starts;  // ascending indices of tokens; the first context starts at 0 in any case
};
TokenPairs token_pairs(const TokenBatch& batch);  // contexts are the batch's rows, or its documents if these are separate

// The keys and values of a hash table with open addressing, for pairs of tokens.
class PairTable {
 public:
  explicit PairTable(int64_t expected = 0);
  int64_t size() const { return size_; }
  // The value of a pair, or null. Pointers are valid until the next insert().
  int64_t* find(uint64_t pair) { return slots_[slot(pair)].pair == pair ? &slots_[slot(pair)].value : nullptr; }
  const int64_t* find(uint64_t pair) const { return slots_[slot(pair)].pair == pair ? &slots_[slot(pair)].value : nullptr; }
  int64_t& insert(uint64_t pair, int64_t value);  // keeps the value of a pair that is in the table

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kEmpty;
    int64_t value = 0;
  };
  size_t slot(uint64_t pair) const;  // the pair's slot, or the empty one where it would be inserted
  void resize(int bits);

  std::vector<Slot> slots_;
  int64_t size_ = 0;
  int shift_ = 0;  // 64 − log2 of the number of slots
};

// The training counts of an evaluation set's pairs. Only pairs that occur twice in a context are counted, so memory is bounded by the
// evaluation set. First collect() all contexts, then count() the training sets, then ask for training_counts().
class Slices {
 public:
  void collect(const TokenPairs& pairs);
  // Adds the consecutive pairs of a training set, in one pass. No pair spans two sets. `progress` is called with the number of tokens read
  // so far; if it returns false, counting stops and count() returns false.
  bool count(const TokenDataset& train, const std::function<bool(int64_t)>& progress = {});
  void count(std::span<const int32_t> train);                    // a training set in memory
  void add_count(int32_t first, int32_t second, int64_t times);  // a pair that was counted elsewhere
  int64_t pairs() const { return counts_.size(); }               // pairs that are counted
  int64_t training_tokens() const { return training_tokens_; }   // tokens of all training sets

  // The training count of each pair, int64 [n], or kNewPair for the first occurrence in a context and where there is no pair. The contexts
  // must have been collected.
  std::vector<int64_t> training_counts(const TokenPairs& pairs) const;

 private:
  PairTable counts_;
  int64_t training_tokens_ = 0;
};

}  // namespace based
