// Cross entropy and its gradient: a block a row, which is read for the sum and once more for the gradient; where two rows fit into the
// shared memory of a multiprocessor, they are kept there in between.
#include "based/kernels/cross_entropy.h"

#include <cuda_fp16.h>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/vectors.cuh"

namespace based::kernels::cuda {

template <>
__device__ __forceinline__ __half detail::from_float<__half>(float x) {
  return __float2half_rn(x);
}

namespace {

using namespace detail;

constexpr int kThreads = 512;
constexpr int kKeptBytes = 112 * 1024;  // of a row at most: two blocks share a multiprocessor

// Σ exp(x − top), kept together with the largest x so far.
struct ExpSum {
  float top = -INFINITY, sum = 0;

  __device__ __forceinline__ void merge(float other_top, float other_sum) {
    const float larger = fmaxf(top, other_top);
    if (larger == -INFINITY) return;
    sum = sum * __expf(top - larger) + other_sum * __expf(other_top - larger);
    top = larger;
  }
};

// In an order that depends on the block size alone; every thread gets the result.
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

// e^(x − top). Of a bf16 in one rounding less, which costs an instruction less.
template <typename T>
__device__ __forceinline__ float exp_below(float x, float top) {
  constexpr float kLog2e = 1.44269504088896341F;
  return sizeof(T) == 2 ? exp2_approx(fmaf(x, kLog2e, -top * kLog2e)) : __expf(x - top);
}

// A thread's own units of 16 bytes; no other thread reads them.
__device__ __forceinline__ void keep_row(const void* row, void* kept, int64_t units) {
  for (int64_t unit = threadIdx.x; unit < units; unit += kThreads)
    copy_async_16(shared_address(static_cast<uint4*>(kept) + unit), static_cast<const uint4*>(row) + unit, true);
  copy_async_commit();
  copy_async_wait<0>();
}

// Logits of T, their gradient of G in `to` [rows, vocab], which may be the logits.
template <typename T, typename G, int kCount, bool kKept>
__global__ void __launch_bounds__(kThreads) softmax_rows(const __grid_constant__ CrossEntropy p, G* to) {
  extern __shared__ uint4 kept[];
  const T* logits = static_cast<const T*>(p.logits) + blockIdx.x * p.vocab;
  const int64_t label = p.label[blockIdx.x], units = p.vocab / kCount;
  const T* row = kKept ? reinterpret_cast<const T*>(kept) : logits;
  if constexpr (kKept) keep_row(logits, kept, units);
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
  const float of_label = to_float(logits[label]);
  const ExpSum all = merge_over_block(mine);  // all have read the label's logit
  if (threadIdx.x == 0) p.loss[blockIdx.x] = all.top + logf(all.sum) - of_label;
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
Status launch_rows(const CrossEntropy& p, void* to, Stream stream) {
  constexpr int kUnit = 16 / sizeof(T);
  const bool vector = p.vocab % kUnit == 0 && aligned16(p.logits) && aligned16(to);
  const int64_t bytes = p.vocab * static_cast<int64_t>(sizeof(T));
  const bool kept = vector && p.gradient && runs_hopper_code() && bytes <= kKeptBytes;
  auto* kernel = kept ? softmax_rows<T, G, kUnit, true> : vector ? softmax_rows<T, G, kUnit, false> : softmax_rows<T, G, 1, false>;
  if (kept) {
    if (const cudaError_t e = allow_shared_memory(kernel, kKeptBytes); e != cudaSuccess) return status_of(e);
  }
  kernel<<<static_cast<unsigned>(p.rows), kThreads, kept ? static_cast<size_t>(bytes) : 0, stream_of(stream)>>>(p, static_cast<G*>(to));
  return launched();
}

}  // namespace

Status cross_entropy(const CrossEntropy& p, Stream stream) {
  if (p.rows == 0) return {};
  if (p.half_gradient == nullptr)
    return p.dtype == DType::bf16 ? launch_rows<bf16, bf16>(p, p.logits, stream) : launch_rows<float, float>(p, p.logits, stream);
  if (p.dtype != DType::f32) return {"cross_entropy: a gradient in fp16 is that of fp32 logits"};
  return launch_rows<float, __half>(p, p.half_gradient, stream);
}

}  // namespace based::kernels::cuda
