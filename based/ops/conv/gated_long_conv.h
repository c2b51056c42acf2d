// torch.ops.based_cpp.gated_long_conv: a long convolution of products of keys and values, read out by queries, as in H3 and Hyena.
#pragma once
#include <tuple>
#include <vector>

#include "based/ops/framework/operator.h"

namespace based::ops {

// For each head of head_dim = channels / heads channels, over the tokens s ≤ t of a row:
//   y_t[j] = Σ_i q_t[i] Σ_s filter[head, t − s] k_s[i] v_s[j]
// q, k, v and y [tokens, channels] may be column slices of a wider tensor. q and v may be absent where heads have one channel, which means
// 1; without both this is the long convolution. filter [heads, taps] is of the type of sums, fp32 or fp64; rows have `length` tokens each.
// On a GPU products are in TF32 where those of matrices are. Differentiable.
Tensor gated_long_conv(const OptionalTensor& q, const Tensor& k, const OptionalTensor& v, const Tensor& filter, int64_t length);
Tensor gated_long_conv_reference(const OptionalTensor& q, const Tensor& k, const OptionalTensor& v, const Tensor& filter, int64_t length);

// The same for packed rows of any lengths with the offsets `starts`.
Tensor gated_long_conv(const OptionalTensor& q, const Tensor& k, const OptionalTensor& v, const Tensor& filter,
                       const std::vector<int64_t>& starts);

// The operators.
struct GatedLongConv {
  const Tensor& k;
  const Tensor& filter;
  const OptionalTensor& q;
  const OptionalTensor& v;
  int64_t length;
  BASED_OPERATOR("gated_long_conv -> y", k, filter, q, v, length)
};
struct GatedLongConvBackward {
  const Tensor& grad_y;
  GatedLongConv forward;
  BASED_OPERATOR("gated_long_conv_backward -> grad_k, grad_filter, grad_q, grad_v", grad_y, forward.k, forward.filter, forward.q, forward.v,
                 forward.length)
};

}  // namespace based::ops
