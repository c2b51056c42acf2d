#include "based/kernels/pointwise.h"

#include <algorithm>
#include <cmath>

#include "based/kernels/cpu/isa.h"
#include "based/kernels/cpu/parallel.h"
#include "based/kernels/cpu/pointwise_simd.h"

namespace based::kernels::cpu {
namespace {

// Starting a second thread costs a few microseconds, in which one thread works through about this many numbers.
int64_t rows_worth_a_thread(int64_t width) { return std::max<int64_t>(1, 32 * 1024 / std::max<int64_t>(1, width)); }

// Sums over rows are made of this many partial sums, whatever the number of threads.
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
  parallel_for(p.rows, rows_worth_a_thread(p.width), [&](int64_t begin, int64_t end) { BASED_DISPATCH(rms_norm_rows, p, begin, end); });
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
  parallel_for(row_parts, rows_worth_a_thread(p.width * std::max<int64_t>(1, each)), [&](int64_t begin, int64_t end) {
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

Status swiglu_forward(const Swiglu& p) {
  if (p.rows < 0 || p.width < 0) return {"swiglu: sizes must not be negative"};
  if (p.rows * p.width > 0 && (!p.h || !p.y)) return {"swiglu: h and y must be given"};
  parallel_for(p.rows, rows_worth_a_thread(2 * p.width), [&](int64_t begin, int64_t end) { BASED_DISPATCH(swiglu_rows, p, begin, end); });
  return {};
}

Status swiglu_backward(const SwigluBackward& b) {
  const Swiglu& p = b.forward;
  if (p.rows < 0 || p.width < 0) return {"swiglu: sizes must not be negative"};
  if (p.rows * p.width > 0 && (!p.h || !b.grad_y || !b.grad_h)) return {"swiglu: h, grad_y and grad_h must be given"};
  parallel_for(p.rows, rows_worth_a_thread(3 * p.width),
               [&](int64_t begin, int64_t end) { BASED_DISPATCH(swiglu_backward_rows, b, begin, end); });
  return {};
}

Status rotary(const Rotary& p) {
  if (p.tokens < 0 || p.heads < 1 || p.head_dim < 1) return {"rotary: heads and head_dim must be at least 1, tokens not negative"};
  if (p.dim < 0 || p.dim % 2 != 0 || p.dim > p.head_dim || p.dim > rotary_max_dim)
    return {"rotary: dim must be even, at most head_dim and at most 256"};
  if (p.tokens > 0 && (!p.x || !p.y || !p.position)) return {"rotary: x, y and position must be given"};
  double frequency[rotary_max_dim / 2];
  for (int32_t i = 0; i < p.dim / 2; ++i) frequency[i] = std::pow(p.base, -2.0 * i / p.dim);
  parallel_for(p.tokens, rows_worth_a_thread(static_cast<int64_t>(p.heads) * p.head_dim + 16 * p.dim),
               [&](int64_t begin, int64_t end) { BASED_DISPATCH(rotary_tokens, p, frequency, begin, end); });
  return {};
}

}  // namespace based::kernels::cpu
