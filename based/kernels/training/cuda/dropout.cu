// Dropout: each element is read once and written once; the random numbers are computed, not stored.
#include "based/kernels/training/dropout.h"

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 256;

template <typename T, int kCount>
__global__ void __launch_bounds__(kThreads) drop_elements(const __grid_constant__ DropElements p) {
  overlap_kernels();
  const int64_t at = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * kCount;
  if (at >= p.count) return;
  const uint64_t key = dropout_key(static_cast<uint64_t>(p.seed), static_cast<uint64_t>(*p.step), static_cast<uint64_t>(p.place),
                                   static_cast<uint64_t>(p.first_element));
  float x[kCount];
  load_floats<kCount>(static_cast<const T*>(p.x) + at, x);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = is_dropped(key, static_cast<uint64_t>(at + i), p.threshold) ? 0.0F : x[i] * p.scale;
  store_floats<kCount>(static_cast<T*>(p.y) + at, x);
}

template <typename T>
Status launch_elements(const DropElements& p, Queue queue) {
  constexpr int kUnit = 16 / sizeof(T);
  const bool vector = p.count % kUnit == 0 && aligned16(p.x) && aligned16(p.y);
  auto* kernel = vector ? drop_elements<T, kUnit> : drop_elements<T, 1>;
  const int64_t units = vector ? p.count / kUnit : p.count;
  return launch_overlapped(kernel, {static_cast<unsigned>(ceil_div(units, kThreads)), kThreads}, queue, p);
}

}  // namespace

Status dropout(const DropElements& p, Queue queue) {
  if (p.count == 0) return {};
  return p.dtype == DType::bf16 ? launch_elements<bf16>(p, queue) : launch_elements<float>(p, queue);
}

namespace {
const DefineLaunchers<DropoutLaunchers> kLaunchers(Device::cuda, {.dropout = dropout});
}

}  // namespace based::kernels::cuda
