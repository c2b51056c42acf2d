// The filter of a diagonal state-space model, discretised by the bilinear rule (H3, S4D). For each group of `poles` poles
//   filter[t] = Re Σ_p 2 C_p b_p a_p^t, plus D at t = 0,   a = (1 + h) / (1 − h),   b = B dt / (1 − h),
//   h = A dt / 2,   A = −exp(log_decay) + i frequency,   dt = exp(log_dt)
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

constexpr int64_t kDiagonalFilterPoles = 256;  // maximum number of poles per group

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

// Gradients have the same bits on every run.
struct DiagonalFilterBackward {
  DiagonalFilter forward;              // filter is ignored
  const float* grad_filter = nullptr;  // [groups, taps]
  float* grad_log_dt = nullptr;        // each gradient has the shape of its parameter
  float* grad_log_decay = nullptr;
  float* grad_frequency = nullptr;
  float* grad_B = nullptr;
  float* grad_C = nullptr;
  float* grad_D = nullptr;
};

namespace cuda {
Status diagonal_filter_forward(const DiagonalFilter&, Queue);
Status diagonal_filter_backward(const DiagonalFilterBackward&, Queue);
}  // namespace cuda

struct DiagonalFilterLaunchers {
  Status (*forward)(const DiagonalFilter&, Queue);
  Status (*backward)(const DiagonalFilterBackward&, Queue);
};

}  // namespace based::kernels
