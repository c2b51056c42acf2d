// Without torch: the checks of linear attention and the kernels' arguments, from tensors of LibTorch or of its stable interface. Op is a
// struct with the members of the operators' structs that a function uses.
#pragma once
#include <cmath>

#include "based/kernels/linear_attention/linear_attention.h"
#include "based/ops/framework/checks.h"

namespace based::ops {

// Shapes, types and devices of q, k and v, and eps. Throws Error.
template <class Op>
void check_linear_attention_inputs(const char* op, const Op& in) {
  require_floating(op, "q", in.q);
  require_shape(op, "q", in.q, {-1, -1, -1});
  require(in.q.size(2) >= 1, op, "features must be at least 1, got ", in.q.size(2));
  require_like(op, "k", in.k, in.q);
  require_like(op, "v", in.v, in.q);
  require_shape(op, "k", in.k, in.q.sizes());
  require_shape(op, "v", in.v, {in.q.size(0), in.q.size(1), -1});
  require(in.v.size(2) >= 1, op, "head_dim must be at least 1, got ", in.v.size(2));
  require(in.eps >= 0 && std::isfinite(in.eps), op, "eps must be a number of at least 0, got ", in.eps);
}

// Sums of `rows` rows or slots. Throws Error.
template <class Op, class Tensor>
void check_linear_attention_state(const char* op, const Op& in, const Tensor& kv_state, const Tensor& k_state, int64_t rows) {
  require_shape(op, "kv_state", kv_state, {rows, in.q.size(1), in.q.size(2), in.v.size(2)});
  require_shape(op, "k_state", k_state, {rows, in.q.size(1), in.q.size(2)});
  require_type(op, "kv_state", kv_state, sum_type(in.q));
  require_type(op, "k_state", k_state, sum_type(in.q));
}

// Contiguous q, k, v and cu_seqlens of rows that start from zero. The outputs and single_tf32 are not set.
template <class Op>
kernels::LinearAttention linear_attention_arguments(const Op& in) {
  kernels::LinearAttention to;
  to.q = in.q.const_data_ptr(), to.k = in.k.const_data_ptr(), to.v = in.v.const_data_ptr();
  to.row_start = in.cu_seqlens.template const_data_ptr<int64_t>();
  to.tokens = in.q.size(0), to.rows = in.cu_seqlens.size(0) - 1;
  to.heads = static_cast<int32_t>(in.q.size(1)), to.features = static_cast<int32_t>(in.q.size(2));
  to.head_dim = static_cast<int32_t>(in.v.size(2));
  to.eps = static_cast<float>(in.eps);
  to.dtype = kernel_dtype(in.q);
  return to;
}

// Contiguous tensors of a step. y is not set.
template <class Op>
kernels::LinearAttentionStep linear_attention_step_arguments(const Op& in) {
  kernels::LinearAttentionStep to;
  to.q = in.q.const_data_ptr(), to.k = in.k.const_data_ptr(), to.v = in.v.const_data_ptr();
  to.kv_state = in.kv_state.template mutable_data_ptr<float>(), to.k_state = in.k_state.template mutable_data_ptr<float>();
  to.slot = in.slots.template const_data_ptr<int64_t>();
  to.rows = in.q.size(0), to.features = in.q.size(2);
  to.heads = static_cast<int32_t>(in.q.size(1)), to.head_dim = static_cast<int32_t>(in.v.size(2));
  to.eps = static_cast<float>(in.eps);
  to.dtype = kernel_dtype(in.q);
  return to;
}

}  // namespace based::ops
