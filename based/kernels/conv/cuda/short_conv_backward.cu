// Backward of the gated short convolution. With z = bias + Σ w x, y = act(z)·gate: dz = dy·gate·act'(z), dgate = dy·act(z),
// dx_t = Σ_j w_j dz_{t+taps−1−j} within the row, dw_j = Σ_t dz_t x_{t−taps+1+j}. With adds_input, dx_t also includes dy_t.
#include <algorithm>
#include <type_traits>

#include "based/kernels/common/cuda/column_sums.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/conv/cuda/short_conv.cuh"
#include "based/kernels/conv/cuda/short_conv_any.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kThreads = 128;
// For stream_backward. kWaves: waves of blocks; with several, a slow multiprocessor gets fewer blocks. kShortestRun: minimum tokens per
// thread, so that the tokens that it reads beyond its run are a small fraction.
constexpr int kWaves = 2, kShortestRun = 32;
// Its resident blocks per multiprocessor. With one more, the kernel with four channels per thread would spill registers, which costs more
// than the block gains.
constexpr int resident_blocks(int64_t thread_channels) { return thread_channels == 4 ? 3 : 4; }

// Adds to a pointer. The asm keeps the compiler from holding precomputed multiples of the stride for unrolled loops in registers.
template <typename T>
__device__ __forceinline__ void advance(T*& pointer, int64_t stride) {
  pointer += stride;
  asm volatile("" : "+l"(pointer));
}

// The tokens of one row that a thread owns. Indices are relative to the first of them: it owns tokens 0 .. last − 1. Their gradients need
// the outputs of tokens before `end`.
struct Segment {
  int start;  // the row's start, but at least −(taps − 1)
  int last, end;
  int lowest;  // first token whose input gradient is needed; inputs before the row's start are the initial state
};

// Number of sums over tokens per channel: one per tap, one for the bias and, if `usual`, one for each of both gradients.
__host__ __device__ constexpr int sum_count(int taps, bool usual) { return taps + (usual ? 3 : 1); }

// Backward in one pass for a compile-time number of taps. It recomputes z. The gradients of the last inputs stay in registers until all
// outputs that depend on them have been processed. A thread handles a run of tokens and kCount channels, and loads kPrefetched tokens
// ahead. It stores its sums to partial [runs, sums, channels]. kUsual: the activation is SiLU, there are a gate and its gradient, the sums
// of both gradients are computed, and adds_input is false. Fixing these at compile time saves registers.
template <typename T, int kTaps, bool kUsual>
__global__ void __launch_bounds__(kThreads, resident_blocks(kStreamBytes / sizeof(T)))
    stream_backward(const __grid_constant__ ShortConvBackward p, float* partial, int64_t run_tokens) {
  overlap_kernels();
  constexpr int kCount = kStreamBytes / sizeof(T), kKept = kTaps - 1, kPrefetched = 4;
  const ShortConv& f = p.forward;
  const int64_t units = f.channels / kCount, thread = blockIdx.x * int64_t{kThreads} + threadIdx.x, run = thread / units;
  const int64_t run_begin = run * run_tokens, run_end = min(run_begin + run_tokens, f.tokens), c = thread % units * kCount;
  if (run_begin >= run_end) return;
  const StreamFilter<T, kTaps> filter(f, c);
  const bool gated = kUsual || f.gate != nullptr;
  const uint2 gate_bias = f.gate_bias != nullptr ? *reinterpret_cast<const uint2*>(static_cast<const T*>(f.gate_bias) + c) : uint2{};
  float sums[kTaps + 1][kCount] = {}, input_sum[kCount] = {}, gate_sum[kCount] = {};

  int64_t row = find_row(f.row_start, f.rows, run_begin);
  for (int64_t first = run_begin; first < run_end; ++row) {
    const int64_t start = f.row_start[row], stop = f.row_start[row + 1];
    if (stop <= first) continue;
    Segment s{static_cast<int>(max(start - first, int64_t{-kKept})), static_cast<int>(min(stop, run_end) - first), 0, 0};
    s.end = static_cast<int>(min(stop - first, int64_t{s.last + kKept}));
    if (first == start && p.grad_initial_state != nullptr) s.lowest = -kKept;

    // Load the segment's first tokens and the inputs before them.
    const T* next_x = static_cast<const T*>(f.x) + first * f.x_stride + c;  // the next token to load
    const T* next_gate = static_cast<const T*>(f.gate) + first * f.gate_stride + c;
    const T* next_grad_y = static_cast<const T*>(p.grad_y) + first * f.channels + c;
    uint2 x[kPrefetched], gate[kPrefetched], grad_y[kPrefetched];
    const auto load = [&](int slot, bool valid) {
      if (valid) {
        x[slot] = *reinterpret_cast<const uint2*>(next_x);
        if (gated) gate[slot] = *reinterpret_cast<const uint2*>(next_gate);
        grad_y[slot] = *reinterpret_cast<const uint2*>(next_grad_y);
      }
      advance(next_x, f.x_stride), advance(next_gate, f.gate_stride), advance(next_grad_y, f.channels);
    };
#pragma unroll
    for (int t = 0; t < kPrefetched; ++t) load(t, t < s.end);
    float window[kKept][kCount], pending[kKept][kCount] = {};  // the last inputs without x's bias, and their gradients so far; oldest first
    inputs_before<T>(f, p.initial_state, row, first + s.start, first, c, window);

    // Stores the gradient of the input that is completed next: of x, or of the initial state.
    T* input_output = static_cast<T*>(p.grad_x) + (first - kKept) * p.grad_x_stride + c;
    const auto store_token = [&](const float(&g)[kCount]) {
      store_floats<kCount>(input_output, g);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (kUsual) input_sum[i] += g[i];
      }
    };
    const auto store_input = [&](int token, const float(&g)[kCount]) {
      if (token >= s.start) return store_token(g);
#pragma unroll
      for (int i = 0; i < kCount; ++i) p.grad_initial_state[(row * f.channels + c + i) * kKept + kKept + token - s.start] = g[i];
    };

    // Processes the token in `slot`, and reloads the slot. inside: the token and the one kKept before it are in the segment.
    T* gate_output = static_cast<T*>(p.grad_gate) + first * p.grad_gate_stride + c;
    const auto process_token = [&](auto inside, int slot, int token) {
      constexpr bool kInside = decltype(inside)::value;
      float input[kCount], g[kCount], scale[kCount] = {}, extra_gate[kCount], gate_gradient[kCount], input_gradient[kCount];
      unpack(x[slot], input), unpack(grad_y[slot], g), unpack(gate_bias, extra_gate);
      if (gated) unpack(gate[slot], scale);
      load(slot, token + kPrefetched < s.end);
      const bool is_owned = kInside || token < s.last;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float z = filter.bias[i];
#pragma unroll
        for (int j = 0; j < kKept; ++j) z = fmaf(filter.weight[j][i], window[j][i], z);
        z = fmaf(filter.weight[kKept][i], input[i], z);
        const float sigma = kUsual || f.silu ? sigmoid(z) : 1.0F, act = z * sigma;
        const float dz = g[i] * (gated ? scale[i] + extra_gate[i] : 1.0F) * fmaf(act, 1 - sigma, sigma);
        gate_gradient[i] = g[i] * act;
        if (is_owned) {
#pragma unroll
          for (int j = 0; j < kKept; ++j) sums[j][i] = fmaf(dz, window[j][i], sums[j][i]);
          sums[kKept][i] = fmaf(dz, input[i], sums[kKept][i]);
          sums[kTaps][i] += dz;
          if (kUsual) gate_sum[i] += gate_gradient[i];
        }
        input_gradient[i] = fmaf(filter.weight[0][i], dz, pending[0][i]);
#pragma unroll
        for (int j = 0; j + 1 < kKept; ++j) {
          window[j][i] = window[j + 1][i];
          pending[j][i] = fmaf(filter.weight[j + 1][i], dz, pending[j + 1][i]);
        }
        window[kKept - 1][i] = input[i], pending[kKept - 1][i] = filter.weight[kKept][i] * dz;
        if (!kUsual && f.adds_input) pending[kKept - 1][i] = __fadd_rn(g[i], pending[kKept - 1][i]);
      }
      if (is_owned && (kUsual || p.grad_gate != nullptr)) store_floats<kCount>(gate_output, gate_gradient);
      if constexpr (kInside) {
        store_token(input_gradient);
      } else if (token - kKept >= s.lowest) {
        store_input(token - kKept, input_gradient);
      }
      advance(gate_output, p.grad_gate_stride), advance(input_output, p.grad_x_stride);
    };
    for (int token = 0; token < s.end; token += kPrefetched) {
      if (token >= kKept && token + kPrefetched <= s.last) {
#pragma unroll
        for (int t = 0; t < kPrefetched; ++t) process_token(std::true_type{}, t, token + t);
      } else {
#pragma unroll
        for (int t = 0; t < kPrefetched; ++t) {
          if (token + t < s.end) process_token(std::false_type{}, t, token + t);
        }
      }
    }

    // If the row ends in this segment, complete the gradients of the row's last inputs, which are also the final state.
#pragma unroll
    for (int j = 0; j < kKept; ++j, input_output += p.grad_x_stride) {
      const int token = s.end - kKept + j;
      if (token < s.lowest || token >= s.last) continue;
      if (p.grad_state != nullptr) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) pending[j][i] += p.grad_state[(row * f.channels + c + i) * kKept + j];
      }
      store_input(token, pending[j]);
    }
    first += s.last;
  }

  // Account for x_bias in the gradient of the filter: Σ dz (x + b) = Σ dz x + b Σ dz.
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float added = element_or_zero<T>(f.x_bias, c + i) * sums[kTaps][i];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sums[j][i] += added;
  }
  partial += run * sum_count(kTaps, kUsual) * f.channels + c;
#pragma unroll
  for (int j = 0; j <= kTaps; ++j) store_floats<kCount>(partial + j * f.channels, sums[j]);
  if constexpr (kUsual) {
    store_floats<kCount>(partial + (kTaps + 1) * f.channels, input_sum);
    store_floats<kCount>(partial + (kTaps + 2) * f.channels, gate_sum);
  }
}

// In a row without tokens the final state is the initial state, so the gradient is copied.
__global__ void __launch_bounds__(kThreads) empty_rows_backward(const __grid_constant__ ShortConvBackward p) {
  overlap_kernels();
  const ShortConv& f = p.forward;
  const int64_t row_channel = blockIdx.x * int64_t{kThreads} + threadIdx.x, kept = f.taps - 1, row = row_channel / f.channels;
  if (row >= f.rows || f.row_start[row] != f.row_start[row + 1]) return;
  for (int64_t i = row_channel * kept; i < (row_channel + 1) * kept; ++i)
    p.grad_initial_state[i] = p.grad_state != nullptr ? p.grad_state[i] : 0.0F;
}

// Supports any taps, channels and strides. Stores dz to grad_z, the gate's gradient, and the block's sums for dw and dbias to partial
// [blocks, taps + 1, channels].
template <typename T>
__global__ void __launch_bounds__(kAnyChannels)
    backward_outputs(const __grid_constant__ ShortConvBackward p, float* grad_z, float* partial, int64_t run_tokens) {
  const ShortConv& f = p.forward;
  __shared__ AnyTaps filter;
  const int64_t first = blockIdx.x * run_tokens, last = min(first + run_tokens, f.tokens);
  const int64_t first_channel = blockIdx.y * int64_t{kAnyChannels}, c = first_channel + threadIdx.x;
  load_filter<T>(f, first_channel, filter);
  if (c >= f.channels) return;
  float bias = 0;
  each_run(f, first, last, [&](int64_t row, int64_t token, int count) {
    float z[kAnyTokens] = {};
    if (f.silu || p.grad_gate != nullptr) convolve(f, filter, AnyInputs<T>(f, p.initial_state, row, row, token, c), c, z);
#pragma unroll
    for (int i = 0; i < kAnyTokens; ++i) {
      if (i >= count) break;
      const float g = to_float(static_cast<const T*>(p.grad_y)[(token + i) * f.channels + c]), s = sigmoid(z[i]);
      const float dz = g * gate_at<T>(f, token + i, c) * (f.silu ? s * (1 + z[i] * (1 - s)) : 1.0F);
      grad_z[(token + i) * f.channels + c] = dz;
      if (p.grad_gate != nullptr) {
        static_cast<T*>(p.grad_gate)[(token + i) * p.grad_gate_stride + c] = from_float<T>(g * (f.silu ? z[i] * s : z[i]));
      }
      bias += dz;
    }
  });
  float* block_sums = partial + blockIdx.x * f.channels * (f.taps + 1) + c;
#pragma unroll 1
  for (int tap = 0; tap < f.taps; tap += kAnyTokens) {
    float sums[kAnyTokens] = {};
    each_run(f, first, last, [&](int64_t row, int64_t token, int count) {
      const AnyInputs<T> input(f, p.initial_state, row, row, token, c);
      float x[2 * kAnyTokens - 1];
#pragma unroll
      for (int i = 0; i < 2 * kAnyTokens - 1; ++i) x[i] = input(i + tap - f.taps + 1);
#pragma unroll
      for (int k = 0; k < kAnyTokens; ++k) {
        if (k >= count) break;
        const float dz = grad_z[(token + k) * f.channels + c];
#pragma unroll
        for (int i = 0; i < kAnyTokens; ++i) sums[i] = fmaf(dz, x[k + i], sums[i]);
      }
    });
#pragma unroll
    for (int i = 0; i < kAnyTokens; ++i)
      if (tap + i < f.taps) block_sums[(tap + i) * f.channels] = sums[i];
  }
  block_sums[f.taps * f.channels] = bias;
}

// dx_t sums the contributions of the outputs from t on in its row: a correlation of dz with the reversed filter.
template <typename T>
__global__ void __launch_bounds__(kAnyChannels)
    backward_inputs(const __grid_constant__ ShortConvBackward p, const float* grad_z, int64_t run_tokens) {
  const ShortConv& f = p.forward;
  __shared__ AnyTaps filter;
  const int64_t first = blockIdx.x * run_tokens, last = min(first + run_tokens, f.tokens);
  const int64_t first_channel = blockIdx.y * int64_t{kAnyChannels}, c = first_channel + threadIdx.x;
  load_filter<T>(f, first_channel, filter);
  if (c >= f.channels) return;
  each_run(f, first, last, [&](int64_t row, int64_t token, int count) {
    const int64_t stop = f.row_start[row + 1];
    const int outputs = static_cast<int>(min(stop - token, int64_t{1 << 30}));
    float sums[kAnyTokens] = {};  // in reverse order of tokens
    correlate(sums, &filter.weight[0][threadIdx.x], f.taps, [&](int s) {
      const int i = kAnyTokens - 1 - s;
      return i < outputs ? grad_z[(token + i) * f.channels + c] : 0.0F;
    });
#pragma unroll
    for (int i = 0; i < kAnyTokens; ++i) {
      if (i >= count) break;
      float g = sums[kAnyTokens - 1 - i];
      if (f.adds_input) g += to_float(static_cast<const T*>(p.grad_y)[(token + i) * f.channels + c]);
      const int64_t entry = token + i - (stop - (f.taps - 1));  // index in the final state
      if (p.grad_state != nullptr && entry >= 0) g += p.grad_state[(row * f.channels + c) * (f.taps - 1) + entry];
      static_cast<T*>(p.grad_x)[(token + i) * p.grad_x_stride + c] = from_float<T>(g);
    }
  });
}

// Computes the gradient of the initial states.
template <typename T>
__global__ void backward_states(const __grid_constant__ ShortConvBackward p, const float* grad_z) {
  const ShortConv& f = p.forward;
  const int64_t row_channel = blockIdx.x * int64_t{blockDim.x} + threadIdx.x, kept = f.taps - 1;
  if (row_channel >= f.rows * f.channels) return;
  const int64_t row = row_channel / f.channels, c = row_channel % f.channels, start = f.row_start[row], stop = f.row_start[row + 1];
  for (int64_t i = 0; i < kept; ++i) {  // the input at start − kept + i
    float g = 0;
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t token = start + i - j;
      if (token < stop) g = fmaf(to_float(static_cast<const T*>(f.weight)[c * f.taps + j]), grad_z[token * f.channels + c], g);
    }
    const int64_t entry = i - (stop - start);  // index in the final state, if the row is short enough to keep this input
    if (p.grad_state != nullptr && entry >= 0) g += p.grad_state[row_channel * kept + entry];
    p.grad_initial_state[row_channel * kept + i] = g;
  }
}

// Adds up the partial sums. Column j · channels + c of `partial` is the gradient of tap j of channel c; for j = taps that of its bias; for
// j = taps + 1 and taps + 2 the sums of the gradients of x and of the gate.
__global__ void __launch_bounds__(kSumThreads)
    sum_parts(const __grid_constant__ ShortConvBackward p, const float* partial, int64_t parts, int sums) {
  overlap_kernels();
  const int64_t channels = p.forward.channels, taps = p.forward.taps;
  const float sum = sum_column_of_warp(partial, parts, channels * sums);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32, j = column / channels, c = column % channels;
  if (threadIdx.x % 32 != 0 || j >= sums) return;
  if (j < taps) {
    p.grad_weight[c * taps + j] = sum;
  } else if (j > taps) {
    if (p.grad_sums != nullptr) p.grad_sums[column - (taps + 1) * channels] = sum;
  } else if (p.grad_bias != nullptr) {
    p.grad_bias[c] = sum;
  }
}

struct BackwardPlan {
  bool streams;                   // whether stream_backward supports the problem
  bool usual;                     // kUsual: it also sums the gradients of x and of the gate
  int64_t tokens = 0, parts = 0;  // tokens per partial sum; number of partial sums
  int64_t grad_z_bytes = 0;
};
BackwardPlan plan_backward(const ShortConvBackward& p) {
  const ShortConv& f = p.forward;
  const int64_t count = kStreamBytes / dtype_size(f.dtype);
  const bool streams = fits_stream(f) && fits_stream(p.grad_y, f.channels, f.dtype) && fits_stream(p.grad_x, p.grad_x_stride, f.dtype) &&
                       fits_stream(p.grad_gate, p.grad_gate_stride, f.dtype) && fits_stream(f.gate_bias, 0, f.dtype);
  BackwardPlan plan{streams, streams && f.gate != nullptr && p.grad_gate != nullptr && f.silu && !f.adds_input};
  if (plan.streams) {
    const int64_t threads = int64_t{kWaves} * resident_blocks(count) * multiprocessors() * kThreads;
    plan.tokens = std::max<int64_t>(kShortestRun, ceil_div(f.tokens * (f.channels / count), threads));
  } else {
    plan.tokens = kAnyRun;
    plan.grad_z_bytes = round_up(f.tokens * f.channels * 4, 16);
  }
  plan.parts = ceil_div(f.tokens, plan.tokens);
  return plan;
}

template <typename T>
Status launch_stream(const ShortConvBackward& p, const BackwardPlan& plan, float* partial, Queue queue) {
  const ShortConv& f = p.forward;
  if (f.tokens > 0) {
    auto* kernel = f.taps == 3 ? (plan.usual ? stream_backward<T, 3, true> : stream_backward<T, 3, false>)
                               : (plan.usual ? stream_backward<T, 4, true> : stream_backward<T, 4, false>);
    const int64_t threads = plan.parts * (f.channels * dtype_size(f.dtype) / kStreamBytes);
    const Status status =
        launch_overlapped(kernel, {static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads}, queue, p, partial, plan.tokens);
    if (!status.ok()) return status;
  }
  if (p.grad_initial_state == nullptr || f.rows == 0) return {};
  return launch_overlapped(empty_rows_backward, {static_cast<unsigned>(ceil_div(f.rows * f.channels, kThreads)), kThreads}, queue, p);
}

template <typename T>
Status any_backward(const ShortConvBackward& p, const BackwardPlan& plan, float* grad_z, float* partial, Queue queue) {
  const ShortConv& f = p.forward;
  const cudaStream_t s = stream_of(queue);
  if (f.tokens > 0) {
    backward_outputs<T><<<any_grid(f, plan.tokens), kAnyChannels, 0, s>>>(p, grad_z, partial, plan.tokens);
    backward_inputs<T><<<any_grid(f, plan.tokens), kAnyChannels, 0, s>>>(p, grad_z, plan.tokens);
  }
  if (p.grad_initial_state != nullptr && f.taps > 1 && f.rows > 0) {
    backward_states<T><<<static_cast<unsigned>(ceil_div(f.rows * f.channels, kThreads)), kThreads, 0, s>>>(p, grad_z);
  }
  return launched();
}

}  // namespace

bool short_conv_backward_sums(const ShortConvBackward& p) { return plan_backward(p).usual; }

int64_t short_conv_backward_scratch(const ShortConvBackward& p) {
  const BackwardPlan plan = plan_backward(p);
  return plan.grad_z_bytes + plan.parts * p.forward.channels * sum_count(p.forward.taps, plan.usual) * 4;
}

Status short_conv_backward(const ShortConvBackward& p, void* scratch, Queue queue) {
  const ShortConv& f = p.forward;
  if (f.channels == 0) return {};
  const BackwardPlan plan = plan_backward(p);
  if (p.grad_sums != nullptr && !plan.usual) return {"short_conv_backward: no kernel sums the gradients for this problem"};
  auto* grad_z = static_cast<float*>(scratch);
  float* partial = grad_z + plan.grad_z_bytes / 4;
  const bool bf = f.dtype == DType::bf16;
  const Status status = plan.streams ? (bf ? launch_stream<bf16> : launch_stream<float>)(p, plan, partial, queue)
                                     : (bf ? any_backward<bf16> : any_backward<float>)(p, plan, grad_z, partial, queue);
  if (!status.ok()) return status;
  const int sums = sum_count(f.taps, plan.usual);
  const Launch launch{static_cast<unsigned>(ceil_div(f.channels * sums, kSumColumns)), kSumThreads};
  return launch_overlapped(sum_parts, launch, queue, p, partial, plan.parts, sums);
}

namespace {
const DefineLaunchers<ShortConvLaunchers> kLaunchers(Device::cuda, {.forward = short_conv_forward,
                                                                    .backward_scratch = short_conv_backward_scratch,
                                                                    .backward = short_conv_backward,
                                                                    .step = short_conv_step,
                                                                    .backward_sums = short_conv_backward_sums,
                                                                    .adds_input = true,
                                                                    .step_tokens = short_conv_tokens,
                                                                    .flush = short_conv_flush});
}

}  // namespace based::kernels::cuda
