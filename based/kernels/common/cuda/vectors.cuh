// Loads and stores of a few adjacent elements as floats, in accesses of up to 16 bytes.
#pragma once
#include "based/kernels/common/cuda/device.cuh"

namespace based::kernels::cuda::detail {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Elements {
  T x[kCount];
};

// Loads kCount elements at p, which must be aligned to the size of an access.
template <int kCount, typename T>
__device__ __forceinline__ void load_floats(const T* p, float (&to)[kCount]) {
  if constexpr (sizeof(T) * kCount > 16) {
    constexpr int kHalf = kCount / 2;
    const auto a = *reinterpret_cast<const Elements<T, kHalf>*>(p), b = *reinterpret_cast<const Elements<T, kHalf>*>(p + kHalf);
#pragma unroll
    for (int i = 0; i < kHalf; ++i) to[i] = to_float(a.x[i]), to[kHalf + i] = to_float(b.x[i]);
  } else {
    const auto a = *reinterpret_cast<const Elements<T, kCount>*>(p);
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = to_float(a.x[i]);
  }
}

template <int kCount, typename T>
__device__ __forceinline__ void store_floats(T* p, const float (&from)[kCount]) {
  if constexpr (sizeof(T) * kCount > 16) {
    constexpr int kHalf = kCount / 2;
    Elements<T, kHalf> a, b;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) a.x[i] = from_float<T>(from[i]), b.x[i] = from_float<T>(from[kHalf + i]);
    *reinterpret_cast<Elements<T, kHalf>*>(p) = a, *reinterpret_cast<Elements<T, kHalf>*>(p + kHalf) = b;
  } else {
    Elements<T, kCount> a;
#pragma unroll
    for (int i = 0; i < kCount; ++i) a.x[i] = from_float<T>(from[i]);
    *reinterpret_cast<Elements<T, kCount>*>(p) = a;
  }
}

// The sum of `value` over the block, returned to every thread. The order of the sum depends only on the block size. `shared`: 32 floats.
__device__ __forceinline__ float sum_over_block(float value, float* shared) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0U, value, distance);
  if (blockDim.x == 32) return value;
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0F;
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
  return sum;
}

// With an error of 4e-7. The short convolution would be a quarter slower with an exact division, and a few percent slower with __expf and
// __fdividef, which handle subnormals.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal_approx(1.0F + exp2_approx(x * -1.44269504F)); }

}  // namespace based::kernels::cuda::detail
