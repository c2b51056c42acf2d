// Shared parts of the Taylor kernels for any shape, in fp32 on the CUDA cores. One block processes one row, one head and a slice of the
// head dimension, in chunks of 32 tokens. It computes all pairs of tokens within a chunk; earlier chunks contribute through the state,
// which stays in shared memory.
#pragma once
#include <algorithm>

#include "based/kernels/common/cuda/device.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels::cuda::detail {

constexpr int kTokens = 32, kGenericThreads = 256;

// The widest slice of the head dimension for which `floats(width)` floats fit in shared memory.
template <typename Floats>
int generic_width(const TaylorAttention& p, const Floats& floats) {
  const int limit = block_shared_memory() / 4;
  int width = 32;
  while (width > 4 && (floats(width) > limit || width / 2 >= p.head_dim)) width /= 2;
  return width;
}

// A head's decay rates as powers of two: of the numerator and kv_state, and of the denominator and k_state.
struct LogDecay {
  float numerator = 0, denominator = 0;

  __device__ LogDecay(const TaylorAttention& p, int head) {
    if (p.decay == nullptr) return;
    numerator = log2f(p.decay[head]);
    denominator = p.decay_denominator ? numerator : 0.0F;
  }
};

// A block's shared memory.
struct Tile {
  float *state, *sums;  // Σ φ vᵀ [features][width], Σ φ
  int* pairs;           // packed feature -> i, j of x_i x_j (0xff: the factor 1)
  float *q, *k, *v, *weight;
  int feature_dim, width, features;

  __device__ Tile(float* shared, int dim, int columns, int count) : feature_dim(dim), width(columns), features(count) {
    state = shared, sums = state + features * width, pairs = reinterpret_cast<int*>(sums + features);
    q = sums + 2 * features, k = q + kTokens * (feature_dim + 1), v = k + kTokens * (feature_dim + 1), weight = v + kTokens * width;
  }
  __device__ float* end() const { return weight + kTokens * (kTokens + 1); }
  __device__ static int pair_number(int i, int j, int d) {  // i ≤ j
    return 1 + d + i * d - i * (i - 1) / 2 + j - i;
  }
  __device__ void number_pairs() {
    for (int i = threadIdx.x; i < feature_dim; i += kGenericThreads) {
      pairs[1 + i] = i << 8 | 0xff;
      for (int j = i; j < feature_dim; ++j) pairs[pair_number(i, j, feature_dim)] = i << 8 | j;
    }
    if (threadIdx.x == 0) pairs[0] = 0xffff;
  }
  // Loads a head's state and sums from global memory (null: zero); only the first `columns` of the slice's `width` columns exist.
  __device__ void load_state(const float* kv, const float* k_sums, int64_t head_dim, int columns) {
    for (int i = threadIdx.x; i < features * width; i += kGenericThreads) {
      const int64_t f = i / width, d = i % width;
      state[i] = kv != nullptr && d < columns ? kv[f * head_dim + d] : 0.0F;
    }
    for (int f = threadIdx.x; f < features; f += kGenericThreads) sums[f] = k_sums != nullptr ? k_sums[f] : 0.0F;
  }
  __device__ void store_state(float* kv, float* k_sums, int64_t head_dim, int columns) const {
    for (int i = threadIdx.x; i < features * width; i += kGenericThreads) {
      const int64_t f = i / width, d = i % width;
      if (d < columns) kv[f * head_dim + d] = state[i];
    }
    for (int f = threadIdx.x; k_sums != nullptr && f < features; f += kGenericThreads) k_sums[f] = sums[f];
  }
  // Packed feature f of token `t` of `x` (q or k).
  __device__ float feature(const float* x, int t, int f) const {
    const int i = pairs[f] >> 8, j = pairs[f] & 0xff;
    const float* row = x + t * (feature_dim + 1);
    const float a = i == 0xff ? 1.0F : row[i];
    return j == 0xff ? a : a * row[j] * (i == j ? 0.70710678118654752F : 1.0F);
  }
  // Copies `count` columns of `tokens` rows to rows `pitch` elements apart, and fills the rest of the kTokens rows with zeros.
  template <typename T>
  __device__ void load(float* to, const T* from, int64_t stride, int count, int pitch, int tokens) {
    for (int i = threadIdx.x; i < kTokens * pitch; i += kGenericThreads) {
      const int t = i / pitch, c = i % pitch;
      to[i] = t < tokens && c < count ? to_float(from[t * stride + c]) : 0.0F;
    }
  }
  __device__ float score(const float* a, int t, const float* b, int s) const {
    float sum = 0;
    for (int c = 0; c < feature_dim; ++c) sum += a[t * (feature_dim + 1) + c] * b[s * (feature_dim + 1) + c];
    return sum;
  }
  // weight[t][s] = g^(t − s) w(q_t·k_s) for s ≤ t, else 0.
  __device__ void weights(const float* a, const float* b, int tokens, float log_decay) {
    for (int i = threadIdx.x; i < kTokens * kTokens; i += kGenericThreads) {
      const int t = i / kTokens, s = i % kTokens;
      const float x = s <= t && t < tokens ? score(a, t, b, s) : 0.0F;
      weight[t * (kTokens + 1) + s] =
          s <= t && t < tokens ? fmaf(x, fmaf(x, 0.5F, 1.0F), 1.0F) * exp2f(static_cast<float>(t - s) * log_decay) : 0.0F;
    }
  }
  // Advances the state and the sums over these tokens: adds the features of x times `values` to the state, and the features, each weighted
  // by `sum_weights` where given, to the sums. `backward`: chunks are processed from the last to the first.
  __device__ void update(const float* x, const float* values, int tokens, const LogDecay& log_decay, bool backward,
                         const float* sum_weights) {
    const auto decayed = [&](int s, float log_rate) { return exp2f(static_cast<float>(backward ? s + 1 : tokens - 1 - s) * log_rate); };
    const float state_factor = exp2f(static_cast<float>(tokens) * log_decay.numerator),
                sums_factor = exp2f(static_cast<float>(tokens) * log_decay.denominator);
    for (int i = threadIdx.x; i < features * width; i += kGenericThreads) {
      const int f = i / width, d = i % width;
      float sum = state[i] * state_factor;
      for (int s = 0; s < tokens; ++s) sum += feature(x, s, f) * values[s * width + d] * decayed(s, log_decay.numerator);
      state[i] = sum;
    }
    for (int f = threadIdx.x; f < features; f += kGenericThreads) {
      float sum = sums[f] * sums_factor;
      for (int s = 0; s < tokens; ++s) {
        sum += feature(x, s, f) * decayed(s, log_decay.denominator) * (sum_weights != nullptr ? sum_weights[s] : 1.0F);
      }
      sums[f] = sum;
    }
  }
};

}  // namespace based::kernels::cuda::detail
