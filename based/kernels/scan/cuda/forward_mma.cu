// Selective scan over whole rows in bf16 with 16 state elements per channel. A warp processes eight channels of a row; four adjacent lanes
// share a channel, with four state elements each. The inputs δ·x·B and the readouts C·h are computed on tensor cores, two tokens at a time.
// In the product of δ·x and B, a token's row is zero for the other tokens. In the product of the states and C, a token uses its own column
// of the result. Three tiles are in progress together: the scan of one tile, the time steps of the next and the gating of the previous one.
// Pieces of the latter two are placed between quarters of the scan, since with one warp per scheduler latencies are the bottleneck. For the
// same reason the loop body has no branches. A non-finite B affects the other three tokens of its group of four.
#include <climits>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/tf32.cuh"
#include "based/kernels/scan/cuda/scan.cuh"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kStates = 16, kTile = 16, kWarps = 4, kThreads = 32 * kWarps, kChannelsPerWarp = 8, kChannels = kWarps * kChannelsPerWarp;
constexpr int kBlocks = 4;  // blocks per multiprocessor
constexpr int kPrefetched = 5,
              kStages = kPrefetched + 2;  // tiles being loaded; plus one whose outputs are being computed and one being scanned
constexpr int kRowBytes = kChannels * 2, kInputBytes = kTile * kRowBytes, kMatrixBytes = kTile * kStates * 2;
constexpr int kBOffset = 3 * kInputBytes, kCOffset = kBOffset + kMatrixBytes,
              kStageBytes = kCOffset + kMatrixBytes;  // stage layout: x (overwritten by y), dt, z, B, C
constexpr float kTruncationFactor =
    1.00035F;  // factor of C·h that corrects the mean error of tensor cores, which truncate the states to TF32
static_assert(kTile == kSelectiveScanCudaChunk && kStageBytes == kThreads * 32);  // each thread copies 16 bytes twice

struct SharedMemory {
  char stages[kStages][kStageBytes];
  float4 steps[2][kWarps][kTile / 4][kChannelsPerWarp];  // δ of four tokens
};

// Byte offset of eight channels of a token in a tile of x, dt or z. The swizzle puts four adjacent tokens, and every second of eight
// tokens, into different banks.
__device__ __forceinline__ constexpr int tile_offset(int token, int eight) {
  return (token / 2 * 8 + ((token % 2 * 4 + eight) ^ (token / 2 % 4))) * 16;
}
__device__ __forceinline__ float bf16_at(const char* address) {
  return __uint_as_float(uint32_t{*reinterpret_cast<const uint16_t*>(address)} << 16);
}

// Predicated stores without a branch. So the loop body stays one basic block, which the compiler schedules as a whole.
__device__ __forceinline__ void store_if(bool condition, float* address, float value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.f32 [%1], %2;\n}" ::"r"(static_cast<int>(condition)), "l"(address),
               "f"(value)
               : "memory");
}
__device__ __forceinline__ void store_if(bool condition, void* address, uint4 value) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(static_cast<int>(condition)),
               "l"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// The scan of a row by a block. kGate: y is gated by z. kKeep: the state before each tile is stored in chunk_states.
template <bool kGate, bool kKeep>
struct RowScan {
  const SelectiveScan& p;
  const ScanPlace& place;
  SharedMemory& memory;
  // A lane's state elements are 2·part, 2·part + 1, and these plus 8.
  const int warp = threadIdx.x / 32, part = threadIdx.x % 4, column = threadIdx.x % 32 / 4;
  // Byte offsets within a stage of the lane's first time step, its first output, and its parts of B and C.
  const int step_offset = part / 2 * 128 + part % 2 * 64 + (warp ^ (part / 2)) * 16 + column * 2;
  const int output_offset = part * 128 + (warp ^ part) * 16 + column * 2;
  const int b_offset = kBOffset + part * 32 + column * 2, c_offset = kCOffset + column * 32 + part * 4;
  const bool is_active;  // whether the thread has a channel
  const int64_t start, channel;
  const int count;  // the row's tokens
  float h[4], rate[4], bias = 0, skip = 0;
  float y[2][2] = {};                                     // C·h of the lane's tokens of the previous tile: two of each eight
  uint32_t input_tf32[kTile / 4], input_rest[kTile / 4];  // δ·x of every fourth token as TF32, and the rounding error
  float4 deltas;                                          // δ of four tokens
  float decays[4][4];                                     // decays of these tokens
  // Each thread makes two 16-byte copies per tile: the first 64 threads copy x and dt, the others z, and B or C. They are the sources, byte
  // offsets in the stage, and limits; tokens of tiles that begin at or after the limit are filled with zeros.
  int first_offset, second_offset, first_limit, second_limit;
  const char *first_source, *second_source;
  int64_t first_step, second_step;
  char* out;  // output of the tile two before the current one
  uint32_t out_limit;
  float* chunk_states;
  // The current tile: its first token in the row; byte offsets of the stages of the previous tile, this tile and the tile to load; the
  // buffer of its time steps. left: tokens of the row from the lane's first token of the next tile.
  int token = 0, left = count - part - kTile, previous_stage = (kStages - 1) * kStageBytes, current_stage = 0,
      prefetch_stage = kPrefetched * kStageBytes, buffer = 0;

  __device__ __forceinline__ RowScan(const SelectiveScan& params, const ScanPlace& block_place, SharedMemory& shared)
      : p(params),
        place(block_place),
        memory(shared),
        is_active(threadIdx.x / 4 < place.channels),
        start(p.row_start[place.row]),
        channel(place.channel + (is_active ? threadIdx.x / 4 : 0)),
        count(static_cast<int>(p.row_start[place.row + 1] - start)) {
    const bf16* A_log = static_cast<const bf16*>(p.A_log) + channel * kStates;
#pragma unroll
    for (int j = 0; j < 4; ++j) rate[j] = scan_rate(to_float(A_log[state_index(j)])), h[j] = 0;
    if (p.dt_bias != nullptr) bias = to_float(static_cast<const bf16*>(p.dt_bias)[channel]);
    if (p.D != nullptr) skip = to_float(static_cast<const bf16*>(p.D)[channel]);
    if (p.state != nullptr && is_active) {
#pragma unroll
      for (int j = 0; j < 4; ++j) h[j] = state()[state_index(j)];
    }
    if constexpr (kKeep)
      chunk_states = p.chunk_states + (selective_scan_first_chunk(place.row, start, kTile) * kStates + part * 2) * p.channels + channel;
    init_copies();
  }
  __device__ __forceinline__ void init_copies() {
    const bool copies_x = threadIdx.x < 64;
    const int row = threadIdx.x % 64 / 4, eight = threadIdx.x % 4;
    const int matrix = threadIdx.x % 64 / 32, matrix_row = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    const bool valid = eight * 8 < place.channels;
    const int64_t c = place.channel + (valid ? eight * 8 : 0);
    const auto address = [](const void* base, int64_t elements) { return static_cast<const char*>(base) + elements * 2; };
    first_offset = tile_offset(row, eight) + (copies_x ? 0 : 2 * kInputBytes);
    first_limit = valid && (copies_x || kGate) ? count - row : INT_MIN;
    const bool copies_z = kGate && !copies_x;  // without a gate these threads copy 0 bytes, from an address in x
    const int64_t stride = copies_z ? p.z_stride : p.x_stride;
    first_source = address(copies_z ? p.z : p.x, (start + row) * stride + c), first_step = kTile * 2 * stride;
    if (copies_x) {
      second_source = address(p.dt, (start + row) * p.dt_stride + c), second_step = kTile * 2 * p.dt_stride;
      second_offset = first_offset + kInputBytes, second_limit = first_limit;
    } else {
      const int64_t matrix_stride = matrix == 0 ? p.b_stride : p.c_stride;
      second_source = address(matrix == 0 ? p.B : p.C, (start + matrix_row) * matrix_stride + place.group * kStates + half * 8);
      second_step = kTile * 2 * matrix_stride;
      second_offset = kBOffset + matrix * kMatrixBytes + matrix_row * 32 + half * 16, second_limit = count - matrix_row;
    }
    out = static_cast<char*>(p.y) + ((start + row - 2 * kTile) * p.y_stride + c) * 2;
    out_limit = copies_x && valid ? max(count - row, 0) : 0;
  }
  __device__ __forceinline__ int state_index(int j) const { return j / 2 * 8 + part * 2 + j % 2; }
  __device__ __forceinline__ float* state() const {
    const int64_t slot = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (slot * p.channels + channel) * kStates;
  }
  __device__ __forceinline__ static int next_stage(int stage) {
    return stage + kStageBytes == kStages * kStageBytes ? 0 : stage + kStageBytes;
  }
  __device__ __forceinline__ char* stage_at(int bytes) const { return memory.stages[0] + bytes; }

  // Loads the tile that begins at the row's token `first_token`, with zeros past the row's end.
  __device__ __forceinline__ void load(int first_token, char* stage) {
    copy_async_16(shared_address(stage) + first_offset, first_source, first_token < first_limit);
    copy_async_16(shared_address(stage) + second_offset, second_source, first_token < second_limit);
    copy_async_commit();
    first_source += first_step, second_source += second_step;
  }
  // Stores the outputs of the tile that begins at `first_token`. Tiles must be stored in order.
  __device__ __forceinline__ void store(int first_token, const char* stage) {
    const uint4 outputs = *reinterpret_cast<const uint4*>(stage + first_offset);
    store_if(static_cast<uint32_t>(first_token) < out_limit, out, outputs);
    out += kTile * 2 * p.y_stride;
  }
  __device__ __forceinline__ void store_chunk_state() {
#pragma unroll
    for (int j = 0; j < 4; ++j) store_if(is_active, chunk_states + (j / 2 * 8 + j % 2) * p.channels, h[j]);
    chunk_states += kStates * p.channels;
  }

  struct StepInput {
    float x, dt;
  };
  // Inputs of the lane's i-th time step. A lane computes the steps of every fourth token of a tile.
  __device__ __forceinline__ StepInput step_input(const char* stage, int i) const {
    const char* address = stage + (i % 2 == 0 ? step_offset : step_offset ^ 32) + i * 256;
    return {bf16_at(address), bf16_at(address + kInputBytes)};
  }
  // Computes δ and δ·x of the lane's i-th token, and stores δ in a buffer of steps. `tokens_left`: tokens of the row from the lane's first
  // token on.
  __device__ __forceinline__ void store_step(int tokens_left, const StepInput& inputs, int i, int step_buffer) {
    const float delta = scan_step(p, inputs.dt + bias), step = 4 * i < tokens_left ? delta : 0.0F, input = step * inputs.x;
    reinterpret_cast<float*>(&memory.steps[step_buffer][warp][i][column])[part] = step;
    input_tf32[i] = __float_as_uint(input) & 0xffffe000U;
    input_rest[i] = __float_as_uint(input - __uint_as_float(input_tf32[i]));
  }

  struct OutputInput {
    float x, z;
  };
  // Byte offset of the lane's i-th output in a stage. A lane computes the outputs of two of each eight tokens.
  __device__ __forceinline__ int output_at(int i) const { return output_offset + i / 2 * 512 + i % 2 * 64; }
  __device__ __forceinline__ OutputInput output_input(const char* stage, int i) const {
    return {bf16_at(stage + output_at(i)), kGate ? bf16_at(stage + output_at(i) + 2 * kInputBytes) : 0};
  }
  __device__ __forceinline__ bf16 compute_output(float readout, const OutputInput& inputs) const {
    float sum = fmaf(readout, kTruncationFactor, skip * inputs.x);
    if constexpr (kGate) sum *= inputs.z * sigmoid(inputs.z);
    return from_float<bf16>(sum);
  }
  // Computes two outputs and stores them in place of their x.
  __device__ __forceinline__ void store_outputs(const float* readouts, const OutputInput* inputs, int i, char* stage) const {
    const bf16 outputs[2] = {compute_output(readouts[i], inputs[i]), compute_output(readouts[i + 1], inputs[i + 1])};
#pragma unroll
    for (int k = 0; k < 2; ++k) *reinterpret_cast<bf16*>(stage + output_at(i + k)) = outputs[k];
  }

  __device__ __forceinline__ void load_deltas(int quarter, int step_buffer) { deltas = memory.steps[step_buffer][warp][quarter][column]; }
  __device__ __forceinline__ void compute_decays(int begin, int end) {
    const float steps[4] = {deltas.x, deltas.y, deltas.z, deltas.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k >= begin && k < end) decays[k][j] = exp2_approx(steps[k] * rate[j]);
    }
  }
  __device__ __forceinline__ void advance(int k, float in0, float in1, float in2, float in3) {
    const float add[4] = {in0, in1, in2, in3};
#pragma unroll
    for (int j = 0; j < 4; ++j) h[j] = fmaf(decays[k][j], h[j], add[j]);
  }
  // Scans four tokens. C holds C of eight tokens; it is loaded with the first four.
  __device__ __forceinline__ void scan_quarter(int i, uint32_t (&C)[2]) {
    const char* stage = stage_at(current_stage);
    if (i % 2 == 0) {
#pragma unroll
      for (int n = 0; n < 2; ++n) C[n] = *reinterpret_cast<const uint32_t*>(stage + c_offset + i * 128 + n * 16);
    }
    uint32_t B[2];
#pragma unroll
    for (int n = 0; n < 2; ++n) B[n] = __float_as_uint(bf16_at(stage + b_offset + i * 128 + n * 16));
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const bool even = part == 2 * pair, odd = part == 2 * pair + 1;
      const uint32_t inputs_of_pair[4] = {even ? input_tf32[i] : 0, odd ? input_tf32[i] : 0, even ? input_rest[i] : 0,
                                          odd ? input_rest[i] : 0};
      float low[4], high[4], sums[4];
      begin_16x8x8(low, inputs_of_pair, B[0], B[0]), begin_16x8x8(high, inputs_of_pair, B[1], B[1]);
      uint32_t a[2][4];
      advance(2 * pair, low[0], low[1], high[0], high[1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2] = __float_as_uint(h[j]);
      advance(2 * pair + 1, low[2], low[3], high[2], high[3]);
#pragma unroll
      for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2 + 1] = __float_as_uint(h[j]);
      begin_16x8x8(sums, a[0], C[0] << 16, C[0] & 0xffff0000U);
      mma_16x8x8(sums, a[1], C[1] << 16, C[1] & 0xffff0000U);
      const bool replace =
          (i % 2 == 0 && pair == 0) || part == (2 * i + pair) % 4;  // all lanes take the first token's value, which saves a select
      y[i / 2][0] = replace ? sums[0] : y[i / 2][0], y[i / 2][1] = replace ? sums[3] : y[i / 2][1];
    }
  }

  __device__ __forceinline__ void begin() {
    for (int i = 0; i < kPrefetched; ++i) load(i * kTile, memory.stages[i]);
    copy_async_wait<kPrefetched - 1>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) store_step(count - part, step_input(memory.stages[0], i), i, 0);
    begin_tile(0);
  }
  // Needs only __syncwarp(), because a warp reads only its own steps.
  __device__ __forceinline__ void begin_tile(int step_buffer) {
    __syncwarp();
    load_deltas(0, step_buffer), compute_decays(0, 1);
  }
  __device__ __forceinline__ void scan_tile() {
    const int next = next_stage(current_stage);
    char* const last = stage_at(previous_stage);
    StepInput inputs[4];
    OutputInput output_inputs[4];
    uint32_t C[2];
    const float readouts[4] = {y[0][0], y[0][1], y[1][0], y[1][1]};
    if constexpr (kKeep) store_chunk_state();
#pragma unroll
    for (int i = 0; i < 4; ++i) output_inputs[i] = output_input(last, i);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      if (quarter == 1) {  // quarter 0 needs only data that was complete at the previous barrier
        copy_async_wait<kPrefetched - 2>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; ++i) inputs[i] = step_input(stage_at(next), i);
      }
      if (quarter == 2) store(token - 2 * kTile, stage_at(prefetch_stage)), load(token + kPrefetched * kTile, stage_at(prefetch_stage));
      compute_decays(quarter == 0 ? 1 : 2, 4);
      scan_quarter(quarter, C);
      if (quarter >= 1) store_step(left, inputs[quarter - 1], quarter - 1, buffer ^ 1);
      if (quarter % 2 == 1) store_outputs(readouts, output_inputs, quarter - 1, last);
      if (quarter < 3) load_deltas(quarter + 1, buffer), compute_decays(0, 2);
    }
    store_step(left, inputs[3], 3, buffer ^ 1);
    begin_tile(buffer ^ 1);
    previous_stage = current_stage, current_stage = next, prefetch_stage = next_stage(prefetch_stage), buffer ^= 1, token += kTile,
    left -= kTile;
  }
  __device__ __forceinline__ void end() {
    const float readouts[4] = {y[0][0], y[0][1], y[1][0], y[1][1]};
    char* const last = stage_at(previous_stage);
    OutputInput output_inputs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) output_inputs[i] = output_input(last, i);
    store_outputs(readouts, output_inputs, 0, last), store_outputs(readouts, output_inputs, 2, last);
    __syncthreads();
    store(token - 2 * kTile, stage_at(prefetch_stage)), store(token - kTile, last);
    if (p.state == nullptr || !is_active) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) state()[state_index(j)] = h[j];
  }
};

template <bool kGate, bool kKeep>
__global__ void __launch_bounds__(kThreads, kBlocks) scan_rows(const __grid_constant__ SelectiveScan p) {
  extern __shared__ float4 shared[];
  overlap_kernels();
  const ScanPlace place(p, kChannels);
  RowScan<kGate, kKeep> scan(p, place, *reinterpret_cast<SharedMemory*>(shared));
  if (scan.count == 0) return;
  scan.begin();
#pragma unroll 1
  do scan.scan_tile();
  while (scan.token < scan.count);
  scan.end();
}

}  // namespace

bool scan_forward_mma_fits(const SelectiveScan& p) {
  const auto fits = [](const void* base, int64_t stride) { return aligned16(base) && stride % 8 == 0; };
  return p.dtype == DType::bf16 && p.state_size == kStates && p.channels / p.groups % 8 == 0 && fits(p.x, p.x_stride) &&
         fits(p.dt, p.dt_stride) && (p.z == nullptr || fits(p.z, p.z_stride)) && fits(p.B, p.b_stride) && fits(p.C, p.c_stride) &&
         fits(p.y, p.y_stride);
}

Status scan_forward_mma(const SelectiveScan& p, Queue queue) {
  const bool keep = p.chunk_states != nullptr;
  auto* gated = keep ? scan_rows<true, true> : scan_rows<true, false>;
  auto* kernel = p.z != nullptr ? gated : keep ? scan_rows<false, true> : scan_rows<false, false>;
  if (const Status status = status_of(allow_shared_memory(kernel, sizeof(SharedMemory))); !status.ok()) return status;
  const int64_t blocks = p.rows * p.groups * scan_blocks(p, kChannels);
  if (blocks > multiprocessors())
    return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kThreads, sizeof(SharedMemory)}, queue, p);
  // With few blocks, overlapped launches took twice as long (measured), probably because blocks that start while another kernel runs are
  // placed on the same multiprocessors.
  kernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(SharedMemory), stream_of(queue)>>>(p);
  return launched();
}

}  // namespace based::kernels::cuda::detail
