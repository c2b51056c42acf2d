// Computes single packed features of the Taylor state.
#pragma once
#include "based/kernels/common/cuda/device.cuh"

namespace based::kernels::cuda::detail {

// x · scale rounded to T, the value that a separate scaling layer would write.
template <typename T>
__device__ __forceinline__ float rounded_product(T x, float scale) {
  return to_float(from_float<T>(to_float(x) * scale));
}

// The factors of packed feature f, which is 1, x_i or x_i x_j. Row i of the triangle of pairs has feature_dim − i entries. An index of −1
// is the factor 1.
struct FeaturePair {
  int i = -1, j = -1;
  __device__ __forceinline__ FeaturePair(int f, int d) {
    if (f == 0) return;
    i = f - 1;
    if (f <= d) return;
    int rest = f - 1 - d;
    for (i = 0; rest >= d - i; ++i) rest -= d - i;
    j = i + rest;
  }
  // Packed in two bytes.
  __device__ __forceinline__ explicit FeaturePair(char2 packed) : i(packed.x), j(packed.y) {}
  __device__ __forceinline__ char2 packed() const { return make_char2(static_cast<signed char>(i), static_cast<signed char>(j)); }
  // The feature, given a = x_i and b = x_j.
  __device__ __forceinline__ float value(float a, float b) const {
    if (i < 0) return 1.0F;
    return j < 0 ? a : a * b * (i == j ? 0.70710678118654752F : 1.0F);
  }
  template <typename T>
  __device__ __forceinline__ float value(const T* x, float scale) const {
    return value(i < 0 ? 1.0F : rounded_product(x[i], scale), j < 0 ? 1.0F : rounded_product(x[j], scale));
  }
};

}  // namespace based::kernels::cuda::detail
