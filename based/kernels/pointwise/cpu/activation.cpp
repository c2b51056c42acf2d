#include "based/kernels/pointwise/activation.h"

#include <algorithm>

#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/pointwise/cpu/activation_simd.h"

namespace based::kernels::cpu {

Status activate(const Activate& p) {
  if (p.rows < 0 || p.width < 0) return {"activate: sizes must not be negative"};
  if (p.rows == 0 || p.width == 0) return {};
  if (!p.x || !p.y) return {"activate: x and y must be given"};
  // Starting a second thread costs a few microseconds, in which one thread works through about this many numbers.
  constexpr int64_t numbers_worth_a_thread = 16 * 1024;
  parallel_for(p.rows, std::max<int64_t>(1, numbers_worth_a_thread / p.width),
               [&](int64_t begin, int64_t end) { BASED_DISPATCH(activate_rows, p, begin, end); });
  return {};
}

namespace {
const DefineLaunchers<ActivationLaunchers> kActivationLaunchers(Device::cpu, {.activate = on_cpu<activate>});
}

}  // namespace based::kernels::cpu
