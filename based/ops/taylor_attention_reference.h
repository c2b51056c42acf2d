// Inside of based/ops: what the schema's registrations and the ATen forms of Taylor attention share.
#pragma once
#include "based/ops/taylor_attention.h"

namespace based::ops {

struct TaylorArguments {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Tensor& cu_seqlens;
  std::optional<Tensor> initial_kv_state, initial_k_state;
  std::optional<Tensor> decay;
};

struct TaylorForward {
  Tensor y, kv_state, k_state;
  Tensor denominator;  // [tokens, heads]
};

// Shapes, types and ranges, without reading device memory. Throws Error.
void check_taylor_attention(const char* op, const TaylorArguments& in);
void check_taylor_attention_step(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& kv_state,
                                 const Tensor& k_state, const Tensor& slots, const std::optional<Tensor>& decay);

TaylorForward taylor_attention_chunked(const TaylorArguments& in);
Tensor taylor_attention_step_reference(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                                       const std::optional<Tensor>& decay);

}  // namespace based::ops
