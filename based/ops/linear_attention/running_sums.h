// Internal to based/ops: the running sums that linear attentions in ATen share. The sums Σ k vᵀ and Σ k are one tensor: v is followed by a
// column of ones, then by zeros up to a multiple of four columns, so that rows of products are whole units of 16 bytes in fp32. `width` is
// the number of all these columns.
#pragma once
#include <functional>

#include "based/ops/framework/operator.h"

namespace based::ops {

// One run of rows of equal length.
struct SumsOfRun {
  Tensor q, k;              // [rows, heads, length, …]
  Tensor v;                 // [rows, heads, length, width]
  Tensor state;             // [rows, heads, features, width]; undefined: zero
  bool keeps_state = true;  // false: the state after the run is not computed
};
struct RunResult {
  Tensor sums;   // [rows, heads, length, width]
  Tensor state;  // after the run; undefined: zero, or not computed
};
using RunForm = std::function<RunResult(const SumsOfRun&)>;

// Packed rows: q, k [tokens, heads, width] in the type of sums, v [tokens, heads, head_dim] in any type.
struct PackedSums {
  const char* op;
  Tensor q, k, v;
  const Tensor& cu_seqlens;
  const OptionalTensor &initial_kv_state, &initial_k_state;
  int64_t features;
  double eps = 0;  // added to the denominator
  bool final_state = true;
};
struct AttentionSums {
  Tensor y;                  // in v's type
  Tensor kv_state, k_state;  // [rows, heads, features, head_dim] and [rows, heads, features], no rows without final_state
  Tensor denominator;        // [tokens, heads], without eps
};
AttentionSums over_runs(const PackedSums& in, const RunForm& form);

// Applies `form` to chunks of at most `chunk` tokens, one after the other: each starts from the state after the one before.
RunResult by_chunks(const SumsOfRun& in, int64_t chunk, const RunForm& form);

}  // namespace based::ops
