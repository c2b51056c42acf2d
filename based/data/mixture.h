// Several token sets, delivered in proportion to their weights.
//
// The order is a fixed interleaving: place p of the order belongs to set k at index i of that set, and both are computed from p alone.
// The first set takes floor(n·r) of the first n places, where r is its share of the weights; the remaining places are divided among the
// remaining sets by the same rule. So after n places every set has been given its share n·weight/Σweights, to within the number of sets,
// for any n, and a position needs no counts to be resumed from.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "based/data/shards.h"

namespace based {

struct WeightedSet {
  std::shared_ptr<const TokenDataset> data;
  double weight = 1;
};

class TokenMixture {
 public:
  // Throws UsageError if there is no set or a weight is not a positive number, and Error if two sets have different tokenizers.
  explicit TokenMixture(std::vector<WeightedSet> sets);

  const std::vector<WeightedSet>& sets() const { return sets_; }
  int64_t tokens() const;  // the sum over all sets
  uint64_t hash() const;   // covers the sets and their weights; for one set, the set's own hash

  struct Place {
    size_t set = 0;
    int64_t index = 0;  // the number of earlier places that belong to this set
  };
  Place place(int64_t position) const;  // position >= 0

 private:
  std::vector<WeightedSet> sets_;
  std::vector<uint64_t> shares_;  // each set's weight over the sum of its own and all later weights, in units of 2^-52
};

}  // namespace based
