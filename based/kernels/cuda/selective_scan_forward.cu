// Selective scan over whole rows: a block walks along a row with sixteen of its channels, whose states stay in shared memory.
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/selective_scan.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Tokens of a tile, runs of sixteen; what is left of a row where it is short has runs of four.
constexpr int kTile = 256, kShortTile = 64;
// A tile begins with a chunk and ends with one.
static_assert(kTile % kSelectiveScanCudaChunk == 0 && kSelectiveScanCudaChunk % (kTile / kScanLanes) == 0);

struct Shared {
  float delta[kScanChannels][kTile];  // then y without its gate
  float x[kScanChannels][kTile], B[kScanSlab][kTile], C[kScanSlab][kTile];
  float dt_bias[kScanChannels];
};
// Behind it: states and rates, [kScanChannels, state_size] each.
int64_t shared_bytes(const SelectiveScan& p) { return static_cast<int64_t>(sizeof(Shared)) + 2 * kScanChannels * p.state_size * 4; }

template <typename T>
struct Walk {
  const SelectiveScan& p;
  const ScanPlace place;
  Shared& shared;
  float *const states, *const rates;
  const int lane = threadIdx.x % kScanLanes, channel = threadIdx.x / kScanLanes, state_size;
  float skip = 0, total = 0;  // D; the sum of the lane's time steps
  int64_t chunk = 0;          // before the tile

  __device__ __forceinline__ Walk(const SelectiveScan& params, float4* memory)
      : p(params),
        place(params, kScanChannels),
        shared(*reinterpret_cast<Shared*>(memory)),
        states(reinterpret_cast<float*>(&shared + 1)),
        rates(states + kScanChannels * params.state_size),
        state_size(static_cast<int>(params.state_size)) {
    if (p.D != nullptr && channel < place.channels) skip = to_float(static_cast<const T*>(p.D)[place.channel + channel]);
  }

  __device__ __forceinline__ float* state_of_row() const {
    return p.state + ((p.slot != nullptr ? p.slot[place.row] : place.row) * p.channels + place.channel) * state_size;
  }

  __device__ __forceinline__ void begin(int64_t start) {
    chunk = selective_scan_first_chunk(place.row, start, kSelectiveScanCudaChunk);
    const float* state = p.state != nullptr ? state_of_row() : nullptr;
    const T* A_log = static_cast<const T*>(p.A_log) + place.channel * state_size;
    for (int i = threadIdx.x; i < kScanChannels * state_size; i += kScanThreads) {
      const bool there = i < place.channels * state_size;
      states[i] = there && state != nullptr ? state[i] : 0.0F;
      rates[i] = there ? scan_rate(to_float(A_log[i])) : 0.0F;
    }
    if (threadIdx.x < kScanChannels) {
      const bool there = p.dt_bias != nullptr && static_cast<int>(threadIdx.x) < place.channels;
      shared.dt_bias[threadIdx.x] = there ? to_float(static_cast<const T*>(p.dt_bias)[place.channel + threadIdx.x]) : 0.0F;
    }
  }
  __device__ __forceinline__ void end() {
    if (p.state == nullptr) return;
    float* state = state_of_row();
    for (int i = threadIdx.x; i < place.channels * state_size; i += kScanThreads) state[i] = states[i];
  }

  template <int kTileTokens>
  __device__ __forceinline__ ScanColumns<T, kTileTokens> columns_of(const void* matrix, int64_t stride, int64_t token, int first,
                                                                    int tokens) const {
    return {matrix, token * stride + place.group * state_size + first, stride, tokens, min(kScanSlab, state_size - first)};
  }

  // A tile's x and time steps, and the first B and C.
  template <int kTileTokens>
  __device__ __forceinline__ void load(int64_t token, int tokens) {
    const ScanColumns<T, kTileTokens> dt(p.dt, token * p.dt_stride + place.channel, p.dt_stride, tokens, place.channels),
        x(p.x, token * p.x_stride + place.channel, p.x_stride, tokens, place.channels),
        B = columns_of<kTileTokens>(p.B, p.b_stride, token, 0, tokens), C = columns_of<kTileTokens>(p.C, p.c_stride, token, 0, tokens);
    __syncthreads();  // all have done with what is there
    dt.put([&](int column, int t, float raw) {
      shared.delta[column][scan_word(column, t)] = t < tokens ? scan_step(p, raw + shared.dt_bias[column]) : 0.0F;
    });
    x.put_channels(shared.x), B.put_states(shared.B), C.put_states(shared.C);
    __syncthreads();
  }
  template <int kTileTokens>
  __device__ __forceinline__ void load_slab(int64_t token, int first, int tokens) {
    const auto B = columns_of<kTileTokens>(p.B, p.b_stride, token, first, tokens),
               C = columns_of<kTileTokens>(p.C, p.c_stride, token, first, tokens);
    __syncthreads();
    B.put_states(shared.B), C.put_states(shared.C);
    __syncthreads();
  }

  // Where this lane keeps the first number of the state before its run; null: it keeps none.
  template <int kRun>
  __device__ __forceinline__ float* kept(int tokens) const {
    constexpr int kLanesOfChunk = kSelectiveScanCudaChunk / kRun;
    if (p.chunk_states == nullptr || channel >= place.channels || lane % kLanesOfChunk != 0 || lane * kRun >= tokens) return nullptr;
    return p.chunk_states + (chunk + lane / kLanesOfChunk) * state_size * p.channels + place.channel + channel;
  }

  // One number of the channel's state, whose B and C are given.
  template <int kRun>
  __device__ __forceinline__ void advance(float& state, float rate, const float* B, const float* C, float* keep, const float (&delta)[kRun],
                                          const float (&in)[kRun], float (&y)[kRun]) {
    float decay[kRun], added[kRun], read[kRun], sum = 0;
    load_run(B, lane * kRun, 0, added);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      decay[k] = exp2_approx(delta[k] * rate), added[k] *= in[k];
      sum = fmaf(decay[k], sum, added[k]);
    }
    float product = exp2_approx(total * rate);
    const float before = state;
    compose_up(product, sum);
    float h = from_below(product, sum, before, lane);
    if (keep != nullptr) *keep = h;
    __syncwarp();  // all lanes have read the state
    if (lane == kScanLanes - 1) state = fmaf(product, before, sum);
    load_run(C, lane * kRun, 0, read);
#pragma unroll
    for (int k = 0; k < kRun; ++k) {
      h = fmaf(decay[k], h, added[k]);
      y[k] = fmaf(read[k], h, y[k]);
    }
  }

  template <int kCount>
  __device__ __forceinline__ void store(int64_t token, int tokens) {
    T* y = static_cast<T*>(p.y) + token * p.y_stride + place.channel;
    const T* z = static_cast<const T*>(p.z) + token * p.z_stride + place.channel;
    each_of_tile<kCount>(tokens, place.channels, [&](int t, int column) {
      float value[kCount], gate[kCount];
      if (p.z != nullptr) load_floats<kCount>(z + t * p.z_stride + column, gate);
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        value[j] = shared.delta[column + j][scan_word(column + j, t)];
        if (p.z != nullptr) value[j] *= gate[j] * sigmoid(gate[j]);
      }
      store_floats<kCount>(y + t * p.y_stride + column, value);
    });
  }

  template <int kRun>
  __device__ __forceinline__ void take_tile(int64_t token, int tokens, bool whole) {
    load<kRun * kScanLanes>(token, tokens);
    const int shift = scan_word(channel, 0);
    float delta[kRun], in[kRun], y[kRun];
    load_run(shared.delta[channel], lane * kRun, shift, delta), load_run(shared.x[channel], lane * kRun, shift, in);
    total = 0;
#pragma unroll
    for (int k = 0; k < kRun; ++k) y[k] = skip * in[k], in[k] *= delta[k], total += delta[k];
    float *keep = kept<kRun>(tokens), *state = states + channel * state_size;
    const float* rate = rates + channel * state_size;
    for (int first = 0; first < state_size; first += kScanSlab) {
      if (first > 0) load_slab<kRun * kScanLanes>(token, first, tokens);
      const int count = min(kScanSlab, state_size - first);
#pragma unroll 1
      for (int row = 0; row < count; ++row) {
        advance<kRun>(*state++, *rate++, shared.B[row], shared.C[row], keep, delta, in, y);
        if (keep != nullptr) keep += p.channels;
      }
    }
    store_run(shared.delta[channel], lane * kRun, shift, y);  // where this thread alone has read
    __syncthreads();
    if (whole) {
      store<16 / sizeof(T)>(token, tokens);
    } else {
      store<1>(token, tokens);
    }
    chunk += kTile / kSelectiveScanCudaChunk;
  }
};

template <typename T>
__global__ void __launch_bounds__(kScanThreads, 2) scan_rows(const __grid_constant__ SelectiveScan p, bool whole) {
  extern __shared__ float4 memory[];
  overlap_kernels();
  Walk<T> walk(p, memory);
  const int64_t start = p.row_start[walk.place.row], stop = p.row_start[walk.place.row + 1];
  if (start >= stop) return;
  walk.begin(start);
  whole = whole && walk.place.channels % (16 / sizeof(T)) == 0 && walk.place.channel % (16 / sizeof(T)) == 0;
  for (int64_t token = start; token < stop; token += kTile) {
    const int tokens = static_cast<int>(min(int64_t{kTile}, stop - token));
    if (tokens > kShortTile) {
      walk.template take_tile<kTile / kScanLanes>(token, tokens, whole);
    } else {
      walk.template take_tile<kShortTile / kScanLanes>(token, tokens, whole);
    }
  }
  walk.end();
}

// Whether y and z can be moved 16 bytes at a time, where a block's channels allow.
bool stores_whole(const SelectiveScan& p) {
  const int64_t count = 16 / dtype_size(p.dtype);
  const auto fits = [&](const void* tokens, int64_t stride) {
    return reinterpret_cast<uintptr_t>(tokens) % 16 == 0 && stride % count == 0;
  };
  return fits(p.y, p.y_stride) && fits(p.z, p.z_stride);
}

}  // namespace

Status selective_scan_forward(const SelectiveScan& p, Stream stream) {
  if (const Status status = check_scan(p); !status.ok()) return status;
  if (p.rows == 0 || p.channels == 0 || p.tokens == 0) return {};
  auto* kernel = p.dtype == DType::bf16 ? scan_rows<bf16> : scan_rows<float>;
  const int64_t bytes = shared_bytes(p), blocks = p.rows * p.groups * scan_blocks(p, kScanChannels);
  if (const Status status = status_of(allow_shared_memory(kernel, static_cast<int>(bytes))); !status.ok()) return status;
  return launch_overlapped(kernel, {static_cast<unsigned>(blocks), kScanThreads, bytes}, stream, p, stores_whole(p));
}

}  // namespace based::kernels::cuda
