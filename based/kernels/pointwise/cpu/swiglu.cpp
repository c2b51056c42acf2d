#include "based/kernels/pointwise/swiglu.h"

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/pointwise/cpu/swiglu_simd.h"

namespace based::kernels::cpu {

Status swiglu_forward(const Swiglu& p) {
  if (p.rows < 0 || p.width < 0) return {"swiglu: sizes must not be negative"};
  if (p.rows * p.width > 0 && (!p.h || !p.y)) return {"swiglu: h and y must be given"};
  parallel_rows(p.rows, 2 * p.width, [&](int64_t begin, int64_t end) { BASED_DISPATCH(swiglu_rows, p, begin, end); });
  return {};
}

Status swiglu_backward(const SwigluBackward& b) {
  const Swiglu& p = b.forward;
  if (p.rows < 0 || p.width < 0) return {"swiglu: sizes must not be negative"};
  if (p.rows * p.width > 0 && (!p.h || !b.grad_y || !b.grad_h)) return {"swiglu: h, grad_y and grad_h must be given"};
  parallel_rows(p.rows, 3 * p.width, [&](int64_t begin, int64_t end) { BASED_DISPATCH(swiglu_backward_rows, b, begin, end); });
  return {};
}

namespace {
const DefineLaunchers<SwigluLaunchers> kSwigluLaunchers(Device::cpu,
                                                        {.forward = on_cpu<swiglu_forward>, .backward = on_cpu<swiglu_backward>});
}

}  // namespace based::kernels::cpu
