// Inside of based/ops: the gated long convolution of heads of several channels by scores of queries and keys, as attention computes it:
// y = ((q kᵀ) ⊙ T) v for each row and head, with T[t, s] = filter[t − s] for s ≤ t, else 0. Convolutions of the products k_i v_j need
// head_dim² channels of memory and of FFTs; the scores need `length` numbers a token and head, and are products of matrices.
#pragma once
#include "based/ops/conv/gated_long_conv.h"

namespace based::ops {

// Whether scores take less arithmetic and memory than convolutions of the products.
bool has_short_scores(const GatedLongConv& in);

// The arguments must have been checked, and q and v be given. In bf16 the scores are bf16, and sums over them are fp32's.
Tensor gated_long_conv_by_scores(const GatedLongConv& in);
Result<GatedLongConvBackward> gated_long_conv_backward_by_scores(const GatedLongConvBackward& in);

}  // namespace based::ops
