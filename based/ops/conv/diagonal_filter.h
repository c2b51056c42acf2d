// torch.ops.based_cpp.diagonal_filter: the filter of a diagonal state-space model with complex poles (H3).
#pragma once
#include "based/ops/framework/operator.h"

namespace based::ops {

// The parameters of groups of channels. In a group h_t = a h_{t−1} + b u_t, y_t = Re Σ_p c h_t + D u_t. By the bilinear rule
// a = (1 + A dt/2) / (1 − A dt/2) and b = B dt / (1 − A dt/2), A = −exp(log_decay) + i frequency, dt = exp(log_dt). c = 2 C, since a pole
// represents its conjugate too.
struct DiagonalPoles {
  Tensor log_dt;                // [groups]
  Tensor log_decay, frequency;  // [groups, poles], poles 1..256
  Tensor B, C;                  // [groups, poles, 2], real and imaginary parts
  Tensor D;                     // [groups]
};

// Complex128 [groups, poles]: the angles of a long sequence are large, and their rounding errors in fp32 would change the filter.
struct DiscretePoles {
  Tensor a, b, c;
  Tensor powers(int64_t count) const;  // [groups, poles, count]: a^t
};
DiscretePoles discretised(const DiagonalPoles& poles);

// The filter [groups, taps], the response to one input at t = 0: Re Σ_p c b a^t, and D more at t = 0. Computed in fp64, returned in the
// type of sums. Differentiable in every tensor.
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

}  // namespace based::ops
