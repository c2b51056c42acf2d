// The forms of the linear layer that linear() chooses from.
#pragma once
#include "based/kernels/linear.h"

namespace based::kernels::cuda::detail {

// Up to 128 rows in bf16 on Hopper, where faster than a library: products by wgmma, sums shared by a cluster.
bool linear_sm90_supports(const Linear&);
Status linear_sm90(const Linear&, Stream);
// The same with outputs that come in two halves, y = the first times the SiLU of the second; y_stride a multiple of 8.
bool linear_swiglu_sm90_supports(const Linear&);
Status linear_swiglu_sm90(const Linear&, Stream);

}  // namespace based::kernels::cuda::detail
