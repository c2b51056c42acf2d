// The index problem (paper, appendix "Lower Bound for Recurrent Models"): Alice has bits x_1 … x_n, Bob is asked for some x_i and has only
// what Alice sent. As text: token 0 is a filler that does not occur, i is 1 … n, and the bits are n + 1 and n + 2:
//
//   position   0  1   2  3   …  2n     2n + 1  …
//   input      1 x_1  2 x_2  …  i      j           Alice's bits in order, then `queries` different indices
//   label     -100    …         x_i    x_j
//
// Where she tells fewer than all, which is easier to learn from, it is a random choice of them, in order. Example i is drawn from stream i
// of the seed alone: which bits she tells, the bits, then the queries.
#pragma once
#include "based/data/mqar.h"

namespace based {

// Raised where the examples of a config change; kept results name it.
inline constexpr int64_t index_version = 1;

struct IndexConfig {
  int64_t bits = 64;
  int64_t told = 64;
  int64_t queries = 16;
  int64_t examples = 1000;
  int64_t seed = 0;

  int64_t vocab_size() const { return bits + 3; }
  int64_t length() const { return 2 * told + queries; }
};

void check_index(const IndexConfig& config);  // throws UsageError naming the field that cannot be
MqarData make_index(const IndexConfig& config);

// (1 − H(p)) N, H the entropy of a bit: message bits without which no protocol, not even a random one, answers N bits with a mean error of
// p. (Fano: what a message tells of x_i is at least 1 − H(p_i), these add up to at most its length, and H is concave.)
double index_bound(double bits, double error);
// The reverse: the most of `bits` random bits, from 1/2 to 1, that anyone answers in the mean who knows a message of `message_bits` alone.
double most_recall(double message_bits, double bits);

}  // namespace based
