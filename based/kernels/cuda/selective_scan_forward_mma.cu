// Selective scan over whole rows, bf16 with sixteen numbers a channel. A warp walks along a row with eight channels: four neighbouring
// lanes have a channel, four numbers of its state each. What comes to the states and what is read of them are products of tensor cores, of
// two tokens at a time: δ·x by B, where a token's row has zeros for the other tokens, and the states by C, where a token takes its column.
// A tile's time steps are made while the tile before is walked and the outputs of the one before that are gated, each in pieces between
// quarters of the walk, since with one warp a scheduler what binds is latencies; nor has the loop a branch but its own, for the same
// reason. A B that is not finite reaches the other three tokens of its four.
#include <climits>

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

// Stores without a branch, so that a loop stays one block of code, which the compiler schedules as a whole.
__device__ __forceinline__ void store_if(bool there, float* to, float value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.f32 [%1], %2;\n}" ::"r"(static_cast<int>(there)), "l"(to), "f"(value)
               : "memory");
}
__device__ __forceinline__ void store_if(bool there, void* to, uint4 value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(static_cast<int>(there)),
               "l"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// kGate: y is gated by z. kKeep: the state before each tile is kept.
template <bool kGate, bool kKeep>
struct Walker {
  const SelectiveScan& p;
  const ScanPlace& place;
  Memory& memory;
  // A lane's numbers are 2·part, the next, and those eight behind.
  const int warp = threadIdx.x / 32, part = threadIdx.x % 4, column = threadIdx.x % 32 / 4;
  // Where in a stage the lane's first step, its first output and its part of B and C are.
  const int of_steps = part / 2 * 128 + part % 2 * 64 + (warp ^ (part / 2)) * 16 + column * 2;
  const int of_own = part * 128 + (warp ^ part) * 16 + column * 2;
  const int of_B = kOfB + part * 32 + column * 2, of_C = kOfC + column * 32 + part * 4;
  const bool mine;  // a channel of the block's
  const int64_t start, channel;
  const int count;  // the row's tokens
  float h[4], rate[4], bias = 0, skip = 0;
  float y[2][2] = {};                       // C·h of the lane's tokens of the tile walked last: two of each eight
  uint32_t in[kTile / 4], rest[kTile / 4];  // δ·x of every fourth token as TF32, and what that leaves
  float4 deltas;                            // of four tokens
  float decays[4][4];                       // of the same
  // Of a tile the first 64 threads copy x, which becomes y, and dt, the others z and B or C: to these bytes of a stage, of a tile whose
  // first token is before the limit.
  int first_to, second_to, first_limit, second_limit;
  const char *first, *second;
  int64_t first_step, second_step;
  char* out;  // two tiles back
  uint32_t out_limit;
  float* kept;
  // The tile walked: the row's token that it begins with, its stage and its neighbours' in bytes, and its buffer of steps. left: tokens of
  // the row from the lane's first of the next tile.
  int token = 0, left = count - part - kTile, before = (kStages - 1) * kStageBytes, here = 0, ahead = kAhead * kStageBytes, buffer = 0;

  __device__ __forceinline__ Walker(const SelectiveScan& params, const ScanPlace& of_block, Memory& shared)
      : p(params),
        place(of_block),
        memory(shared),
        mine(threadIdx.x / 4 < place.channels),
        start(p.row_start[place.row]),
        channel(place.channel + (mine ? threadIdx.x / 4 : 0)),
        count(static_cast<int>(p.row_start[place.row + 1] - start)) {
    const bf16* A_log = static_cast<const bf16*>(p.A_log) + channel * kNumbers;
#pragma unroll
    for (int j = 0; j < 4; ++j) rate[j] = scan_rate(to_float(A_log[number(j)])), h[j] = 0;
    if (p.dt_bias != nullptr) bias = to_float(static_cast<const bf16*>(p.dt_bias)[channel]);
    if (p.D != nullptr) skip = to_float(static_cast<const bf16*>(p.D)[channel]);
    if (p.state != nullptr && mine) {
#pragma unroll
      for (int j = 0; j < 4; ++j) h[j] = state()[number(j)];
    }
    if constexpr (kKeep)
      kept = p.chunk_states + (selective_scan_first_chunk(place.row, start, kTile) * kNumbers + part * 2) * p.channels + channel;
    place_copies();
  }
  __device__ __forceinline__ void place_copies() {
    const bool of_x = threadIdx.x < 64;
    const int row = threadIdx.x % 64 / 4, eight = threadIdx.x % 4;
    const int matrix = threadIdx.x % 64 / 32, matrix_row = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    const bool there = eight * 8 < place.channels;
    const int64_t at = place.channel + (there ? eight * 8 : 0);
    const auto from = [](const void* base, int64_t elements) { return static_cast<const char*>(base) + elements * 2; };
    first_to = place_of(row, eight) + (of_x ? 0 : 2 * kInputBytes);
    first_limit = there && (of_x || kGate) ? count - row : INT_MIN;
    const bool of_z = kGate && !of_x;  // without a gate those threads copy no bytes, from an address of x
    const int64_t stride = of_z ? p.z_stride : p.x_stride;
    first = from(of_z ? p.z : p.x, (start + row) * stride + at), first_step = kTile * 2 * stride;
    if (of_x) {
      second = from(p.dt, (start + row) * p.dt_stride + at), second_step = kTile * 2 * p.dt_stride;
      second_to = first_to + kInputBytes, second_limit = first_limit;
    } else {
      const int64_t of_matrix = matrix == 0 ? p.b_stride : p.c_stride;
      second = from(matrix == 0 ? p.B : p.C, (start + matrix_row) * of_matrix + place.group * kNumbers + half * 8);
      second_step = kTile * 2 * of_matrix;
      second_to = kOfB + matrix * kMatrixBytes + matrix_row * 32 + half * 16, second_limit = count - matrix_row;
    }
    out = static_cast<char*>(p.y) + ((start + row - 2 * kTile) * p.y_stride + at) * 2;
    out_limit = of_x && there ? max(count - row, 0) : 0;
  }
  __device__ __forceinline__ int number(int j) const { return j / 2 * 8 + part * 2 + j % 2; }
  __device__ __forceinline__ float* state() const {
    const int64_t of_row = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (of_row * p.channels + channel) * kNumbers;
  }
  __device__ __forceinline__ static int behind(int stage) { return stage + kStageBytes == kStages * kStageBytes ? 0 : stage + kStageBytes; }
  __device__ __forceinline__ char* stage_at(int bytes) const { return memory.stages[0] + bytes; }

  // Of the tile that begins with the row's token `of`; zeros behind the row's end.
  __device__ __forceinline__ void load(int of, char* stage) {
    copy_async_16(shared_address(stage) + first_to, first, of < first_limit);
    copy_async_16(shared_address(stage) + second_to, second, of < second_limit);
    copy_async_commit();
    first += first_step, second += second_step;
  }
  // The outputs of the tile that begins with `of`, the one behind that stored last.
  __device__ __forceinline__ void store(int of, const char* stage) {
    const uint4 outputs = *reinterpret_cast<const uint4*>(stage + first_to);
    store_if(static_cast<uint32_t>(of) < out_limit, out, outputs);
    out += kTile * 2 * p.y_stride;
  }
  __device__ __forceinline__ void keep() {
#pragma unroll
    for (int j = 0; j < 4; ++j) store_if(mine, kept + (j / 2 * 8 + j % 2) * p.channels, h[j]);
    kept += kNumbers * p.channels;
  }

  struct StepInput {
    float x, dt;
  };
  // Of the lane's i-th token, of every fourth of a tile.
  __device__ __forceinline__ StepInput step_input(const char* stage, int i) const {
    const char* from = stage + (i % 2 == 0 ? of_steps : of_steps ^ 32) + i * 256;
    return {bf16_at(from), bf16_at(from + kInputBytes)};
  }
  // δ and δ·x of the lane's i-th token, in buffer `to`; `of_left`: of the row, from the lane's first.
  __device__ __forceinline__ void put_step(int of_left, const StepInput& from, int i, int to) {
    const float made = scan_step(p, from.dt + bias), step = 4 * i < of_left ? made : 0.0F, input = step * from.x;
    reinterpret_cast<float*>(&memory.steps[to][warp][i][column])[part] = step;
    in[i] = __float_as_uint(input) & 0xffffe000U;
    rest[i] = __float_as_uint(input - __uint_as_float(in[i]));
  }

  struct OutputInput {
    float x, z;
  };
  // Where the lane's channel of its i-th output, two of each eight tokens, is in x.
  __device__ __forceinline__ int own(int i) const { return of_own + i / 2 * 512 + i % 2 * 64; }
  __device__ __forceinline__ OutputInput output_input(const char* stage, int i) const {
    return {bf16_at(stage + own(i)), kGate ? bf16_at(stage + own(i) + 2 * kInputBytes) : 0};
  }
  __device__ __forceinline__ bf16 make_output(float of_states, const OutputInput& from) const {
    float sum = fmaf(of_states, kCutOff, skip * from.x);
    if constexpr (kGate) sum *= from.z * sigmoid(from.z);
    return from_float<bf16>(sum);
  }
  // Two at once, where their x were.
  __device__ __forceinline__ void put_outputs(const float* of_states, const OutputInput* from, int i, char* stage) const {
    const bf16 outputs[2] = {make_output(of_states[i], from[i]), make_output(of_states[i + 1], from[i + 1])};
#pragma unroll
    for (int k = 0; k < 2; ++k) *reinterpret_cast<bf16*>(stage + own(i + k)) = outputs[k];
  }

  __device__ __forceinline__ void load_deltas(int quarter, int from) { deltas = memory.steps[from][warp][quarter][column]; }
  __device__ __forceinline__ void make_decays(int from, int to) {
    const float steps[4] = {deltas.x, deltas.y, deltas.z, deltas.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k >= from && k < to) decays[k][j] = exp2_approx(steps[k] * rate[j]);
    }
  }
  __device__ __forceinline__ void advance(int k, float in0, float in1, float in2, float in3) {
    const float add[4] = {in0, in1, in2, in3};
#pragma unroll
    for (int j = 0; j < 4; ++j) h[j] = fmaf(decays[k][j], h[j], add[j]);
  }
  // Four tokens. C: of eight, read with the first four.
  __device__ __forceinline__ void walk_quarter(int i, uint32_t (&C)[2]) {
    const char* stage = stage_at(here);
    if (i % 2 == 0) {
#pragma unroll
      for (int n = 0; n < 2; ++n) C[n] = *reinterpret_cast<const uint32_t*>(stage + of_C + i * 128 + n * 16);
    }
    uint32_t B[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) B[n] = __float_as_uint(bf16_at(stage + of_B + i * 128 + n * 16));
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const bool even = part == 2 * pair, odd = part == 2 * pair + 1;
      const uint32_t added[4] = {even ? in[i] : 0, odd ? in[i] : 0, even ? rest[i] : 0, odd ? rest[i] : 0};
      float low[4], high[4], sums[4];
      begin_16x8x8(low, added, B[0], B[0]), begin_16x8x8(high, added, B[1], B[1]);
      uint32_t a[2][4];
      advance(2 * pair, low[0], low[1], high[0], high[1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2] = __float_as_uint(h[j]);
      advance(2 * pair + 1, low[2], low[3], high[2], high[3]);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2 + 1] = __float_as_uint(h[j]);
      begin_16x8x8(sums, a[0], C[0] << 16, C[0] & 0xffff0000U);
      mma_16x8x8(sums, a[1], C[1] << 16, C[1] & 0xffff0000U);
      const bool take = (i % 2 == 0 && pair == 0) || part == (2 * i + pair) % 4;  // the first of eight tokens' for all: one choice less
      y[i / 2][0] = take ? sums[0] : y[i / 2][0], y[i / 2][1] = take ? sums[3] : y[i / 2][1];
    }
  }

  __device__ __forceinline__ void begin() {
    for (int i = 0; i < kAhead; ++i) load(i * kTile, memory.stages[i]);
    copy_async_wait<kAhead - 1>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) put_step(count - part, step_input(memory.stages[0], i), i, 0);
    begin_tile(0);
  }
  // A warp's steps are its own.
  __device__ __forceinline__ void begin_tile(int from) {
    __syncwarp();
    load_deltas(0, from), make_decays(0, 1);
  }
  __device__ __forceinline__ void walk_tile() {
    const int next = behind(here);
    char* const last = stage_at(before);
    StepInput inputs[4];
    OutputInput from[4];
    uint32_t C[2];
    const float of_states[4] = {y[0][0], y[0][1], y[1][0], y[1][1]};
    if constexpr (kKeep) keep();
#pragma unroll
    for (int i = 0; i < 4; ++i) from[i] = output_input(last, i);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      if (quarter == 1) {  // the first needs only what was there at the barrier before
        copy_async_wait<kAhead - 2>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) inputs[i] = step_input(stage_at(next), i);
      }
      if (quarter == 2) store(token - 2 * kTile, stage_at(ahead)), load(token + kAhead * kTile, stage_at(ahead));
      make_decays(quarter == 0 ? 1 : 2, 4);
      walk_quarter(quarter, C);
      if (quarter >= 1) put_step(left, inputs[quarter - 1], quarter - 1, buffer ^ 1);
      if (quarter % 2 == 1) put_outputs(of_states, from, quarter - 1, last);
      if (quarter < 3) load_deltas(quarter + 1, buffer), make_decays(0, 2);
    }
    put_step(left, inputs[3], 3, buffer ^ 1);
    begin_tile(buffer ^ 1);
    before = here, here = next, ahead = behind(ahead), buffer ^= 1, token += kTile, left -= kTile;
  }
  __device__ __forceinline__ void end() {
    const float of_states[4] = {y[0][0], y[0][1], y[1][0], y[1][1]};
    char* const last = stage_at(before);
    OutputInput from[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) from[i] = output_input(last, i);
    put_outputs(of_states, from, 0, last), put_outputs(of_states, from, 2, last);
    __syncthreads();
    store(token - 2 * kTile, stage_at(ahead)), store(token - kTile, last);
    if (p.state == nullptr || !mine) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) state()[number(j)] = h[j];
  }
};

template <bool kGate, bool kKeep>
__global__ void __launch_bounds__(kThreads, kBlocks) scan_rows(const __grid_constant__ SelectiveScan p) {
  extern __shared__ float4 shared[];
  overlap_kernels();
  const ScanPlace place(p, kChannels);
  Walker<kGate, kKeep> walker(p, place, *reinterpret_cast<Memory*>(shared));
  if (walker.count == 0) return;
  walker.begin();
#pragma unroll 1
  do walker.walk_tile();
  while (walker.token < walker.count);
  walker.end();
}

}  // namespace

bool scan_forward_mma_fits(const SelectiveScan& p) {
  const auto fits = [](const void* base, int64_t stride) { return aligned16(base) && stride % 8 == 0; };
  return p.dtype == DType::bf16 && p.state_size == kNumbers && p.channels / p.groups % 8 == 0 && fits(p.x, p.x_stride) &&
         fits(p.dt, p.dt_stride) && (p.z == nullptr || fits(p.z, p.z_stride)) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) &&
         fits(p.y, p.y_stride);
}

Status scan_forward_mma(const SelectiveScan& p, Stream stream) {
  const bool keep = p.chunk_states != nullptr;
  auto* gated = keep ? scan_rows<true, true> : scan_rows<true, false>;
  auto* kernel = p.z != nullptr ? gated : keep ? scan_rows<false, true> : scan_rows<false, false>;
  if (const Status status = status_of(allow_shared_memory(kernel, sizeof(Memory))); !status.ok()) return status;
  const int64_t blocks = p.rows * p.groups * scan_blocks(p, kChannels);
  if (blocks > multiprocessors()) return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kThreads, sizeof(Memory)}, stream, p);
  // Launched ahead, few blocks took twice as long: it seems that those that come while others run are put on the same multiprocessors.
  kernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(Memory), stream_of(stream)>>>(p);
  return launched();
}

}  // namespace based::kernels::cuda::detail
