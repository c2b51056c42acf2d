// Selective scan over whole rows, bf16 with sixteen numbers a channel. A warp walks along a row with eight channels: four neighbouring
// lanes have a channel, four numbers of its state each. What comes to the states and what is read of them are products of tensor cores, of
// two tokens at a time: δ·x by B, where a token's row has zeros for the other tokens, and the states by C, where a token takes its column.
// A tile's time steps are made while the tile before is walked and the outputs of the one before that are gated. A B that is not finite
// reaches the other three tokens of its four.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"
#include "based/kernels/cuda/tf32.cuh"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kNumbers = 16, kTile = 16, kWarps = 4, kThreads = 32 * kWarps, kOfWarp = 8, kChannels = kWarps * kOfWarp;
constexpr int kBlocks = 4;                       // of a multiprocessor
constexpr int kAhead = 5, kStages = kAhead + 2;  // tiles on their way; one whose outputs are made and one that is walked
constexpr int kRowBytes = kChannels * 2, kInputBytes = kTile * kRowBytes, kMatrixBytes = kTile * kNumbers * 2;
constexpr int kOfB = 3 * kInputBytes, kOfC = kOfB + kMatrixBytes, kStageBytes = kOfC + kMatrixBytes;  // x, which becomes y; dt; z; B; C
constexpr float kCutOff = 1.00035F;  // what y is multiplied by, since tensor cores truncate the states to TF32: right in the mean
static_assert(kTile == kSelectiveScanCudaChunk && kStageBytes == kThreads * 32);  // a thread copies sixteen bytes twice

struct Memory {
  char stages[kStages][kStageBytes];
  float4 steps[2][kWarps][kTile / 4][kOfWarp];  // δ of four tokens
};

// Where a token's eight channels are in a tile of x, dt or z: those of four neighbouring tokens, or of every other one of eight, are in
// different banks.
__device__ __forceinline__ constexpr int place_of(int token, int eight) {
  return (token / 2 * 8 + ((token % 2 * 4 + eight) ^ (token / 2 % 4))) * 16;
}
__device__ __forceinline__ float bf16_at(const char* from) {
  return __uint_as_float(uint32_t{*reinterpret_cast<const uint16_t*>(from)} << 16);
}

// kGate: y is gated by z.
template <bool kGate>
struct Walker {
  const SelectiveScan& p;
  const ScanPlace& place;
  Memory& memory;
  // A lane's numbers are 2·part, the next, and those eight behind.
  const int warp = threadIdx.x / 32, part = threadIdx.x % 4, column = threadIdx.x % 32 / 4;
  const bool mine;  // a channel of the block's
  const int64_t start, channel;
  const int count;  // the row's tokens
  float h[4], rate[4], bias = 0, skip = 0;
  float y[2][2] = {};                       // C·h of the lane's tokens of the tile walked last: two of each eight
  uint32_t in[kTile / 4], rest[kTile / 4];  // δ·x of every fourth token as TF32, and what that leaves
  // Of a tile the first 64 threads copy x, which becomes y, and dt, the others z and B or C.
  const bool of_x = threadIdx.x < 64;
  const int row = threadIdx.x % 64 / 4, eight = threadIdx.x % 4;
  const int matrix = threadIdx.x % 64 / 32, matrix_row = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
  const bool first_there;
  const char *first, *second;
  char* out;
  float* kept;
  int64_t first_step, second_step;

  __device__ __forceinline__ Walker(const SelectiveScan& params, const ScanPlace& of_block, Memory& shared)
      : p(params),
        place(of_block),
        memory(shared),
        mine(threadIdx.x / 4 < place.channels),
        start(p.row_start[place.row]),
        channel(place.channel + (mine ? threadIdx.x / 4 : 0)),
        count(static_cast<int>(p.row_start[place.row + 1] - start)),
        first_there(eight * 8 < place.channels && (of_x || kGate)) {
    const bf16* A_log = static_cast<const bf16*>(p.A_log) + channel * kNumbers;
#pragma unroll
    for (int j = 0; j < 4; ++j) rate[j] = scan_rate(to_float(A_log[number(j)])), h[j] = 0;
    if (p.dt_bias != nullptr) bias = to_float(static_cast<const bf16*>(p.dt_bias)[channel]);
    if (p.D != nullptr) skip = to_float(static_cast<const bf16*>(p.D)[channel]);
    if (p.state != nullptr && mine) {
#pragma unroll
      for (int j = 0; j < 4; ++j) h[j] = state()[number(j)];
    }
    kept = p.chunk_states + (selective_scan_first_chunk(place.row, start, kTile) * kNumbers + part * 2) * p.channels + channel;
    const int64_t at = place.channel + (first_there ? eight * 8 : 0);
    const auto from = [](const void* base, int64_t elements) { return static_cast<const char*>(base) + elements * 2; };
    if (of_x) {
      first = from(p.x, (start + row) * p.x_stride + at), first_step = kTile * 2 * p.x_stride;
      second = from(p.dt, (start + row) * p.dt_stride + at), second_step = kTile * 2 * p.dt_stride;
    } else {
      const int64_t stride = matrix == 0 ? p.b_stride : p.c_stride;
      first = from(p.z, (start + row) * p.z_stride + at), first_step = kTile * 2 * p.z_stride;
      second = from(matrix == 0 ? p.B : p.C, (start + matrix_row) * stride + place.group * kNumbers + half * 8);
      second_step = kTile * 2 * stride;
    }
    out = static_cast<char*>(p.y) + ((start + row) * p.y_stride + at) * 2;
  }
  __device__ __forceinline__ int number(int j) const { return j / 2 * 8 + part * 2 + j % 2; }
  __device__ __forceinline__ float* state() const {
    const int64_t of_row = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (of_row * p.channels + channel) * kNumbers;
  }
  __device__ __forceinline__ void put_state() const {
#pragma unroll
    for (int j = 0; j < 4; ++j) state()[number(j)] = h[j];
  }

  // Of the tile that begins with the row's token `token`; zeros behind the row's end.
  __device__ __forceinline__ void load(int token, char* stage) {
    const uint32_t to = shared_address(stage) + place_of(row, eight);
    const bool there = token + row < count;
    if (of_x) {
      if (first_there) copy_async_16(to, first, there), copy_async_16(to + kInputBytes, second, there);
    } else {
      if (first_there) copy_async_16(to + 2 * kInputBytes, first, there);
      const int at = kOfB + matrix * kMatrixBytes + matrix_row * 32 + half * 16;
      copy_async_16(shared_address(stage) + at, second, token + matrix_row < count);
    }
    copy_async_commit();
    first += first_step, second += second_step;
  }
  // δ and δ·x of every fourth token, this lane's, of the tile that begins with `token`.
  __device__ __forceinline__ void make_steps(int token, const char* stage, float (&steps)[kTile / 4], float (&inputs)[kTile / 4]) const {
    const int left = count - token - part;
    const int own = part / 2 * 128 + part % 2 * 64 + (warp ^ (part / 2)) * 16 + column * 2;
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      const char* from = stage + (i % 2 == 0 ? own : own ^ 32) + i * 256;
      const float step = scan_step(p, bf16_at(from + kInputBytes) + bias);
      steps[i] = 4 * i < left ? step : 0.0F, inputs[i] = steps[i] * bf16_at(from);
    }
  }
  __device__ __forceinline__ void put_steps(const float (&steps)[kTile / 4], const float (&inputs)[kTile / 4], int buffer) {
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      reinterpret_cast<float*>(&memory.steps[buffer][warp][i][column])[part] = steps[i];
      in[i] = __float_as_uint(inputs[i]) & 0xffffe000U;
      rest[i] = __float_as_uint(inputs[i] - __uint_as_float(in[i]));
    }
  }
  // Where the lane's channel of its output's token k of eight, the i-th, is in x.
  __device__ __forceinline__ int own(int i, int k) const { return part * 128 + (warp ^ part) * 16 + column * 2 + i * 512 + k * 64; }
  // The outputs of the tile walked last, whose inputs are in `stage`.
  __device__ __forceinline__ void make_outputs(const char* stage, bf16 (&outputs)[2][2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float sum = fmaf(y[i][k], kCutOff, skip * bf16_at(stage + own(i, k)));
        if constexpr (kGate) {
          const float gate = bf16_at(stage + own(i, k) + 2 * kInputBytes);
          sum *= gate * sigmoid(gate);
        }
        outputs[i][k] = from_float<bf16>(sum);
      }
    }
  }
  // Where its x were.
  __device__ __forceinline__ void put_outputs(const bf16 (&outputs)[2][2], char* stage) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) *reinterpret_cast<bf16*>(stage + own(i, k)) = outputs[i][k];
    }
  }
  // The outputs of the tile that begins with `token`, the one behind that stored last.
  __device__ __forceinline__ void store(int token, const char* stage) {
    if (token < 0 || !of_x) return;
    if (first_there && token + row < count) *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(stage + place_of(row, eight));
    out += kTile * 2 * p.y_stride;
  }
  __device__ __forceinline__ void keep() {
    if (p.chunk_states == nullptr || !mine) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) kept[(j / 2 * 8 + j % 2) * p.channels] = h[j];
    kept += kNumbers * p.channels;
  }

  __device__ __forceinline__ void advance(float delta, float in0, float in1, float in2, float in3) {
    const float add[4] = {in0, in1, in2, in3};
#pragma unroll
    for (int j = 0; j < 4; ++j) h[j] = fmaf(exp2_approx(delta * rate[j]), h[j], add[j]);
  }
  __device__ __forceinline__ void walk(const char* stage, int buffer) {
    const char *of_B = stage + kOfB + part * 32 + column * 2, *of_C = stage + kOfC + column * 32 + part * 4;
    uint32_t C[2];
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      if (i % 2 == 0) {
#pragma unroll
        for (int n = 0; n < 2; ++n) C[n] = *reinterpret_cast<const uint32_t*>(of_C + i * 128 + n * 16);
      }
      const float4 four = memory.steps[buffer][warp][i][column];
      const float steps[4] = {four.x, four.y, four.z, four.w};
      uint32_t B[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) B[n] = __float_as_uint(bf16_at(of_B + i * 128 + n * 16));
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const bool even = part == 2 * pair, odd = part == 2 * pair + 1;
        const uint32_t added[4] = {even ? in[i] : 0, odd ? in[i] : 0, even ? rest[i] : 0, odd ? rest[i] : 0};
        float low[4], high[4], sums[4];
        begin_16x8x8(low, added, B[0], B[0]), begin_16x8x8(high, added, B[1], B[1]);
        uint32_t a[2][4];
        advance(steps[2 * pair], low[0], low[1], high[0], high[1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2] = __float_as_uint(h[j]);
        advance(steps[2 * pair + 1], low[2], low[3], high[2], high[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2 + 1] = __float_as_uint(h[j]);
        begin_16x8x8(sums, a[0], C[0] << 16, C[0] & 0xffff0000U);
        mma_16x8x8(sums, a[1], C[1] << 16, C[1] & 0xffff0000U);
        if (part == (2 * i + pair) % 4) y[i / 2][0] = sums[0], y[i / 2][1] = sums[3];
      }
    }
  }
};

template <bool kGate>
__global__ void __launch_bounds__(kThreads, kBlocks) scan_rows(const __grid_constant__ SelectiveScan p) {
  extern __shared__ float4 shared[];
  overlap_kernels();
  auto& memory = *reinterpret_cast<Memory*>(shared);
  const ScanPlace place(p, kChannels);
  Walker<kGate> walker(p, place, memory);
  const int count = walker.count;
  if (count == 0) return;
  float steps[kTile / 4], inputs[kTile / 4];
  bf16 outputs[2][2];
  for (int i = 0; i < kAhead; ++i) walker.load(i * kTile, memory.stages[i]);
  copy_async_wait<kAhead - 1>();
  __syncthreads();
  walker.make_steps(0, memory.stages[0], steps, inputs), walker.put_steps(steps, inputs, 0);
  int before = kStages - 1, here = 0, ahead = kAhead, buffer = 0;
#pragma unroll 1
  for (int token = 0; token < count; token += kTile, buffer ^= 1) {
    const int next = here + 1 == kStages ? 0 : here + 1;
    copy_async_wait<kAhead - 2>();
    __syncthreads();
    walker.store(token - 2 * kTile, memory.stages[ahead]);
    walker.load(token + kAhead * kTile, memory.stages[ahead]);
    walker.keep();
    // What is read of shared memory, then what is written: so they can be under way together.
    walker.make_steps(token + kTile, memory.stages[next], steps, inputs);
    walker.make_outputs(memory.stages[before], outputs);
    walker.walk(memory.stages[here], buffer);
    walker.put_steps(steps, inputs, buffer ^ 1), walker.put_outputs(outputs, memory.stages[before]);
    before = here, here = next, ahead = ahead + 1 == kStages ? 0 : ahead + 1;
  }
  walker.make_outputs(memory.stages[before], outputs), walker.put_outputs(outputs, memory.stages[before]);
  __syncthreads();
  const int last = (count - 1) / kTile * kTile;
  walker.store(last - kTile, memory.stages[ahead]);
  walker.store(last, memory.stages[before]);
  if (p.state != nullptr && walker.mine) walker.put_state();
}

}  // namespace

bool scan_forward_mma_fits(const SelectiveScan& p) {
  const auto fits = [](const void* base, int64_t stride) { return aligned16(base) && stride % 8 == 0; };
  return p.dtype == DType::bf16 && p.state_size == kNumbers && p.channels / p.groups % 8 == 0 && fits(p.x, p.x_stride) &&
         fits(p.dt, p.dt_stride) && (p.z == nullptr || fits(p.z, p.z_stride)) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) &&
         fits(p.y, p.y_stride);
}

Status scan_forward_mma(const SelectiveScan& p, Stream stream) {
  auto* kernel = p.z != nullptr ? scan_rows<true> : scan_rows<false>;
  if (const Status status = status_of(allow_shared_memory(kernel, sizeof(Memory))); !status.ok()) return status;
  const int64_t blocks = p.rows * p.groups * scan_blocks(p, kChannels);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kThreads, sizeof(Memory)}, stream, p);
}

}  // namespace based::kernels::cuda::detail
