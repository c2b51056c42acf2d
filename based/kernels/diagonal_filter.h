// The filter of a diagonal state-space model, discretised by the bilinear rule (H3, S4D). For each group of `poles` poles
//   filter[t] = Re Σ_p 2 C_p b_p a_p^t, and D more at t = 0,   a = (1 + h) / (1 − h),   b = B dt / (1 − h),
//   h = A dt / 2,   A = −exp(log_decay) + i frequency,   dt = exp(log_dt)
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

constexpr int64_t kDiagonalFilterPoles = 256;  // of a group, at most

struct DiagonalFilter {              // caller owns all memory, which is contiguous; sums are fp64
  const float* log_dt = nullptr;     // [groups]
  const float* log_decay = nullptr;  // [groups, poles]
  const float* frequency = nullptr;  // [groups, poles]
  const float* B = nullptr;          // [groups, poles, 2], real and imaginary parts
  const float* C = nullptr;          // [groups, poles, 2]
  const float* D = nullptr;          // [groups]
  float* filter = nullptr;           // [groups, taps]
  int64_t groups = 0, poles = 0, taps = 0;
};

// Gradients, the same bits every time.
struct DiagonalFilterBackward {
  DiagonalFilter forward;              // filter ignored
  const float* grad_filter = nullptr;  // [groups, taps]
  float* grad_log_dt = nullptr;        // all of them in the shape of what they belong to
  float* grad_log_decay = nullptr;
  float* grad_frequency = nullptr;
  float* grad_B = nullptr;
  float* grad_C = nullptr;
  float* grad_D = nullptr;
};

namespace cuda {
Status diagonal_filter_forward(const DiagonalFilter&, Stream);
Status diagonal_filter_backward(const DiagonalFilterBackward&, Stream);
}  // namespace cuda

}  // namespace based::kernels
