// Gated short convolution. A thread goes through a run of tokens and keeps the last inputs of a few channels in registers. It prefetches
// several tokens into shared memory.
#include "based/kernels/conv/cuda/short_conv.cuh"

#include <algorithm>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/conv/cuda/short_conv_any.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128;
// kPrefetched: tokens that a thread prefetches. kWaves: waves of blocks; with several, a slow multiprocessor gets fewer blocks.
// kShortestRun: minimum tokens per thread.
constexpr int kPrefetched = 8, kWaves = 2, kShortestRun = 16;
constexpr int resident_blocks(int taps) { return taps == 3 ? 7 : 6; }  // limited by registers

// The work of a thread. Each thread copies only the data that it reads itself, so no barrier is needed. `window` is a ring: a new input
// replaces the oldest.
template <typename T, int kTaps>
struct TokenStream {
  static constexpr int kCount = kStreamBytes / sizeof(T), kKept = kTaps - 1, kHalf = kThreads * kStreamBytes, kSlot = 2 * kHalf;
  const ShortConv& p;
  const int64_t c;
  const StreamFilter<T, kTaps> filter;
  float gate_bias[kCount], window[kKept][kCount];
  const uint32_t ring;                    // address of this thread's data in the first slot
  uint32_t load_slot = 0, read_slot = 0;  // byte offsets in the ring
  const T *next_x, *next_gate;            // the next token to load
  T* output;
  int tokens_to_load;

  __device__ __forceinline__ TokenStream(const ShortConv& params, uint32_t shared, int64_t channel, int64_t first, int tokens)
      : p(params), c(channel), filter(params, channel), ring(shared + threadIdx.x * kStreamBytes), tokens_to_load(tokens) {
    next_x = static_cast<const T*>(p.x) + first * p.x_stride + c, next_gate = static_cast<const T*>(p.gate) + first * p.gate_stride + c;
    output = static_cast<T*>(p.y) + first * p.y_stride + c;
#pragma unroll 1
    for (int t = 0; t < kPrefetched; ++t) prefetch();
#pragma unroll
    for (int i = 0; i < kCount; ++i) gate_bias[i] = element_or_zero<T>(p.gate_bias, c + i);
  }

  __device__ __forceinline__ static uint32_t next_slot(uint32_t slot) { return slot == (kPrefetched - 1) * kSlot ? 0 : slot + kSlot; }

  // Commits one group of copies per token. After the last token the groups are empty, so that the number of pending groups stays fixed.
  __device__ __forceinline__ void prefetch() {
    if (tokens_to_load > 0) {
      copy_async_8(ring + load_slot, next_x);
      if (p.gate != nullptr) copy_async_8(ring + load_slot + kHalf, next_gate);
    }
    copy_async_commit();
    --tokens_to_load, next_x += p.x_stride, next_gate += p.gate_stride, load_slot = next_slot(load_slot);
  }

  // Processes the next token, which must have arrived. kOldest: index of the oldest input in `window`.
  template <int kOldest>
  __device__ __forceinline__ void process_token() {
    float input[kCount], gate[kCount] = {}, y[kCount];
    unpack(load_shared_8(ring + read_slot), input);
    if (p.gate != nullptr) unpack(load_shared_8(ring + read_slot + kHalf), gate);
    read_slot = next_slot(read_slot);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      y[i] = filter.bias[i];
#pragma unroll
      for (int j = 0; j < kKept; ++j) y[i] = fmaf(filter.weight[j][i], window[(kOldest + j) % kKept][i], y[i]);
      y[i] = activate(fmaf(filter.weight[kKept][i], input[i], y[i]), p.silu);
      window[kOldest][i] = input[i];
      if (p.gate != nullptr) y[i] *= gate[i] + gate_bias[i];
      if (p.adds_input) y[i] = __fadd_rn(y[i], input[i]);
    }
    store_floats<kCount>(output, y);
    output += p.y_stride;
    prefetch();
  }

  // Processes `tokens` tokens of a row. `window` must hold the inputs before them.
  __device__ __forceinline__ void process_row(int tokens) {
    for (; tokens >= kKept; tokens -= kKept) {
      copy_async_wait<kPrefetched - kKept>();
      process_token<0>(), process_token<1>();
      if constexpr (kKept == 3) process_token<2>();
    }
    copy_async_wait<kPrefetched - kKept>();
    if (tokens > 0) process_token<0>();
    if (tokens > 1) process_token<1>();
  }
};

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads, resident_blocks(kTaps)) convolve(const __grid_constant__ ShortConv p, int64_t run_tokens) {
  using Stream = TokenStream<T, kTaps>;
  __shared__ alignas(16) char ring[kPrefetched * Stream::kSlot];
  overlap_kernels();
  const int64_t units = p.channels / Stream::kCount, thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t first = thread / units * run_tokens;
  const int64_t last = min(first + run_tokens, p.tokens);
  if (first >= last) return;
  Stream stream(p, shared_address(ring), thread % units * Stream::kCount, first, static_cast<int>(last - first));
  int64_t row = find_row(p.row_start, p.rows, first);
  for (int64_t token = first; token < last; ++row) {
    const int64_t start = p.row_start[row], end = min(p.row_start[row + 1], last);
    if (end <= token) continue;
    inputs_before<T>(p, p.state, p.slot != nullptr ? p.slot[row] : row, start, token, stream.c, stream.window);
    stream.process_row(static_cast<int>(end - token));
    token = end;
  }
}

// Supports any number of taps, channels and strides.
template <typename T>
__global__ void __launch_bounds__(kAnyChannels) convolve_any(const __grid_constant__ ShortConv p, int64_t run_tokens) {
  __shared__ AnyTaps filter;
  const int64_t first = blockIdx.x * run_tokens, last = min(first + run_tokens, p.tokens);
  const int64_t first_channel = blockIdx.y * int64_t{kAnyChannels}, c = first_channel + threadIdx.x;
  load_filter<T>(p, first_channel, filter);
  if (c >= p.channels) return;
  each_run(p, first, last, [&](int64_t row, int64_t token, int count) {
    const AnyInputs<T> input(p, p.state, p.slot != nullptr ? p.slot[row] : row, row, token, c);
    float y[kAnyTokens];
    detail::convolve(p, filter, input, c, y);
#pragma unroll
    for (int i = 0; i < kAnyTokens; ++i) {
      if (i >= count) break;
      float value = activate(y[i], p.silu) * gate_at<T>(p, token + i, c);
      if (p.adds_input) value = __fadd_rn(value, input(i));
      static_cast<T*>(p.y)[(token + i) * p.y_stride + c] = from_float<T>(value);
    }
  });
}

// Stores the final states, after all tokens have been convolved. The loop ascends, so that old inputs are read before they are overwritten.
template <typename T>
__global__ void update_states(const __grid_constant__ ShortConv p) {
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (thread >= p.rows * p.channels) return;
  const int64_t row = thread / p.channels, c = thread % p.channels, slot = p.slot != nullptr ? p.slot[row] : row;
  const int64_t start = p.row_start[row], stop = p.row_start[row + 1];
  float* state = p.state + (slot * p.channels + c) * (p.taps - 1);
  for (int j = 0; j + 1 < p.taps; ++j) state[j] = input_at<T>(p, p.state, slot, start, stop - p.taps + 1 + j, c);
}

// The tokens that a thread of a step reads: that of its row, or those of a sequence.
struct RowTokens {
  int count = 1;
  int64_t padding = 0;
  float* kept_state = nullptr;
};

// A step with the usual three or four taps. Each thread handles a row and four channels, whose state is 32 or 48 contiguous bytes.
// kMost: the most tokens that a thread reads; they are loaded together.
template <typename T, int kTaps, int kMost>
__global__ void __launch_bounds__(kThreads)
    step_rows_of_four(const __grid_constant__ ShortConv p, const __grid_constant__ RowTokens tokens) {
  let_next_kernel_start();
  if (!p.state_is_private) wait_for_earlier_kernels();
  constexpr int kCount = 4, kKept = kTaps - 1;
  const int64_t row = blockIdx.x, c = (blockIdx.y * int64_t{kThreads} + threadIdx.x) * kCount;
  if (c >= p.channels) return;
  float* state = p.state + ((p.slot != nullptr ? p.slot[row] : row) * p.channels + c) * kKept;
  constexpr bool kRecent = kTaps == 3 && kMost == 1 && sizeof(T) == 2;  // whether there may be recent inputs
  const bool has_recent = kRecent && p.recent != nullptr;
  uint4* const recent = reinterpret_cast<uint4*>(p.recent + (p.slot != nullptr ? p.slot[row] : row) * p.channels + c);
  float old[kKept][kCount], x[kMost][kCount], gate[kMost][kCount], bias[kCount] = {}, weight[kTaps][kCount];
  uint4 words = {};
  if (has_recent) {
    words = *recent;
  } else {
#pragma unroll
    for (int i = 0; i < kKept; ++i) load_floats<kCount>(state + i * kCount, old[i]);
  }
  if (p.bias != nullptr) load_floats<kCount>(static_cast<const T*>(p.bias) + c, bias);
#pragma unroll
  for (int i = 0; i < kTaps; ++i) load_floats<kCount>(static_cast<const T*>(p.weight) + kTaps * c + i * kCount, weight[i]);
  if (p.state_is_private) wait_for_earlier_kernels();
#pragma unroll
  for (int t = 0; t < kMost; ++t) {
    if (kMost > 1 && t >= tokens.count) break;
    load_floats<kCount>(static_cast<const T*>(p.x) + (row + t) * p.x_stride + c, x[t]);
#pragma unroll
    for (float& factor : gate[t]) factor = 1;
    if (p.gate != nullptr) load_floats<kCount>(static_cast<const T*>(p.gate) + (row + t) * p.gate_stride + c, gate[t]);
  }
  if constexpr (kRecent) {
    if (has_recent) {
      const uint32_t word[kCount] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float2 inputs = recent_inputs(word[i], state + kKept * i);
        old[i / 2][i % 2 * 2] = inputs.x, old[i / 2][i % 2 * 2 + 1] = inputs.y;
      }
      *recent = make_uint4(next_recent(word[0], x[0][0]), next_recent(word[1], x[0][1]), next_recent(word[2], x[0][2]),
                           next_recent(word[3], x[0][3]));
    }
  }
  float y[kCount];
#pragma unroll
  for (int t = 0; t < kMost; ++t) {
    if (kMost > 1 && t >= tokens.count) break;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const auto w = [&](int j) { return weight[(kTaps * i + j) / kCount][(kTaps * i + j) % kCount]; };
      const auto kept = [&](int j) -> float& { return old[(kKept * i + j) / kCount][(kKept * i + j) % kCount]; };
      float z = bias[i];
#pragma unroll
      for (int j = 0; j < kKept; ++j) z = fmaf(w(j), kept(j), z);
      z = fmaf(w(kKept), x[t][i], z);
      y[i] = activate(z, p.silu) * gate[t][i];
#pragma unroll
      for (int j = 0; j < kKept; ++j) kept(j) = j + 1 < kKept ? kept(j + 1) : x[t][i];
    }
    if (kMost > 1 && t + 1 < tokens.count && tokens.kept_state != nullptr) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) store_floats<kCount>(tokens.kept_state + (t * p.channels + c) * kKept + i * kCount, old[i]);
    }
    store_floats<kCount>(static_cast<T*>(p.y) + (row + t) * p.y_stride + c, y);
  }
  if (!has_recent) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) store_floats<kCount>(state + i * kCount, old[i]);
  }
  if constexpr (kMost > 1) {
    for (int64_t i = 0; i < tokens.padding; ++i) store_floats<kCount>(static_cast<T*>(p.y) + (tokens.count + i) * p.y_stride + c, y);
  }
}

// A step in which each thread handles a row and a channel. kTaps: the number of taps at compile time, so that all loads are in flight
// together; 0: any number. kSeveral: whether it reads several tokens.
template <typename T, int kTaps, bool kSeveral>
__global__ void __launch_bounds__(kThreads) step_rows(const __grid_constant__ ShortConv p, const __grid_constant__ RowTokens tokens) {
  overlap_kernels();
  const int64_t row = blockIdx.x, c = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (c >= p.channels) return;
  const int taps = kTaps > 0 ? kTaps : p.taps;
  const T* weight = static_cast<const T*>(p.weight) + c * taps;
  float* state = p.state + ((p.slot != nullptr ? p.slot[row] : row) * p.channels + c) * (taps - 1);
#pragma unroll 1
  for (int t = 0; t < (kSeveral ? tokens.count : 1); ++t) {
    const bool is_last = !kSeveral || t + 1 == tokens.count;
    const float gate = p.gate != nullptr ? to_float(static_cast<const T*>(p.gate)[(row + t) * p.gate_stride + c]) : 1.0F;
    const float x = to_float(static_cast<const T*>(p.x)[(row + t) * p.x_stride + c]);
    float y = p.bias != nullptr ? to_float(static_cast<const T*>(p.bias)[c]) : 0.0F;
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
    if (!is_last && tokens.kept_state != nullptr) {
      for (int j = 0; j + 1 < taps; ++j) tokens.kept_state[(t * p.channels + c) * (taps - 1) + j] = state[j];
    }
    y = activate(fmaf(to_float(weight[taps - 1]), x, y), p.silu) * gate;
    T* out = static_cast<T*>(p.y) + (row + t) * p.y_stride + c;
    for (int64_t i = 0; i <= (kSeveral && is_last ? tokens.padding : 0); ++i) out[i * p.y_stride] = from_float<T>(y);
  }
}

// A thread moves the recent inputs of a channel of a row.
__global__ void __launch_bounds__(kThreads) flush_recent(const __grid_constant__ ShortConvFlush p) {
  overlap_kernels();
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  if (c >= p.channels) return;
  const int64_t channel = p.slot[blockIdx.x] * p.channels + c;
  float2* state = reinterpret_cast<float2*>(p.state) + channel;
  *state = recent_inputs(p.recent[channel], reinterpret_cast<const float*>(state));
  p.recent[channel] = kNoRecentInput << 16 | kNoRecentInput;
}

template <typename T, bool kSeveral>
auto* choose_step(int taps, bool four) {
  constexpr int kMost = kSeveral ? kShortConvStepTokens : 1;
  if (four) return taps == 3 ? step_rows_of_four<T, 3, kMost> : step_rows_of_four<T, 4, kMost>;
  return taps == 3 ? step_rows<T, 3, kSeveral> : taps == 4 ? step_rows<T, 4, kSeveral> : step_rows<T, 0, kSeveral>;
}

template <bool kSeveral>
Status launch_step(const ShortConv& p, const RowTokens& tokens, Queue queue) {
  if (p.x_bias != nullptr || p.gate_bias != nullptr) return {"short_conv_step: x and the gate must have their biases"};
  const bool bf = p.dtype == DType::bf16;
  const bool four = short_conv_step_has_fours(p) && aligned16(tokens.kept_state);
  if (p.recent != nullptr && (kSeveral || !short_conv_has_recent(p))) return {"short_conv_step: this step has no recent inputs"};
  auto* kernel = bf ? choose_step<bf16, kSeveral>(p.taps, four) : choose_step<float, kSeveral>(p.taps, four);
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.channels, kThreads * (four ? 4 : 1))));
  return launch_overlapped(kernel, {grid, kThreads}, queue, p, tokens);
}

template <typename T>
Status launch_stream(const ShortConv& p, Queue queue) {
  auto* kernel = p.taps == 3 ? convolve<T, 3> : convolve<T, 4>;
  const int64_t units = p.channels * dtype_size(p.dtype) / kStreamBytes;
  const int64_t threads = int64_t{kWaves} * resident_blocks(p.taps) * multiprocessors() * kThreads;
  const int64_t run = std::max<int64_t>(kShortestRun, ceil_div(p.tokens * units, threads));
  const int64_t blocks = ceil_div(ceil_div(p.tokens, run) * units, kThreads);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kThreads}, queue, p, run);
}

}  // namespace

Status short_conv_forward(const ShortConv& p, Queue queue) {
  if (p.rows == 0) return {};
  if (p.taps < 1 || p.taps > kShortConvTaps) return {"short_conv_forward: taps must be 1..128"};
  if (p.adds_input && p.x_bias != nullptr) return {"short_conv_forward: x that is added must have its bias"};
  const bool bf = p.dtype == DType::bf16;
  const cudaStream_t s = stream_of(queue);
  if (p.tokens > 0 && fits_stream(p) && fits_stream(p.y, p.y_stride, p.dtype)) {
    if (const Status status = (bf ? launch_stream<bf16> : launch_stream<float>)(p, queue); !status.ok()) return status;
  } else if (p.tokens > 0) {
    auto* kernel = bf ? convolve_any<bf16> : convolve_any<float>;
    kernel<<<any_grid(p, kAnyRun), kAnyChannels, 0, s>>>(p, kAnyRun);
  }
  if (p.state != nullptr && p.taps > 1) {
    auto* kernel = bf ? update_states<bf16> : update_states<float>;
    kernel<<<static_cast<unsigned>(ceil_div(p.rows * p.channels, kThreads)), kThreads, 0, s>>>(p);
  }
  return launched();
}

Status short_conv_step(const ShortConv& p, Queue queue) {
  if (p.rows == 0) return {};
  return launch_step<false>(p, {}, queue);
}

Status short_conv_flush(const ShortConvFlush& p, Queue queue) {
  if (p.rows == 0) return {};
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(ceil_div(p.channels, kThreads)));
  return launch_overlapped(flush_recent, {grid, kThreads}, queue, p);
}

Status short_conv_tokens(const ShortConvTokens& p, Queue queue) {
  if (p.step.tokens < 1 || p.step.tokens > kShortConvStepTokens) return {"short_conv_tokens: tokens must be 1 to 8"};
  return launch_step<true>(p.step, {static_cast<int>(p.step.tokens), p.padding, p.kept_state}, queue);
}

}  // namespace based::kernels::cuda
