// Attention of one query, key by key: elements of keys and values in registers, softmax-weighted sums, and how sums of parts are merged.
#pragma once
#include <cfloat>

#include "based/kernels/cuda/device.cuh"

namespace based::kernels::cuda::detail {

constexpr int kUnit = 8;  // elements of a key that a lane holds

// Eight elements as they lie in memory.
template <typename R>
struct Unit {
  static constexpr int kWords = sizeof(R) * kUnit / 4;
  uint32_t word[kWords];
  __device__ __forceinline__ float get(int i) const {
    if constexpr (sizeof(R) == 4) return __uint_as_float(word[i]);
    return i % 2 == 0 ? low_float(word[i / 2]) : high_float(word[i / 2]);
  }
  __device__ __forceinline__ void set(const float (&x)[kUnit]) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (sizeof(R) == 4) {
        word[i] = __float_as_uint(x[i]);
      } else {
        word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
      }
    }
  }
  template <bool kVector>
  __device__ __forceinline__ void load(const R* p, int count) {
    if constexpr (kVector) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 x = __ldcs(reinterpret_cast<const uint4*>(p) + i / 4);
        word[i] = x.x, word[i + 1] = x.y, word[i + 2] = x.z, word[i + 3] = x.w;
      }
    } else {
      float x[kUnit];
#pragma unroll
      for (int i = 0; i < kUnit; ++i) x[i] = i < count ? to_float(p[i]) : 0.0F;
      set(x);
    }
  }
  template <bool kVector>
  __device__ __forceinline__ void store(R* p, int count) const {
    if constexpr (kVector) {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) reinterpret_cast<uint4*>(p)[i / 4] = make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]);
    } else {
#pragma unroll
      for (int i = 0; i < kUnit; ++i) {
        if (i < count) p[i] = from_float<R>(get(i));
      }
    }
  }
};

// Softmax-weighted sums of some keys: Σ exp2(score − top) v and Σ exp2(score − top); scores are in units of log 2.
struct Sums {
  float top = -INFINITY, total = 0, sum[kUnit] = {};

  __device__ __forceinline__ void raise(float new_top) {
    if (new_top == top) return;
    const float factor = exp2f(top - new_top);
    total *= factor;
#pragma unroll
    for (float& x : sum) x *= factor;
    top = new_top;
  }
  template <typename R>
  __device__ __forceinline__ void add(float score, const Unit<R>& v) {
    const float w = exp2f(score - top);
    total += w;
#pragma unroll
    for (int c = 0; c < kUnit; ++c) sum[c] = fmaf(w, v.get(c), sum[c]);
  }
  __device__ __forceinline__ void merge_lanes(int distance) {
    raise(fmaxf(top, __shfl_xor_sync(~0U, top, distance)));
    total += __shfl_xor_sync(~0U, total, distance);
#pragma unroll
    for (float& x : sum) x += __shfl_xor_sync(~0U, x, distance);
  }
};

// A warp's sums, of which kLanes lanes hold a key's elements (`held` of them from `part` on): the largest score, the weights' sum, the
// values, at `to`, head_dim + 2 floats.
template <int kLanes>
__device__ __forceinline__ void leave_sums(Sums& sums, int part, int held, float* to) {
#pragma unroll
  for (int distance = kLanes; distance < 32; distance *= 2) sums.merge_lanes(distance);
  const int lane = threadIdx.x % 32;
  if (lane >= kLanes) return;
  if (lane == 0) to[0] = sums.top, to[1] = sums.total;
#pragma unroll
  for (int c = 0; c < kUnit; ++c) {
    if (c < held) to[2 + part + c] = sums.sum[c];
  }
}

// `count` sums of parts, `stride` floats apart, as one. A part without keys has a largest score of −∞ and a total of 0.
struct Merged {
  const float* partial;
  int count, stride;
  float top = -FLT_MAX;

  __device__ __forceinline__ Merged(const float* from, int parts, int floats) : partial(from), count(parts), stride(floats) {
    for (int i = 0; i < count; ++i) top = fmaxf(top, partial[i * stride]);
  }
  struct Value {
    float sum, total;  // of values and of weights
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
