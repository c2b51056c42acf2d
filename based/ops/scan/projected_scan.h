// Mamba's layer between its outer projections: the short convolution, the projections to the scan's dt, B and C, and the scan.
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

struct ProjectedScanInputs {
  Tensor xz;                 // [tokens, 2·channels]: the convolution's input, then the gate
  Tensor conv_weight;        // [channels, taps]
  OptionalTensor conv_bias;  // [channels]
  Tensor x_weight;           // [rank + 2·state_size, channels]: projects the convolution's output to dt's low-rank form, B and C
  Tensor dt_weight;          // [channels, rank]
  Tensor A_log;              // [channels, state_size]
  Tensor D, dt_bias;         // [channels]
};

// y [tokens, channels] of packed rows that start from zero, cu_seqlens int64 [rows + 1]: with [x, z] = xz, u = silu(conv(x)) and
// [dt, B, C] = u·x_weightᵀ, the y of selective_scan(u, dt·dt_weightᵀ, A_log, B, C, D, z, dt_bias). Differentiable in every tensor but
// cu_seqlens, once. On a GPU and in fp32 the gradients of x and z are written to one tensor, and those of u are added by a product.
Tensor projected_scan(const ProjectedScanInputs& inputs, const Tensor& cu_seqlens);

}  // namespace based::ops
