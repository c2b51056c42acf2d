// Selective scan over whole rows. A few lanes share a channel; each holds some of its state elements in registers. A warp advances along a
// row by batches of sixteen tokens; its lanes divide the tokens of a batch to compute step sizes and gates. Long rows are divided into
// segments that are scanned in parallel: a first pass computes the final state of each segment for an initial state of zero.
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/scan/cuda/scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kBatch = 16;          // tokens whose inputs are loaded together
constexpr int64_t kSegment = 2048;  // tokens per segment; the number of segments depends only on the row's length
static_assert(kSelectiveScanCudaChunk % kBatch == 0 && kSegment % kSelectiveScanCudaChunk == 0);

// A block's segment of a row: segment `index` of the row's `count` segments, tokens begin .. stop. Segment numbers of packed rows have
// gaps, like those of chunks. If no row can have two segments, the segment number is the row.
struct Segment {
  int64_t row, index = 0, count, number, start, begin, stop;  // start: the row's first token

  __device__ __forceinline__ Segment(const SelectiveScan& p, int64_t unit) : row(unit), number(unit) {
    if (p.tokens > kSegment) row = find_row(p, unit), index = unit - first_number_of_row(p, row);
    start = p.row_start[row];
    const int64_t end = p.row_start[row + 1];
    count = (end - start + kSegment - 1) / kSegment;
    begin = start + index * kSegment, stop = min(begin + kSegment, end);
  }
  __device__ __forceinline__ bool exists() const { return index >= 0 && index < count; }
  __device__ __forceinline__ static int64_t first_number_of_row(const SelectiveScan& p, int64_t row) {
    return selective_scan_first_chunk(row, p.row_start[row], kSegment);
  }
  // The last row whose first segment's number is at most `unit`. A warp searches together.
  __device__ __forceinline__ static int64_t find_row(const SelectiveScan& p, int64_t unit) {
    int64_t low = 0, high = p.rows;
    while (high - low > 1) {
      const int64_t step = (high - low + 31) / 32, candidate = low + threadIdx.x % 32 * step;
      const int before = __popc(__ballot_sync(~0U, candidate < high && first_number_of_row(p, candidate) <= unit));
      low += max(before - 1, 0) * step, high = min(high, low + step);
    }
    return low;
  }
};
__host__ __device__ inline int64_t segment_count(const SelectiveScan& p) {
  return p.tokens > kSegment ? selective_scan_chunks(p.tokens, p.rows, kSegment) : p.rows;
}

// Compile-time shape of the kernel: kLanes lanes per channel, kStates state elements per lane, at least kBlocks blocks per multiprocessor.
template <int kLaneCount, int kStateCount, int kBlockCount = 1>
struct Shape {
  static constexpr int kBlocks = kBlockCount;
  static constexpr int kLanes = kLaneCount, kStates = kStateCount, kWarps = 4, kThreads = 32 * kWarps, kPaddedStates = kLanes * kStates;
  static constexpr int kLaneDistance = 32 / kLanes, kChannels = kWarps * kLaneDistance, kTokensPerLane = kBatch / kLanes;
  static constexpr int kTile = kPaddedStates <= 64 ? 32 : 16;  // tokens whose B and C are in shared memory together
  static constexpr int kColumns = 2 * kPaddedStates, kPasses = (kColumns + kThreads - 1) / kThreads;
  static constexpr int kTokensPerPass = kThreads / kColumns > 0 ? kThreads / kColumns : 1, kLoads = kTile / kTokensPerPass;
  static_assert(kTile % kTokensPerPass == 0 && kTile % kBatch == 0);
  struct SharedStorage {
    float bc[2][kTile][kColumns];                           // two buffers; in a token, B, then C
    float2 delta_and_input[kWarps][kBatch][kLaneDistance];  // {δ, δ·x}
  };
};

// Loads B and C of a tile into registers and then stores them to shared memory. A thread handles some tokens of the same columns.
template <typename T, class S>
struct TileLoader {
  const T* source[S::kPasses];
  int64_t step[S::kPasses];  // from one of this thread's tokens to the next
  uint32_t raw[S::kPasses][S::kLoads] = {};
  const int first = threadIdx.x / S::kColumns, column = threadIdx.x % S::kColumns;

  __device__ __forceinline__ TileLoader(const SelectiveScan& p, const ScanPlace& place, int64_t start) {
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass) {
      const int c = column + pass * S::kThreads, n = c % S::kPaddedStates;
      const bool is_C = c >= S::kPaddedStates, valid = n < p.state_size && c < S::kColumns && first < S::kTokensPerPass;
      const int64_t stride = is_C ? p.c_stride : p.b_stride;
      const T* matrix = static_cast<const T*>(is_C ? p.C : p.B);
      source[pass] = valid ? matrix + (start + first) * stride + place.group * p.state_size + n : nullptr;
      step[pass] = S::kTokensPerPass * stride;
    }
  }
  // Loads the next tile, of which `tokens` tokens are left in the row. Registers of later tokens keep their old values.
  __device__ __forceinline__ void load(int64_t tokens) {
    const int left = static_cast<int>(min(tokens, int64_t{S::kTile}));
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass) {
      if (source[pass] == nullptr) continue;
#pragma unroll
      for (int load_index = 0; load_index < S::kLoads; ++load_index, source[pass] += step[pass]) {
        if (first + load_index * S::kTokensPerPass < left) raw[pass][load_index] = load_raw(source[pass]);
      }
    }
  }
  __device__ __forceinline__ void store(float (&tile)[S::kTile][S::kColumns]) const {
    if (first >= S::kTokensPerPass) return;
#pragma unroll
    for (int pass = 0; pass < S::kPasses; ++pass) {
      const int c = column + pass * S::kThreads;
#pragma unroll
      for (int load_index = 0; load_index < S::kLoads; ++load_index) {
        if (c < S::kColumns) tile[first + load_index * S::kTokensPerPass][c] = raw_value<T>(raw[pass][load_index]);
      }
    }
  }
};

// Sums the parts of kLanes tokens over a channel's kLanes lanes by recursive halving: in each step a lane keeps half of the tokens and
// sends the other half. Each lane ends with one token's sum.
template <class S, int kDistance = 1>
__device__ __forceinline__ float sum_tokens(const float (&parts)[S::kLanes / kDistance], int lane) {
  if constexpr (kDistance == S::kLanes) {
    return parts[0];
  } else {
    const bool odd = (lane & kDistance) != 0;
    float sums[S::kLanes / kDistance / 2];
#pragma unroll
    for (int i = 0; i < S::kLanes / kDistance / 2; ++i) {
      sums[i] = (odd ? parts[2 * i + 1] : parts[2 * i]) +
                __shfl_xor_sync(~0U, odd ? parts[2 * i] : parts[2 * i + 1], kDistance * S::kLaneDistance);
    }
    return sum_tokens<S, 2 * kDistance>(sums, lane);
  }
}

// The variables that a thread keeps from batch to batch, and references to its parameters and segment. They form one struct because of the
// machine code: with separate local variables the compiler orders the loops differently, and the kernel was slower on an H200.
template <typename T, class S, bool kFirstPass>
struct Thread {
  const SelectiveScan& p;
  const ScanPlace& place;
  const Segment& segment;
  float* const segment_ends;  // first pass's results: states [segments, state_size, channels], then sums of step sizes [segments, channels]
  // Adjacent lanes hold the same state elements of adjacent channels, so they read the same B and C.
  const int lane = threadIdx.x % 32 / S::kLaneDistance, column = threadIdx.x % S::kLaneDistance,
            channel = threadIdx.x / 32 * S::kLaneDistance + column;
  const int first = lane * S::kStates;
  const bool is_active = channel < place.channels;  // whether the thread has a channel
  const T *x, *dt, *z;                              // this lane's next token
  T* y;
  float h[S::kStates], rate[S::kStates], bias = 0, skip = 0, total = 0;  // total: sum of the step sizes
  int64_t x_step, dt_step, z_step, y_step;                               // from one of this lane's tokens to the next
  uint32_t raw_x[S::kTokensPerLane] = {}, raw_dt[S::kTokensPerLane] = {}, raw_z[S::kTokensPerLane] = {};

  __device__ __forceinline__ bool has_state(int i) const { return is_active && first + i < p.state_size; }
  __device__ __forceinline__ float* row_state() const {
    const int64_t row = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (row * p.channels + place.channel + channel) * p.state_size + first;
  }
  __device__ __forceinline__ float* end_state(int64_t number, int i) const {
    return segment_ends + (number * p.state_size + first + i) * p.channels + place.channel + channel;
  }
  __device__ __forceinline__ float* step_sum(int64_t number) const {
    return segment_ends + (segment_count(p) * p.state_size + number) * p.channels + place.channel + channel;
  }
  // Loads the next batch, of which `left` tokens are in the row. A lane loads token `lane` and every kLanes-th token after it.
  __device__ __forceinline__ void load(int left) {
#pragma unroll
    for (int k = 0; k < S::kTokensPerLane; ++k, x += x_step, dt += dt_step, z += z_step) {
      if (left < kBatch && lane + k * S::kLanes >= left) continue;
      raw_x[k] = load_raw(x), raw_dt[k] = load_raw(dt);
      if (!kFirstPass) raw_z[k] = load_raw(z);
    }
  }
  // Advances the state by one token and returns this lane's part of C·h. The parts are added in a binary tree, so the sum does not depend
  // on the number of lanes.
  __device__ __forceinline__ float advance(const float* bc, float2 delta_and_input) {
    constexpr int kCount = S::kStates % 4 == 0 ? 4 : 2;
    float sums[S::kStates / 2];
#pragma unroll
    for (int i = 0; i < S::kStates; i += kCount) {
      float B[kCount], C[kCount] = {};
      load_floats<kCount>(bc + first + i, B);
      if (!kFirstPass) load_floats<kCount>(bc + S::kPaddedStates + first + i, C);
#pragma unroll
      for (int j = 0; j < kCount; ++j) h[i + j] = fmaf(exp2_approx(delta_and_input.x * rate[i + j]), h[i + j], delta_and_input.y * B[j]);
#pragma unroll
      for (int j = 0; j < kCount; j += 2) sums[(i + j) / 2] = fmaf(C[j + 1], h[i + j + 1], C[j] * h[i + j]);
    }
#pragma unroll
    for (int distance = 1; distance < S::kStates / 2; distance *= 2) {
#pragma unroll
      for (int i = 0; i + distance < S::kStates / 2; i += 2 * distance) sums[i] += sums[i + distance];
    }
    return sums[0];
  }
};

// A block scans one segment of S::kChannels channels. kFirstPass: computes only the state after the segment and the sum of its step sizes.
template <typename T, class S, bool kFirstPass>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) scan_rows(const __grid_constant__ SelectiveScan params, float* segment_ends) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  auto& shared = *reinterpret_cast<typename S::SharedStorage*>(memory);
  ScanPlace place(params, S::kChannels);
  const Segment segment(params, place.row);
  if (!segment.exists() || (kFirstPass && segment.index + 1 == segment.count)) return;
  place.row = segment.row;
  const int64_t begin = segment.begin, stop = segment.stop;
  TileLoader<T, S> loader(params, place, begin);
  loader.load(stop - begin);

  // Find this lane's tokens, and load the parameters.
  Thread<T, S, kFirstPass> thread{params, place, segment, segment_ends};
  const SelectiveScan& p = thread.p;  // not `params`, whose fields the compiler would load earlier
  const int64_t c = place.channel + (thread.is_active ? thread.channel : 0), first_token = begin + thread.lane;
  thread.x = static_cast<const T*>(p.x) + first_token * p.x_stride + c;
  thread.dt = static_cast<const T*>(p.dt) + first_token * p.dt_stride + c;
  thread.z = static_cast<const T*>(p.z) + first_token * p.z_stride + c;
  thread.y = static_cast<T*>(p.y) + first_token * p.y_stride + c;
  if (p.z == nullptr) thread.z = thread.x;  // loaded without effect, to avoid a branch
  thread.x_step = S::kLanes * p.x_stride, thread.dt_step = S::kLanes * p.dt_stride, thread.y_step = S::kLanes * p.y_stride;
  thread.z_step = S::kLanes * (p.z != nullptr ? p.z_stride : p.x_stride);
  if (p.dt_bias != nullptr) thread.bias = to_float(static_cast<const T*>(p.dt_bias)[c]);
  if (p.D != nullptr) thread.skip = to_float(static_cast<const T*>(p.D)[c]);
#pragma unroll
  for (int i = 0; i < S::kStates; ++i) {
    thread.rate[i] = thread.has_state(i) ? scan_rate(to_float(static_cast<const T*>(p.A_log)[c * p.state_size + thread.first + i])) : 0.0F;
  }

  // Compute the state before the segment. The first pass also saves the row's initial state in the entry of the row's last segment, which
  // the first pass does not compute, because the second pass overwrites the state.
  const int64_t first_number = segment.number - segment.index, last_number = first_number + segment.count - 1;
  const bool copied = !kFirstPass && segment.count > 1, given = segment.index == 0 && p.state != nullptr;
#pragma unroll
  for (int i = 0; i < S::kStates; ++i) {
    thread.h[i] = 0;
    if (given && thread.has_state(i)) thread.h[i] = copied ? *thread.end_state(last_number, i) : thread.row_state()[i];
    if (kFirstPass && given && thread.has_state(i)) *thread.end_state(last_number, i) = thread.h[i];
  }
  for (int64_t k = first_number; !kFirstPass && k < segment.number; ++k) {
    const float sum = k > first_number && thread.is_active ? *thread.step_sum(k) : 0.0F;
#pragma unroll
    for (int i = 0; i < S::kStates; ++i)
      if (thread.has_state(i)) thread.h[i] = fmaf(exp2_approx(sum * thread.rate[i]), thread.h[i], *thread.end_state(k, i));
  }

  thread.load(static_cast<int>(min(stop - begin, int64_t{kBatch})));
  int buffer = 0;
  for (int64_t tile = begin; tile < stop; tile += S::kTile, buffer ^= 1) {
    loader.store(shared.bc[buffer]);
    __syncthreads();  // B and C are complete; all threads have read the buffer's previous tile before the previous barrier
    loader.load(stop - tile - S::kTile);
#pragma unroll 1
    for (int t = 0; t < S::kTile && tile + t < stop; t += kBatch) {
      // Store the state before a chunk for the gradients.
      const int64_t token = tile + t;
      if (!kFirstPass && p.chunk_states != nullptr && (token - segment.start) % kSelectiveScanCudaChunk == 0) {
        const int64_t chunk = selective_scan_first_chunk(place.row, segment.start, kSelectiveScanCudaChunk) +
                              (token - segment.start) / kSelectiveScanCudaChunk;
        float* chunk_state = p.chunk_states + (chunk * p.state_size + thread.first) * p.channels + place.channel + thread.channel;
#pragma unroll
        for (int i = 0; i < S::kStates; ++i)
          if (thread.has_state(i)) chunk_state[i * p.channels] = thread.h[i];
      }

      // Prepare the batch's step sizes and inputs, and load the next batch.
      const float(*bc)[S::kColumns] = shared.bc[buffer] + t;
      float2(&delta_and_input)[kBatch][S::kLaneDistance] = shared.delta_and_input[threadIdx.x / 32];
      const int64_t left = stop - tile - t;  // tokens from this batch to the segment's end
      const int count = static_cast<int>(min(left, int64_t{kBatch})), next = static_cast<int>(min(left - count, int64_t{kBatch}));
      float skip_term[S::kTokensPerLane], gate[S::kTokensPerLane];
      __syncwarp();  // all lanes have read the previous batch's steps
#pragma unroll
      for (int k = 0; k < S::kTokensPerLane; ++k) {
        const int own = thread.lane + k * S::kLanes;
        const float value = raw_value<T>(thread.raw_x[k]), step = scan_step(p, raw_value<T>(thread.raw_dt[k]) + thread.bias),
                    delta = own < count ? step : 0.0F;
        delta_and_input[own][thread.column] = make_float2(delta, delta * value);
        thread.total += delta, skip_term[k] = thread.skip * value, gate[k] = raw_value<T>(thread.raw_z[k]);
      }
      thread.load(next);  // before the barrier, so that the loads are issued early
      __syncwarp();       // the batch's steps are complete

      // Scan the batch.
#pragma unroll
      for (int k = 0; k < S::kTokensPerLane; ++k, thread.y += thread.y_step) {
        float parts[S::kLanes];
#pragma unroll
        for (int i = 0; i < S::kLanes; ++i)
          parts[i] = thread.advance(bc[k * S::kLanes + i], delta_and_input[k * S::kLanes + i][thread.column]);
        if constexpr (!kFirstPass) {
          float sum = sum_tokens<S>(parts, thread.lane) + skip_term[k];
          if (p.z != nullptr) sum *= gate[k] * sigmoid(gate[k]);
          if (thread.is_active && thread.lane + k * S::kLanes < count) *thread.y = from_float<T>(sum);
        }
      }
    }
  }

  // Store the state after the segment and, in the first pass, the sum of its step sizes.
  if constexpr (kFirstPass) {
#pragma unroll
    for (int distance = 1; distance < S::kLanes; distance *= 2)
      thread.total += __shfl_xor_sync(~0U, thread.total, distance * S::kLaneDistance);
    if (thread.is_active && thread.lane == 0) *thread.step_sum(segment.number) = thread.total;
  }
  if (!kFirstPass && (p.state == nullptr || segment.index + 1 < segment.count)) return;
#pragma unroll
  for (int i = 0; i < S::kStates; ++i)
    if (thread.has_state(i)) *(kFirstPass ? thread.end_state(segment.number, i) : thread.row_state() + i) = thread.h[i];
}

template <typename T, class S, bool kFirstPass>
Status launch_scan(const SelectiveScan& p, float* segment_ends, Queue queue) {
  auto* kernel = scan_rows<T, S, kFirstPass>;
  constexpr int kBytes = sizeof(typename S::SharedStorage);
  if (const Status status = status_of(allow_shared_memory(kernel, kBytes)); !status.ok()) return status;
  const int64_t blocks = segment_count(p) * p.groups * scan_blocks(p, S::kChannels);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), S::kThreads, kBytes}, queue, p, segment_ends);
}
template <typename T, class S>
Status scan(const SelectiveScan& p, float* segment_ends, Queue queue) {
  if (p.tokens > kSegment) {
    if (const Status status = launch_scan<T, S, true>(p, segment_ends, queue); !status.ok()) return status;
  }
  return launch_scan<T, S, false>(p, segment_ends, queue);
}

template <typename T>
Status scan(const SelectiveScan& p, float* segment_ends, Queue queue) {
  if (p.state_size <= 8) return scan<T, Shape<4, 2, 4>>(p, segment_ends, queue);
  if (p.state_size <= 16) {
    // Fewer lanes per channel need fewer shuffles. With few rows, more lanes give more parallelism.
    using Few = Shape<2, 8, 4>;
    const bool many = segment_count(p) * p.groups * scan_blocks(p, Few::kChannels) >= 2 * multiprocessors();
    return many ? scan<T, Few>(p, segment_ends, queue) : scan<T, Shape<4, 4, 4>>(p, segment_ends, queue);
  }
  if (p.state_size <= 24) return scan<T, Shape<4, 6, 4>>(p, segment_ends, queue);
  if (p.state_size <= 32) return scan<T, Shape<8, 4>>(p, segment_ends, queue);
  if (p.state_size <= 64) return scan<T, Shape<16, 4>>(p, segment_ends, queue);
  return p.state_size <= 128 ? scan<T, Shape<16, 8>>(p, segment_ends, queue) : scan<T, Shape<16, 16>>(p, segment_ends, queue);
}

}  // namespace

int64_t selective_scan_forward_scratch(const SelectiveScan& p) {
  return p.tokens > kSegment && !scan_forward_mma_fits(p) ? segment_count(p) * (p.state_size + 1) * p.channels * 4 : 0;
}

Status selective_scan_forward(const SelectiveScan& p, void* scratch, Queue queue) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.rows == 0 || p.channels == 0 || p.tokens == 0) return {};
  if (scan_forward_mma_fits(p)) return scan_forward_mma(p, queue);
  return (p.dtype == DType::bf16 ? scan<bf16> : scan<float>)(p, static_cast<float*>(scratch), queue);
}

}  // namespace based::kernels::cuda
