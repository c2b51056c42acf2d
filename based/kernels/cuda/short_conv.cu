// Gated short convolution: a thread keeps the last inputs of a few channels in registers and walks along some tokens.
#include "based/kernels/cuda/short_conv.cuh"

#include <algorithm>

#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/step_log.h"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128;
constexpr int kTogether = 8;                        // tokens whose loads a thread has under way
constexpr int kShortestRun = 16, kLongestRun = 64;  // tokens that a thread walks along

__device__ __forceinline__ float activate(float x, bool silu) { return silu ? x * sigmoid(x) : x; }

// kCount channels and the window of their last kTaps inputs, in registers.
template <typename T, int kTaps, int kCount>
struct Walk {
  float weight[kCount][kTaps], bias[kCount], window[kTaps][kCount];

  // kTokens tokens of one row, whose loads are all under way before the first is used.
  template <int kTokens>
  __device__ __forceinline__ void take(const ShortConv& p, int64_t token, int64_t c) {
    float input[kTokens][kCount], gate[kTokens][kCount];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      load_floats<kCount>(static_cast<const T*>(p.x) + (token + t) * p.x_stride + c, input[t]);
      if (p.gate != nullptr) load_floats<kCount>(static_cast<const T*>(p.gate) + (token + t) * p.gate_stride + c, gate[t]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float y[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        y[i] = bias[i];
#pragma unroll
        for (int j = 0; j < kTaps; ++j) {
          window[j][i] = j + 1 < kTaps ? window[j + 1][i] : input[t][i];
          y[i] = fmaf(weight[i][j], window[j][i], y[i]);
        }
        y[i] = activate(y[i], p.silu);
        if (p.gate != nullptr) y[i] *= gate[t][i];
      }
      store_floats<kCount>(static_cast<T*>(p.y) + (token + t) * p.y_stride + c, y);
    }
  }
};

// kTaps: known taps, whose window stays in registers; kCount channels a thread, which walks along `run` tokens.
template <typename T, int kTaps, int kCount>
__global__ void __launch_bounds__(kThreads) convolve(const __grid_constant__ ShortConv p, int run) {
  overlap_kernels();
  const int64_t c = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kCount;
  if (c >= p.channels) return;
  const int64_t first = blockIdx.x * int64_t{run}, last = min(first + run, p.tokens);
  int64_t row = row_of(p.row_start, p.rows, first);
  Walk<T, kTaps, kCount> walk;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    walk.bias[i] = p.bias != nullptr ? to_float(static_cast<const T*>(p.bias)[c + i]) : 0.0F;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) walk.weight[i][j] = to_float(static_cast<const T*>(p.weight)[(c + i) * kTaps + j]);
  }
  int64_t start = p.row_start[row], stop = p.row_start[row + 1];
  bool refill = true;
  for (int64_t token = first; token < last; ++token) {
    while (token >= stop) ++row, start = stop, stop = p.row_start[row + 1], refill = true;
    if (refill) {
      const int64_t slot = p.slot != nullptr ? p.slot[row] : row;
#pragma unroll
      for (int j = 1; j < kTaps; ++j) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) walk.window[j][i] = input_at<T>(p, p.state, slot, start, token - kTaps + j, c + i);
      }
      refill = false;
    }
    if (token + kTogether <= min(stop, last)) {
      walk.template take<kTogether>(p, token, c);
      token += kTogether - 1;
    } else {
      walk.template take<1>(p, token, c);
    }
  }
}

// Any number of taps: a thread a token and channel.
template <typename T>
__global__ void __launch_bounds__(kThreads) convolve_any(const __grid_constant__ ShortConv p) {
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x, token = blockIdx.x;
  if (c >= p.channels) return;
  const int64_t row = row_of(p.row_start, p.rows, token), start = p.row_start[row], slot = p.slot != nullptr ? p.slot[row] : row;
  float y = p.bias != nullptr ? to_float(static_cast<const T*>(p.bias)[c]) : 0.0F;
  for (int j = 0; j < p.taps; ++j) {
    y = fmaf(to_float(static_cast<const T*>(p.weight)[c * p.taps + j]), input_at<T>(p, p.state, slot, start, token - p.taps + 1 + j, c), y);
  }
  y = activate(y, p.silu);
  if (p.gate != nullptr) y *= to_float(static_cast<const T*>(p.gate)[token * p.gate_stride + c]);
  static_cast<T*>(p.y)[token * p.y_stride + c] = from_float<T>(y);
}

// The states after the rows, once every token has been convolved. Ascending, so that old inputs are read before they are overwritten.
template <typename T>
__global__ void update_states(const __grid_constant__ ShortConv p) {
  const int64_t at = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (at >= p.rows * p.channels) return;
  const int64_t row = at / p.channels, c = at % p.channels, slot = p.slot != nullptr ? p.slot[row] : row;
  const int64_t start = p.row_start[row], stop = p.row_start[row + 1];
  float* state = p.state + (slot * p.channels + c) * (p.taps - 1);
  for (int j = 0; j + 1 < p.taps; ++j) state[j] = input_at<T>(p, p.state, slot, start, stop - p.taps + 1 + j, c);
}

// Three taps, the usual number: a thread a row and four channels, whose state is 32 bytes in a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) step_rows_of_three(const __grid_constant__ ShortConv p) {
  let_next_kernel_start();
  if (!p.state_is_settled) wait_for_earlier_kernels();
  constexpr int kCount = 4;
  const int64_t row = blockIdx.x, c = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kCount;
  if (c >= p.channels) return;
  float* state = p.state + ((p.slot != nullptr ? p.slot[row] : row) * p.channels + c) * 2;
  float old[2 * kCount], x[kCount], y[kCount], gate[kCount] = {1, 1, 1, 1}, bias[kCount] = {}, weight[3][kCount];
  load_floats<2 * kCount>(state, old);
  if (p.bias != nullptr) load_floats<kCount>(static_cast<const T*>(p.bias) + c, bias);
#pragma unroll
  for (int i = 0; i < 3; ++i) load_floats<kCount>(static_cast<const T*>(p.weight) + 3 * c + i * kCount, weight[i]);
  if (p.state_is_settled) wait_for_earlier_kernels();
  load_floats<kCount>(static_cast<const T*>(p.x) + row * p.x_stride + c, x);
  if (p.gate != nullptr) load_floats<kCount>(static_cast<const T*>(p.gate) + row * p.gate_stride + c, gate);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const auto w = [&](int j) { return weight[(3 * i + j) / kCount][(3 * i + j) % kCount]; };
    const float z = fmaf(w(2), x[i], fmaf(w(1), old[2 * i + 1], fmaf(w(0), old[2 * i], bias[i])));
    y[i] = activate(z, p.silu) * gate[i];
    old[2 * i] = old[2 * i + 1], old[2 * i + 1] = x[i];
  }
  store_floats<2 * kCount>(state, old);
  store_floats<kCount>(static_cast<T*>(p.y) + row * p.y_stride + c, y);
}

// A thread a row and channel. kTaps: so many, known when compiling, so that all loads are under way together; 0: any number.
template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads) step_rows(const __grid_constant__ ShortConv p) {
  overlap_kernels();
  const int64_t row = blockIdx.x, c = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (c >= p.channels) return;
  const int taps = kTaps > 0 ? kTaps : p.taps;
  const T* weight = static_cast<const T*>(p.weight) + c * taps;
  const float gate = p.gate != nullptr ? to_float(static_cast<const T*>(p.gate)[row * p.gate_stride + c]) : 1.0F;
  const float x = to_float(static_cast<const T*>(p.x)[row * p.x_stride + c]);
  float y = p.bias != nullptr ? to_float(static_cast<const T*>(p.bias)[c]) : 0.0F;
  float* state = p.state + ((p.slot != nullptr ? p.slot[row] : row) * p.channels + c) * (taps - 1);
  if constexpr (kTaps > 1) {
    float old[kTaps - 1], w[kTaps - 1];
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) old[j] = state[j], w[j] = to_float(weight[j]);
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) {
      y = fmaf(w[j], old[j], y);
      state[j] = j + 2 < kTaps ? old[j + 1] : x;
    }
  } else {
    for (int j = 0; j + 1 < taps; ++j) {
      const float old = state[j];
      y = fmaf(to_float(weight[j]), old, y);
      if (j > 0) state[j - 1] = old;
    }
    if (taps > 1) state[taps - 2] = x;
  }
  y = activate(fmaf(to_float(weight[taps - 1]), x, y), p.silu) * gate;
  static_cast<T*>(p.y)[row * p.y_stride + c] = from_float<T>(y);
}

template <typename T>
auto* choose_step(int taps) {
  return taps == 3 ? step_rows<T, 3> : taps == 4 ? step_rows<T, 4> : step_rows<T, 0>;
}

template <typename T>
auto* choose_taps(int taps, bool four) {
  if (taps == 3) return four ? convolve<T, 3, 4> : convolve<T, 3, 1>;
  return four ? convolve<T, 4, 4> : convolve<T, 4, 1>;
}

// A long walk starts once, but the blocks must fill the multiprocessors a whole number of times: half a wave takes as long as one.
template <typename Kernel>
int choose_run(Kernel* kernel, int64_t tokens, int64_t blocks_of_token) {
  int resident = 0;
  if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, 0) != cudaSuccess) return kLongestRun;
  for (int64_t waves = 1;; ++waves) {
    const int64_t runs = std::max<int64_t>(1, waves * resident * multiprocessors() / blocks_of_token);
    const int64_t run = round_up(ceil_div(tokens, runs), kTogether);
    if (run <= kLongestRun) return static_cast<int>(std::max<int64_t>(run, kShortestRun));
  }
}

}  // namespace

Status short_conv_forward(const ShortConv& p, Stream stream) {
  if (p.rows == 0) return {};
  const bool bf = p.dtype == DType::bf16;
  const cudaStream_t s = stream_of(stream);
  if (p.tokens > 0 && (p.taps == 3 || p.taps == 4)) {
    const bool four = p.channels % 4 == 0 && p.x_stride % 4 == 0 && p.gate_stride % 4 == 0 && p.y_stride % 4 == 0 && aligned16(p.x) &&
                      aligned16(p.gate) && aligned16(p.y);
    auto* kernel = bf ? choose_taps<bf16>(p.taps, four) : choose_taps<float>(p.taps, four);
    const int64_t blocks_of_token = ceil_div(p.channels, kThreads * (four ? 4 : 1));
    const int run = choose_run(kernel, p.tokens, blocks_of_token);
    const dim3 grid(static_cast<unsigned>(ceil_div(p.tokens, run)), static_cast<unsigned>(blocks_of_token));
    if (const Status status = launch_overlapped(kernel, {grid, kThreads}, stream, p, run); !status.ok()) return status;
  } else if (p.tokens > 0) {
    auto* kernel = bf ? convolve_any<bf16> : convolve_any<float>;
    kernel<<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(ceil_div(p.channels, kThreads))), kThreads, 0, s>>>(p);
  }
  if (p.state != nullptr && p.taps > 1) {
    auto* kernel = bf ? update_states<bf16> : update_states<float>;
    kernel<<<static_cast<unsigned>(ceil_div(p.rows * p.channels, kThreads)), kThreads, 0, s>>>(p);
  }
  return launched();
}

Status short_conv_step(const ShortConv& p, Stream stream) {
  if (p.rows == 0) return {};
  const bool bf = p.dtype == DType::bf16;
  const bool four = p.taps == 3 && p.channels % 4 == 0 && p.x_stride % 4 == 0 && p.y_stride % 4 == 0 && p.gate_stride % 4 == 0 &&
                    aligned16(p.x) && aligned16(p.weight) && aligned16(p.bias) && aligned16(p.gate) && aligned16(p.y) && aligned16(p.state);
  auto* kernel =
      four ? (bf ? step_rows_of_three<bf16> : step_rows_of_three<float>) : (bf ? choose_step<bf16>(p.taps) : choose_step<float>(p.taps));
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.channels, kThreads * (four ? 4 : 1))));
  return noted(p, stream, launch_overlapped(kernel, {grid, kThreads}, stream, p));
}

}  // namespace based::kernels::cuda
