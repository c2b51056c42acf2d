#include "based/kernels/linear/linear.h"

#include <algorithm>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/linear/cpu/linear_simd.h"

namespace based::kernels::cpu {

Status linear(const Linear& p) {
  if (p.rows < 0 || p.in < 0 || p.out < 0) return {"linear: sizes must not be negative"};
  if (p.rows == 0 || p.out == 0) return {};
  if (!p.y || (p.in > 0 && (!p.x || !p.weight))) return {"linear: x, weight and y must be given"};
  if (p.x_stride < p.in || p.weight_stride < p.in || p.y_stride < p.out) return {"linear: a stride is shorter than its row"};
  // Waking a thread costs a few microseconds, the time in which one thread reads about this many bytes or does the equivalent arithmetic.
  constexpr int64_t bytes_worth_a_thread = 64 * 1024;
  const int64_t blocks = (p.out + linear_columns - 1) / linear_columns;
  const int64_t block_cost = std::max<int64_t>(1, linear_columns * p.in * (dtype_size(p.dtype) + p.rows / 2));
  parallel_for(blocks, std::max<int64_t>(1, bytes_worth_a_thread / block_cost), [&](int64_t begin, int64_t end) {
    BASED_DISPATCH(linear_range, p, begin * linear_columns, std::min(p.out, end * linear_columns));
  });
  return {};
}

namespace {
const DefineLaunchers<LinearLaunchers> kLinearLaunchers(Device::cpu,
                                                        {.supports = [](const Linear&) { return true; }, .forward = on_cpu<linear>});
}

}  // namespace based::kernels::cpu
