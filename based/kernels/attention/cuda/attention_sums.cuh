// Attention of one query, key by key: vectors of keys and values in registers, softmax-weighted sums, and merging of partial sums.
#pragma once
#include <cfloat>

#include "based/kernels/common/cuda/device.cuh"

namespace based::kernels::cuda::detail {

constexpr int kVector = 8;  // elements of a key that a lane holds

// kVector elements in their storage type.
template <typename R>
struct Vector {
  static constexpr int kWords = sizeof(R) * kVector / 4;
  uint32_t word[kWords];
  __device__ __forceinline__ float get(int i) const {
    if constexpr (sizeof(R) == 4) return __uint_as_float(word[i]);
    return i % 2 == 0 ? low_float(word[i / 2]) : high_float(word[i / 2]);
  }
  __device__ __forceinline__ void set(const float (&x)[kVector]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(R) == 4) {
        word[i] = __float_as_uint(x[i]);
      } else {
        word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
      }
    }
  }
  template <bool kAligned>
  __device__ __forceinline__ void load(const R* p, int count) {
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 x = __ldcs(reinterpret_cast<const uint4*>(p) + i / 4);
        word[i] = x.x, word[i + 1] = x.y, word[i + 2] = x.z, word[i + 3] = x.w;
      }
    } else {
      float x[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] = i < count ? to_float(p[i]) : 0.0F;
      set(x);
    }
  }
  template <bool kAligned>
  __device__ __forceinline__ void store(R* p, int count) const {
    if constexpr (kAligned) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) reinterpret_cast<uint4*>(p)[i / 4] = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (i < count) p[i] = from_float<R>(get(i));
      }
    }
  }
};

// Softmax-weighted sums over a subset of the keys: sum = Σ exp2(score − top) v and total = Σ exp2(score − top). Scores are in units of
// log 2.
struct Sums {
  float top = -INFINITY, total = 0, sum[kVector] = {};

  __device__ __forceinline__ void raise(float new_top) {
    if (new_top == top) return;
    const float factor = exp2f(top - new_top);
    total *= factor;
#pragma unroll
    for (float& x : sum) x *= factor;
    top = new_top;
  }
  template <typename R>
  __device__ __forceinline__ void add(float score, const Vector<R>& v) {
    const float w = exp2f(score - top);
    total += w;
#pragma unroll
    for (int c = 0; c < kVector; ++c) sum[c] = fmaf(w, v.get(c), sum[c]);
  }
  __device__ __forceinline__ void merge_lanes(int distance) {
    raise(fmaxf(top, __shfl_xor_sync(~0U, top, distance)));
    total += __shfl_xor_sync(~0U, total, distance);
#pragma unroll
    for (float& x : sum) x += __shfl_xor_sync(~0U, x, distance);
  }
};

// Reduces the sums of a warp and writes them to partial [head_dim + 2]: the largest score, the sum of the weights, the weighted values.
// kLanes lanes hold one key; this lane holds its elements [column, column + count).
template <int kLanes>
__device__ __forceinline__ void store_partial_sums(Sums& sums, int column, int count, float* partial) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) sums.merge_lanes(distance);
  const int lane = threadIdx.x % 32;
  if (lane >= kLanes) return;
  if (lane == 0) partial[0] = sums.top, partial[1] = sums.total;
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    if (c < count) partial[2 + column + c] = sums.sum[c];
  }
}

// Merges `count` partial sums stored `stride` floats apart. A partial sum without keys has a largest score of −∞ and a total of 0.
struct MergedSums {
  const float* partial;
  int count, stride;
  float top = -FLT_MAX;

  __device__ __forceinline__ MergedSums(const float* sums, int parts, int floats) : partial(sums), count(parts), stride(floats) {
    for (int i = 0; i < count; ++i) top = fmaxf(top, partial[i * stride]);
  }
  struct Value {
    float sum, total;  // Σ weight · value of one column, Σ weight
    __device__ __forceinline__ float output() const { return total == 0 ? 0.0F : sum / total; }
  };
  __device__ __forceinline__ Value at(int d) const {
    Value value{0, 0};
    for (int i = 0; i < count; ++i) {
      const float factor = exp2f(partial[i * stride] - top);
      value.total = fmaf(factor, partial[i * stride + 1], value.total), value.sum = fmaf(factor, partial[i * stride + 2 + d], value.sum);
    }
    return value;
  }
};

}  // namespace based::kernels::cuda::detail
