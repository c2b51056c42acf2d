// A thread adjusts one logit. Only the rows of sequences with biases or penalties come here, a few at a time.
#include "based/kernels/sampling/adjusted_logits.h"

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) adjust(const __grid_constant__ AdjustedLogits p) {
  overlap_kernels();
  const int64_t row = blockIdx.y, token = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= p.vocab) return;
  const int64_t at = row * p.vocab + token;
  p.adjusted[at] = adjusted_logit(p, to_float(static_cast<const T*>(p.logits)[row * p.logits_stride + token]), row, token, at);
}

}  // namespace

Status adjusted_logits(const AdjustedLogits& p, Queue queue) {
  if (p.rows == 0) return {};
  if (p.rows > 65535) return {"adjusted_logits: more than 65535 rows"};
  const dim3 grid(static_cast<unsigned>(round_up(p.vocab, kThreads) / kThreads), static_cast<unsigned>(p.rows));
  return launch_overlapped(p.dtype == DType::bf16 ? adjust<bf16> : adjust<float>, {grid, kThreads}, queue, p);
}

namespace {
const DefineLaunchers<AdjustedLogitsLaunchers> kLaunchers(Device::cuda, {.adjusted_logits = adjusted_logits});
}

}  // namespace based::kernels::cuda
