// Selective scan over whole rows in bf16 with 16 state elements per channel. A warp processes eight channels of a row; four adjacent lanes
// share a channel, with four state elements each. The inputs δ·x·B and the readouts C·h are computed on tensor cores, two tokens at a time.
// In the product of δ·x and B, a token's row is zero for the other tokens. In the product of the states and C, a token uses its own column
// of the result. Three tiles are in progress together: the scan of one tile, the time steps of the next and the gating of the previous one.
// Pieces of the latter two are placed between quarters of the scan, since with one warp per scheduler latencies are the bottleneck. For the
// same reason the loop body has no branches. A non-finite B affects the other three tokens of its group of four.
#include <climits>
#include <cstddef>

#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/tf32.cuh"
#include "based/kernels/scan/cuda/scan.cuh"

namespace based::kernels::cuda::detail {
namespace {

constexpr int kStates = 16, kTile = 16, kWarps = 4, kThreads = 32 * kWarps, kChannelsPerWarp = 8, kChannels = kWarps * kChannelsPerWarp;
constexpr int kBlocks = 4;  // blocks per multiprocessor
constexpr int kPrefetched = 5,
              kStages = kPrefetched + 2;  // tiles being loaded; plus one whose outputs are being computed and one being scanned
constexpr float kTruncationFactor =
    1.00035F;  // factor of C·h that corrects the mean error of tensor cores, which truncate the states to TF32

// A tile in shared memory. x, which is overwritten by y, dt and z are swizzled: tile_offset() says where.
struct Stage {
  bf16 x[kTile * kChannels], dt[kTile * kChannels], z[kTile * kChannels];
  bf16 B[kTile][kStates], C[kTile][kStates];
};
struct SharedStorage {
  Stage stages[kStages];
  float4 steps[2][kWarps][kTile / 4][kChannelsPerWarp];  // δ of four tokens
};
constexpr int kStageBytes = sizeof(Stage), kInputBytes = sizeof(Stage::x), kMatrixBytes = sizeof(Stage::B);
static_assert(kTile == kSelectiveScanCudaChunk && kStageBytes == kThreads * 32);  // each thread copies 16 bytes twice

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

// A thread's two 16-byte copies per tile: the first 64 threads copy x and dt, the others z, and B or C. Tokens of tiles that begin at or
// after a limit are filled with zeros. The first 64 threads also store the outputs, which have replaced x.
struct TileCopies {
  int first_offset, second_offset, first_limit, second_limit;  // offsets in bytes of the stage
  const char *first_source, *second_source;
  int64_t first_step, second_step;
  char* out;  // output of the tile two before the current one
  uint32_t out_limit;

  __device__ __forceinline__ void init(const SelectiveScan& p, const ScanPlace& place, bool gated, int64_t start, int count) {
    const bool copies_x = threadIdx.x < 64;
    const int row = threadIdx.x % 64 / 4, eight = threadIdx.x % 4;
    const int matrix = threadIdx.x % 64 / 32, matrix_row = threadIdx.x % 32 / 2, half = threadIdx.x % 2;
    const bool valid = eight * 8 < place.channels;
    const int64_t c = place.channel + (valid ? eight * 8 : 0);
    const auto address = [](const void* base, int64_t elements) { return static_cast<const char*>(base) + elements * 2; };
    first_offset = tile_offset(row, eight) + (copies_x ? 0 : 2 * kInputBytes);
    first_limit = valid && (copies_x || gated) ? count - row : INT_MIN;
    const bool copies_z = gated && !copies_x;  // without a gate these threads copy 0 bytes, from an address in x
    const int64_t stride = copies_z ? p.z_stride : p.x_stride;
    first_source = address(copies_z ? p.z : p.x, (start + row) * stride + c), first_step = kTile * 2 * stride;
    if (copies_x) {
      second_source = address(p.dt, (start + row) * p.dt_stride + c), second_step = kTile * 2 * p.dt_stride;
      second_offset = first_offset + kInputBytes, second_limit = first_limit;
    } else {
      const int64_t matrix_stride = matrix == 0 ? p.b_stride : p.c_stride;
      second_source = address(matrix == 0 ? p.B : p.C, (start + matrix_row) * matrix_stride + place.group * kStates + half * 8);
      second_step = kTile * 2 * matrix_stride;
      second_offset = 3 * kInputBytes + matrix * kMatrixBytes + matrix_row * 32 + half * 16, second_limit = count - matrix_row;
    }
    out = static_cast<char*>(p.y) + ((start + row - 2 * kTile) * p.y_stride + c) * 2;
    out_limit = copies_x && valid ? max(count - row, 0) : 0;
  }
  // Requests the copy of the next tile, which begins at the row's token `token`.
  __device__ __forceinline__ void request(int token, char* stage) {
    copy_async_16(shared_address(stage) + first_offset, first_source, token < first_limit);
    copy_async_16(shared_address(stage) + second_offset, second_source, token < second_limit);
    copy_async_commit();
    first_source += first_step, second_source += second_step;
  }
  // Stores the outputs of the tile that begins at the row's token `token`. Tiles must be stored in order.
  __device__ __forceinline__ void store(const SelectiveScan& p, int token, const char* stage) {
    const uint4 outputs = *reinterpret_cast<const uint4*>(stage + first_offset);
    store_if(static_cast<uint32_t>(token) < out_limit, out, outputs);
    out += kTile * 2 * p.y_stride;
  }
};

// Offset in bytes of the stage after `stage`.
__device__ __forceinline__ int next_stage(int stage) { return stage + kStageBytes == kStages * kStageBytes ? 0 : stage + kStageBytes; }

// The variables that a lane keeps from tile to tile. They form one struct because of the machine code: with separate local variables the
// compiler orders the loop body differently, and the kernel took 3 % longer on an H200.
struct Lane {
  SharedStorage& shared;
  // The lane's state elements are 2·part, 2·part + 1, and these plus 8, of channel `column` of its warp.
  const int warp = threadIdx.x / 32, part = threadIdx.x % 4, column = threadIdx.x % 32 / 4;
  // Byte offsets within a stage of the lane's first time step, its first output, and its parts of B and C.
  const int step_offset = part / 2 * 128 + part % 2 * 64 + (warp ^ (part / 2)) * 16 + column * 2;
  const int output_offset = part * 128 + (warp ^ part) * 16 + column * 2;
  const int b_offset = offsetof(Stage, B) + part * 32 + column * 2, c_offset = offsetof(Stage, C) + column * 32 + part * 4;
  float h[4], rate[4], bias = 0, skip = 0;
  float y[2][2] = {};                                     // C·h of the lane's tokens of the previous tile: two of each eight
  uint32_t input_tf32[kTile / 4], input_rest[kTile / 4];  // δ·x of every fourth token as TF32, and the rounding error
  float4 deltas;                                          // δ of four tokens
  float decays[4][4];                                     // decays of these tokens
  TileCopies copies;
  float* chunk_states;
  // The current tile: its first token in the row; byte offsets of the stages of the previous tile, this tile and the tile to load; the
  // buffer of its time steps. left: tokens of the row from the lane's first token of the next tile.
  int token = 0, left, previous_stage = (kStages - 1) * kStageBytes, current_stage = 0, prefetch_stage = kPrefetched * kStageBytes,
      buffer = 0;

  __device__ __forceinline__ int state_index(int j) const { return j / 2 * 8 + part * 2 + j % 2; }
};

// A block scans kChannels channels of a row. kGate: y is gated by z. kKeep: the state before each tile is stored in chunk_states.
template <bool kGate, bool kKeep>
__global__ void __launch_bounds__(kThreads, kBlocks) scan_rows(const __grid_constant__ SelectiveScan p) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  const ScanPlace place(p, kChannels);
  const int64_t start = p.row_start[place.row];
  const int count = static_cast<int>(p.row_start[place.row + 1] - start);  // the row's tokens
  Lane lane{*reinterpret_cast<SharedStorage*>(memory)};
  const bool is_active = threadIdx.x / 4 < place.channels;  // whether the thread has a channel
  const int64_t channel = place.channel + (is_active ? threadIdx.x / 4 : 0);
  const auto state_at = [&](int j) {
    const int64_t slot = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (slot * p.channels + channel) * kStates + lane.state_index(j);
  };

  // Load the parameters and the row's state.
  const bf16* A_log = static_cast<const bf16*>(p.A_log) + channel * kStates;
#pragma unroll
  for (int j = 0; j < 4; ++j) lane.rate[j] = scan_rate(to_float(A_log[lane.state_index(j)])), lane.h[j] = 0;
  if (p.dt_bias != nullptr) lane.bias = to_float(static_cast<const bf16*>(p.dt_bias)[channel]);
  if (p.D != nullptr) lane.skip = to_float(static_cast<const bf16*>(p.D)[channel]);
  if (p.state != nullptr && is_active) {
#pragma unroll
    for (int j = 0; j < 4; ++j) lane.h[j] = *state_at(j);
  }
  if constexpr (kKeep)
    lane.chunk_states =
        p.chunk_states + (selective_scan_first_chunk(place.row, start, kTile) * kStates + lane.part * 2) * p.channels + channel;

  lane.left = count - lane.part - kTile;
  lane.copies.init(p, place, kGate, start, count);
  if (count == 0) return;

  // Stages are given by their offsets in bytes, which saves multiplications.
  const auto stage_at = [&](int bytes) { return reinterpret_cast<char*>(lane.shared.stages) + bytes; };

  // Time steps. A lane computes the steps of every fourth token of a tile.
  struct StepInput {
    float x, dt;
  };
  const auto load_step = [&](const char* stage, int i) {
    const char* address = stage + (i % 2 == 0 ? lane.step_offset : lane.step_offset ^ 32) + i * 256;
    return StepInput{bf16_at(address), bf16_at(address + kInputBytes)};
  };
  // Computes δ and δ·x of the lane's i-th token, and stores δ. `tokens_left`: tokens of the row from the lane's first token on.
  const auto store_step = [&](int tokens_left, const StepInput& input, int i, int step_buffer) {
    const float delta = scan_step(p, input.dt + lane.bias), step = 4 * i < tokens_left ? delta : 0.0F, product = step * input.x;
    reinterpret_cast<float*>(&lane.shared.steps[step_buffer][lane.warp][i][lane.column])[lane.part] = step;
    lane.input_tf32[i] = __float_as_uint(product) & 0xffffe000U;
    lane.input_rest[i] = __float_as_uint(product - __uint_as_float(lane.input_tf32[i]));
  };

  // Decays of four tokens, whose δ are `deltas`; computes those of tokens begin .. end − 1.
  const auto compute_decays = [&](int begin, int end) {
    const float steps[4] = {lane.deltas.x, lane.deltas.y, lane.deltas.z, lane.deltas.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (k >= begin && k < end) lane.decays[k][j] = exp2_approx(steps[k] * lane.rate[j]);
    }
  };
  const auto advance = [&](int k, float in0, float in1, float in2, float in3) {
    const float add[4] = {in0, in1, in2, in3};
#pragma unroll
    for (int j = 0; j < 4; ++j) lane.h[j] = fmaf(lane.decays[k][j], lane.h[j], add[j]);
  };

  // Outputs. A lane computes the outputs of two of each eight tokens.
  struct OutputInput {
    float x, z;
  };
  const auto output_at = [&](int i) { return lane.output_offset + i / 2 * 512 + i % 2 * 64; };
  const auto load_output = [&](const char* stage, int i) {
    return OutputInput{bf16_at(stage + output_at(i)), kGate ? bf16_at(stage + output_at(i) + 2 * kInputBytes) : 0};
  };
  const auto compute_output = [&](float readout, const OutputInput& input) {
    float sum = fmaf(readout, kTruncationFactor, lane.skip * input.x);
    if constexpr (kGate) sum *= input.z * sigmoid(input.z);
    return from_float<bf16>(sum);
  };
  // Computes two outputs and stores them in place of their x.
  const auto store_outputs = [&](const float* readouts, const OutputInput* inputs, int i, char* stage) {
    const bf16 outputs[2] = {compute_output(readouts[i], inputs[i]), compute_output(readouts[i + 1], inputs[i + 1])};
#pragma unroll
    for (int k = 0; k < 2; ++k) *reinterpret_cast<bf16*>(stage + output_at(i + k)) = outputs[k];
  };

  // Fill the pipeline.
  for (int i = 0; i < kPrefetched; ++i) lane.copies.request(i * kTile, stage_at(i * kStageBytes));
  copy_async_wait<kPrefetched - 1>();
  __syncthreads();  // the first tile has arrived
#pragma unroll
  for (int i = 0; i < kTile / 4; ++i) store_step(count - lane.part, load_step(stage_at(0), i), i, 0);
  __syncwarp();                                                   // the warp's steps are complete; other warps do not read them
  lane.deltas = lane.shared.steps[0][lane.warp][0][lane.column];  // δ of the next four tokens
  compute_decays(0, 1);

#pragma unroll 1
  do {
    const int following_stage = next_stage(lane.current_stage);
    char* const previous = stage_at(lane.previous_stage);
    const float readouts[4] = {lane.y[0][0], lane.y[0][1], lane.y[1][0], lane.y[1][1]};
    if constexpr (kKeep) {
#pragma unroll
      for (int j = 0; j < 4; ++j) store_if(is_active, lane.chunk_states + (j / 2 * 8 + j % 2) * p.channels, lane.h[j]);
      lane.chunk_states += kStates * p.channels;
    }
    OutputInput output_inputs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) output_inputs[i] = load_output(previous, i);
    StepInput step_inputs[4];
    uint32_t C[2];  // C of eight tokens
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      if (quarter == 1) {
        copy_async_wait<kPrefetched - 2>();
        __syncthreads();  // the next tile has arrived, and the outputs of the tile before the previous one are complete
#pragma unroll
        for (int i = 0; i < 4; ++i) step_inputs[i] = load_step(stage_at(following_stage), i);
      }
      if (quarter == 2) {
        lane.copies.store(p, lane.token - 2 * kTile, stage_at(lane.prefetch_stage));
        lane.copies.request(lane.token + kPrefetched * kTile, stage_at(lane.prefetch_stage));
      }
      compute_decays(quarter == 0 ? 1 : 2, 4);

      // Scan four tokens. C is loaded with the first four of eight.
      const char* const current = stage_at(lane.current_stage);
      if (quarter % 2 == 0) {
#pragma unroll
        for (int n = 0; n < 2; ++n) C[n] = *reinterpret_cast<const uint32_t*>(current + lane.c_offset + quarter * 128 + n * 16);
      }
      uint32_t B[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) B[n] = __float_as_uint(bf16_at(current + lane.b_offset + quarter * 128 + n * 16));
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const bool even = lane.part == 2 * pair, odd = lane.part == 2 * pair + 1;
        const uint32_t inputs_of_pair[4] = {even ? lane.input_tf32[quarter] : 0, odd ? lane.input_tf32[quarter] : 0,
                                            even ? lane.input_rest[quarter] : 0, odd ? lane.input_rest[quarter] : 0};
        float low[4], high[4], sums[4];
        begin_16x8x8(low, inputs_of_pair, B[0], B[0]), begin_16x8x8(high, inputs_of_pair, B[1], B[1]);
        uint32_t a[2][4];
        advance(2 * pair, low[0], low[1], high[0], high[1]);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2] = __float_as_uint(lane.h[j]);
        advance(2 * pair + 1, low[2], low[3], high[2], high[3]);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[j / 2][j % 2 * 2 + 1] = __float_as_uint(lane.h[j]);
        begin_16x8x8(sums, a[0], C[0] << 16, C[0] & 0xffff0000U);
        mma_16x8x8(sums, a[1], C[1] << 16, C[1] & 0xffff0000U);
        // All lanes take the first token's value, which saves a select.
        const bool replace = (quarter % 2 == 0 && pair == 0) || lane.part == (2 * quarter + pair) % 4;
        float(&y)[2] = lane.y[quarter / 2];
        y[0] = replace ? sums[0] : y[0], y[1] = replace ? sums[3] : y[1];
      }

      // The pieces of the other two tiles.
      if (quarter >= 1) store_step(lane.left, step_inputs[quarter - 1], quarter - 1, lane.buffer ^ 1);
      if (quarter % 2 == 1) store_outputs(readouts, output_inputs, quarter - 1, previous);
      if (quarter < 3) lane.deltas = lane.shared.steps[lane.buffer][lane.warp][quarter + 1][lane.column], compute_decays(0, 2);
    }
    store_step(lane.left, step_inputs[3], 3, lane.buffer ^ 1);
    __syncwarp();  // the warp's steps of the next tile are complete
    lane.deltas = lane.shared.steps[lane.buffer ^ 1][lane.warp][0][lane.column];
    compute_decays(0, 1);
    lane.previous_stage = lane.current_stage, lane.current_stage = following_stage, lane.prefetch_stage = next_stage(lane.prefetch_stage);
    lane.buffer ^= 1, lane.token += kTile, lane.left -= kTile;
  } while (lane.token < count);

  // Compute the outputs of the last tile, and store those of the last two.
  char* const last = stage_at(lane.previous_stage);
  const float readouts[4] = {lane.y[0][0], lane.y[0][1], lane.y[1][0], lane.y[1][1]};
  OutputInput output_inputs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) output_inputs[i] = load_output(last, i);
  store_outputs(readouts, output_inputs, 0, last), store_outputs(readouts, output_inputs, 2, last);
  __syncthreads();  // the outputs of both tiles are complete
  lane.copies.store(p, lane.token - 2 * kTile, stage_at(lane.prefetch_stage)), lane.copies.store(p, lane.token - kTile, last);
  if (p.state == nullptr || !is_active) return;
#pragma unroll
  for (int j = 0; j < 4; ++j) *state_at(j) = lane.h[j];
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
  if (const Status status = status_of(allow_shared_memory(kernel, sizeof(SharedStorage))); !status.ok()) return status;
  const int64_t blocks = p.rows * p.groups * scan_blocks(p, kChannels);
  if (blocks > multiprocessors())
    return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kThreads, sizeof(SharedStorage)}, queue, p);
  // With few blocks, overlapped launches took twice as long (measured), probably because blocks that start while another kernel runs are
  // placed on the same multiprocessors.
  kernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(SharedStorage), stream_of(queue)>>>(p);
  return launched();
}

}  // namespace based::kernels::cuda::detail
