// Gradients of the selective scan: a block walks along a row from its end, a chunk at a time, whose states it computes again from the kept
// one. What channels share is summed over a block's channels here and over the blocks by a second kernel, over the rows likewise.
#include <algorithm>

#include "based/kernels/cuda/column_sums.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kTile = kSelectiveScanCudaChunk, kRun = kTile / kScanLanes;
constexpr int kMostSets = 4;

struct Shared {
  // Then the gradients of x, dt and z.
  float delta[kScanChannels][kTile], x[kScanChannels][kTile], z[kScanChannels][kTile];
  float grad_y[kScanChannels][kTile], B[kScanSlab][kTile], C[kScanSlab][kTile];
  float of_channels[2][2][kScanChannels][kTile];  // gradients of B and C by one number of the state, of two in turn
};
static_assert(sizeof(Shared) % 16 == 0);

// What is behind it, in floats, for `sets` sixteens of channels a block.
struct Layout {
  int64_t states, of_set, sums, total;  // sums: over the sets' channels, [2, state_size, kTile]

  __host__ __device__ Layout(int64_t state_size, int64_t sets)
      : states(kScanChannels * state_size), of_set(sets * kScanChannels), sums(sets > 1 ? 2 * state_size * kTile : 0) {
    total = sums + states + 3 * sets * states + 3 * of_set;
  }
};

// Scratch: parts of the sums over channels, [blocks, 2, state_size, tokens], and over rows, [rows, channels · (state_size + 2)].
struct Plan {
  int64_t sets = 1, blocks = 0, shared_bytes = 0, of_channels = 0, row_columns = 0;
};

template <typename T>
struct Walk {
  const SelectiveScanBackward& b;
  const SelectiveScan& p;
  const ScanPlace place;
  const int64_t start, stop;
  const int lane = threadIdx.x % kScanLanes, channel = threadIdx.x / kScanLanes, state_size, sets;
  float* const of_channels;
  Shared& shared;
  // sums [2, state_size, kTile]; before [state_size, 16]: states before the chunk; of each of the sets' channels: carries, gradients of
  // the states behind it, rates, gradients of A_log, [state_size] each; dt_bias and the gradients of D and dt_bias, a number each.
  float *sums, *before, *carries, *rates, *of_rates, *dt_bias, *of_D, *of_bias;

  __device__ __forceinline__ Walk(const SelectiveScanBackward& params, int number_of_sets, float* partial, float4* memory)
      : b(params),
        p(params.forward),
        place(p, number_of_sets * kScanChannels),
        start(p.row_start[place.row]),
        stop(p.row_start[place.row + 1]),
        state_size(static_cast<int>(p.state_size)),
        sets(number_of_sets),
        of_channels(partial + place.number * 2 * p.state_size * p.tokens),
        shared(*reinterpret_cast<Shared*>(memory)) {
    const Layout layout(state_size, sets);
    sums = reinterpret_cast<float*>(&shared + 1), before = sums + layout.sums;
    carries = before + layout.states, rates = carries + sets * layout.states, of_rates = rates + sets * layout.states;
    dt_bias = of_rates + sets * layout.states, of_D = dt_bias + layout.of_set, of_bias = of_D + layout.of_set;
  }

  __device__ __forceinline__ void begin() {
    const T* A_log = static_cast<const T*>(p.A_log) + place.channel * state_size;
    const float* grad_state = b.grad_state != nullptr ? b.grad_state + (place.row * p.channels + place.channel) * state_size : nullptr;
    for (int i = threadIdx.x; i < sets * kScanChannels * state_size; i += kScanThreads) {
      const bool there = i < place.channels * state_size;
      carries[i] = there && grad_state != nullptr ? grad_state[i] : 0.0F;
      rates[i] = there ? scan_rate(to_float(A_log[i])) : 0.0F;
      of_rates[i] = 0;
    }
    for (int i = threadIdx.x; i < sets * kScanChannels; i += kScanThreads) {
      const bool there = p.dt_bias != nullptr && i < place.channels;
      dt_bias[i] = there ? to_float(static_cast<const T*>(p.dt_bias)[place.channel + i]) : 0.0F;
      of_D[i] = of_bias[i] = 0;
    }
    __syncthreads();
  }
  __device__ __forceinline__ void end(float* of_rows, int64_t columns) const {
    __syncthreads();
    float* to = of_rows + place.row * columns;
    for (int i = threadIdx.x; i < place.channels * state_size; i += kScanThreads) {
      to[place.channel * state_size + i] = of_rates[i];
      if (b.grad_initial_state != nullptr) {
        b.grad_initial_state[(place.row * p.channels + place.channel) * state_size + i] = carries[i];
      }
    }
    to += p.channels * state_size + place.channel;
    for (int i = threadIdx.x; i < place.channels; i += kScanThreads) to[i] = of_D[i], to[p.channels + i] = of_bias[i];
  }

  __device__ __forceinline__ void load_slab(int64_t token, int first, int tokens) {
    const int64_t at = place.group * state_size + first;
    const int count = min(kScanSlab, state_size - first);
    const ScanColumns<T, kTile> B(p.B, token * p.b_stride + at, p.b_stride, tokens, count),
        C(p.C, token * p.c_stride + at, p.c_stride, tokens, count);
    B.put_states(shared.B), C.put_states(shared.C);
  }
  // Of channels from `first` on, `count` of them; of the block's channels it is set `set`.
  __device__ __forceinline__ void load(int64_t token, int tokens, int64_t first, int count, int set) {
    const ScanColumns<T, kTile> dt(p.dt, token * p.dt_stride + first, p.dt_stride, tokens, count),
        x(p.x, token * p.x_stride + first, p.x_stride, tokens, count), g(b.grad_y, token * p.channels + first, p.channels, tokens, count),
        z(p.z, token * p.z_stride + first, p.z_stride, tokens, p.z != nullptr ? count : 0);
    __syncthreads();  // all have done with what is there
    dt.put([&](int column, int t, float raw) {
      shared.delta[column][scan_word(column, t)] = t < tokens ? scan_step(p, raw + dt_bias[set * kScanChannels + column]) : 0.0F;
    });
    x.put_channels(shared.x), g.put_channels(shared.grad_y), z.put_channels(shared.z);
    const int64_t chunk = selective_scan_first_chunk(place.row, start, kTile) + (token - start) / kTile;
    const float* kept = p.chunk_states + chunk * state_size * p.channels + first;
    for (int i = threadIdx.x; i < kScanChannels * state_size; i += kScanThreads) {
      const int column = i % kScanChannels;
      before[i] = column < count ? kept[i / kScanChannels * p.channels + column] : 0.0F;
    }
  }

  // A lane's run: the time steps, times x, the gradient behind the gate; sums over the states: the gradients of δ·x by B, of δ by
  // A·log2(e), and y.
  struct Run {
    float delta[kRun], in[kRun], g[kRun], of_in[kRun] = {}, of_delta[kRun] = {}, y[kRun], total = 0;
  };

  // One number of a channel's state: `h` before the chunk, `carry` the gradient behind it and then before it.
  __device__ __forceinline__ void retreat(Run& run, float h, float rate, float& carry, float& of_rate, int row, int turn) {
    float decay[kRun], number[kRun], of_y[kRun], kept[kRun], sum = 0;  // of_y: of the state by C; kept: what decay leaves of it
    load_run(shared.B[row], lane * kRun, 0, number);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      decay[k] = exp2_approx(run.delta[k] * rate);
      sum = fmaf(decay[k], sum, run.in[k] * number[k]);
    }
    const float whole = exp2_approx(run.total * rate);
    float product = whole;
    compose_up(product, sum);
    h = from_below(product, sum, h, lane);
    load_run(shared.C[row], lane * kRun, 0, of_y);
    float parts[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      kept[k] = decay[k] * h, h = fmaf(run.in[k], number[k], kept[k]);
      run.y[k] = fmaf(of_y[k], h, run.y[k]);
      parts[k] = run.g[k] * h, of_y[k] *= run.g[k];
    }
    const int shift = scan_word(channel, 0);
    store_run(shared.of_channels[turn][1][channel], lane * kRun, shift, parts);
    sum = of_y[kRun - 1];
#pragma unroll
    for (int k = kRun - 2; k >= 0; --k) sum = fmaf(decay[k + 1], sum, of_y[k]);
    sum *= decay[0], product = whole;
    const float behind = carry;
    compose_down(product, sum);
    float grad = from_above(product, sum, behind, lane) + of_y[kRun - 1], of_A = 0;
    __syncwarp();  // all lanes have read the carry
    if (lane == 0) carry = fmaf(product, behind, sum);
#pragma unroll
    for (int k = kRun - 1; k >= 0; --k) {
      const float slope = grad * kept[k];
      run.of_in[k] = fmaf(grad, number[k], run.of_in[k]), run.of_delta[k] = fmaf(slope, rate, run.of_delta[k]);
      of_A = fmaf(slope, run.delta[k], of_A);
      parts[k] = grad * run.in[k];
      if (k > 0) grad = fmaf(decay[k], grad, of_y[k - 1]);
    }
    store_run(shared.of_channels[turn][0][channel], lane * kRun, shift, parts);
    of_A = sum_of_lanes(of_A);
    if (lane == 0) of_rate = fmaf(of_A, rate * kLn2, of_rate);
  }

  // The gradients of B and C by number `state` of the state, over a set's channels and the sets before it; half of the threads take two
  // tokens each of one, while the others go on.
  __device__ __forceinline__ void add_channels(int64_t token, int tokens, int state, int set, bool last) {
    constexpr int kThreadsOfSum = kTile / 2;
    const int turn = state % 2, of = threadIdx.x / kThreadsOfSum % 2, t = threadIdx.x % kThreadsOfSum * 2;
    if (static_cast<int>(threadIdx.x) / (2 * kThreadsOfSum) != turn) return;
    float2 sum = {};
#pragma unroll
    for (int c = 0; c < kScanChannels; ++c) {
      const float2 part = *reinterpret_cast<const float2*>(&shared.of_channels[turn][of][c][scan_word(c, t)]);
      sum.x += part.x, sum.y += part.y;
    }
    float2& before_set = *reinterpret_cast<float2*>(sums + (of * state_size + state) * kTile + t);
    if (set > 0) sum.x += before_set.x, sum.y += before_set.y;
    if (!last) {
      before_set = sum;
      return;
    }
    float* to = of_channels + (of * static_cast<int64_t>(state_size) + state) * p.tokens + token;
    if (t < tokens) to[t] = sum.x;
    if (t + 1 < tokens) to[t + 1] = sum.y;
  }

  // The gradients of x, dt and z to where these were; this thread alone reads them there.
  __device__ __forceinline__ void finish(const Run& run, int tokens, int set) {
    const int shift = scan_word(channel, 0), first = lane * kRun;
    float x[kRun], z[kRun], g[kRun], of_x[kRun], skipped = 0, biased = 0;
    const float skip = skip_of(set);
    load_run(shared.x[channel], first, shift, x), load_run(shared.grad_y[channel], first, shift, g);
    if (p.z != nullptr) load_run(shared.z[channel], first, shift, z);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      of_x[k] = fmaf(run.of_in[k], run.delta[k], skip * run.g[k]);
      skipped = fmaf(run.g[k], x[k], skipped);
      const float of_delta = fmaf(run.of_in[k], x[k], run.of_delta[k] * kLn2);
      x[k] = p.softplus ? of_delta * softplus_slope(run.delta[k]) : of_delta;
      if (first + k < tokens) biased += x[k];
      if (p.z != nullptr) {
        const float open = sigmoid(z[k]);
        z[k] = g[k] * run.y[k] * open * fmaf(z[k], 1.0F - open, 1.0F);
      }
    }
    store_run(shared.delta[channel], first, shift, of_x), store_run(shared.x[channel], first, shift, x);
    if (p.z != nullptr) store_run(shared.z[channel], first, shift, z);
    skipped = sum_of_lanes(skipped), biased = sum_of_lanes(biased);
    if (lane == 0) of_D[set * kScanChannels + channel] += skipped, of_bias[set * kScanChannels + channel] += biased;
  }
  __device__ __forceinline__ float skip_of(int set) const {
    const int at = set * kScanChannels + channel;
    return p.D != nullptr && at < place.channels ? to_float(static_cast<const T*>(p.D)[place.channel + at]) : 0.0F;
  }

  template <int kCount>
  __device__ __forceinline__ void store(int64_t token, int tokens, int64_t first, int count) const {
    const auto store_rows = [&](const float(&rows)[kScanChannels][kTile], void* to) {
      if (to == nullptr) return;
      each_of_tile<kCount>(tokens, count, [&](int t, int column) {
        float value[kCount];
#pragma unroll
        for (int j = 0; j < kCount; ++j) value[j] = rows[column + j][scan_word(column + j, t)];
        store_floats<kCount>(static_cast<T*>(to) + (token + t) * p.channels + first + column, value);
      });
    };
    store_rows(shared.delta, b.grad_x), store_rows(shared.x, b.grad_dt), store_rows(shared.z, b.grad_z);
  }

  __device__ __forceinline__ Run begin_run(int set) const {
    Run run;
    const int shift = scan_word(channel, 0), first = lane * kRun;
    const float skip = skip_of(set);
    load_run(shared.delta[channel], first, shift, run.delta), load_run(shared.x[channel], first, shift, run.in);
    load_run(shared.grad_y[channel], first, shift, run.g);
    float z[kRun];
    if (p.z != nullptr) load_run(shared.z[channel], first, shift, z);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      if (p.z != nullptr) run.g[k] *= z[k] * sigmoid(z[k]);
      run.y[k] = skip * run.in[k], run.in[k] *= run.delta[k], run.total += run.delta[k];
    }
    return run;
  }

  __device__ __forceinline__ void take_set(int64_t token, int tokens, int set, bool whole) {
    const int64_t first = place.channel + set * kScanChannels;
    const int count = min(kScanChannels, place.channels - set * kScanChannels);
    const bool last = (set + 1) * kScanChannels >= place.channels;
    load(token, tokens, first, count, set);
    if (set == 0 || state_size > kScanSlab) load_slab(token, 0, tokens);
    __syncthreads();
    Run run = begin_run(set);
    const int mine = (set * kScanChannels + channel) * state_size;
#pragma unroll 1
    for (int s = 0; s < state_size; ++s) {
      if (s > 0 && s % kScanSlab == 0) {
        load_slab(token, s, tokens);
        __syncthreads();
      }
      retreat(run, before[s * kScanChannels + channel], rates[mine + s], carries[mine + s], of_rates[mine + s], s % kScanSlab, s % 2);
      __syncthreads();
      add_channels(token, tokens, s, set, last);
    }
    finish(run, tokens, set);
    __syncthreads();
    if (whole) {
      store<16 / sizeof(T)>(token, tokens, first, count);
    } else {
      store<1>(token, tokens, first, count);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kScanThreads, 2)
    walk_back(const __grid_constant__ SelectiveScanBackward b, float* of_channels, float* of_rows, int sets, bool whole) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  Walk<T> walk(b, sets, of_channels, memory);
  walk.begin();
  constexpr int kCount = 16 / sizeof(T);
  whole = whole && walk.place.channels % kCount == 0 && walk.place.channel % kCount == 0;
  for (int64_t tile = (walk.stop - walk.start + kTile - 1) / kTile - 1; tile >= 0; --tile) {
    const int64_t token = walk.start + tile * kTile;
    const int tokens = static_cast<int>(min(int64_t{kTile}, walk.stop - token));
    for (int set = 0; set * kScanChannels < walk.place.channels; ++set) walk.take_set(token, tokens, set, whole);
  }
  walk.end(of_rows, b.forward.channels * (b.forward.state_size + 2));
}

// Gradients of B and C: the parts of a group's blocks, a thread a token and number of the state.
template <typename T>
__global__ void __launch_bounds__(kScanThreads)
    add_blocks(const __grid_constant__ SelectiveScanBackward b, const float* of_channels, int64_t blocks, int64_t token_blocks) {
  overlap_kernels();
  const SelectiveScan& p = b.forward;
  const int64_t token = blockIdx.x % token_blocks * kScanThreads + threadIdx.x, unit = blockIdx.x / token_blocks;
  const int64_t state = unit % p.state_size, group = unit / p.state_size % p.groups, of = unit / p.state_size / p.groups;
  if (token >= p.tokens) return;
  const int64_t stride = 2 * p.state_size * p.tokens;
  const float* part = of_channels + group * blocks * stride + (of * p.state_size + state) * p.tokens + token;
  float sum = 0;
#pragma unroll 8
  for (int64_t block = 0; block < blocks; ++block) sum += part[block * stride];
  static_cast<T*>(of == 0 ? b.grad_B : b.grad_C)[(token * p.groups + group) * p.state_size + state] = from_float<T>(sum);
}

// Gradients of A_log, D and dt_bias: the parts of the rows.
__global__ void __launch_bounds__(kSumThreads)
    add_rows(const __grid_constant__ SelectiveScanBackward b, const float* of_rows, int64_t rows, int64_t columns) {
  overlap_kernels();
  const float sum = sum_column_of_warp(of_rows, rows, columns);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32, channels = b.forward.channels;
  if (threadIdx.x % 32 != 0 || column >= columns) return;
  const int64_t behind = column - channels * b.forward.state_size;
  if (behind < 0) {
    b.grad_A_log[column] = sum;
  } else if (behind < channels) {
    if (b.grad_D != nullptr) b.grad_D[behind] = sum;
  } else if (b.grad_dt_bias != nullptr) {
    b.grad_dt_bias[behind - channels] = sum;
  }
}

int64_t shared_bytes(int64_t state_size, int64_t sets) { return static_cast<int64_t>(sizeof(Shared)) + Layout(state_size, sets).total * 4; }

// More channels a block are fewer parts to sum; two blocks a multiprocessor count for more.
Plan plan_of(const SelectiveScan& p) {
  Plan plan;
  const int64_t half = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / 2 - 1024;
  const int64_t most = std::min(kMostSets * int64_t{1}, scan_blocks(p, kScanChannels));
  while (plan.sets * 2 <= most && shared_bytes(p.state_size, plan.sets * 2) <= half) plan.sets *= 2;
  plan.shared_bytes = shared_bytes(p.state_size, plan.sets);
  plan.blocks = scan_blocks(p, plan.sets * kScanChannels);
  plan.of_channels = p.groups * plan.blocks * 2 * p.state_size * p.tokens;
  plan.row_columns = p.channels * (p.state_size + 2);
  return plan;
}

// Whether the gradients of x, dt and z can be moved 16 bytes at a time, where a block's channels allow.
bool stores_whole(const SelectiveScanBackward& b) {
  const auto fits = [](const void* to) { return reinterpret_cast<uintptr_t>(to) % 16 == 0; };
  return fits(b.grad_x) && fits(b.grad_dt) && fits(b.grad_z) && b.forward.channels * dtype_size(b.forward.dtype) % 16 == 0;
}

template <typename T>
Status launch_backward(const SelectiveScanBackward& b, const Plan& plan, float* of_channels, float* of_rows, Stream stream) {
  const SelectiveScan& p = b.forward;
  if (p.rows > 0) {
    const auto bytes = static_cast<int>(plan.shared_bytes);
    if (const Status status = status_of(allow_shared_memory(walk_back<T>, bytes)); !status.ok()) return status;
    const Launch launch{static_cast<unsigned>(p.rows * p.groups * plan.blocks), kScanThreads, plan.shared_bytes};
    const Status status =
        launch_overlapped(walk_back<T>, launch, stream, b, of_channels, of_rows, static_cast<int>(plan.sets), stores_whole(b));
    if (!status.ok()) return status;
  }
  if (p.tokens == 0) return {};
  const int64_t token_blocks = ceil_div(p.tokens, kScanThreads);
  const Launch launch{static_cast<unsigned>(2 * p.groups * p.state_size * token_blocks), kScanThreads};
  return launch_overlapped(add_blocks<T>, launch, stream, b, of_channels, plan.blocks, token_blocks);
}

}  // namespace

int64_t selective_scan_backward_scratch(const SelectiveScanBackward& b) {
  const Plan plan = plan_of(b.forward);
  return (plan.of_channels + b.forward.rows * plan.row_columns) * 4;
}

Status selective_scan_backward(const SelectiveScanBackward& b, void* scratch, Stream stream) {
  const SelectiveScan& p = b.forward;
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.channels == 0) return {};
  const Plan plan = plan_of(p);
  auto* of_channels = static_cast<float*>(scratch);
  float* of_rows = of_channels + plan.of_channels;
  const auto launch = p.dtype == DType::bf16 ? launch_backward<bf16> : launch_backward<float>;
  if (const Status status = launch(b, plan, of_channels, of_rows, stream); !status.ok()) return status;
  return launch_overlapped(add_rows, {static_cast<unsigned>(ceil_div(plan.row_columns, kSumColumns)), kSumThreads}, stream, b, of_rows,
                           p.rows, plan.row_columns);
}

}  // namespace based::kernels::cuda
