// Gradients of the selective scan. A block processes a row from its end to its start, with two lanes per channel. It recomputes a chunk's
// states from the kept state before the chunk, for four state elements per lane and eight tokens at a time. They stay in registers for the
// backward pass over these tokens. The gradients of B and C are summed over the channels: over a warp's lanes by tensor cores, over a
// block's warps through shared memory, and over blocks by another kernel. A third kernel sums the gradients of the parameters over the
// rows.
#include <algorithm>
#include <type_traits>

#include "based/kernels/common/cuda/column_sums.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/tf32.cuh"
#include "based/kernels/scan/cuda/scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kChunk = kSelectiveScanCudaChunk, kTile = 8, kFour = 4;
// Two lanes share a channel. Each handles every second token of its inputs and gradients, and every second group of four state elements.
// The lanes of a channel are kLaneDistance apart, so that adjacent lanes have adjacent channels.
constexpr int kLanes = 2, kLaneDistance = 32 / kLanes, kTokensPerLane = kTile / kLanes;
constexpr int kSlab = 32;                    // state elements whose B and C are in shared memory together
constexpr int kSumSets = 2 * kTile / kFour;  // sets of 16 lane sums (four tokens, four state elements, of C or B) per tile
static_assert(kChunk % kTile == 0 && kTile % kFour == 0 && kSlab % (kLanes * kFour) == 0);

// mma_16x8x16() with a zero accumulator.
__device__ __forceinline__ void begin_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0F));
}

// Sums four values per lane over the lanes of a warp on tensor cores. The values are operand b, in which each column holds the values of
// four lanes. Operand a is constant: each of its rows has ones for one of the four values. So the product sums that value over the four
// lanes. In fp32 a value is split into two TF32 parts.
template <typename T>
class LaneSums {
 public:
  __device__ __forceinline__ LaneSums() {
    const int row = threadIdx.x / 4 % 4;
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
      const uint32_t one = sizeof(T) == 4 ? 0x3f800000U : row % 2 == 0 ? 0x3f80U : 0x3f800000U;
      const int selected = sizeof(T) == 4 ? row - 2 * i : row / 2;
      const uint32_t first = selected == 0 ? one : 0, second = selected == 1 ? one : 0;
      // A shuffle between lanes with equal values hides that the registers are equal. Otherwise the compiler would copy them for each
      // product.
#pragma unroll
      for (int k = 0; k < 4; ++k) select_[i][k] = __shfl_xor_sync(~0U, k < 2 ? first : second, k % 2 + 1);
    }
  }
  // Adds the values of a token; even and odd tokens have separate sums.
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
  // In lane l, a partial sum of value l / 4 mod 4: of the even token in lanes 0 to 15, of the odd token in lanes 16 to 31. The full sum is
  // the sum over l mod 4.
  __device__ __forceinline__ float partial_sum() const {
    return threadIdx.x % 32 < 16 ? sums_[0][0] + sums_[0][1] : sums_[1][0] + sums_[1][1];
  }

 private:
  static constexpr int kOperands = sizeof(T) == 4 ? 2 : 1;
  __device__ __forceinline__ static float low_cut(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000U); }

  uint32_t select_[kOperands][4];  // each row occurs four times; two of them are used
  float sums_[2][4];
};

// Launch shape. The scratch holds partial sums of the gradients of B and C over channels, [blocks, tokens, fours, 2 (B, C), 4 state
// elements], and partial sums of the parameters' gradients over rows, [rows, channels · (state_size + 2)].
struct Plan {
  int threads, fours, passes;  // fours: groups of four state elements; passes: fours per lane
  int64_t blocks, bc_sum_floats, row_columns;

  __host__ __device__ explicit Plan(const SelectiveScan& p) {
    threads = p.state_size <= 16 ? 256 : p.state_size <= 64 ? 128 : 64;  // 64 elements and fewer fit into the 99 KB of the smallest GPUs
    passes = static_cast<int>(p.state_size + kLanes * kFour - 1) / (kLanes * kFour), fours = passes * kLanes;
    blocks = scan_blocks(p, threads / kLanes);
    bc_sum_floats = p.groups * blocks * p.tokens * fours * 2 * kFour;
    row_columns = p.channels * (p.state_size + 2);
  }
};

// Shared memory of a block. A PassStorage for each pass follows it.
template <int kThreads>
struct alignas(16) SharedStorage {
  static constexpr int kChannels = kThreads / kLanes;
  float2 warp_sums[2][kThreads / 32][kSumSets][32];  // sums over the lanes of each warp; passes alternate between the two buffers
  float B[kChunk][kSlab], C[kChunk][kSlab];
  float2 delta_and_input[kChunk][kChannels];  // {δ, δ·x}
  float2 x_and_slope[kChunk][kChannels];      // {x, dδ/d(dt)}
  float sum_grads[kChunk][kChannels];         // gradient of the sum C·h + D x
  float z_factors[kChunk][kChannels];         // the factor by which this sum enters the gradient of z
};
// The state elements of a pass: four per thread.
template <int kThreads>
struct PassStorage {
  float4 rates[kThreads];
  float4 state_grads[kThreads];  // gradients of the state after the current token
  float4 rate_grads[kThreads];
};
template <int kThreads>
int64_t shared_bytes(const Plan& plan) {
  return static_cast<int64_t>(sizeof(SharedStorage<kThreads>)) + plan.passes * static_cast<int64_t>(sizeof(PassStorage<kThreads>));
}

// The variables that a thread keeps from chunk to chunk, and its accesses to global memory. They form one struct because of the machine
// code: with separate local variables the compiler orders the loops differently, and the kernel was slower on an H200.
template <typename T, int kThreads>
struct Thread {
  static constexpr int kChannels = kThreads / kLanes;
  const SelectiveScanBackward& b;
  const SelectiveScan& p;
  const Plan& plan;
  const ScanPlace place;
  const int lane = threadIdx.x % 32 / kLaneDistance, column = threadIdx.x / 32 * kLaneDistance + threadIdx.x % kLaneDistance;
  const int64_t row_begin, row_end, channel;
  const bool is_active;                                                     // whether the thread has a channel
  float* const bc_sums;                                                     // the block's partial sums of the gradients of B and C
  const uint32_t state_step_bytes = static_cast<uint32_t>(p.channels) * 4;  // from one state element to the next in chunk_states
  SharedStorage<kThreads>& shared;
  PassStorage<kThreads>* const passes;
  LaneSums<T> sums;
  // For the tokens of a tile, sums over this lane's state elements: the gradient of δ·x; the gradient of δ through the decays, divided by
  // ln 2; C·h.
  float input_grads[kTile], decay_grads[kTile], readouts[kTile];
  float bias = 0, skip = 0, skip_grad = 0, bias_grad = 0;
  int passes_done = 0;  // over all tiles

  __device__ __forceinline__ Thread(const SelectiveScanBackward& params, const Plan& launch_plan, float* partial, char* memory)
      : b(params),
        p(params.forward),
        plan(launch_plan),
        place(p, kChannels),
        row_begin(p.row_start[place.row]),
        row_end(p.row_start[place.row + 1]),
        channel(place.channel + (column < place.channels ? column : 0)),
        is_active(column < place.channels),
        bc_sums(partial + place.number * p.tokens * plan.fours * 2 * kFour),
        shared(*reinterpret_cast<SharedStorage<kThreads>*>(memory)),
        passes(reinterpret_cast<PassStorage<kThreads>*>(&shared + 1)) {}
  // Pointer to the first state element of a channel before a chunk, and to its element n.
  __device__ __forceinline__ const char* chunk_state(int64_t chunk, int64_t first_channel) const {
    return reinterpret_cast<const char*>(p.chunk_states + chunk * p.state_size * p.channels + first_channel);
  }
  __device__ __forceinline__ const float* state_element(const char* states, int n) const {
    return reinterpret_cast<const float*>(states + uint64_t{static_cast<uint32_t>(n)} * state_step_bytes);
  }
  // The first state element of this lane in a pass.
  __device__ __forceinline__ int first_state(int pass) const { return (pass * kLanes + lane) * kFour; }
  // Whether every lane has a channel and the row has `tokens` more tokens.
  __device__ __forceinline__ bool is_full(int64_t token, int tokens) const {
    return place.channels == kChannels && token + tokens <= row_end;
  }

  // A thread's part of B and C of a chunk's tokens, for kSlab state elements from `first` on.
  using Slab = uint32_t[2][kChunk * kSlab / kThreads];
  __device__ __forceinline__ void load_slab(int64_t token, int first, Slab& numbers) const {
    const int64_t offset = place.group * p.state_size + first;
    const int left = static_cast<int>(min(row_end - token, int64_t{kChunk})), n = threadIdx.x % kSlab;
    const bool inside = first + n < p.state_size;
    const int64_t t0 = token + threadIdx.x / kSlab;
    const T *B_values = static_cast<const T*>(p.B) + t0 * p.b_stride + offset + n,
            *C_values = static_cast<const T*>(p.C) + t0 * p.c_stride + offset + n;
    constexpr int kRows = kThreads / kSlab;  // tokens that the block loads together
#pragma unroll
    for (int i = 0; i < kChunk / kRows; ++i, B_values += kRows * p.b_stride, C_values += kRows * p.c_stride) {
      numbers[0][i] = numbers[1][i] = 0;
      if (inside && static_cast<int>(threadIdx.x) / kSlab + i * kRows < left)
        numbers[0][i] = load_raw(B_values), numbers[1][i] = load_raw(C_values);
    }
  }
  __device__ __forceinline__ void store_slab(const Slab& numbers) const {
#pragma unroll
    for (int i = 0; i < kChunk * kSlab / kThreads; ++i) {
      const int t = i * (kThreads / kSlab) + threadIdx.x / kSlab, n = threadIdx.x % kSlab;
      shared.B[t][n] = raw_value<T>(numbers[0][i]), shared.C[t][n] = raw_value<T>(numbers[1][i]);
    }
  }
  // Loads the channel's elements of this lane's tokens: every second token from `token` on, zeros past the row's end. kFull: all tokens
  // exist.
  template <bool kFull, int kCount>
  __device__ __forceinline__ void load_inputs(const void* matrix, int64_t stride, int64_t token, uint32_t (&raw)[kCount]) const {
    const char* source = reinterpret_cast<const char*>(static_cast<const T*>(matrix) + (token + lane) * stride + channel);
    const int64_t step = kLanes * stride * static_cast<int64_t>(sizeof(T));
    const int left = static_cast<int>(min(row_end - token, int64_t{kChunk}));
#pragma unroll
    for (int i = 0; i < kCount; ++i, source += step) {
      if (kFull) raw[i] = load_raw(reinterpret_cast<const T*>(source));
      if (!kFull) raw[i] = 0;
      if (!kFull && lane + i * kLanes < left) raw[i] = load_raw(reinterpret_cast<const T*>(source));
    }
  }
  // Prefetches into the L2 cache the inputs of the chunk at `token`, which must be complete. Each lane prefetches one token of the warp's
  // channels, and then elements of the state before the chunk.
  __device__ __forceinline__ void prefetch_chunk(int64_t token, int64_t chunk) const {
    const int first = static_cast<int>(threadIdx.x / 32) * kLaneDistance;
    if (first >= place.channels) return;
    const auto row = [&](const void* matrix, int64_t stride) {
      const T* source = static_cast<const T*>(matrix) + (token + threadIdx.x % kLaneDistance) * stride + place.channel + first;
#pragma unroll
      for (int sector = 0; sector < static_cast<int>(sizeof(T)) / 2; ++sector) fetch_to_l2(source + sector * (32 / sizeof(T)));
    };
    if (lane == 0) row(p.x, p.x_stride), row(b.grad_y, p.channels);
    if (lane != 0) row(p.dt, p.dt_stride);
    if (lane != 0 && p.z != nullptr) row(p.z, p.z_stride);
    const char* states = chunk_state(chunk, place.channel + first + threadIdx.x % 2 * 8);
#pragma unroll 1
    for (int n = threadIdx.x % 32 / 2; n < static_cast<int>(p.state_size); n += 16) fetch_to_l2(state_element(states, n));
  }
  // Loads this lane's elements of a pass of the state before a chunk. Elements past state_size repeat the last one; their C is 0.
  __device__ __forceinline__ void load_states(const char* states, int pass, float (&h)[kFour]) const {
#pragma unroll
    for (int j = 0; j < kFour; ++j) h[j] = *state_element(states, min(first_state(pass) + j, static_cast<int>(p.state_size) - 1));
  }
  // Sums two adjacent tokens' values over the channel's two lanes. Lane 0 returns the even token's sum, lane 1 the odd token's.
  __device__ __forceinline__ float sum_lanes(float even, float odd) const {
    return (lane == 0 ? even : odd) + __shfl_xor_sync(~0U, lane == 0 ? odd : even, kLaneDistance);
  }
};

// Gradients of x, dt and z, and partial sums of the other gradients. A block processes one row and kThreads / kLanes channels.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 512 / kThreads)
    scan_backward(const __grid_constant__ SelectiveScanBackward b, const __grid_constant__ Plan plan, float* bc_sums, float* row_sums) {
  extern __shared__ __align__(16) char memory[];
  overlap_kernels();
  const SelectiveScan& p = b.forward;
  Thread<T, kThreads> thread(b, plan, bc_sums, memory);
  SharedStorage<kThreads>& shared = thread.shared;

  // Load the parameters and the gradient of the row's last state.
  if (p.dt_bias != nullptr) thread.bias = to_float(static_cast<const T*>(p.dt_bias)[thread.channel]);
  if (p.D != nullptr) thread.skip = to_float(static_cast<const T*>(p.D)[thread.channel]);
  const T* A_log = static_cast<const T*>(p.A_log) + thread.channel * p.state_size;
  const float* grad_state =
      b.grad_state != nullptr ? b.grad_state + (thread.place.row * p.channels + thread.channel) * p.state_size : nullptr;
  for (int pass = 0; pass < thread.plan.passes; ++pass) {
    float rate[kFour], grad[kFour];
#pragma unroll
    for (int j = 0; j < kFour; ++j) {
      const int n = thread.first_state(pass) + j;
      const bool valid = thread.is_active && n < p.state_size;
      rate[j] = valid ? scan_rate(to_float(A_log[n])) : 0.0F;
      grad[j] = valid && grad_state != nullptr ? grad_state[n] : 0.0F;
    }
    thread.passes[pass].rates[threadIdx.x] = make_float4(rate[0], rate[1], rate[2], rate[3]);
    thread.passes[pass].state_grads[threadIdx.x] = make_float4(grad[0], grad[1], grad[2], grad[3]);
    thread.passes[pass].rate_grads[threadIdx.x] = make_float4(0, 0, 0, 0);
  }

  // Process the chunks from the last to the first. `token` is the chunk's first token.
  const int64_t chunks = (thread.row_end - thread.row_begin + kChunk - 1) / kChunk;
#pragma unroll 1
  for (int64_t token = thread.row_begin + (chunks - 1) * kChunk; token >= thread.row_begin; token -= kChunk) {
    const int64_t chunk = selective_scan_first_chunk(thread.place.row, thread.row_begin, kChunk) + (token - thread.row_begin) / kChunk;
    const char* states = thread.chunk_state(chunk, thread.channel);
    float next_states[kFour];
    thread.load_states(states, 0, next_states);  // issues all loads before the first wait
    typename Thread<T, kThreads>::Slab numbers;
    thread.load_slab(token, 0, numbers);

    // Load this lane's tokens of the chunk and prepare their values in shared memory. Only this thread reads them after the last barrier of
    // the previous chunk, so there is no barrier before.
    const auto load_tokens = [&](auto full) {
      constexpr bool kFull = decltype(full)::value;  // whether all lanes have a channel and all tokens exist
      constexpr int kCount = kChunk / kLanes;
      const int left = static_cast<int>(min(thread.row_end - token, int64_t{kChunk}));
      uint32_t x[kCount], dt[kCount], y_grads[kCount], z[kCount];
      thread.template load_inputs<kFull>(p.x, p.x_stride, token, x), thread.template load_inputs<kFull>(p.dt, p.dt_stride, token, dt);
      thread.template load_inputs<kFull>(b.grad_y, p.channels, token, y_grads);
      if (p.z != nullptr) thread.template load_inputs<kFull>(p.z, p.z_stride, token, z);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int k = thread.lane + i * kLanes;
        const float value = raw_value<T>(x[i]), raw = raw_value<T>(dt[i]) + thread.bias, step = scan_step(p, raw);
        const float delta = kFull || (thread.is_active && k < left) ? step : 0.0F, slope = sigmoid(raw);
        shared.delta_and_input[k][thread.column] = make_float2(delta, delta * value),
        shared.x_and_slope[k][thread.column] = make_float2(value, p.softplus ? slope : 1.0F);
        float grad = kFull || thread.is_active ? raw_value<T>(y_grads[i]) : 0.0F;
        if (p.z != nullptr) {
          const float gate = raw_value<T>(z[i]), open = sigmoid(gate);
          shared.z_factors[k][thread.column] = grad * (open * fmaf(gate, 1.0F - open, 1.0F)), grad *= gate * open;
        }
        shared.sum_grads[k][thread.column] = grad;
      }
    };
    thread.is_full(token, kChunk) ? load_tokens(std::true_type()) : load_tokens(std::false_type());
    if (token > thread.row_begin) thread.prefetch_chunk(token - kChunk, chunk - 1);
    thread.store_slab(numbers);
    __syncthreads();  // the slab and the chunk's tokens are complete

#pragma unroll 1
    for (int first = kChunk - kTile; first >= 0; first -= kTile) {
      const int64_t tile = token + first;  // the tile's first token
      if (tile >= thread.row_end) continue;
#pragma unroll
      for (int k = 0; k < kTile; ++k) thread.input_grads[k] = thread.decay_grads[k] = thread.readouts[k] = 0;

#pragma unroll 1
      for (int pass = 0; pass < thread.plan.passes; ++pass) {
        // When the last tile begins, the chunk's first slab is already in shared memory. All threads have read the previous slab before the
        // previous pass's barrier.
        if (const int n = pass * kLanes * kFour; p.state_size > kSlab && n % kSlab == 0 && (n > 0 || first + kTile < kChunk)) {
          thread.load_slab(token, n, numbers), thread.store_slab(numbers);
          __syncthreads();  // the slab is complete
        }
        float h[kFour] = {next_states[0], next_states[1], next_states[2], next_states[3]};
        thread.load_states(states, pass + 1 < thread.plan.passes ? pass + 1 : 0, next_states);

        // Advance four state elements from the chunk's begin to the tile.
        const float4 lane_rates = thread.passes[pass].rates[threadIdx.x];
        const float rate[kFour] = {lane_rates.x, lane_rates.y, lane_rates.z, lane_rates.w};
        const int slab_column = thread.first_state(pass) % kSlab;
#pragma unroll 8
        for (int t = 0; t < first; ++t) {
          const float2 values = shared.delta_and_input[t][thread.column];
          float number[kFour];
          load_floats<kFour>(&shared.B[t][slab_column], number);
#pragma unroll
          for (int j = 0; j < kFour; ++j) h[j] = fmaf(exp2_approx(values.x * rate[j]), h[j], values.y * number[j]);
        }

        // Advance them through the tile. The decays and states stay in registers for the way back.
        float2 held;
        float decay[kTile][kFour], kept[kTile][kFour];  // kept: decay times the state before the token
        float2* C_sums = &shared.warp_sums[thread.passes_done % 2][threadIdx.x / 32][0][threadIdx.x % 32];
#pragma unroll
        for (int k = 0; k < kTile; ++k) {
          const float2 values = shared.delta_and_input[first + k][thread.column];
          const float grad = shared.sum_grads[first + k][thread.column];
          float number[kFour], y_grads[kFour], C_values[kFour];
          load_floats<kFour>(&shared.B[first + k][slab_column], number), load_floats<kFour>(&shared.C[first + k][slab_column], y_grads);
#pragma unroll
          for (int j = 0; j < kFour; ++j) {
            decay[k][j] = exp2_approx(values.x * rate[j]), kept[k][j] = decay[k][j] * h[j];
            h[j] = fmaf(values.y, number[j], kept[k][j]), thread.readouts[k] = fmaf(y_grads[j], h[j], thread.readouts[k]),
            C_values[j] = grad * h[j];
          }
          thread.sums.add(k, C_values);
          if (k % 2 != 0) (k % 4 == 1 ? held.x : held.y) = thread.sums.partial_sum();
          if (k % 4 == 3) C_sums[(k / 4) * 32] = held;
        }

        // Go back over the tile's tokens.
        float2* B_sums = C_sums + kSumSets / 2 * 32;
        const float4 saved = thread.passes[pass].state_grads[threadIdx.x];
        float grad[kFour] = {saved.x, saved.y, saved.z, saved.w}, rate_grad[kFour] = {};
#pragma unroll
        for (int k = kTile - 1; k >= 0; --k) {
          const float2 values = shared.delta_and_input[first + k][thread.column];
          const float sum_grad = shared.sum_grads[first + k][thread.column];
          float number[kFour], y_grads[kFour], B_values[kFour];
          load_floats<kFour>(&shared.B[first + k][slab_column], number), load_floats<kFour>(&shared.C[first + k][slab_column], y_grads);
#pragma unroll
          for (int j = 0; j < kFour; ++j) {
            grad[j] = fmaf(sum_grad, y_grads[j], grad[j]);
            const float slope = grad[j] * kept[k][j];
            thread.input_grads[k] = fmaf(grad[j], number[j], thread.input_grads[k]),
            thread.decay_grads[k] = fmaf(slope, rate[j], thread.decay_grads[k]);
            rate_grad[j] = fmaf(slope, values.x, rate_grad[j]), B_values[j] = grad[j] * values.y;
            grad[j] *= decay[k][j];
          }
          thread.sums.add(k, B_values);
          if (k % 2 == 0) (k % 4 == 0 ? held.x : held.y) = thread.sums.partial_sum();
          if (k % 4 == 0) B_sums[(k / 4) * 32] = held;
        }
        thread.passes[pass].state_grads[threadIdx.x] = make_float4(grad[0], grad[1], grad[2], grad[3]);
        float4& total = thread.passes[pass].rate_grads[threadIdx.x];
        total = make_float4(total.x + rate_grad[0], total.y + rate_grad[1], total.z + rate_grad[2], total.w + rate_grad[3]);
        __syncthreads();  // all warps' sums of this pass are complete; the next pass writes the other buffer

        // Add up the warps' sums for the gradients of B and C, for the tile's tokens and the state elements of the pass. Other warps do
        // this in each pass. A thread computes two sums; sixteen adjacent threads compute the two times eight sums of a token.
        constexpr int kUnits = kSumSets * 8 * kLanes;
        static_assert(kThreads % kUnits == 0);
        if (const int i = (threadIdx.x + thread.passes_done * kUnits) % kThreads; i < kUnits) {
          const int number = i % 4, is_C = i / 8 % 2, half = i / 4 % kLanes, odd = i / 16 % 2, set = i / 32;
          const float2* source =
              &shared.warp_sums[thread.passes_done % 2][0][(is_C ? 0 : kSumSets / 2) + set][(odd * 4 + number) * 4 + half * 2];
          float2 sum = {};
#pragma unroll
          for (int warp = 0; warp < kThreads / 32; ++warp, source += kSumSets * 32) {
            const float4 both = *reinterpret_cast<const float4*>(source);
            sum.x += both.x + both.z, sum.y += both.y + both.w;
          }
          const int64_t t = tile + set * kFour + odd;
          float* token_sums = thread.bc_sums + ((t * thread.plan.fours + pass * kLanes + half) * 2 + is_C) * kFour + number;
          if (t < thread.row_end) token_sums[0] = sum.x;
          if (t + 2 < thread.row_end) token_sums[static_cast<int64_t>(thread.plan.fours) * 4 * kFour] = sum.y;
        }
        ++thread.passes_done;
      }

      // Store the gradients of x, dt and z of the tile.
      const auto store_tile = [&](auto full) {
        constexpr bool kFull = decltype(full)::value;
        const int64_t step = kLanes * p.channels * static_cast<int64_t>(sizeof(T));
        int64_t offset = ((tile + thread.lane) * p.channels + thread.channel) * static_cast<int64_t>(sizeof(T));
        const auto store = [&](void* matrix, float value) {
          *reinterpret_cast<T*>(static_cast<char*>(matrix) + offset) = from_float<T>(value);
        };
        T* z_grads = static_cast<T*>(b.grad_z) + (tile + thread.lane) * b.grad_z_stride + thread.channel;
#pragma unroll
        for (int i = 0; i < kTokensPerLane; ++i, offset += step, z_grads += kLanes * b.grad_z_stride) {
          const int k = thread.lane + i * kLanes;
          const float input_grad = thread.sum_lanes(thread.input_grads[2 * i], thread.input_grads[2 * i + 1]),
                      decay_grad = thread.sum_lanes(thread.decay_grads[2 * i], thread.decay_grads[2 * i + 1]),
                      sum = thread.sum_lanes(thread.readouts[2 * i], thread.readouts[2 * i + 1]);
          const bool valid = kFull || (thread.is_active && tile + k < thread.row_end);
          const float2 values = shared.x_and_slope[first + k][thread.column];
          const float grad = shared.sum_grads[first + k][thread.column], value = values.x,
                      dt_grad = values.y * fmaf(input_grad, value, decay_grad * kLn2);
          if (valid) store(b.grad_x, fmaf(input_grad, shared.delta_and_input[first + k][thread.column].x, thread.skip * grad));
          thread.skip_grad = fmaf(grad, value, thread.skip_grad);
          if (valid) store(b.grad_dt, dt_grad), thread.bias_grad += dt_grad;
          if (p.z != nullptr && valid) *z_grads = from_float<T>(shared.z_factors[first + k][thread.column] * fmaf(thread.skip, value, sum));
        }
      };
      thread.is_full(tile, kTile) ? store_tile(std::true_type()) : store_tile(std::false_type());
    }
  }

  // Store the row's part of the parameters' gradients, and the gradient of the initial state.
  const float skip_sum = thread.skip_grad + __shfl_xor_sync(~0U, thread.skip_grad, kLaneDistance);
  const float bias_sum = thread.bias_grad + __shfl_xor_sync(~0U, thread.bias_grad, kLaneDistance);
  if (!thread.is_active) return;
  float* sums_of_row = row_sums + thread.place.row * thread.plan.row_columns;
  float* initial =
      b.grad_initial_state != nullptr ? b.grad_initial_state + (thread.place.row * p.channels + thread.channel) * p.state_size : nullptr;
  for (int pass = 0; pass < thread.plan.passes; ++pass) {
    const float4 r = thread.passes[pass].rates[threadIdx.x], h = thread.passes[pass].state_grads[threadIdx.x],
                 a = thread.passes[pass].rate_grads[threadIdx.x];
    const float rate[kFour] = {r.x, r.y, r.z, r.w}, grad[kFour] = {h.x, h.y, h.z, h.w}, rate_grad[kFour] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int j = 0; j < kFour; ++j) {
      const int n = thread.first_state(pass) + j;
      if (n >= p.state_size) break;
      sums_of_row[thread.channel * p.state_size + n] = rate_grad[j] * (rate[j] * kLn2);
      if (initial != nullptr) initial[n] = grad[j];
    }
  }
  sums_of_row += p.channels * p.state_size;
  if (thread.lane == 0) sums_of_row[thread.channel] = skip_sum, sums_of_row[p.channels + thread.channel] = bias_sum;
}

// Gradients of B and C: adds up the partial sums of a group's blocks. Each thread handles one token and state element.
template <typename T>
__global__ void __launch_bounds__(256) add_blocks(const __grid_constant__ SelectiveScanBackward b, const float* bc_sums) {
  overlap_kernels();
  const SelectiveScan& p = b.forward;
  const Plan plan(p);
  const int64_t token_floats = plan.fours * 2 * kFour, element = blockIdx.x * int64_t{256} + threadIdx.x,
                group = element / (token_floats * p.tokens);
  if (group >= p.groups) return;
  const int64_t inside = element % (token_floats * p.tokens), token = inside / token_floats;
  const int64_t n = inside % token_floats / (2 * kFour) * kFour + element % kFour;
  if (n >= p.state_size) return;
  const float* part = bc_sums + group * plan.blocks * p.tokens * token_floats + inside;
  float sum = 0;
#pragma unroll 8
  for (int64_t block = 0; block < plan.blocks; ++block) sum += part[block * p.tokens * token_floats];
  static_cast<T*>(element / kFour % 2 == 0 ? b.grad_B : b.grad_C)[(token * p.groups + group) * p.state_size + n] = from_float<T>(sum);
}

// Gradients of A_log, D and dt_bias: adds up the partial sums of the rows.
__global__ void __launch_bounds__(kSumThreads)
    add_rows(const __grid_constant__ SelectiveScanBackward b, const float* row_sums, int64_t rows, int64_t columns) {
  overlap_kernels();
  const float sum = sum_column_of_warp(row_sums, rows, columns);
  const int64_t column = blockIdx.x * int64_t{kSumColumns} + threadIdx.x / 32, channels = b.forward.channels;
  if (threadIdx.x % 32 != 0 || column >= columns) return;
  const int64_t parameter = column - channels * b.forward.state_size;
  if (parameter < 0) {
    b.grad_A_log[column] = sum;
  } else if (parameter < channels) {
    if (b.grad_D != nullptr) b.grad_D[parameter] = sum;
  } else if (b.grad_dt_bias != nullptr) {
    b.grad_dt_bias[parameter - channels] = sum;
  }
}

int64_t shared_bytes(const Plan& plan) {
  return plan.threads == 256 ? shared_bytes<256>(plan) : plan.threads == 128 ? shared_bytes<128>(plan) : shared_bytes<64>(plan);
}

template <typename T, int kThreads>
Status launch_main(const SelectiveScanBackward& b, const Plan& plan, float* bc_sums, float* row_sums, Queue queue) {
  auto* kernel = scan_backward<T, kThreads>;
  const int64_t bytes = shared_bytes<kThreads>(plan), blocks = b.forward.rows * b.forward.groups * plan.blocks;
  if (const Status status = status_of(allow_shared_memory(kernel, static_cast<int>(bytes))); !status.ok()) return status;
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kThreads, bytes}, queue, b, plan, bc_sums, row_sums);
}
template <typename T>
Status launch_backward(const SelectiveScanBackward& b, const Plan& plan, float* bc_sums, float* row_sums, Queue queue) {
  const SelectiveScan& p = b.forward;
  if (p.rows > 0) {
    const auto launch = plan.threads == 256 ? launch_main<T, 256> : plan.threads == 128 ? launch_main<T, 128> : launch_main<T, 64>;
    if (const Status status = launch(b, plan, bc_sums, row_sums, queue); !status.ok()) return status;
  }
  if (p.tokens == 0) return {};
  const int64_t sums = p.groups * p.tokens * plan.fours * 2 * kFour;
  return launch_overlapped(add_blocks<T>, {static_cast<unsigned>(ceil_div(sums, 256)), 256}, queue, b, bc_sums);
}

}  // namespace

int64_t selective_scan_backward_scratch(const SelectiveScanBackward& b) {
  const Plan plan(b.forward);
  return (plan.bc_sum_floats + b.forward.rows * plan.row_columns) * 4;
}

bool selective_scan_backward_takes(const SelectiveScan& p) { return shared_bytes(Plan(p)) <= block_shared_memory(); }

Status selective_scan_backward(const SelectiveScanBackward& b, void* scratch, Queue queue) {
  const SelectiveScan& p = b.forward;
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.channels == 0) return {};
  if (!selective_scan_backward_takes(p))
    return {"selective_scan_backward: the gradients of states of this state_size need more shared memory than this GPU has"};
  const Plan plan(p);
  auto* bc_sums = static_cast<float*>(scratch);
  float* row_sums = bc_sums + plan.bc_sum_floats;
  const auto launch = p.dtype == DType::bf16 ? launch_backward<bf16> : launch_backward<float>;
  if (const Status status = launch(b, plan, bc_sums, row_sums, queue); !status.ok()) return status;
  return launch_overlapped(add_rows, {static_cast<unsigned>(ceil_div(plan.row_columns, kSumColumns)), kSumThreads}, queue, b, row_sums,
                           p.rows, plan.row_columns);
}

}  // namespace based::kernels::cuda
