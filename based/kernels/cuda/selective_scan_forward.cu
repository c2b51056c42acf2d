// Selective scan over whole rows: four warps walk along a row, token by token, with a few channels whose states are in their registers;
// eight warps beside them get the next tile of tokens ready and write what the last one gave.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

constexpr int kWalkers = 128, kHelpers = 256;
constexpr int kAtOnce = 4;  // tokens whose sums over the lanes are made together

// Eight neighbouring elements on their way from memory.
template <typename T>
struct Eight {
  static constexpr int kCount = 16 / sizeof(T);
  Elements<T, kCount> parts[8 / kCount];

  // Zeros past the first `valid`; `whole`: they are in whole 16 bytes.
  __device__ __forceinline__ void load(const T* from, int valid, bool whole) {
    if (whole && valid >= 8) {
#pragma unroll
      for (int i = 0; i < 8 / kCount; ++i) parts[i] = reinterpret_cast<const Elements<T, kCount>*>(from)[i];
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) parts[i / kCount].x[i % kCount] = i < valid ? from[i] : from_float<T>(0.0F);
  }
  __device__ __forceinline__ float operator[](int i) const { return to_float(parts[i / kCount].x[i % kCount]); }
};

// `kLanes` lanes have a channel, `kStates` numbers of its state each.
template <int kLanes, int kStates>
struct Shape {
  static constexpr int kChannels = kWalkers / kLanes, kNumbers = kLanes * kStates;
  // Tokens of a tile: so many that a tile takes the helpers' loads to arrive, as far as shared memory goes.
  static constexpr int kTile = kLanes == 2 ? 32 : kNumbers <= 32 ? 64 : kNumbers <= 128 ? 32 : 16;
  static constexpr int kParts = (kChannels + 7) / 8, kNumberParts = kNumbers / 8;
  static constexpr int kInputs = 2 * kChannels + 8, kOutputs = kChannels + 8;  // floats from a token to the next
  struct Tile {
    float in[kTile][kInputs];  // δ and δ·x of a channel side by side
    float B[kTile][kNumbers], C[kTile][kNumbers];
    float y[kTile][kOutputs];  // C·h
  };
};

template <typename T, int kLanes, int kStates>
struct Row {
  using Sizes = Shape<kLanes, kStates>;
  using Tile = typename Sizes::Tile;
  static constexpr int kTile = Sizes::kTile;
  const SelectiveScan& p;
  const ScanPlace place;
  const int64_t start, stop;
  Tile* const tiles;  // two, in turn

  __device__ __forceinline__ Row(const SelectiveScan& params, void* memory)
      : p(params),
        place(params, Sizes::kChannels),
        start(p.row_start[place.row]),
        stop(p.row_start[place.row + 1]),
        tiles(static_cast<Tile*>(memory)) {}

  __device__ __forceinline__ int count() const { return static_cast<int>((stop - start + kTile - 1) / kTile); }
  __device__ __forceinline__ int tokens(int tile) const {
    return static_cast<int>(min(int64_t{kTile}, stop - start - tile * int64_t{kTile}));
  }
};

// A helper's share: eight channels of a token, or eight numbers of its B or C, at a time.
template <typename T, int kLanes, int kStates>
struct Helper : Row<T, kLanes, kStates> {
  using Base = Row<T, kLanes, kStates>;
  using Sizes = typename Base::Sizes;
  using Base::p, Base::place, Base::start, Base::tiles, Base::kTile;
  static constexpr int kChannelUnits = kTile * Sizes::kParts, kNumberUnits = 2 * kTile * Sizes::kNumberParts;
  const int id = threadIdx.x - kWalkers;

  __device__ __forceinline__ Helper(const SelectiveScan& params, void* memory) : Base(params, memory) {}

  // Channels [tokens, channels] of unit u of a tile.
  __device__ __forceinline__ Eight<T> channels(const void* matrix, int64_t stride, int tile, int u) const {
    const int t = u / Sizes::kParts, first = u % Sizes::kParts * 8;
    const T* from = static_cast<const T*>(matrix) + (start + tile * int64_t{kTile} + t) * stride + place.channel + first;
    Eight<T> eight;
    eight.load(from, t < this->tokens(tile) ? place.channels - first : 0, in_whole(matrix, stride, place.channel));
    return eight;
  }
  // B's or C's numbers of unit u of a tile.
  __device__ __forceinline__ Eight<T> numbers(int tile, int u) const {
    const int part = u % Sizes::kNumberParts, t = u / Sizes::kNumberParts % kTile;
    const bool of_C = u >= kNumberUnits / 2;
    const void* matrix = of_C ? p.C : p.B;
    const int64_t stride = of_C ? p.c_stride : p.b_stride, at = place.group * p.state_size;
    const T* from = static_cast<const T*>(matrix) + (start + tile * int64_t{kTile} + t) * stride + at + part * 8;
    Eight<T> eight;
    eight.load(from, t < this->tokens(tile) ? static_cast<int>(p.state_size) - part * 8 : 0, in_whole(matrix, stride, at));
    return eight;
  }
  __device__ __forceinline__ static bool in_whole(const void* matrix, int64_t stride, int64_t at) {
    return reinterpret_cast<uintptr_t>(static_cast<const T*>(matrix) + at) % 16 == 0 && stride * sizeof(T) % 16 == 0;
  }

  __device__ __forceinline__ void put_channels(int tile, int u, const Eight<T>& x, const Eight<T>& dt) const {
    const int t = u / Sizes::kParts, first = u % Sizes::kParts * 8;
    const bool there = t < this->tokens(tile);
    float in[16];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float bias =
          p.dt_bias != nullptr && first + i < place.channels ? to_float(static_cast<const T*>(p.dt_bias)[place.channel + first + i]) : 0.0F;
      in[2 * i] = there ? scan_step(p, dt[i] + bias) : 0.0F, in[2 * i + 1] = in[2 * i] * x[i];
    }
    float4* to = reinterpret_cast<float4*>(&tiles[tile % 2].in[t][2 * first]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (2 * i < Sizes::kChannels) to[i] = make_float4(in[4 * i], in[4 * i + 1], in[4 * i + 2], in[4 * i + 3]);
  }
  __device__ __forceinline__ void put_numbers(int tile, int u, const Eight<T>& numbers) const {
    const int part = u % Sizes::kNumberParts, t = u / Sizes::kNumberParts % kTile;
    auto& rows = u >= kNumberUnits / 2 ? tiles[tile % 2].C : tiles[tile % 2].B;
    float4* to = reinterpret_cast<float4*>(&rows[t][part * 8]);
    to[0] = make_float4(numbers[0], numbers[1], numbers[2], numbers[3]),
    to[1] = make_float4(numbers[4], numbers[5], numbers[6], numbers[7]);
  }
  // y of a unit: C·h + D x, gated.
  __device__ __forceinline__ void finish(int tile, int u, const Eight<T>& x, const Eight<T>& z) const {
    const int t = u / Sizes::kParts, first = u % Sizes::kParts * 8;
    if (t >= this->tokens(tile)) return;
    float y[8];
    const float4* from = reinterpret_cast<const float4*>(&tiles[tile % 2].y[t][first]);
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      if (i >= Sizes::kChannels) break;
      const float4 v = from[i / 4];
      y[i] = v.x, y[i + 1] = v.y, y[i + 2] = v.z, y[i + 3] = v.w;
    }
    T* to = static_cast<T*>(p.y) + (start + tile * int64_t{kTile} + t) * p.y_stride + place.channel + first;
    const bool whole = in_whole(p.y, p.y_stride, place.channel) && place.channels - first >= 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (first + i >= place.channels) break;
      if (p.D != nullptr) y[i] = fmaf(to_float(static_cast<const T*>(p.D)[place.channel + first + i]), x[i], y[i]);
      if (p.z != nullptr) y[i] *= z[i] * sigmoid(z[i]);
      if (!whole) to[i] = from_float<T>(y[i]);
    }
    if (whole) store_floats<8>(to, y);
  }

  // Gets a tile ready and finishes another, where there are such. What all of a thread's work begins with is under way at once.
  __device__ __forceinline__ void help(int ready, int done) const {
    const bool gets = ready < this->count(), writes = done >= 0;
    Eight<T> x = {}, dt = {}, number = {}, read = {}, z = {};
    if (gets && id < kChannelUnits) x = channels(p.x, p.x_stride, ready, id), dt = channels(p.dt, p.dt_stride, ready, id);
    if (gets && id < kNumberUnits) number = numbers(ready, id);
    if (writes && id < kChannelUnits) load_finish(done, id, read, z);
    for (int u = id; gets && u < kChannelUnits; u += kHelpers) {
      if (u != id) x = channels(p.x, p.x_stride, ready, u), dt = channels(p.dt, p.dt_stride, ready, u);
      put_channels(ready, u, x, dt);
    }
    for (int u = id; gets && u < kNumberUnits; u += kHelpers) {
      if (u != id) number = numbers(ready, u);
      put_numbers(ready, u, number);
    }
    for (int u = id; writes && u < kChannelUnits; u += kHelpers) {
      if (u != id) load_finish(done, u, read, z);
      finish(done, u, read, z);
    }
  }
  __device__ __forceinline__ void load_finish(int tile, int u, Eight<T>& x, Eight<T>& z) const {
    if (p.D != nullptr) x = channels(p.x, p.x_stride, tile, u);
    if (p.z != nullptr) z = channels(p.z, p.z_stride, tile, u);
  }
};

template <typename T, int kLanes, int kStates>
struct Walker : Row<T, kLanes, kStates> {
  using Base = Row<T, kLanes, kStates>;
  using Sizes = typename Base::Sizes;
  using Base::p, Base::place, Base::start, Base::tiles, Base::kTile;
  // Neighbours have the same numbers of neighbouring channels, so that they read the same B and C.
  static constexpr int kApart = 32 / kLanes;  // a channel's lanes
  const int lane = threadIdx.x % 32 / kApart, channel = threadIdx.x / 32 * kApart + threadIdx.x % kApart, first = lane * kStates;
  float h[kStates], rate[kStates];

  __device__ __forceinline__ Walker(const SelectiveScan& params, void* memory) : Base(params, memory) {
    const float* state = state_of_row();
#pragma unroll
    for (int i = 0; i < kStates; ++i) {
      h[i] = there(i) && p.state != nullptr ? state[i] : 0.0F;
      const int64_t at = (place.channel + channel) * p.state_size + first + i;
      rate[i] = there(i) ? scan_rate(to_float(static_cast<const T*>(p.A_log)[at])) : 0.0F;
    }
  }
  __device__ __forceinline__ bool there(int i) const { return channel < place.channels && first + i < p.state_size; }
  __device__ __forceinline__ float* state_of_row() const {
    const int64_t row = p.slot != nullptr ? p.slot[place.row] : place.row;
    return p.state + (row * p.channels + place.channel + channel) * p.state_size + first;
  }
  __device__ __forceinline__ void end() const {
    if (p.state == nullptr) return;
    float* state = state_of_row();
#pragma unroll
    for (int i = 0; i < kStates; ++i)
      if (there(i)) state[i] = h[i];
  }

  __device__ __forceinline__ void keep(int tile) const {
    if (p.chunk_states == nullptr || tile * kTile % kSelectiveScanCudaChunk != 0) return;
    const int64_t chunk = selective_scan_first_chunk(place.row, start, kSelectiveScanCudaChunk) + tile * kTile / kSelectiveScanCudaChunk;
#pragma unroll
    for (int i = 0; i < kStates; ++i)
      if (there(i)) p.chunk_states[(chunk * p.state_size + first + i) * p.channels + place.channel + channel] = h[i];
  }

  // This lane's part of C·h of a token.
  __device__ __forceinline__ float take(const typename Sizes::Tile& tile, int t) {
    const float2 in = *reinterpret_cast<const float2*>(&tile.in[t][2 * channel]);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kStates; i += 4) {
      const float4 B = *reinterpret_cast<const float4*>(&tile.B[t][first + i]), C = *reinterpret_cast<const float4*>(&tile.C[t][first + i]);
      const float b[4] = {B.x, B.y, B.z, B.w}, c[4] = {C.x, C.y, C.z, C.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        h[i + j] = fmaf(exp2_approx(in.x * rate[i + j]), h[i + j], in.y * b[j]);
        sum = fmaf(c[j], h[i + j], sum);
      }
    }
    return sum;
  }

  // Sums over a channel's lanes of four tokens' parts: each step adds half of them here and the other half there, so that a lane ends with
  // one token's sum, or with two lanes two.
  __device__ __forceinline__ void put_sums(typename Sizes::Tile& tile, int t, const float (&parts)[kAtOnce]) const {
    const bool high = (lane & (kLanes == 2 ? 1 : 2)) != 0;
    constexpr int kDistance = kApart * (kLanes == 2 ? 1 : 2);
    const float a = (high ? parts[2] : parts[0]) + __shfl_xor_sync(~0U, high ? parts[0] : parts[2], kDistance);
    const float b = (high ? parts[3] : parts[1]) + __shfl_xor_sync(~0U, high ? parts[1] : parts[3], kDistance);
    if constexpr (kLanes == 2) {
      tile.y[t + 2 * lane][channel] = a, tile.y[t + 2 * lane + 1][channel] = b;
    } else {
      const bool odd = (lane & 1) != 0;
      float sum = (odd ? b : a) + __shfl_xor_sync(~0U, odd ? a : b, kApart);
#pragma unroll
      for (int distance = 4; distance < kLanes; distance *= 2) sum += __shfl_xor_sync(~0U, sum, distance * kApart);
      if (lane < kAtOnce) tile.y[t + lane][channel] = sum;
    }
  }

  __device__ __forceinline__ void walk(int number) {
    keep(number);
    typename Sizes::Tile& tile = tiles[number % 2];
#pragma unroll 2
    for (int t = 0; t < kTile; t += kAtOnce) {
      float parts[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) parts[j] = take(tile, t + j);
      put_sums(tile, t, parts);
    }
  }
};

// While a tile is walked along, the next one is got ready in the place of the one before, whose y are written first: places are of one tile
// each, and y of another memory than the inputs.
template <typename T, int kLanes, int kStates>
__global__ void __launch_bounds__(kWalkers + kHelpers, 2) scan_rows(const __grid_constant__ SelectiveScan p) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  if (threadIdx.x < kWalkers) {
    Walker<T, kLanes, kStates> walker(p, memory);
    const int count = walker.count();
    __syncthreads();
    for (int tile = 0; tile < count; ++tile) {
      walker.walk(tile);
      __syncthreads();
    }
    if (count > 0) walker.end();
  } else {
    const Helper<T, kLanes, kStates> helper(p, memory);
    const int count = helper.count();
    helper.help(0, -1);
    __syncthreads();
    for (int tile = 0; tile < count; ++tile) {
      helper.help(tile + 1, tile - 1);
      __syncthreads();
    }
    if (count > 0) helper.help(count, count - 1);
  }
}

template <typename T, int kLanes, int kStates>
Status scan(const SelectiveScan& p, Stream stream) {
  using Sizes = Shape<kLanes, kStates>;
  auto* kernel = scan_rows<T, kLanes, kStates>;
  constexpr int kBytes = 2 * sizeof(typename Sizes::Tile);
  if (const Status status = status_of(allow_shared_memory(kernel, kBytes)); !status.ok()) return status;
  const int64_t blocks = p.rows * p.groups * scan_blocks(p, Sizes::kChannels);
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kWalkers + kHelpers, kBytes}, stream, p);
}

template <typename T>
Status scan(const SelectiveScan& p, Stream stream) {
  if (p.state_size <= 8) return scan<T, 2, 4>(p, stream);
  if (p.state_size <= 16) return scan<T, 4, 4>(p, stream);
  if (p.state_size <= 32) return scan<T, 8, 4>(p, stream);
  if (p.state_size <= 64) return scan<T, 16, 4>(p, stream);
  return p.state_size <= 128 ? scan<T, 32, 4>(p, stream) : scan<T, 32, 8>(p, stream);
}

}  // namespace

Status selective_scan_forward(const SelectiveScan& p, Stream stream) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.rows == 0 || p.channels == 0 || p.tokens == 0) return {};
  return (p.dtype == DType::bf16 ? scan<bf16> : scan<float>)(p, stream);
}

}  // namespace based::kernels::cuda
