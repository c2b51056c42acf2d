// Selective scan over whole rows. A few neighbouring lanes have a channel, and some numbers of its state each in registers; a warp walks
// along a row by sixteen tokens at a time, whose step sizes and gates its lanes make one token each. Long rows are cut into segments that
// are walked at the same time: a first pass leaves what each of them makes of a state of zero.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kBatch = 16;          // tokens whose inputs are loaded together
constexpr int64_t kSegment = 2048;  // tokens; a longer row has several segments, whatever the other rows are
static_assert(kSelectiveScanCudaChunk % kBatch == 0 && kSegment % kSelectiveScanCudaChunk == 0);

// A block's segment of a row. Segments of packed rows are numbered with gaps, as chunks are. Where no row can have two, rows are segments.
struct Segment {
  int64_t row, index = 0, count, number, start, begin, stop;  // of the row's `count` it is the index-th; start: of the row

  __device__ __forceinline__ Segment(const SelectiveScan& p, int64_t unit) : row(unit), number(unit) {
    if (p.tokens > kSegment) row = row_of(p, unit), index = unit - first_of(p, row);
    start = p.row_start[row];
    const int64_t end = p.row_start[row + 1];
    count = (end - start + kSegment - 1) / kSegment;
    begin = start + index * kSegment, stop = min(begin + kSegment, end);
  }
  __device__ __forceinline__ bool there() const { return index >= 0 && index < count; }
  __device__ __forceinline__ static int64_t first_of(const SelectiveScan& p, int64_t row) {
    return selective_scan_first_chunk(row, p.row_start[row], kSegment);
  }
  // The last row whose first segment has this number or one before it, by a warp's lanes.
  __device__ __forceinline__ static int64_t row_of(const SelectiveScan& p, int64_t unit) {
    int64_t low = 0, high = p.rows;
    while (high - low > 1) {
      const int64_t step = (high - low + 31) / 32, at = low + threadIdx.x % 32 * step;
      const int before = __popc(__ballot_sync(~0U, at < high && first_of(p, at) <= unit));
      low += max(before - 1, 0) * step, high = min(high, low + step);
    }
    return low;
  }
};
__host__ __device__ inline int64_t segments_of(const SelectiveScan& p) {
  return p.tokens > kSegment ? selective_scan_chunks(p.tokens, p.rows, kSegment) : p.rows;
}

// `kLanes` lanes have a channel, `kStates` numbers of its state each.
template <int kLanes_, int kStates_, int kBlocks_ = 1>
struct Shape {
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kLanes = kLanes_, kStates = kStates_, kWarps = 4, kThreads = 32 * kWarps, kNumbers = kLanes * kStates;
  static constexpr int kApart = 32 / kLanes, kChannels = kWarps * kApart, kOfLane = kBatch / kLanes;  // tokens of a batch
  static constexpr int kTile = kNumbers <= 64 ? 32 : 16;  // tokens whose B and C are in shared memory at a time
  static constexpr int kColumns = 2 * kNumbers, kTurns = (kColumns + kThreads - 1) / kThreads;
  static constexpr int kAtOnce = kThreads / kColumns > 0 ? kThreads / kColumns : 1, kRounds = kTile / kAtOnce;
  static_assert(kTile % kAtOnce == 0 && kTile % kBatch == 0);
  struct Memory {
    float numbers[2][kTile][kColumns];  // B, then C
    float2 in[kWarps][kBatch][kApart];  // δ and δ·x
  };
};

// A thread's share of the B and C of a tile on its way to shared memory: some tokens of the same columns.
template <typename T, class S>
struct Numbers {
  const T* from[S::kTurns];
  int64_t step[S::kTurns];  // from one of this thread's tokens to the next
  uint32_t ahead[S::kTurns][S::kRounds] = {};
  const int first = threadIdx.x / S::kColumns, column = threadIdx.x % S::kColumns;

  __device__ __forceinline__ Numbers(const SelectiveScan& p, const ScanPlace& place, int64_t start) {
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int at = column + turn * S::kThreads, n = at % S::kNumbers;
      const bool of_C = at >= S::kNumbers, there = n < p.state_size && at < S::kColumns && first < S::kAtOnce;
      const int64_t stride = of_C ? p.c_stride : p.b_stride;
      const T* matrix = static_cast<const T*>(of_C ? p.C : p.B);
      from[turn] = there ? matrix + (start + first) * stride + place.group * p.state_size + n : nullptr;
      step[turn] = S::kAtOnce * stride;
    }
  }
  // Of the next tile, `tokens` of which are left in the row; past them stays what was there.
  __device__ __forceinline__ void load(int64_t tokens) {
    const int left = static_cast<int>(min(tokens, int64_t{S::kTile}));
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      if (from[turn] == nullptr) continue;
#pragma unroll
      for (int round = 0; round < S::kRounds; ++round, from[turn] += step[turn]) {
        if (first + round * S::kAtOnce < left) ahead[turn][round] = load_raw(from[turn]);
      }
    }
  }
  __device__ __forceinline__ void put(float (&to)[S::kTile][S::kColumns]) const {
    if (first >= S::kAtOnce) return;
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int at = column + turn * S::kThreads;
#pragma unroll
      for (int round = 0; round < S::kRounds; ++round) {
        if (at < S::kColumns) to[first + round * S::kAtOnce][at] = raw_value<T>(ahead[turn][round]);
      }
    }
  }
};

// Sums over a channel's lanes of as many tokens' parts, neighbours first: each step adds half of them here and the other half there, so
// that a lane ends with one token's sum.
template <class S, int kDistance = 1>
__device__ __forceinline__ float sum_of_tokens(const float (&parts)[S::kLanes / kDistance], int lane) {
  if constexpr (kDistance == S::kLanes) {
    return parts[0];
  } else {
    const bool odd = (lane & kDistance) != 0;
    float sums[S::kLanes / kDistance / 2];
#pragma unroll
    for (int i = 0; i < S::kLanes / kDistance / 2; ++i) {
      sums[i] =
          (odd ? parts[2 * i + 1] : parts[2 * i]) + __shfl_xor_sync(~0U, odd ? parts[2 * i] : parts[2 * i + 1], kDistance * S::kApart);
    }
    return sum_of_tokens<S, 2 * kDistance>(sums, lane);
  }
}

// kEnds: the first pass, which wants the state behind the segment and the sum of its step sizes alone.
template <typename T, class S, bool kEnds>
struct Walker {
  const SelectiveScan& p;
  const ScanPlace& place;
  const Segment& segment;
  float* const ends;  // [segments, state_size, channels], then the sums [segments, channels]
  // Neighbours have the same numbers of neighbouring channels, so that they read the same B and C.
  const int lane = threadIdx.x % 32 / S::kApart, column = threadIdx.x % S::kApart, channel = threadIdx.x / 32 * S::kApart + column;
  const int first = lane * S::kStates;
  const bool mine;  // a channel of the block's
  const T *x, *dt, *z;
  T* y;
  float h[S::kStates], rate[S::kStates], bias = 0, skip = 0, total = 0;  // total: of the step sizes
  int64_t x_step, dt_step, z_step, y_step;                               // from one of this lane's tokens to the next
  uint32_t raw_x[S::kOfLane] = {}, raw_dt[S::kOfLane] = {}, raw_z[S::kOfLane] = {};

  __device__ __forceinline__ Walker(const SelectiveScan& params, const ScanPlace& of_block, const Segment& of_row, float* scratch)
      : p(params), place(of_block), segment(of_row), ends(scratch), mine(channel < place.channels) {
    const int64_t at = place.channel + (mine ? channel : 0), token = segment.begin + lane;
    x = static_cast<const T*>(p.x) + token * p.x_stride + at, dt = static_cast<const T*>(p.dt) + token * p.dt_stride + at;
    z = static_cast<const T*>(p.z) + token * p.z_stride + at, y = static_cast<T*>(p.y) + token * p.y_stride + at;
    if (p.z == nullptr) z = x;  // loaded all the same
    x_step = S::kLanes * p.x_stride, dt_step = S::kLanes * p.dt_stride, y_step = S::kLanes * p.y_stride;
    z_step = S::kLanes * (p.z != nullptr ? p.z_stride : p.x_stride);
    if (p.dt_bias != nullptr) bias = to_float(static_cast<const T*>(p.dt_bias)[at]);
    if (p.D != nullptr) skip = to_float(static_cast<const T*>(p.D)[at]);
#pragma unroll
    for (int i = 0; i < S::kStates; ++i) {
      rate[i] = there(i) ? scan_rate(to_float(static_cast<const T*>(p.A_log)[at * p.state_size + first + i])) : 0.0F;
    }
    begin_state();
  }
  // The first pass also copies a row's state to where its last segment, which is not in it, would leave one: the second pass overwrites it.
  __device__ __forceinline__ void begin_state() {
    const int64_t of_row = segment.number - segment.index, last = of_row + segment.count - 1;
    const bool copied = !kEnds && segment.count > 1, given = segment.index == 0 && p.state != nullptr;
#pragma unroll
    for (int i = 0; i < S::kStates; ++i) {
      h[i] = 0;
      if (given && there(i)) h[i] = copied ? *end_of(last, i) : state_of_row()[i];
      if (kEnds && given && there(i)) *end_of(last, i) = h[i];
    }
    for (int64_t k = of_row; !kEnds && k < segment.number; ++k) {
      const float sum = k > of_row && mine ? *sum_of(k) : 0.0F;
#pragma unroll
      for (int i = 0; i < S::kStates; ++i)
        if (there(i)) h[i] = fmaf(exp2_approx(sum * rate[i]), h[i], *end_of(k, i));
    }
  }
  __device__ __forceinline__ float* end_of(int64_t number, int i) const {
    return ends + (number * p.state_size + first + i) * p.channels + place.channel + channel;
  }
  __device__ __forceinline__ float* sum_of(int64_t number) const {
    return ends + (segments_of(p) * p.state_size + number) * p.channels + place.channel + channel;
  }
  __device__ __forceinline__ bool there(int i) const { return mine && first + i < p.state_size; }
  __device__ __forceinline__ float* state_of_row() const {
    const int64_t row = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (row * p.channels + place.channel + channel) * p.state_size + first;
  }
  __device__ __forceinline__ void end() {
    if constexpr (kEnds) {
#pragma unroll
      for (int distance = 1; distance < S::kLanes; distance *= 2) total += __shfl_xor_sync(~0U, total, distance * S::kApart);
      if (mine && lane == 0) *sum_of(segment.number) = total;
    }
    if (!kEnds && (p.state == nullptr || segment.index + 1 < segment.count)) return;
#pragma unroll
    for (int i = 0; i < S::kStates; ++i)
      if (there(i)) *(kEnds ? end_of(segment.number, i) : state_of_row() + i) = h[i];
  }

  __device__ __forceinline__ void keep(int64_t token) const {
    const int64_t start = segment.start;
    if (kEnds || p.chunk_states == nullptr || (token - start) % kSelectiveScanCudaChunk != 0) return;
    const int64_t chunk = selective_scan_first_chunk(place.row, start, kSelectiveScanCudaChunk) + (token - start) / kSelectiveScanCudaChunk;
    float* to = p.chunk_states + (chunk * p.state_size + first) * p.channels + place.channel + channel;
#pragma unroll
    for (int i = 0; i < S::kStates; ++i)
      if (there(i)) to[i * p.channels] = h[i];
  }

  // Of the next batch, `left` of whose tokens are in the row: a lane has one and every kLanes-th behind it.
  __device__ __forceinline__ void load(int left) {
#pragma unroll
    for (int k = 0; k < S::kOfLane; ++k, x += x_step, dt += dt_step, z += z_step) {
      if (left < kBatch && lane + k * S::kLanes >= left) continue;
      raw_x[k] = load_raw(x), raw_dt[k] = load_raw(dt);
      if (!kEnds) raw_z[k] = load_raw(z);
    }
  }

  // This lane's part of C·h of a token, in pairs and pairs of pairs, so that it does not depend on the number of lanes.
  __device__ __forceinline__ float take(const float* numbers, float2 in) {
    constexpr int kCount = S::kStates % 4 == 0 ? 4 : 2;
    float sums[S::kStates / 2];
#pragma unroll
    for (int i = 0; i < S::kStates; i += kCount) {
      float B[kCount], C[kCount] = {};
      load_floats<kCount>(numbers + first + i, B);
      if (!kEnds) load_floats<kCount>(numbers + S::kNumbers + first + i, C);
#pragma unroll
      for (int j = 0; j < kCount; ++j) h[i + j] = fmaf(exp2_approx(in.x * rate[i + j]), h[i + j], in.y * B[j]);
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

  // A batch, whose raw inputs have been loaded; loads the next one's. `left`: the tokens from here to the row's end.
  __device__ __forceinline__ void walk(int64_t left, const float (*numbers)[S::kColumns], float2 (&in)[kBatch][S::kApart]) {
    const int here = static_cast<int>(min(left, int64_t{kBatch})), next = static_cast<int>(min(left - here, int64_t{kBatch}));
    float of_x[S::kOfLane], gate[S::kOfLane];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < S::kOfLane; ++k) {
      const int t = lane + k * S::kLanes;
      const float value = raw_value<T>(raw_x[k]), step = scan_step(p, raw_value<T>(raw_dt[k]) + bias), delta = t < here ? step : 0.0F;
      in[t][column] = make_float2(delta, delta * value);
      total += delta, of_x[k] = skip * value, gate[k] = raw_value<T>(raw_z[k]);
    }
    load(next);  // before the barrier, behind which they would be put off
    __syncwarp();
#pragma unroll
    for (int k = 0; k < S::kOfLane; ++k, y += y_step) {
      float parts[S::kLanes];
#pragma unroll
      for (int i = 0; i < S::kLanes; ++i) parts[i] = take(numbers[k * S::kLanes + i], in[k * S::kLanes + i][column]);
      if constexpr (!kEnds) {
        float sum = sum_of_tokens<S>(parts, lane) + of_x[k];
        if (p.z != nullptr) sum *= gate[k] * sigmoid(gate[k]);
        if (mine && lane + k * S::kLanes < here) *y = from_float<T>(sum);
      }
    }
  }
};

template <typename T, class S, bool kEnds>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) scan_rows(const __grid_constant__ SelectiveScan p, float* ends) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  auto& shared = *reinterpret_cast<typename S::Memory*>(memory);
  ScanPlace place(p, S::kChannels);
  const Segment segment(p, place.row);
  if (!segment.there() || (kEnds && segment.index + 1 == segment.count)) return;
  place.row = segment.row;
  const int64_t begin = segment.begin, stop = segment.stop;
  Numbers<T, S> numbers(p, place, begin);
  numbers.load(stop - begin);
  Walker<T, S, kEnds> walker(p, place, segment, ends);
  walker.load(static_cast<int>(min(stop - begin, int64_t{kBatch})));
  int turn = 0;
  for (int64_t tile = begin; tile < stop; tile += S::kTile, turn ^= 1) {
    numbers.put(shared.numbers[turn]);
    __syncthreads();
    numbers.load(stop - tile - S::kTile);
#pragma unroll 1
    for (int t = 0; t < S::kTile && tile + t < stop; t += kBatch) {
      walker.keep(tile + t);
      walker.walk(stop - tile - t, shared.numbers[turn] + t, shared.in[threadIdx.x / 32]);
    }
  }
  walker.end();
}

template <typename T, class S, bool kEnds>
Status launch_scan(const SelectiveScan& p, float* ends, Stream stream) {
  auto* kernel = scan_rows<T, S, kEnds>;
  constexpr int kBytes = sizeof(typename S::Memory);
  if (const Status status = status_of(allow_shared_memory(kernel, kBytes)); !status.ok()) return status;
  const int64_t blocks = segments_of(p) * p.groups * scan_blocks(p, S::kChannels);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), S::kThreads, kBytes}, stream, p, ends);
}
template <typename T, class S>
Status scan(const SelectiveScan& p, float* ends, Stream stream) {
  if (p.tokens > kSegment) {
    if (const Status status = launch_scan<T, S, true>(p, ends, stream); !status.ok()) return status;
  }
  return launch_scan<T, S, false>(p, ends, stream);
}

template <typename T>
Status scan(const SelectiveScan& p, float* ends, Stream stream) {
  if (p.state_size <= 8) return scan<T, Shape<4, 2, 4>>(p, ends, stream);
  if (p.state_size <= 16) {
    // Fewer lanes have less to add up, more are under way where there are few rows.
    using Few = Shape<2, 8, 4>;
    const bool many = segments_of(p) * p.groups * scan_blocks(p, Few::kChannels) >= 2 * multiprocessors();
    return many ? scan<T, Few>(p, ends, stream) : scan<T, Shape<4, 4, 4>>(p, ends, stream);
  }
  if (p.state_size <= 24) return scan<T, Shape<4, 6, 4>>(p, ends, stream);
  if (p.state_size <= 32) return scan<T, Shape<8, 4>>(p, ends, stream);
  if (p.state_size <= 64) return scan<T, Shape<16, 4>>(p, ends, stream);
  return p.state_size <= 128 ? scan<T, Shape<16, 8>>(p, ends, stream) : scan<T, Shape<16, 16>>(p, ends, stream);
}

}  // namespace

int64_t selective_scan_forward_scratch(const SelectiveScan& p) {
  return p.tokens > kSegment && !scan_forward_mma_fits(p) ? segments_of(p) * (p.state_size + 1) * p.channels * 4 : 0;
}

Status selective_scan_forward(const SelectiveScan& p, void* scratch, Stream stream) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.rows == 0 || p.channels == 0 || p.tokens == 0) return {};
  if (scan_forward_mma_fits(p)) return scan_forward_mma(p, stream);
  return (p.dtype == DType::bf16 ? scan<bf16> : scan<float>)(p, static_cast<float*>(scratch), stream);
}

}  // namespace based::kernels::cuda
