// torch.ops.based.diagonal_filter: the filter of a diagonal state-space model with complex poles (H3).
#pragma once
#include "based/kernels/diagonal_filter.h"
#include "based/ops/operator.h"

namespace based::ops {

// Of a group of channels h_t = a h_{t−1} + b u_t, y_t = Re Σ_p c h_t + D u_t. By the bilinear rule a = (1 + A dt/2) / (1 − A dt/2) and
// b = B dt / (1 − A dt/2), A = −exp(log_decay) + i frequency, dt = exp(log_dt); c = 2 C: a pole stands for itself and its conjugate.
struct DiagonalPoles {
  Tensor log_dt;                // [groups]
  Tensor log_decay, frequency;  // [groups, poles], poles 1..256
  Tensor B, C;                  // [groups, poles, 2], real and imaginary parts
  Tensor D;                     // [groups]
};

// Complex128 [groups, poles]: the angles of long texts are large, and small differences of them are heard.
struct DiscretePoles {
  Tensor a, b, c;
  Tensor powers(int64_t count) const;  // [groups, poles, count]: a^t
};
DiscretePoles discretised(const DiagonalPoles& poles);

// What an input gives to the `taps` outputs from its own on: Re Σ_p c b a^t, and D at t = 0. [groups, taps] in the type of sums, which are
// themselves fp64. Differentiable in every tensor.
Tensor diagonal_filter(const DiagonalPoles& poles, int64_t taps);
Tensor diagonal_filter_reference(const DiagonalPoles& poles, int64_t taps);

// The operators.
struct DiagonalFilter {
  DiagonalPoles poles;
  int64_t taps;
  BASED_OPERATOR("diagonal_filter -> filter", poles.log_dt, poles.log_decay, poles.frequency, poles.B, poles.C, poles.D, taps)
};
struct DiagonalFilterBackward {
  const Tensor& grad_filter;
  DiagonalFilter forward;
  BASED_OPERATOR("diagonal_filter_backward -> grad_log_dt, grad_log_decay, grad_frequency, grad_B, grad_C, grad_D", grad_filter,
                 forward.poles.log_dt, forward.poles.log_decay, forward.poles.frequency, forward.poles.B, forward.poles.C, forward.poles.D,
                 forward.taps)
};

// Them with a device's kernels; the reference runs for other types than fp32 and bf16.
struct DiagonalFilterKernels {
  kernels::Status (*forward)(const kernels::DiagonalFilter&);
  kernels::Status (*backward)(const kernels::DiagonalFilterBackward&);
};
Tensor diagonal_filter_with(const DiagonalFilterKernels& table, const DiagonalFilter& in);
Result<DiagonalFilterBackward> diagonal_filter_backward_with(const DiagonalFilterKernels& table, const DiagonalFilterBackward& in);

}  // namespace based::ops
