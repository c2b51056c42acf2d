// Cross entropy and its gradient. A block reads its row once for the sum and once for the gradient; where two rows fit into the shared
// memory of a multiprocessor, the second read is from shared memory.
#include "based/kernels/training/cross_entropy.h"

#include <cuda_fp16.h>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/vectors.cuh"

namespace based::kernels::cuda {

template <>
__device__ __forceinline__ __half detail::from_float<__half>(float x) {
  return __float2half_rn(x);
}

namespace {

using namespace detail;

constexpr int kThreads = 512;
constexpr int kSharedRowBytes = 112 * 1024;  // longest row in shared memory: two blocks share a multiprocessor

// Σ exp(x − top) with top, the largest x so far.
struct ExpSum {
  float top = -INFINITY, sum = 0;

  __device__ __forceinline__ void merge(float other_top, float other_sum) {
    const float larger = fmaxf(top, other_top);
    if (larger == -INFINITY) return;
    sum = sum * __expf(top - larger) + other_sum * __expf(other_top - larger);
    top = larger;
  }
};

// Merges the sums of all threads in an order that depends only on the block size; returned to all threads.
__device__ __forceinline__ ExpSum merge_over_block(ExpSum mine) {
  __shared__ ExpSum shared[kThreads / 32];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    mine.merge(__shfl_xor_sync(~0U, mine.top, distance), __shfl_xor_sync(~0U, mine.sum, distance));
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  ExpSum all = shared[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / 32; ++warp) all.merge(shared[warp].top, shared[warp].sum);
  return all;
}

// e^(x − top). For bf16 with one instruction, and so one rounding, fewer.
template <typename T>
__device__ __forceinline__ float exp_below(float x, float top) {
  constexpr float kLog2e = 1.44269504088896341F;
  return sizeof(T) == 2 ? exp2_approx(fmaf(x, kLog2e, -top * kLog2e)) : __expf(x - top);
}

// Copies the thread's units of 16 bytes of the row to shared memory; only the same thread reads them.
__device__ __forceinline__ void copy_row(const void* row, void* shared_row, int64_t units) {
  for (int64_t unit = threadIdx.x; unit < units; unit += kThreads)
    copy_async_16(shared_address(static_cast<uint4*>(shared_row) + unit), static_cast<const uint4*>(row) + unit, true);
  copy_async_commit();
  copy_async_wait<0>();
}

// The logits are of type T; their gradient is stored as G to `to` [rows, vocab], which may be the logits.
template <typename T, typename G, int kCount, bool kInShared>
__global__ void __launch_bounds__(kThreads) softmax_rows(const __grid_constant__ CrossEntropy p, G* to) {
  extern __shared__ uint4 shared_row[];
  const T* logits = static_cast<const T*>(p.logits) + blockIdx.x * p.vocab;
  const int64_t label = p.label[blockIdx.x], units = p.vocab / kCount;
  const T* row = kInShared ? reinterpret_cast<const T*>(shared_row) : logits;
  if constexpr (kInShared) copy_row(logits, shared_row, units);
  ExpSum mine;
  for (int64_t unit = threadIdx.x; unit < units; unit += kThreads) {
    float x[kCount];
    load_floats<kCount>(row + unit * kCount, x);
    float top = x[0], sum = 0;
#pragma unroll
    for (int i = 1; i < kCount; ++i) top = fmaxf(top, x[i]);
    if (top > mine.top) mine.merge(top, 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum += exp_below<T>(x[i], mine.top);
    mine.sum += sum;
  }
  const float label_logit = to_float(logits[label]);
  const ExpSum all = merge_over_block(mine);  // contains a barrier: all threads have read the label's logit before it is overwritten
  if (threadIdx.x == 0) p.loss[blockIdx.x] = all.top + logf(all.sum) - label_logit;
  if (!p.gradient) return;
  const float factor = p.scale / all.sum;
  to += blockIdx.x * p.vocab;
  for (int64_t unit = threadIdx.x; unit < units; unit += kThreads) {
    float x[kCount];
    load_floats<kCount>(row + unit * kCount, x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = exp_below<T>(x[i], all.top) * factor;
    if (label - unit * kCount >= 0 && label - unit * kCount < kCount) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] -= label == unit * kCount + i ? p.scale : 0.0F;
    }
    store_floats<kCount>(to + unit * kCount, x);
  }
}

template <typename T, typename G>
Status launch_rows(const CrossEntropy& p, void* to, Queue queue) {
  constexpr int kUnit = 16 / sizeof(T);
  const bool vector = p.vocab % kUnit == 0 && aligned16(p.logits) && aligned16(to);
  const int64_t bytes = p.vocab * static_cast<int64_t>(sizeof(T));
  const bool shared_row = vector && p.gradient && runs_hopper_code() && bytes <= kSharedRowBytes;
  auto* kernel = shared_row ? softmax_rows<T, G, kUnit, true> : vector ? softmax_rows<T, G, kUnit, false> : softmax_rows<T, G, 1, false>;
  if (shared_row) {
    if (const cudaError_t e = allow_shared_memory(kernel, kSharedRowBytes); e != cudaSuccess) return status_of(e);
  }
  kernel<<<static_cast<unsigned>(p.rows), kThreads, shared_row ? static_cast<size_t>(bytes) : 0, stream_of(queue)>>>(p,
                                                                                                                     static_cast<G*>(to));
  return launched();
}

}  // namespace

Status cross_entropy(const CrossEntropy& p, Queue queue) {
  if (p.rows == 0) return {};
  if (p.half_gradient == nullptr)
    return p.dtype == DType::bf16 ? launch_rows<bf16, bf16>(p, p.logits, queue) : launch_rows<float, float>(p, p.logits, queue);
  if (p.dtype != DType::f32) return {"cross_entropy: a gradient in fp16 is that of fp32 logits"};
  return launch_rows<float, __half>(p, p.half_gradient, queue);
}

namespace {
const DefineLaunchers<CrossEntropyLaunchers> kLaunchers(Device::cuda, {.softmax = cross_entropy});
}

}  // namespace based::kernels::cuda
