#include "based/kernels/training/dropout.h"

#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/training/cpu/dropout_simd.h"

namespace based::kernels::cpu {

Status dropout(const DropElements& p) {
  if (p.count < 0) return {"dropout: count must not be negative"};
  if (p.count == 0) return {};
  if (!p.x || !p.y || !p.step) return {"dropout: x, y and step must be given"};
  const uint64_t key = dropout_key(static_cast<uint64_t>(p.seed), static_cast<uint64_t>(*p.step), static_cast<uint64_t>(p.place),
                                   static_cast<uint64_t>(p.first_element));
  // Starting a second thread costs a few microseconds, in which one thread works through about this many numbers.
  constexpr int64_t numbers_worth_a_thread = 8 * 1024;
  parallel_for(p.count, numbers_worth_a_thread, [&](int64_t begin, int64_t end) { BASED_DISPATCH(drop_elements, p, key, begin, end); });
  return {};
}

namespace {
const DefineLaunchers<DropoutLaunchers> kDropoutLaunchers(Device::cpu, {.dropout = on_cpu<dropout>});
}

}  // namespace based::kernels::cpu
