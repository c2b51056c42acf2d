#include "based/kernels/norm/rms_norm.h"

#include <algorithm>
#include <limits>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/norm/cpu/rms_norm_simd.h"

namespace based::kernels::cpu {
namespace {

// Sums over rows consist of this many partial sums for any number of threads, so that their bits do not depend on it.
constexpr int64_t row_parts = 16;

Status check(const RmsNorm& p) {
  if (p.rows < 0 || p.width < 0) return {"rms_norm: sizes must not be negative"};
  if (p.rows * p.width > 0 && ((!p.x && !(p.add && p.sum)) || !p.weight)) return {"rms_norm: x, or add and sum, and weight must be given"};
  return {};
}

}  // namespace

Status rms_norm_forward(const RmsNorm& p) {
  if (Status status = check(p); !status.ok()) return status;
  if (p.rows == 0 || p.width == 0) return {};
  if (!p.y) return {"rms_norm: y must be given"};
  parallel_rows(p.rows, p.width, [&](int64_t begin, int64_t end) { BASED_DISPATCH(rms_norm_rows, p, begin, end); });
  return {};
}

int64_t rms_norm_backward_scratch(const RmsNormBackward& b) { return row_parts * std::max<int64_t>(0, b.forward.width) * 4; }

Status rms_norm_backward(const RmsNormBackward& b, void* scratch) {
  const RmsNorm& p = b.forward;
  if (Status status = check(p); !status.ok()) return status;
  if (p.width == 0) return {};
  if (p.add || p.deferred) return {"rms_norm: the backward takes the sum as x, and no add"};
  if (!b.grad_weight || !scratch) return {"rms_norm: grad_weight and scratch must be given"};
  if (p.rows > 0 && (!p.inverse_rms || !b.grad_y || !(b.grad_x || b.grad_add)))
    return {"rms_norm: inverse_rms, grad_y and grad_x or grad_add must be given"};
  float* parts = static_cast<float*>(scratch);
  const int64_t each = (p.rows + row_parts - 1) / row_parts;
  parallel_rows(row_parts, p.width * std::max<int64_t>(1, each), [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      BASED_DISPATCH(rms_norm_backward_rows, b, std::min(p.rows, part * each), std::min(p.rows, (part + 1) * each), parts + part * p.width);
  });
  for (int64_t i = 0; i < p.width; ++i) {
    float sum = 0;
    for (int64_t part = 0; part < row_parts; ++part) sum += parts[part * p.width + i];
    b.grad_weight[i] = sum;
  }
  return {};
}

namespace {
const DefineLaunchers<RmsNormLaunchers> kRmsNormLaunchers(Device::cpu, {.forward = on_cpu<rms_norm_forward>,
                                                                        .backward_scratch = rms_norm_backward_scratch,
                                                                        .backward = on_cpu<rms_norm_backward>,
                                                                        .max_width = std::numeric_limits<int64_t>::max()});
}

}  // namespace based::kernels::cpu
