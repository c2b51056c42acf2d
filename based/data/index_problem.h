// The index problem (paper, appendix "Lower Bound for Recurrent Models"): Alice has bits x_1 … x_n. Bob is asked for some x_i and knows
// only Alice's message. As a sequence of tokens: 0 is a filler that does not occur, 1 … n are the indices i, and n + 1 and n + 2 are the
// bits 0 and 1:
//
//   position   0  1   2  3   …  2n     2n + 1  …
//   input      1 x_1  2 x_2  …  i      j           Alice's bits in order, then `queries` different indices
//   label     -100    …         x_i    x_j
//
// With told < bits, which is easier to learn, the sequence contains a random choice of Alice's bits, in order. Example i is drawn from
// stream i of the seed only: first which bits are told, then the bits, then the queries.
#pragma once
#include "based/data/mqar.h"

namespace based {

// The version of the examples: incremented when the examples of a config change. Stored results contain it.
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

void check_index(const IndexConfig& config);  // throws UsageError that names an invalid field
MqarData make_index(const IndexConfig& config);

// (1 − H(p)) N, with H the binary entropy: a lower bound on the message length of every protocol, also a randomised one, that answers N
// bits with a mean error of p. (Fano: a message has at least 1 − H(p_i) bits of information about x_i; these sum to at most its length; H
// is concave.)
double index_bound(double bits, double error);
// The inverse: the largest mean share, from 1/2 to 1, of `bits` random bits that can be answered from a message of `message_bits` bits.
double most_recall(double message_bits, double bits);

}  // namespace based
