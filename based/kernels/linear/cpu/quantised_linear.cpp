#include "based/kernels/linear/quantised_linear.h"

#include <algorithm>
#include <memory>
#include <new>

#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/linear/cpu/quantised_linear_simd.h"

namespace based::kernels::cpu {
namespace {

struct FreeAligned {
  static constexpr std::align_val_t line{64};
  void operator()(float* p) const { ::operator delete(p, line); }
};

}  // namespace

Status quantised_linear(const QuantisedLinear& p) {
  if (p.rows < 0 || p.in < 0 || p.out < 0) return {"quantised_linear: sizes must not be negative"};
  if (p.form == WeightForm::int4 && p.in % kInt4Group != 0) return {"quantised_linear: int4 weights need rows of a multiple of 32"};
  if (p.rows == 0 || p.out == 0) return {};
  if (!p.y || (p.in > 0 && (!p.x || !p.weight || !p.scale))) return {"quantised_linear: x, weight, scale and y must be given"};
  if (p.x_stride < p.in || p.y_stride < p.out) return {"quantised_linear: a stride is shorter than its row"};
  // Waking a thread costs a few microseconds, the time in which one thread multiplies about this many weights.
  constexpr int64_t weights_worth_a_thread = 32 * 1024;
  const int64_t blocks = (p.out + quantised_columns - 1) / quantised_columns;
  const int64_t block_cost = std::max<int64_t>(1, quantised_columns * p.in * (1 + p.rows / 2));
  const auto bytes = static_cast<size_t>(p.rows * quantised_width(p.in)) * sizeof(float);
  const std::unique_ptr<float, FreeAligned> arranged(static_cast<float*>(::operator new(bytes, FreeAligned::line)));
  BASED_DISPATCH(quantised_linear_arrange, p, arranged.get());
  parallel_for(blocks, std::max<int64_t>(1, weights_worth_a_thread / block_cost), [&](int64_t begin, int64_t end) {
    BASED_DISPATCH(quantised_linear_range, p, arranged.get(), begin * quantised_columns, std::min(p.out, end * quantised_columns));
  });
  return {};
}

}  // namespace based::kernels::cpu
