// SwiGLU, the gated activation of an MLP.
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

// y = h[:, :width] ⊙ SiLU(h[:, width:])
struct Swiglu {
  const void* h = nullptr;  // [rows, 2·width], contiguous
  void* y = nullptr;        // [rows, width], contiguous
  int64_t rows = 0, width = 0;
  DType dtype = DType::f32;
};

struct SwigluBackward {
  Swiglu forward;                // y ignored
  const void* grad_y = nullptr;  // [rows, width]
  void* grad_h = nullptr;        // [rows, 2·width]
};

namespace cpu {
Status swiglu_forward(const Swiglu&);
Status swiglu_backward(const SwigluBackward&);
}  // namespace cpu

namespace cuda {
Status swiglu_forward(const Swiglu&, Queue);
Status swiglu_backward(const SwigluBackward&, Queue);
}  // namespace cuda

// A device's launchers, as above.
struct SwigluLaunchers {
  Status (*forward)(const Swiglu&, Queue);
  Status (*backward)(const SwigluBackward&, Queue);
};

}  // namespace based::kernels
