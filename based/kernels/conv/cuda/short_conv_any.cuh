// Short convolutions with any number of taps. A block handles some channels and a range of tokens. A thread handles one channel, and eight
// tokens of a row at a time, so that each tap and each input that it reads is used in eight products.
#pragma once
#include "based/kernels/conv/cuda/short_conv.cuh"

namespace based::kernels::cuda::detail {

constexpr int kAnyChannels = 64, kAnyTokens = 8;  // channels per block; tokens that a thread processes together

// The taps of the block's channels, one channel per column.
struct AnyTaps {
  float weight[kShortConvTaps][kAnyChannels];
};

// sums[i] += Σ_j w_j input(i − count + 1 + j), in ascending order of j. `weight` is a column of AnyTaps. No other inputs are read.
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

// The inputs of a channel, indexed relative to a token of its row. Inputs before the row come from the state.
template <typename T>
struct AnyInputs {
  const T* x;
  const float* before;     // before[0] is the last input before the row; null: zeros
  int stride, first, end;  // the row's first token and end, relative to the token
  float bias;

  __device__ __forceinline__ AnyInputs(const ShortConv& p, const float* state, int64_t slot, int64_t row, int64_t token, int64_t c)
      : x(static_cast<const T*>(p.x) + token * p.x_stride + c),
        before(state != nullptr ? state + (slot * p.channels + c + 1) * (p.taps - 1) - 1 : nullptr),
        stride(static_cast<int>(p.x_stride)),
        first(static_cast<int>(max(p.row_start[row] - token, int64_t{-(1 << 30)}))),
        end(static_cast<int>(min(p.row_start[row + 1] - token, int64_t{1 << 30}))),
        bias(element_or_zero<T>(p.x_bias, c)) {}
  // Returns zero past the row's end.
  __device__ __forceinline__ float operator()(int i) const {
    if (i < first) return before != nullptr ? before[i - first + 1] : 0.0F;
    return i < end ? to_float(x[static_cast<int64_t>(i) * stride]) + bias : 0.0F;
  }
};

// Calls process(row, token, count) for runs of up to eight tokens [token, token + count) of one row, which cover [first, last).
template <class Process>
__device__ __forceinline__ void each_run(const ShortConv& p, int64_t first, int64_t last, Process&& process) {
  int64_t row = find_row(p.row_start, p.rows, first);
  for (int64_t token = first; token < last; ++row) {
    const int64_t end = min(p.row_start[row + 1], last);
    for (; token < end; token += kAnyTokens) process(row, token, static_cast<int>(min(end - token, int64_t{kAnyTokens})));
    token = end;
  }
}

// Loads the filter of the block's channels.
template <typename T>
__device__ __forceinline__ void load_filter(const ShortConv& p, int64_t first_channel, AnyTaps& filter) {
  const int channels = static_cast<int>(min(int64_t{kAnyChannels}, p.channels - first_channel));
  for (int i = threadIdx.x; i < p.taps * channels; i += kAnyChannels) {
    const int c = i / p.taps, j = i % p.taps;
    filter.weight[j][c] = to_float(static_cast<const T*>(p.weight)[first_channel * p.taps + i]);
  }
  __syncthreads();
}

// z = bias + Σ_j w_j x of eight tokens, starting at the token to which `input` is relative.
template <typename T>
__device__ __forceinline__ void convolve(const ShortConv& p, const AnyTaps& filter, const AnyInputs<T>& input, int64_t c,
                                         float (&z)[kAnyTokens]) {
#pragma unroll
  for (int i = 0; i < kAnyTokens; ++i) z[i] = element_or_zero<T>(p.bias, c);
  correlate(z, &filter.weight[0][threadIdx.x], p.taps, input);
}

constexpr int64_t kAnyRun = 128;  // tokens per block
inline dim3 any_grid(const ShortConv& p, int64_t run_tokens) {
  return {static_cast<unsigned>(ceil_div(p.tokens, run_tokens)), static_cast<unsigned>(ceil_div(p.channels, kAnyChannels))};
}

}  // namespace based::kernels::cuda::detail
