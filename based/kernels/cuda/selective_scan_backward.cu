// Gradients of the selective scan: a block walks along a row from its end, two lanes a channel. A chunk's states are computed again from
// the kept one, of four numbers a lane and eight tokens at a time, which then stay in registers for the way back. What channels share is
// summed over a warp's lanes by tensor cores, over a block's warps through shared memory, and over the blocks and the rows by further
// kernels.
#include <algorithm>

#include "based/kernels/cuda/column_sums.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"
#include "based/kernels/cuda/tf32.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kChunk = kSelectiveScanCudaChunk, kTile = 8, kFour = 4;
// Two lanes have a channel, every other token of its inputs and gradients, and every other four of its numbers. The other lane is kApart
// away, so that neighbours have neighbouring channels.
constexpr int kLanes = 2, kApart = 32 / kLanes, kOfLane = kTile / kLanes;
constexpr int kSlab = 32;                 // numbers of the state whose B and C are in shared memory at a time
constexpr int kSets = 2 * kTile / kFour;  // sixteens of values, of four tokens' C or B, whose sums over lanes are stored together
static_assert(kChunk % kTile == 0 && kTile % kFour == 0 && kSlab % (kLanes * kFour) == 0);

// mma_16x8x16() to which nothing is added.
__device__ __forceinline__ void begin_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}

// Sums over a warp's lanes of four values each, four lanes at a time, by products with constants: the second operand has a lane's values,
// its columns are four lanes each, and a row of the first, all but one of whose elements are zero, selects one of them. In fp32 a value
// goes in two parts of TF32, which are together as good.
template <typename T>
class LaneSums {
 public:
  __device__ __forceinline__ LaneSums() {
    const int row = threadIdx.x / 4 % 4;
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
      const uint32_t one = sizeof(T) == 4 ? 0x3f800000U : row % 2 == 0 ? 0x3f80U : 0x3f800000U;
      const int of_row = sizeof(T) == 4 ? row - 2 * i : row / 2;
      const uint32_t first = of_row == 0 ? one : 0, second = of_row == 1 ? one : 0;
      // By way of neighbours that have the same: registers known to be copies would be copied again for each product.
#pragma unroll
      for (int k = 0; k < 4; ++k) select_[i][k] = __shfl_xor_sync(~0U, k < 2 ? first : second, k % 2 + 1);
    }
  }
  // The values of a token, odd or not.
  __device__ __forceinline__ void add(int token, const float (&v)[4]) {
    float(&sums)[4] = sums_[token % 2];
    if constexpr (sizeof(T) == 2) {
      begin_product(sums, select_[0], pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = low_cut(v[2 * i]), second = low_cut(v[2 * i + 1]);
        const uint32_t a = __float_as_uint(first), b = __float_as_uint(second);
        if (i == 0) begin_16x8x8(sums, select_[i], a, b);
        if (i != 0) mma_16x8x8(sums, select_[i], a, b);
        mma_16x8x8(sums, select_[i], __float_as_uint(v[2 * i] - first), __float_as_uint(v[2 * i + 1] - second));
      }
    }
  }
  // Value l / 4 mod 4 of the even token, or from lane 16 on of the odd one, of some lanes each: they are to be added up over l mod 4.
  __device__ __forceinline__ float take() const { return threadIdx.x % 32 < 16 ? sums_[0][0] + sums_[0][1] : sums_[1][0] + sums_[1][1]; }

 private:
  static constexpr int kOperands = sizeof(T) == 4 ? 2 : 1;
  __device__ __forceinline__ static float low_cut(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000U); }

  uint32_t select_[kOperands][4];  // rows are there four times, of which two are of use
  float sums_[2][4];
};

// Scratch: parts of the sums over channels, [blocks, tokens, fours, 2, 4] (of B, of C; four numbers of the state), and over rows,
// [rows, channels · (state_size + 2)]. Turns: a lane's fours.
struct Plan {
  int threads, fours, turns;
  int64_t blocks, of_channels, row_columns, shared_bytes;

  __host__ __device__ explicit Plan(const SelectiveScan& p) {
    threads = p.state_size <= 24 ? 256 : p.state_size <= 64 ? 128 : 64;
    turns = static_cast<int>(p.state_size + kLanes * kFour - 1) / (kLanes * kFour), fours = turns * kLanes;
    blocks = scan_blocks(p, threads / kLanes);
    of_channels = p.groups * blocks * p.tokens * fours * 2 * kFour;
    row_columns = p.channels * (p.state_size + 2);
    shared_bytes = threads * (turns * 48) + threads / kLanes * kChunk * 24 + 2 * kChunk * kSlab * 4 + 2 * threads * kSets * 8;
  }
};

template <typename T, int kThreads>
struct Walk {
  static constexpr int kChannels = kThreads / kLanes;
  const SelectiveScanBackward& b;
  const SelectiveScan& p;
  const Plan plan;
  const ScanPlace place;
  const int lane = threadIdx.x % 32 / kApart, own = threadIdx.x / 32 * kApart + threadIdx.x % kApart;  // own: the channel, of the block's
  const int64_t start, stop, channel;
  const bool mine;  // a channel of the block's
  float* const of_channels;
  const uint32_t number_bytes = static_cast<uint32_t>(p.channels) * 4;  // of a chunk's states, from one number to the next
  // A lane's own: of each of its fours the rates, the gradients behind what is to be walked yet, and the gradients of the rates. A
  // channel's, of each of the chunk's tokens: δ and δ·x; x and δ's slope by dt; the gradient behind the gate, and that of z by the sum that
  // is gated.
  float4 *rates, *grads, *of_rates;
  float2 *in, *later;
  float *g, *of_z;
  float *B, *C;   // [kChunk, kSlab]
  float2* parts;  // [2, warps, kSets, 32]
  LaneSums<T> sums;
  float of_in[kTile], of_delta[kTile], y[kTile];  // by the lane's numbers: gradients of δ·x by B, and of δ by A·log2(e); C·h
  float bias = 0, skip = 0, skipped = 0, biased = 0;
  int round = 0;  // fours of tiles taken

  __device__ __forceinline__ Walk(const SelectiveScanBackward& params, float* partial, float4* memory)
      : b(params),
        p(params.forward),
        plan(p),
        place(p, kChannels),
        start(p.row_start[place.row]),
        stop(p.row_start[place.row + 1]),
        channel(place.channel + (own < place.channels ? own : 0)),
        mine(own < place.channels),
        of_channels(partial + place.number * p.tokens * plan.fours * 2 * kFour) {
    rates = memory + threadIdx.x, grads = rates + plan.turns * kThreads, of_rates = grads + plan.turns * kThreads;
    parts = reinterpret_cast<float2*>(memory + 3 * plan.turns * kThreads);
    B = reinterpret_cast<float*>(parts + 2 * kThreads * kSets), C = B + kChunk * kSlab;
    in = reinterpret_cast<float2*>(C + kChunk * kSlab) + own;
    later = in + kChunk * kChannels;
    g = reinterpret_cast<float*>(later - own + kChunk * kChannels) + own, of_z = g + kChunk * kChannels;
  }
  // The state of channel `of` before a chunk.
  __device__ __forceinline__ const char* states_of(int64_t chunk, int64_t of) const {
    return reinterpret_cast<const char*>(p.chunk_states + chunk * p.state_size * p.channels + of);
  }
  __device__ __forceinline__ const float* number_of(const char* states, int n) const {
    return reinterpret_cast<const float*>(states + uint64_t{static_cast<uint32_t>(n)} * number_bytes);
  }
  // The first of the numbers that a lane takes at its turn.
  __device__ __forceinline__ int first_of(int turn) const { return (turn * kLanes + lane) * kFour; }

  __device__ __forceinline__ void begin() {
    if (p.dt_bias != nullptr) bias = to_float(static_cast<const T*>(p.dt_bias)[channel]);
    if (p.D != nullptr) skip = to_float(static_cast<const T*>(p.D)[channel]);
    const T* A_log = static_cast<const T*>(p.A_log) + channel * p.state_size;
    const float* grad_state = b.grad_state != nullptr ? b.grad_state + (place.row * p.channels + channel) * p.state_size : nullptr;
    for (int turn = 0; turn < plan.turns; ++turn) {
      float rate[kFour], grad[kFour];
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const int n = first_of(turn) + j;
        const bool there = mine && n < p.state_size;
        rate[j] = there ? scan_rate(to_float(A_log[n])) : 0.0F;
        grad[j] = there && grad_state != nullptr ? grad_state[n] : 0.0F;
      }
      rates[turn * kThreads] = make_float4(rate[0], rate[1], rate[2], rate[3]);
      grads[turn * kThreads] = make_float4(grad[0], grad[1], grad[2], grad[3]);
      of_rates[turn * kThreads] = make_float4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void end(float* of_rows) const {
    const float skips = skipped + __shfl_xor_sync(~0U, skipped, kApart), biases = biased + __shfl_xor_sync(~0U, biased, kApart);
    if (!mine) return;
    float* to = of_rows + place.row * plan.row_columns;
    float* initial = b.grad_initial_state != nullptr ? b.grad_initial_state + (place.row * p.channels + channel) * p.state_size : nullptr;
    for (int turn = 0; turn < plan.turns; ++turn) {
      const float4 r = rates[turn * kThreads], h = grads[turn * kThreads], a = of_rates[turn * kThreads];
      const float rate[kFour] = {r.x, r.y, r.z, r.w}, grad[kFour] = {h.x, h.y, h.z, h.w}, of_rate[kFour] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        const int n = first_of(turn) + j;
        if (n >= p.state_size) break;
        to[channel * p.state_size + n] = of_rate[j] * (rate[j] * kLn2);
        if (initial != nullptr) initial[n] = grad[j];
      }
    }
    to += p.channels * p.state_size;
    if (lane == 0) to[channel] = skips, to[p.channels + channel] = biases;
  }

  // A thread's part of B and C of a chunk's tokens, of numbers from `first` on.
  using Slab = uint32_t[2][kChunk * kSlab / kThreads];
  __device__ __forceinline__ void load_slab(int64_t token, int first, Slab& numbers) const {
    const int64_t at = place.group * p.state_size + first;
    const int here = static_cast<int>(min(stop - token, int64_t{kChunk})), n = threadIdx.x % kSlab;
    const bool inside = first + n < p.state_size;
    const int64_t t0 = token + threadIdx.x / kSlab;
    const T *of_B = static_cast<const T*>(p.B) + t0 * p.b_stride + at + n, *of_C = static_cast<const T*>(p.C) + t0 * p.c_stride + at + n;
    constexpr int kRows = kThreads / kSlab;  // tokens at a time
#pragma unroll
    for (int i = 0; i < kChunk / kRows; ++i, of_B += kRows * p.b_stride, of_C += kRows * p.c_stride) {
      numbers[0][i] = numbers[1][i] = 0;
      if (inside && static_cast<int>(threadIdx.x) / kSlab + i * kRows < here)
        numbers[0][i] = load_raw(of_B), numbers[1][i] = load_raw(of_C);
    }
  }
  __device__ __forceinline__ void put_slab(const Slab& numbers) const {
#pragma unroll
    for (int i = 0; i < kChunk * kSlab / kThreads; ++i) {
      B[i * kThreads + threadIdx.x] = raw_value<T>(numbers[0][i]), C[i * kThreads + threadIdx.x] = raw_value<T>(numbers[1][i]);
    }
    __syncthreads();
  }
  // A channel's elements of a lane's tokens, every other one from `token` on; zeros where the row has ended. kFull: it has not.
  template <bool kFull, int kCount>
  __device__ __forceinline__ void load_own(const void* matrix, int64_t stride, int64_t token, uint32_t (&to)[kCount]) const {
    const char* from = reinterpret_cast<const char*>(static_cast<const T*>(matrix) + (token + lane) * stride + channel);
    const int64_t step = kLanes * stride * static_cast<int64_t>(sizeof(T));
    const int left = static_cast<int>(min(stop - token, int64_t{kChunk}));
#pragma unroll
    for (int i = 0; i < kCount; ++i, from += step) {
      if (kFull) to[i] = load_raw(reinterpret_cast<const T*>(from));
      if (!kFull) to[i] = 0;
      if (!kFull && lane + i * kLanes < left) to[i] = load_raw(reinterpret_cast<const T*>(from));
    }
  }
  // Whether each lane has a channel, and the row `tokens` more tokens.
  __device__ __forceinline__ bool full(int64_t token, int tokens) const { return place.channels == kChannels && token + tokens <= stop; }
  // What a lane's tokens of a chunk are to be walked with.
  template <bool kFull>
  __device__ __forceinline__ void load_tokens(int64_t token) {
    constexpr int kCount = kChunk / kLanes;
    const int here = static_cast<int>(min(stop - token, int64_t{kChunk}));
    uint32_t x[kCount], dt[kCount], of_y[kCount], z[kCount];
    load_own<kFull>(p.x, p.x_stride, token, x), load_own<kFull>(p.dt, p.dt_stride, token, dt);
    load_own<kFull>(b.grad_y, p.channels, token, of_y);
    if (p.z != nullptr) load_own<kFull>(p.z, p.z_stride, token, z);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int k = lane + i * kLanes;
      const float value = raw_value<T>(x[i]), raw = raw_value<T>(dt[i]) + bias, step = scan_step(p, raw);
      const float delta = kFull || (mine && k < here) ? step : 0.0F, slope = sigmoid(raw);
      in[k * kChannels] = make_float2(delta, delta * value), later[k * kChannels] = make_float2(value, p.softplus ? slope : 1.0F);
      float grad = kFull || mine ? raw_value<T>(of_y[i]) : 0.0F;
      if (p.z != nullptr) {
        const float gate = raw_value<T>(z[i]), open = sigmoid(gate);
        of_z[k * kChannels] = grad * (open * fmaf(gate, 1.0F - open, 1.0F)), grad *= gate * open;
      }
      g[k * kChannels] = grad;
    }
  }

  // Brings to the L2 cache what the chunk from `token` on, which a row has whole, is going to load: a lane a token of a warp's channels,
  // then numbers of the state before it.
  __device__ __forceinline__ void fetch(int64_t token, int64_t chunk) const {
    const int first = static_cast<int>(threadIdx.x / 32) * kApart;
    if (first >= place.channels) return;
    const auto row = [&](const void* matrix, int64_t stride) {
      const T* from = static_cast<const T*>(matrix) + (token + threadIdx.x % kApart) * stride + place.channel + first;
#pragma unroll
      for (int sector = 0; sector < static_cast<int>(sizeof(T)) / 2; ++sector) fetch_to_l2(from + sector * (32 / sizeof(T)));
    };
    if (lane == 0) row(p.x, p.x_stride), row(b.grad_y, p.channels);
    if (lane != 0) row(p.dt, p.dt_stride);
    if (lane != 0 && p.z != nullptr) row(p.z, p.z_stride);
    const char* states = states_of(chunk, place.channel + first + threadIdx.x % 2 * 8);
#pragma unroll 1
    for (int n = threadIdx.x % 32 / 2; n < static_cast<int>(p.state_size); n += 16) fetch_to_l2(number_of(states, n));
  }
  // The numbers of a lane's turn of the state before a chunk; the last one again where there are no more, since C is 0 there.
  __device__ __forceinline__ void load_states(const char* states, int turn, float (&h)[kFour]) const {
#pragma unroll
    for (int j = 0; j < kFour; ++j) h[j] = *number_of(states, min(first_of(turn) + j, static_cast<int>(p.state_size) - 1));
  }
  // Four numbers from `h` before the chunk on, past tokens to the tile that begins with its token `first`, along that and back.
  __device__ __forceinline__ void take_four(int turn, int first, float (&h)[kFour]) {
    const float4 of_turn = rates[turn * kThreads];
    const float rate[kFour] = {of_turn.x, of_turn.y, of_turn.z, of_turn.w};
    const int column = first_of(turn) % kSlab;
#pragma unroll 8
    for (int t = 0; t < first; ++t) {
      const float2 at = in[t * kChannels];
      float number[kFour];
      load_floats<kFour>(B + t * kSlab + column, number);
#pragma unroll
      for (int j = 0; j < kFour; ++j) h[j] = fmaf(exp2_approx(at.x * rate[j]), h[j], at.y * number[j]);
    }
    float2 held;
    float decay[kTile][kFour], kept[kTile][kFour];  // kept: what decay leaves of the state before the token
    float2* to = parts + (round % 2 * kThreads / 32 + threadIdx.x / 32) * kSets * 32 + threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kTile; ++k) {
      const float2 at = in[(first + k) * kChannels];
      const float grad = g[(first + k) * kChannels];
      float number[kFour], of_y[kFour], of_C[kFour];
      load_floats<kFour>(B + (first + k) * kSlab + column, number), load_floats<kFour>(C + (first + k) * kSlab + column, of_y);
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        decay[k][j] = exp2_approx(at.x * rate[j]), kept[k][j] = decay[k][j] * h[j];
        h[j] = fmaf(at.y, number[j], kept[k][j]), y[k] = fmaf(of_y[j], h[j], y[k]), of_C[j] = grad * h[j];
      }
      sums.add(k, of_C);
      if (k % 2 != 0) (k % 4 == 1 ? held.x : held.y) = sums.take();
      if (k % 4 == 3) to[(k / 4) * 32] = held;
    }
    go_back(turn, first, column, rate, decay, kept, to + kSets / 2 * 32);
  }
  __device__ __forceinline__ void go_back(int turn, int first, int column, const float (&rate)[kFour], const float (&decay)[kTile][kFour],
                                          const float (&kept)[kTile][kFour], float2* to) {
    const float4 behind = grads[turn * kThreads];
    float grad[kFour] = {behind.x, behind.y, behind.z, behind.w}, of_rate[kFour] = {};
    float2 held;
#pragma unroll
    for (int k = kTile - 1; k >= 0; --k) {
      const float2 at = in[(first + k) * kChannels];
      const float of_sum = g[(first + k) * kChannels];
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
      sums.add(k, of_B);
      if (k % 2 == 0) (k % 4 == 0 ? held.x : held.y) = sums.take();
      if (k % 4 == 0) to[(k / 4) * 32] = held;
    }
    grads[turn * kThreads] = make_float4(grad[0], grad[1], grad[2], grad[3]);
    float4& total = of_rates[turn * kThreads];
    total = make_float4(total.x + of_rate[0], total.y + of_rate[1], total.z + of_rate[2], total.w + of_rate[3]);
  }

  // The gradients of B and C by the numbers of a turn, of a tile's tokens: the warps' parts. Each round other warps have this to do. A
  // thread has two sums, sixteen neighbours the two times eight of a token.
  __device__ __forceinline__ void add_warps(int64_t token, int turn) const {
    constexpr int kUnits = kSets * 8 * kLanes;
    static_assert(kThreads % kUnits == 0);
    const int i = (threadIdx.x + round * kUnits) % kThreads;
    if (i >= kUnits) return;
    const int number = i % 4, of_C = i / 8 % 2, half = i / 4 % kLanes, odd = i / 16 % 2, set = i / 32;
    const float2* from = parts + round % 2 * kThreads * kSets + ((of_C ? 0 : kSets / 2) + set) * 32 + (odd * 4 + number) * 4 + half * 2;
    float2 sum = {};
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp, from += kSets * 32) {
      const float4 both = *reinterpret_cast<const float4*>(from);
      sum.x += both.x + both.z, sum.y += both.y + both.w;
    }
    const int64_t t = token + set * kFour + odd;
    float* to = of_channels + ((t * plan.fours + turn * kLanes + half) * 2 + of_C) * kFour + number;
    if (t < stop) to[0] = sum.x;
    if (t + 2 < stop) to[static_cast<int64_t>(plan.fours) * 4 * kFour] = sum.y;
  }

  // Of two neighbouring tokens' parts, the sum over a channel's lanes of this lane's.
  __device__ __forceinline__ float sum_of_lanes(float even, float odd) const {
    return (lane == 0 ? even : odd) + __shfl_xor_sync(~0U, lane == 0 ? odd : even, kApart);
  }
  // The gradients of x, dt and z of a tile whose first token is the chunk's token `first`.
  template <bool kFull>
  __device__ __forceinline__ void finish(int64_t token, int first) {
    const int64_t step = kLanes * p.channels * static_cast<int64_t>(sizeof(T));
    int64_t at = ((token + lane) * p.channels + channel) * static_cast<int64_t>(sizeof(T));
    const auto put = [&](void* matrix, float value) { *reinterpret_cast<T*>(static_cast<char*>(matrix) + at) = from_float<T>(value); };
#pragma unroll
    for (int i = 0; i < kOfLane; ++i, at += step) {
      const int k = lane + i * kLanes, at_token = (first + k) * kChannels;
      const float by_B = sum_of_lanes(of_in[2 * i], of_in[2 * i + 1]), by_A = sum_of_lanes(of_delta[2 * i], of_delta[2 * i + 1]),
                  sum = sum_of_lanes(y[2 * i], y[2 * i + 1]);
      const bool there = kFull || (mine && token + k < stop);
      const float2 own_values = later[at_token];
      const float grad = g[at_token], value = own_values.x, of_dt = own_values.y * fmaf(by_B, value, by_A * kLn2);
      if (there) put(b.grad_x, fmaf(by_B, in[at_token].x, skip * grad));
      skipped = fmaf(grad, value, skipped);
      if (there) put(b.grad_dt, of_dt), biased += of_dt;
      if (p.z != nullptr && there) put(b.grad_z, of_z[at_token] * fmaf(skip, value, sum));
    }
  }

  __device__ __forceinline__ void take_chunk(int64_t token) {
    const int64_t chunk = selective_scan_first_chunk(place.row, start, kChunk) + (token - start) / kChunk;
    const char* states = states_of(chunk, channel);
    float ahead[kFour];
    load_states(states, 0, ahead);  // all loads before the first that is waited for
    Slab numbers;
    load_slab(token, 0, numbers);
    full(token, kChunk) ? load_tokens<true>(token) : load_tokens<false>(token);
    if (token > start) fetch(token - kChunk, chunk - 1);
    put_slab(numbers);
#pragma unroll 1
    for (int first = kChunk - kTile; first >= 0; first -= kTile) {
      if (token + first >= stop) continue;
#pragma unroll
      for (int k = 0; k < kTile; ++k) of_in[k] = of_delta[k] = y[k] = 0;
#pragma unroll 1
      for (int turn = 0; turn < plan.turns; ++turn) {
        // The chunk's first slab is there when the last tile begins.
        if (const int n = turn * kLanes * kFour; p.state_size > kSlab && n % kSlab == 0 && (n > 0 || first + kTile < kChunk)) {
          load_slab(token, n, numbers), put_slab(numbers);
        }
        float h[kFour] = {ahead[0], ahead[1], ahead[2], ahead[3]};
        load_states(states, turn + 1 < plan.turns ? turn + 1 : 0, ahead);
        take_four(turn, first, h);
        __syncthreads();
        add_warps(token + first, turn);
        ++round;
      }
      full(token + first, kTile) ? finish<true>(token + first, first) : finish<false>(token + first, first);
    }
  }
};

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 512 / kThreads)
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
    auto* kernel = plan.threads == 256 ? walk_back<T, 256> : plan.threads == 128 ? walk_back<T, 128> : walk_back<T, 64>;
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
