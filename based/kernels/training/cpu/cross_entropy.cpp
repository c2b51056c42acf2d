#include "based/kernels/training/cross_entropy.h"

#include <algorithm>

#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/training/cpu/cross_entropy_simd.h"

namespace based::kernels::cpu {

Status cross_entropy(const CrossEntropy& p) {
  if (p.rows < 0 || p.vocab < 1) return {"cross_entropy: rows must not be negative, vocab at least 1"};
  if (p.rows > 0 && (!p.logits || !p.label || !p.loss)) return {"cross_entropy: logits, label and loss must be given"};
  if (p.half_gradient) return {"cross_entropy: only the CUDA kernel can write a gradient in fp16"};
  for (int64_t row = 0; row < p.rows; ++row)
    if (p.label[row] < 0 || p.label[row] >= p.vocab) return {"cross_entropy: a label is outside of the vocabulary"};
  // Starting a second thread costs a few microseconds, in which one thread works through about this many logits.
  const int64_t rows_worth_a_thread = std::max<int64_t>(1, 16 * 1024 / p.vocab);
  parallel_for(p.rows, rows_worth_a_thread, [&](int64_t begin, int64_t end) { BASED_DISPATCH(cross_entropy_rows, p, begin, end); });
  return {};
}

namespace {
const DefineLaunchers<CrossEntropyLaunchers> kCrossEntropyLaunchers(Device::cpu, {.softmax = on_cpu<cross_entropy>});
}

}  // namespace based::kernels::cpu
