// Recall as a function of the tokens' encodings: the values that the polynomials of the lower bounds must have.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "theory/p_hot.h"
#include "theory/polynomial.h"

namespace based::theory {

// The keys that a query i may match: j < i in the paper's definition, j ≤ i in the setup of its upper bound.
enum class Reach { before, up_to_itself };
// The answer to a query if several keys match: the first value or the sum of the values.
enum class Matches { first, sum };

// Keys, values and queries, each N × d.
struct RecallInstance {
  int64_t width;
  std::vector<std::vector<int64_t>> keys, values, queries;
};

// The answer to query i: the value of a matching key, or zeros if no key matches.
std::vector<int64_t> recall(const RecallInstance& instance, int64_t i, Reach reach, Matches matches);

// Bit `bit` of the answer to a query after `keys` pairs, as a function of the variables query, key 0, value 0, key 1, value 1, … of `width`
// bits each.
BooleanFunction recall_bit(int64_t width, int64_t keys, int64_t bit, Matches matches);

// 1 or 0: whether two concatenated encodings of `width` numbers each are equal.
BooleanFunction equality(int64_t width);

// The equality problem as an instance of MQAR, (u₁, 𝟙, u₁), (u₂, 𝟙, u₂), with `value` instead of 𝟙, which is not a p-hot encoding.
RecallInstance equality_instance(std::span<const int64_t> first, std::span<const int64_t> second, std::span<const int64_t> value);

// The polynomial of the equality problem in an almost p-hot encoding, in the form of the paper's proof: a product over blocks.
Polynomial equality_polynomial(const PHot& encoding);

}  // namespace based::theory
