// Linear attention as the paper's appendix defines it, (Q̄ K̄ᵀ) V with features [1, q, q ⊠ q], as five layers of BaseConv.
#pragma once
#include "based/theory/base_conv.h"

namespace based::theory {

// A linear projection uW + B of N × d: W [d, columns], B [N, columns].
struct LinearProjection {
  IntMatrix weight, bias;
};

struct LinearAttention {
  Size size;            // N × d
  int64_t feature_dim;  // d'
  LinearProjection query, key, value;
  bool causal = false;  // sums over keys up to the query's row alone, which the definition does not

  int64_t features() const { return 1 + feature_dim + feature_dim * feature_dim; }
};

// N' = N rows and 2(d' + d'²) + d(1 + d' + d'²) columns.
Program linear_attention_program(const LinearAttention& of);
// The definition, with K̄ = [1, K, K ⊠ K].
IntMatrix linear_attention(const LinearAttention& of, const IntMatrix& u);

}  // namespace based::theory
