// What recall asks for, as functions of the tokens' encodings: the values that the lower bounds' polynomials must take.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "based/theory/p_hot.h"
#include "based/theory/polynomial.h"

namespace based::theory {

// Which earlier keys a query may match. The paper's definition says j < i, its upper bound's setup j ≤ i.
enum class Reach { before, up_to_itself };
// What a query gets where several keys match.
enum class Matches { first, sum };

// Rows of one width each: N × d keys, values, queries.
struct RecallInstance {
  int64_t width;
  std::vector<std::vector<int64_t>> keys, values, queries;
};

// The answer to query i: a matching key's value, or zeros where no key matches.
std::vector<int64_t> recall(const RecallInstance& instance, int64_t i, Reach reach, Matches matches);

// Bit `bit` of the answer to a query with `keys` earlier pairs, of the variables query, key 0, value 0, key 1, value 1, … of `width` bits
// each.
BooleanFunction recall_bit(int64_t width, int64_t keys, int64_t bit, Matches matches);

// Whether two encodings of `width` numbers, one behind the other, are equal: 1 or 0.
BooleanFunction equality(int64_t width);

// The equality problem's instance of MQAR, (u₁, 𝟙, u₁), (u₂, 𝟙, u₂), with `value` in the place of 𝟙, which p-hot encodings lack.
RecallInstance equality_instance(std::span<const int64_t> first, std::span<const int64_t> second, std::span<const int64_t> value);

// The equality problem's polynomial in an almost p-hot encoding, as the paper's proof writes it: a product over blocks.
Polynomial equality_polynomial(const PHot& encoding);

}  // namespace based::theory
