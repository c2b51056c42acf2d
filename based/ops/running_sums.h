// Inside of based/ops: what linear attentions in ATen share. Their sums Σ k vᵀ and Σ k are one, since v has a column of ones behind it,
// then zeros up to a multiple of four columns, so that rows of products lie in whole 16 bytes of fp32: `width` columns in all.
#pragma once
#include <functional>

#include "based/ops/operator.h"

namespace based::ops {

// One run of rows of equal length.
struct SumsOfRun {
  Tensor q, k;              // [rows, heads, length, …]
  Tensor v;                 // [rows, heads, length, width]
  Tensor state;             // [rows, heads, features, width]; undefined: zero
  bool keeps_state = true;  // false: nobody asks for the state after it
};
struct RunResult {
  Tensor sums;   // [rows, heads, length, width]
  Tensor state;  // after the run; undefined: zero, or not asked for
};
using RunForm = std::function<RunResult(const SumsOfRun&)>;

// Packed rows, in a type for sums but for v: q, k [tokens, heads, width], v [tokens, heads, head_dim].
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
  Tensor kv_state, k_state;  // [rows, heads, features, head_dim] and [rows, heads, features], rows 0 where no state is asked for
  Tensor denominator;        // [tokens, heads], without eps
};
AttentionSums over_runs(const PackedSums& in, const RunForm& form);

// A form of chunks, at most `chunk` tokens each, one after another: the state after one is the next one's.
RunResult by_chunks(const SumsOfRun& in, int64_t chunk, const RunForm& form);

}  // namespace based::ops
