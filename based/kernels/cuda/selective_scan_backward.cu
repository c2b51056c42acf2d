// Gradients of the selective scan: a block walks along a row from its end, a thread a channel. A chunk's states are computed again from the
// kept one, of four numbers and sixteen tokens at a time, which then stay in registers for the way back. What channels share is summed over
// a warp's lanes by tensor cores, over a block's warps through shared memory, and over the blocks and the rows by further kernels.
#include <algorithm>

#include "based/kernels/cuda/column_sums.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"
#include "based/kernels/cuda/tf32.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kChunk = kSelectiveScanCudaChunk, kTile = 16, kFour = 4;
constexpr int kSlab = 32;                 // numbers of the state whose B and C are in shared memory at a time
constexpr int kSets = 2 * kTile / kFour;  // sixteens of values whose sums over the lanes are made together: of four tokens' C or B
static_assert(kChunk == 32 && kChunk % kTile == 0 && kTile % kFour == 0 && kSlab % kFour == 0);

// Sums over a warp's lanes of sixteen values each, four at a time, by products with constants: a row of the first operand, all but a few of
// which are zero, selects one of the values that a lane has put into the second, whose columns are four lanes each.
template <typename T>
class LaneSums;

template <>
class LaneSums<bf16> {
 public:
  __device__ __forceinline__ LaneSums() {
    const int row = threadIdx.x % 32 / 4;
    const uint32_t one = row % 2 == 0 ? 0x3f80U : 0x3f800000U;
#pragma unroll
    for (int i = 0; i < 4; ++i) select_[i / 2][i % 2] = row / 2 == i ? one : 0;
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) low_[i] = high_[i] = 0;
  }
  // The values 4 · turn and on.
  __device__ __forceinline__ void add(int turn, const float (&v)[4]) {
    const uint32_t a = select_[turn % 2][0], c = select_[turn % 2][1], first = pack_bf16(v[0], v[1]), second = pack_bf16(v[2], v[3]);
    mma_16x8x16(turn < 2 ? low_ : high_, {a, 0, c, 0}, first, second);
  }
  // Values l / 4 and l / 4 + 8, of some lanes each: they are to be added up over l mod 4.
  __device__ __forceinline__ float2 take() const { return make_float2(low_[0] + low_[1], high_[0] + high_[1]); }

 private:
  uint32_t select_[2][2];
  float low_[4], high_[4];
};

// In two parts of TF32, which are together as good as fp32.
template <>
class LaneSums<float> {
 public:
  __device__ __forceinline__ LaneSums() {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) select_[i / 2][i % 2] = row == i ? 0x3f800000U : 0;
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 4; ++i) low_[i] = high_[i] = 0;
  }
  __device__ __forceinline__ void add(int turn, const float (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t a = select_[turn % 2 * 2 + i][0], c = select_[turn % 2 * 2 + i][1];
      const uint32_t first = __float_as_uint(v[2 * i]) & 0xffffe000U, second = __float_as_uint(v[2 * i + 1]) & 0xffffe000U;
      const float rest = v[2 * i] - __uint_as_float(first), other = v[2 * i + 1] - __uint_as_float(second);
      mma_16x8x8(turn < 2 ? low_ : high_, {a, 0, c, 0}, first, second);
      mma_16x8x8(turn < 2 ? low_ : high_, {a, 0, c, 0}, __float_as_uint(rest), __float_as_uint(other));
    }
  }
  __device__ __forceinline__ float2 take() const { return make_float2(low_[0] + low_[1], high_[0] + high_[1]); }

 private:
  uint32_t select_[4][2];
  float low_[4], high_[4];
};

// Scratch: parts of the sums over channels, [blocks, tokens, fours, 2, 4] (of B, of C; four numbers of the state), and over rows,
// [rows, channels · (state_size + 2)].
struct Plan {
  int threads, fours;
  int64_t blocks, of_channels, row_columns, shared_bytes;

  __host__ __device__ explicit Plan(const SelectiveScan& p) {
    threads = p.state_size <= 32 ? 128 : p.state_size <= 64 ? 64 : 32;
    fours = static_cast<int>(p.state_size + kFour - 1) / kFour;
    blocks = scan_blocks(p, threads);
    of_channels = p.groups * blocks * p.tokens * fours * 2 * kFour;
    row_columns = p.channels * (p.state_size + 2);
    shared_bytes = threads * (fours * 48 + kChunk * 8 + kTile * 8) + 2 * kChunk * kSlab * 4 + 2 * threads * kSets * 8;
  }
};

template <typename T, int kThreads>
struct Walk {
  const SelectiveScanBackward& b;
  const SelectiveScan& p;
  const Plan plan;
  const ScanPlace place;
  const int64_t start, stop, channel;
  const bool mine;  // a channel of the block's
  float* const of_channels;
  // A thread's own: of each four numbers of the state the rates, the gradients behind what is to be walked yet, and the gradients of the
  // rates; of each of the chunk's tokens δ and δ·x; of the tile's, the gradient behind the gate and that of z by the sum that is gated.
  float4 *rates, *grads, *of_rates;
  float2* in;
  float *g, *of_z;
  float *B, *C;   // [kChunk, slab]
  float2* parts;  // [2, warps, kSets, 32]
  LaneSums<T> sums;
  float of_in[kTile], of_delta[kTile], y[kTile];  // gradients of δ·x by B, and of δ by A·log2(e); C·h
  float bias = 0, skip = 0, skipped = 0, biased = 0;
  int turn = 0;

  __device__ __forceinline__ Walk(const SelectiveScanBackward& params, float* partial, float4* memory)
      : b(params),
        p(params.forward),
        plan(p),
        place(p, kThreads),
        start(p.row_start[place.row]),
        stop(p.row_start[place.row + 1]),
        channel(place.channel + (static_cast<int>(threadIdx.x) < place.channels ? threadIdx.x : 0)),
        mine(static_cast<int>(threadIdx.x) < place.channels),
        of_channels(partial + place.number * p.tokens * plan.fours * 2 * kFour) {
    rates = memory + threadIdx.x, grads = rates + plan.fours * kThreads, of_rates = grads + plan.fours * kThreads;
    parts = reinterpret_cast<float2*>(memory + 3 * plan.fours * kThreads);
    B = reinterpret_cast<float*>(parts + 2 * kThreads * kSets), C = B + kChunk * kSlab;
    in = reinterpret_cast<float2*>(C + kChunk * kSlab) + threadIdx.x;
    g = reinterpret_cast<float*>(in - threadIdx.x + kChunk * kThreads) + threadIdx.x, of_z = g + kTile * kThreads;
  }
  __device__ __forceinline__ const T* of_token(const void* matrix, int64_t stride, int64_t token) const {
    return static_cast<const T*>(matrix) + token * stride + channel;
  }

  __device__ __forceinline__ void begin() {
    if (p.dt_bias != nullptr) bias = to_float(static_cast<const T*>(p.dt_bias)[channel]);
    if (p.D != nullptr) skip = to_float(static_cast<const T*>(p.D)[channel]);
    const T* A_log = static_cast<const T*>(p.A_log) + channel * p.state_size;
    const float* grad_state = b.grad_state != nullptr ? b.grad_state + (place.row * p.channels + channel) * p.state_size : nullptr;
    for (int four = 0; four < plan.fours; ++four) {
      float rate[kFour], grad[kFour];
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const int n = four * kFour + j;
        const bool there = mine && n < p.state_size;
        rate[j] = there ? scan_rate(to_float(A_log[n])) : 0.0F;
        grad[j] = there && grad_state != nullptr ? grad_state[n] : 0.0F;
      }
      rates[four * kThreads] = make_float4(rate[0], rate[1], rate[2], rate[3]);
      grads[four * kThreads] = make_float4(grad[0], grad[1], grad[2], grad[3]);
      of_rates[four * kThreads] = make_float4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void end(float* of_rows) const {
    if (!mine) return;
    float* to = of_rows + place.row * plan.row_columns;
    float* initial = b.grad_initial_state != nullptr ? b.grad_initial_state + (place.row * p.channels + channel) * p.state_size : nullptr;
    for (int four = 0; four < plan.fours; ++four) {
      const float4 r = rates[four * kThreads], h = grads[four * kThreads], a = of_rates[four * kThreads];
      const float rate[kFour] = {r.x, r.y, r.z, r.w}, grad[kFour] = {h.x, h.y, h.z, h.w}, of_rate[kFour] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const int n = four * kFour + j;
        if (n >= p.state_size) break;
        to[channel * p.state_size + n] = of_rate[j] * (rate[j] * kLn2);
        if (initial != nullptr) initial[n] = grad[j];
      }
    }
    to += p.channels * p.state_size;
    to[channel] = skipped, to[p.channels + channel] = biased;
  }

  // B and C of a chunk's tokens, and of numbers from `first` on.
  __device__ __forceinline__ void load_slab(int64_t token, int first) {
    const int64_t at = place.group * p.state_size + first;
    const int here = static_cast<int>(min(stop - token, int64_t{kChunk})), n = threadIdx.x % kSlab;
    const bool inside = first + n < p.state_size;
    const int64_t t0 = token + threadIdx.x / kSlab;
    const T *of_B = static_cast<const T*>(p.B) + t0 * p.b_stride + at + n, *of_C = static_cast<const T*>(p.C) + t0 * p.c_stride + at + n;
    constexpr int kRows = kThreads / kSlab;  // tokens at a time
    uint32_t numbers[2][kChunk / kRows] = {};
#pragma unroll
    for (int i = 0; i < kChunk / kRows; ++i, of_B += kRows * p.b_stride, of_C += kRows * p.c_stride) {
      if (inside && static_cast<int>(threadIdx.x) / kSlab + i * kRows < here)
        numbers[0][i] = load_raw(of_B), numbers[1][i] = load_raw(of_C);
    }
#pragma unroll
    for (int i = 0; i < kChunk / kRows; ++i) {
      B[i * kThreads + threadIdx.x] = raw_value<T>(numbers[0][i]), C[i * kThreads + threadIdx.x] = raw_value<T>(numbers[1][i]);
    }
    __syncthreads();
  }
  // A column's elements of a tile's tokens, `left` of which are in the row; zeros behind. kFull: all are.
  template <bool kFull, int kCount>
  __device__ __forceinline__ static void load_column(const T* from, int64_t stride, int left, uint32_t (&to)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k, from += stride) {
      if (kFull) to[k] = load_raw(from);
      if (!kFull) to[k] = 0;
      if (!kFull && k < left) to[k] = load_raw(from);
    }
  }
  // Of the tokens from `token` on: 16 of them, or as many as the row has.
  __device__ __forceinline__ int left(int64_t token) const { return static_cast<int>(min(stop - token, int64_t{kTile})); }
  // Whether each thread has a channel, and the row all tokens of a tile.
  __device__ __forceinline__ bool full(int64_t token) const { return place.channels == kThreads && token + kTile <= stop; }
  template <bool kFull>
  __device__ __forceinline__ void load_steps(int64_t token, int first) {
    const int here = left(token);
    uint32_t x[kTile], dt[kTile];
    load_column<kFull>(of_token(p.x, p.x_stride, token), p.x_stride, here, x);
    load_column<kFull>(of_token(p.dt, p.dt_stride, token), p.dt_stride, here, dt);
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      const float step = scan_step(p, raw_value<T>(dt[k]) + bias), delta = kFull || (mine && k < here) ? step : 0.0F;
      in[(first + k) * kThreads] = make_float2(delta, delta * raw_value<T>(x[k]));
    }
  }
  template <bool kFull>
  __device__ __forceinline__ void load_tile(int64_t token) {
    const int here = left(token);
    uint32_t of_y[kTile], z[kTile];
    load_column<kFull>(of_token(b.grad_y, p.channels, token), p.channels, here, of_y);
    if (p.z != nullptr) load_column<kFull>(of_token(p.z, p.z_stride, token), p.z_stride, here, z);
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      float value = kFull || mine ? raw_value<T>(of_y[k]) : 0.0F;
      if (p.z != nullptr) {
        const float gate = raw_value<T>(z[k]), open = sigmoid(gate);
        of_z[k * kThreads] = value * (open * fmaf(gate, 1.0F - open, 1.0F)), value *= gate * open;
      }
      g[k * kThreads] = value;
      of_in[k] = of_delta[k] = y[k] = 0;
    }
  }

  // Brings to the L2 cache what the chunk from `token` on, which a row has whole, is going to load: a lane a token of a warp's channels,
  // then numbers of the state before it.
  __device__ __forceinline__ void fetch(int64_t token, int64_t chunk) const {
    const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) - lane;
    if (first >= place.channels) return;
    const auto row = [&](const void* matrix, int64_t stride) {
      const T* from = static_cast<const T*>(matrix) + (token + lane) * stride + place.channel + first;
#pragma unroll
      for (int sector = 0; sector < static_cast<int>(sizeof(T)); ++sector) fetch_to_l2(from + sector * (32 / sizeof(T)));
    };
    row(p.x, p.x_stride), row(p.dt, p.dt_stride), row(b.grad_y, p.channels);
    if (p.z != nullptr) row(p.z, p.z_stride);
    for (int64_t i = lane; i < 4 * p.state_size; i += 32) {
      fetch_to_l2(p.chunk_states + (chunk * p.state_size + i / 4) * p.channels + place.channel + first + i % 4 * 8);
    }
  }
  // Four numbers of the state before a chunk.
  __device__ __forceinline__ void load_states(int64_t chunk, int four, float (&h)[kFour]) const {
    const float* from = p.chunk_states + (chunk * p.state_size + four * kFour) * p.channels + channel;
#pragma unroll
    for (int j = 0; j < kFour; ++j) h[j] = mine && four * kFour + j < p.state_size ? from[j * p.channels] : 0.0F;
  }
  // Four numbers from `h` before the chunk on, past tokens to the tile that begins with its token `first`, along that and back.
  __device__ __forceinline__ void take_four(int four, int first, float (&h)[kFour]) {
    const float4 of_four = rates[four * kThreads];
    const float rate[kFour] = {of_four.x, of_four.y, of_four.z, of_four.w};
    const int column = four * kFour % kSlab;
#pragma unroll 8
    for (int t = 0; t < first; ++t) {
      const float2 at = in[t * kThreads];
      float number[kFour];
      load_floats<kFour>(B + t * kSlab + column, number);
#pragma unroll
      for (int j = 0; j < kFour; ++j) h[j] = fmaf(exp2_approx(at.x * rate[j]), h[j], at.y * number[j]);
    }
    float decay[kTile][kFour], kept[kTile][kFour];  // kept: what decay leaves of the state before the token
    float2* to = parts + (turn * kThreads / 32 + threadIdx.x / 32) * kSets * 32 + threadIdx.x % 32;
    sums.clear();
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      const float2 at = in[(first + k) * kThreads];
      const float grad = g[k * kThreads];
      float number[kFour], of_y[kFour], of_C[kFour];
      load_floats<kFour>(B + (first + k) * kSlab + column, number), load_floats<kFour>(C + (first + k) * kSlab + column, of_y);
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        decay[k][j] = exp2_approx(at.x * rate[j]), kept[k][j] = decay[k][j] * h[j];
        h[j] = fmaf(at.y, number[j], kept[k][j]), y[k] = fmaf(of_y[j], h[j], y[k]), of_C[j] = grad * h[j];
      }
      sums.add(k % kFour, of_C);
      if (k % kFour == kFour - 1) to[(k / kFour) * 32] = sums.take(), sums.clear();
    }
    go_back(four, first, column, rate, decay, kept, to + kSets / 2 * 32);
  }
  __device__ __forceinline__ void go_back(int four, int first, int column, const float (&rate)[kFour], const float (&decay)[kTile][kFour],
                                          const float (&kept)[kTile][kFour], float2* to) {
    const float4 behind = grads[four * kThreads];
    float grad[kFour] = {behind.x, behind.y, behind.z, behind.w}, of_rate[kFour] = {};
#pragma unroll
    for (int k = kTile - 1; k >= 0; --k) {
      const float2 at = in[(first + k) * kThreads];
      const float of_sum = g[k * kThreads];
      float number[kFour], of_y[kFour], of_B[kFour];
      load_floats<kFour>(B + (first + k) * kSlab + column, number), load_floats<kFour>(C + (first + k) * kSlab + column, of_y);
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        grad[j] = fmaf(of_sum, of_y[j], grad[j]);
        const float slope = grad[j] * kept[k][j];
        of_in[k] = fmaf(grad[j], number[j], of_in[k]), of_delta[k] = fmaf(slope, rate[j], of_delta[k]);
        of_rate[j] = fmaf(slope, at.x, of_rate[j]), of_B[j] = grad[j] * at.y;
        grad[j] *= decay[k][j];
      }
      sums.add(k % kFour, of_B);
      if (k % kFour == 0) to[(k / kFour) * 32] = sums.take(), sums.clear();
    }
    grads[four * kThreads] = make_float4(grad[0], grad[1], grad[2], grad[3]);
    float4& total = of_rates[four * kThreads];
    total = make_float4(total.x + of_rate[0], total.y + of_rate[1], total.z + of_rate[2], total.w + of_rate[3]);
  }

  // The gradients of B and C by four numbers of the state of a tile's tokens: the warps' parts. A thread has two sums, eight neighbours the
  // two times four of a token.
  __device__ __forceinline__ void add_warps(int64_t token, int four) const {
    for (int i = threadIdx.x; i < kSets * 8; i += kThreads) {
      const int number = i % 4, of_C = i / 4 % 2, odd = i / 8 % 2, set = i / 16;
      const float2* from = parts + turn * kThreads * kSets + ((of_C ? 0 : kSets / 2) + set) * 32 + (odd * 4 + number) * 4;
      float2 sum = {};
      for (int warp = 0; warp < kThreads / 32; ++warp, from += kSets * 32) {
        const float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
        sum.x += (low.x + low.z) + (high.x + high.z), sum.y += (low.y + low.w) + (high.y + high.w);
      }
      const int64_t t = token + set * kFour + odd;
      float* to = of_channels + ((t * plan.fours + four) * 2 + of_C) * kFour + number;
      if (t < stop) to[0] = sum.x;
      if (t + 2 < stop) to[static_cast<int64_t>(plan.fours) * 4 * kFour] = sum.y;
    }
  }

  // The gradients of x, dt and z of a tile whose first token is the chunk's token `first`.
  template <bool kFull>
  __device__ __forceinline__ void finish(int64_t token, int first) {
    constexpr int kHalf = kTile / 2;
    int64_t at = token * p.channels + channel;
#pragma unroll
    for (int half = 0; half < kTile; half += kHalf, token += kHalf) {
      const int here = left(token);
      uint32_t x[kHalf], dt[kHalf];
      load_column<kFull>(of_token(p.x, p.x_stride, token), p.x_stride, here, x);
      load_column<kFull>(of_token(p.dt, p.dt_stride, token), p.dt_stride, here, dt);
#pragma unroll
      for (int i = 0; i < kHalf; ++i, at += p.channels) {
        const int k = half + i;
        const bool there = kFull || (mine && i < here);
        const float grad = g[k * kThreads], value = raw_value<T>(x[i]);
        if (there) static_cast<T*>(b.grad_x)[at] = from_float<T>(fmaf(of_in[k], in[(first + k) * kThreads].x, skip * grad));
        skipped = fmaf(grad, value, skipped);
        float of_dt = fmaf(of_in[k], value, of_delta[k] * kLn2);
        const float slope = sigmoid(raw_value<T>(dt[i]) + bias);
        if (p.softplus) of_dt *= slope;
        if (there) static_cast<T*>(b.grad_dt)[at] = from_float<T>(of_dt), biased += of_dt;
        if (p.z != nullptr && there) static_cast<T*>(b.grad_z)[at] = from_float<T>(of_z[k * kThreads] * fmaf(skip, value, y[k]));
      }
    }
  }

  __device__ __forceinline__ void take_chunk(int64_t token) {
    const int64_t chunk = selective_scan_first_chunk(place.row, start, kChunk) + (token - start) / kChunk;
#pragma unroll 1
    for (int first = 0; first < kChunk; first += kTile) {
      full(token + first) ? load_steps<true>(token + first, first) : load_steps<false>(token + first, first);
    }
    if (p.state_size <= kSlab) load_slab(token, 0);
    if (token > start) fetch(token - kChunk, chunk - 1);
    float ahead[kFour];
    load_states(chunk, 0, ahead);
#pragma unroll 1
    for (int first = kChunk - kTile; first >= 0; first -= kTile) {
      if (token + first >= stop) continue;
      full(token + first) ? load_tile<true>(token + first) : load_tile<false>(token + first);
#pragma unroll 1
      for (int four = 0; four < plan.fours; ++four) {
        if (p.state_size > kSlab && four * kFour % kSlab == 0) load_slab(token, four * kFour);
        float h[kFour] = {ahead[0], ahead[1], ahead[2], ahead[3]};
        load_states(chunk, four + 1 < plan.fours ? four + 1 : 0, ahead);
        take_four(four, first, h);
        __syncthreads();
        add_warps(token + first, four);
        turn ^= 1;
      }
      full(token + first) ? finish<true>(token + first, first) : finish<false>(token + first, first);
    }
  }
};

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 256 / kThreads)
    walk_back(const __grid_constant__ SelectiveScanBackward b, float* of_channels, float* of_rows) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  Walk<T, kThreads> walk(b, of_channels, memory);
  walk.begin();
  for (int64_t chunk = (walk.stop - walk.start + kChunk - 1) / kChunk - 1; chunk >= 0; --chunk)
    walk.take_chunk(walk.start + chunk * kChunk);
  walk.end(of_rows);
}

// Gradients of B and C: the parts of a group's blocks, a thread a token and number of the state.
template <typename T>
__global__ void __launch_bounds__(256) add_blocks(const __grid_constant__ SelectiveScanBackward b, const float* of_channels) {
  overlap_kernels();
  const SelectiveScan& p = b.forward;
  const Plan plan(p);
  const int64_t of_token = plan.fours * 2 * kFour, at = blockIdx.x * int64_t{256} + threadIdx.x, group = at / (of_token * p.tokens);
  if (group >= p.groups) return;
  const int64_t inside = at % (of_token * p.tokens), token = inside / of_token, n = inside % of_token / (2 * kFour) * kFour + at % kFour;
  if (n >= p.state_size) return;
  const float* part = of_channels + group * plan.blocks * p.tokens * of_token + inside;
  float sum = 0;
#pragma unroll 8
  for (int64_t block = 0; block < plan.blocks; ++block) sum += part[block * p.tokens * of_token];
  static_cast<T*>(at / kFour % 2 == 0 ? b.grad_B : b.grad_C)[(token * p.groups + group) * p.state_size + n] = from_float<T>(sum);
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

template <typename T>
Status launch_backward(const SelectiveScanBackward& b, const Plan& plan, float* of_channels, float* of_rows, Stream stream) {
  const SelectiveScan& p = b.forward;
  if (p.rows > 0) {
    auto* kernel = plan.threads == 128 ? walk_back<T, 128> : plan.threads == 64 ? walk_back<T, 64> : walk_back<T, 32>;
    if (const Status status = status_of(allow_shared_memory(kernel, static_cast<int>(plan.shared_bytes))); !status.ok()) return status;
    const Launch launch{static_cast<unsigned>(p.rows * p.groups * plan.blocks), static_cast<unsigned>(plan.threads), plan.shared_bytes};
    if (const Status status = launch_overlapped(kernel, launch, stream, b, of_channels, of_rows); !status.ok()) return status;
  }
  if (p.tokens == 0) return {};
  const int64_t sums = p.groups * p.tokens * plan.fours * 2 * kFour;
  return launch_overlapped(add_blocks<T>, {static_cast<unsigned>(ceil_div(sums, 256)), 256}, stream, b, of_channels);
}

}  // namespace

int64_t selective_scan_backward_scratch(const SelectiveScanBackward& b) {
  const Plan plan(b.forward);
  return (plan.of_channels + b.forward.rows * plan.row_columns) * 4;
}

Status selective_scan_backward(const SelectiveScanBackward& b, void* scratch, Stream stream) {
  const SelectiveScan& p = b.forward;
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.channels == 0) return {};
  const Plan plan(p);
  auto* of_channels = static_cast<float*>(scratch);
  float* of_rows = of_channels + plan.of_channels;
  const auto launch = p.dtype == DType::bf16 ? launch_backward<bf16> : launch_backward<float>;
  if (const Status status = launch(b, plan, of_channels, of_rows, stream); !status.ok()) return status;
  return launch_overlapped(add_rows, {static_cast<unsigned>(ceil_div(plan.row_columns, kSumColumns)), kSumThreads}, stream, b, of_rows,
                           p.rows, plan.row_columns);
}

}  // namespace based::kernels::cuda
