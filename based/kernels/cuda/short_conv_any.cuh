// Short convolutions of any number of taps: a block has some channels and a run of tokens, a thread one channel and eight tokens of a row
// at a time, so that a tap and an input that it reads serve eight products.
#pragma once
#include "based/kernels/cuda/short_conv.cuh"

namespace based::kernels::cuda::detail {

constexpr int kAnyChannels = 64, kAnyTokens = 8;  // of a block, of a thread at a time

// Columns of the block's channels.
struct AnyTaps {
  float weight[kShortConvTaps][kAnyChannels];
};

// sums[i] += Σ_j w_j input(i − count + 1 + j), in ascending order of j; `weight` is a column of AnyTaps. Asks for no other input.
template <class Input>
__device__ __forceinline__ void correlate(float (&sums)[kAnyTokens], const float* weight, int count, Input&& input) {
  const auto edge = [&](int s) {
    const float x = input(s);
#pragma unroll
    for (int i = 0; i < kAnyTokens; ++i) {
      const int j = s - i + count - 1;
      if (j >= 0 && j < count) sums[i] = fmaf(weight[j * kAnyChannels], x, sums[i]);
    }
  };
  int s = 1 - count;
#pragma unroll 1
  for (; s < kAnyTokens && s < kAnyTokens - count; ++s) edge(s);
#pragma unroll 1
  for (; s + kAnyTokens <= 1; s += kAnyTokens) {
    float x[kAnyTokens], w[2 * kAnyTokens - 1];
#pragma unroll
    for (int i = 0; i < kAnyTokens; ++i) x[i] = input(s + i);
#pragma unroll
    for (int i = 0; i < 2 * kAnyTokens - 1; ++i) w[i] = weight[(s + count - kAnyTokens + i) * kAnyChannels];
#pragma unroll
    for (int k = 0; k < kAnyTokens; ++k) {
#pragma unroll
      for (int i = 0; i < kAnyTokens; ++i) sums[i] = fmaf(w[k - i + kAnyTokens - 1], x[k], sums[i]);
    }
  }
#pragma unroll 1
  for (; s < kAnyTokens; ++s) edge(s);
}

// The inputs of a channel counted from a token of its row, those before the row, which the state has, included.
template <typename T>
struct AnyInputs {
  const T* x;
  const float* before;     // the input right before the row would be before[0]; null: zeros
  int stride, first, end;  // of the row
  float bias;

  __device__ __forceinline__ AnyInputs(const ShortConv& p, const float* state, int64_t slot, int64_t row, int64_t token, int64_t c)
      : x(static_cast<const T*>(p.x) + token * p.x_stride + c),
        before(state != nullptr ? state + (slot * p.channels + c + 1) * (p.taps - 1) - 1 : nullptr),
        stride(static_cast<int>(p.x_stride)),
        first(static_cast<int>(max(p.row_start[row] - token, int64_t{-(1 << 30)}))),
        end(static_cast<int>(min(p.row_start[row + 1] - token, int64_t{1 << 30}))),
        bias(element_or_zero<T>(p.x_bias, c)) {}
  // Zero behind the row.
  __device__ __forceinline__ float operator()(int at) const {
    if (at < first) return before != nullptr ? before[at - first + 1] : 0.0F;
    return at < end ? to_float(x[static_cast<int64_t>(at) * stride]) + bias : 0.0F;
  }
};

// Calls take(row, first, count) for every run of up to eight tokens [first, first + count) of one row in [first, last).
template <class Take>
__device__ __forceinline__ void each_run(const ShortConv& p, int64_t first, int64_t last, Take&& take) {
  int64_t row = row_of(p.row_start, p.rows, first);
  for (int64_t token = first; token < last; ++row) {
    const int64_t end = min(p.row_start[row + 1], last);
    for (; token < end; token += kAnyTokens) take(row, token, static_cast<int>(min(end - token, int64_t{kAnyTokens})));
    token = end;
  }
}

// Reads the block's part of the filter.
template <typename T>
__device__ __forceinline__ void load_filter(const ShortConv& p, int64_t first_channel, AnyTaps& to) {
  const int channels = static_cast<int>(min(int64_t{kAnyChannels}, p.channels - first_channel));
  for (int i = threadIdx.x; i < p.taps * channels; i += kAnyChannels) {
    const int c = i / p.taps, j = i % p.taps;
    to.weight[j][c] = to_float(static_cast<const T*>(p.weight)[first_channel * p.taps + i]);
  }
  __syncthreads();
}

// bias + Σ_j w_j x of eight tokens from the one on that `input` counts from.
template <typename T>
__device__ __forceinline__ void convolve(const ShortConv& p, const AnyTaps& filter, const AnyInputs<T>& input, int64_t c,
                                         float (&z)[kAnyTokens]) {
#pragma unroll
  for (int i = 0; i < kAnyTokens; ++i) z[i] = element_or_zero<T>(p.bias, c);
  correlate(z, &filter.weight[0][threadIdx.x], p.taps, input);
}

constexpr int64_t kAnyRun = 128;  // tokens of a block
inline dim3 any_grid(const ShortConv& p, int64_t run_tokens) {
  return {static_cast<unsigned>(ceil_div(p.tokens, run_tokens)), static_cast<unsigned>(ceil_div(p.channels, kAnyChannels))};
}

}  // namespace based::kernels::cuda::detail
