// A warp convolves all columns of one head for its share of the block's outputs, which it divides into blocks of 16. It multiplies an
// output block with the inputs up to it, 8 tokens at a time. A fragment of T depends only on t − s. So from one group of 8 inputs to the
// next, only half of the fragment is loaded from shared memory.
#include "based/kernels/conv/cuda/gated_long_conv.cuh"

namespace based::kernels::cuda {
namespace detail::long_conv {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kZeros = kChunk;  // zero taps before a filter in shared memory, for inputs later than the output

// kSpan: output tokens of a block. Their sums are in registers.
template <int kHeadDim, int kOutputs>
struct Shape {
  static constexpr int kSpan = kOutputs, kResidentBlocks = kSpan > 64 ? 2 : 3;  // resident blocks per multiprocessor
  static constexpr int kHeads = kChannels / kHeadDim, kTiles = kHeadDim, kColumns = 8 * kTiles, kRows = kColumns / (kHeadDim * kHeadDim);
  static constexpr int kTimeWarps = kWarps / kHeads;       // warps per head; they process its output blocks in turn
  static constexpr int kBlocks = kSpan / 16 / kTimeWarps;  // output blocks per warp
  static constexpr int kStride = kHeadDim == 1 ? 8 : 24;   // floats per token; 8 columns of four tokens are in 32 different banks
  static constexpr int kPlane = kChunk * kStride + (kHeadDim == 1 ? 4 : 8);
  static constexpr int kItems = Item<kRows>::kCount / kThreads;
  using Loads = Prefetch<2, kItems, kThreads>;
  static_assert(kHeadDim == 1 || kHeadDim == 2);
};

struct BlockPosition {
  int64_t first_row, channel;
  int span;
};

template <class S>
__device__ __forceinline__ BlockPosition block_position(const Convolution& p) {
  const int64_t spans = (p.length + S::kSpan - 1) / S::kSpan, groups = p.channels / kChannels, block = blockIdx.x;
  const int64_t row_block = block / spans;
  return {row_block / groups * S::kRows, row_block % groups * kChannels, static_cast<int>(block % spans)};
}

__device__ __forceinline__ int64_t token_index(const Convolution& p, int64_t row, int time) {
  return row * p.length + (p.reversed ? p.length - 1 - time : time);
}

template <int kHeadDim, bool kSplit>
__device__ void load_filter(const Convolution& p, const BlockPosition& position, int end, int plane, float* filter) {
  const int64_t first = position.channel / kHeadDim;
  for (int i = threadIdx.x; i < kChannels / kHeadDim * plane; i += kThreads) {
    const int head = i / plane, tap = i % plane - kZeros;
    const bool valid = tap >= 0 && tap < end && tap < p.taps;
    filter[i] = valid ? operand<kSplit>(__ldg(p.filter + (first + head) * p.taps + tap)) : 0.0F;
  }
}

// Starts loading two tensors' items of the chunk that begins at `first`.
template <class S>
__device__ __forceinline__ void load_chunk(const Convolution& p, const BlockPosition& position, const Columns& a, const Columns& b,
                                           int first, const typename S::Loads& loads) {
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * kThreads);
    const int64_t row = position.first_row + item.row, token = token_index(p, row, first + item.token),
                  channel = position.channel + 4 * item.half;
    const bool valid = row < p.rows && first + item.token < p.length;
    loads.load(0, i, a, token, channel, valid);
    loads.load(1, i, b, token, channel, valid);
  }
  copy_async_commit();
}

template <class S, int kHeadDim, bool kSplit>
__device__ __forceinline__ void store_inputs(const Convolution& p, const typename S::Loads& loads, float* inputs) {
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * kThreads);
    const int offset = item.token * S::kStride + item.row * kHeadDim * kHeadDim;
    store_products<kHeadDim, kSplit>(inputs, S::kPlane, item.half, offset, loads.get(0, i, p.a), loads.get(1, i, p.b));
  }
}

// Adds the contributions of a chunk of inputs to a warp's output blocks.
template <class S, bool kSplit>
__device__ __forceinline__ void multiply(float (&sums)[S::kBlocks][S::kTiles][4], const float* inputs, const float* filter, int time_warp,
                                         int span, int chunk, int length, int taps) {
  constexpr int kGroup = kSplit ? 2 : 8;  // groups of 8 inputs that are in registers together
  const int lane = threadIdx.x % 32, lane_row = lane / 4, lane_column = lane % 4;
#pragma unroll
  for (int group = 0; group < kChunk / 8; group += kGroup) {
    Registers<2, kSplit> b[kGroup][S::kTiles];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          b[i][tile].set(half, inputs[((group + i) * 8 + lane_column + 4 * half) * S::kStride + tile * 8 + lane_row]);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      const int first = span + 16 * (block * S::kTimeWarps + time_warp);
      if (first < chunk || first >= length || first - chunk - kChunk >= taps) continue;
      const float* taps = filter + kZeros + first - chunk - 8 * group + lane_row - lane_column;
      float next = taps[8], next_4 = taps[4];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float current = taps[-8 * i], current_4 = taps[-8 * i - 4];
        Registers<4, kSplit> a;
        a.set(0, current), a.set(1, next), a.set(2, current_4), a.set(3, next_4);
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) multiply_add<kSplit>(sums[block][tile], a, b[i][tile]);
        next = current, next_4 = current_4;
      }
    }
  }
}

// Computes sum_i and sum_j of four channels of one token from the planes of their heads.
template <int kHeadDim>
__device__ __forceinline__ void multiply_outputs(const float* z, int plane, float4 by_i, float4 by_j, float4& sum_i, float4& sum_j) {
  if constexpr (kHeadDim == 1) {
    const float4 f = make_float4(z[0], z[plane], z[2 * plane], z[3 * plane]);
    sum_i = make_float4(by_i.x * f.x, by_i.y * f.y, by_i.z * f.z, by_i.w * f.w);
    sum_j = make_float4(by_j.x * f.x, by_j.y * f.y, by_j.z * f.z, by_j.w * f.w);
  } else {
    const float4 f = *reinterpret_cast<const float4*>(z), g = *reinterpret_cast<const float4*>(z + plane);
    sum_i = make_float4(by_i.x * f.x + by_i.y * f.z, by_i.x * f.y + by_i.y * f.w, by_i.z * g.x + by_i.w * g.z, by_i.z * g.y + by_i.w * g.w);
    sum_j = make_float4(by_j.x * f.x + by_j.y * f.y, by_j.x * f.z + by_j.y * f.w, by_j.z * g.x + by_j.w * g.y, by_j.z * g.z + by_j.w * g.w);
  }
}

template <class S, int kHeadDim>
__device__ __forceinline__ void write_chunk(const Convolution& p, const BlockPosition& position, const float* staged, int first,
                                            const typename S::Loads& loads) {
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * kThreads);
    const int64_t row = position.first_row + item.row;
    if (row >= p.rows || first + item.token >= p.length) continue;
    const float* z = staged + kChannels / kHeadDim / 2 * item.half * S::kPlane + item.token * S::kStride + item.row * kHeadDim * kHeadDim;
    const float4 by_i = loads.get(0, i, p.by_i), by_j = loads.get(1, i, p.by_j);
    float4 sum_i, sum_j;
    multiply_outputs<kHeadDim>(z, S::kPlane, by_i, by_j, sum_i, sum_j);
    const int64_t token = token_index(p, row, first + item.token), channel = position.channel + 4 * item.half;
    if (p.sum_i.data != nullptr) store4(p.sum_i, token, channel, sum_i);
    if (p.sum_j.data != nullptr) store4(p.sum_j, token, channel, sum_j);
  }
}

// Stores the outputs of the block chunk by chunk. The caller has started loading by_i and by_j of the first chunk.
template <class S, int kHeadDim>
__device__ __forceinline__ void write_outputs(const Convolution& p, const BlockPosition& position, float* staged, int time_warp, int head,
                                              const float (&sums)[S::kBlocks][S::kTiles][4], const typename S::Loads& loads) {
  const int lane = threadIdx.x % 32, span = position.span * S::kSpan;
#pragma unroll
  for (int part = 0; part < S::kSpan / kChunk; ++part) {
    const int chunk = span + part * kChunk;
    if (chunk >= p.length) break;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4 / S::kTimeWarps; ++i) {
      const int block = part * (4 / S::kTimeWarps) + i, first = 16 * (i * S::kTimeWarps + time_warp);
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        float* z = staged + head * S::kPlane + (first + lane / 4) * S::kStride + 8 * tile + 2 * (lane % 4);
        const auto& sum = sums[block][tile];
        *reinterpret_cast<float2*>(z) = make_float2(sum[0], sum[1]);
        *reinterpret_cast<float2*>(z + 8 * S::kStride) = make_float2(sum[2], sum[3]);
      }
    }
    copy_async_wait<0>();
    __syncthreads();
    write_chunk<S, kHeadDim>(p, position, staged, chunk, loads);
    if (part + 1 < S::kSpan / kChunk) load_chunk<S>(p, position, p.by_i, p.by_j, chunk + kChunk, loads);
  }
}

template <int kHeadDim, bool kSplit, int kSpan>
__global__ void __launch_bounds__(kThreads, Shape<kHeadDim, kSpan>::kResidentBlocks)
    convolve_kernel(const Convolution p, int filter_plane) {
  using S = Shape<kHeadDim, kSpan>;
  extern __shared__ float4 shared[];
  const typename S::Loads loads{shared};
  float* const inputs = reinterpret_cast<float*>(shared + S::Loads::kCount);
  float* const filter = inputs + S::kHeads * S::kPlane;
  const BlockPosition position = block_position<S>(p);
  const int warp = threadIdx.x / 32, head = warp % S::kHeads, time_warp = warp / S::kHeads, span = position.span * kSpan;
  const int length = static_cast<int>(p.length), end = min(length, span + kSpan), taps = static_cast<int>(min(p.taps, p.length));
  const int begin = max(0, span - taps + 1) / kChunk * kChunk;
  load_chunk<S>(p, position, p.a, p.b, begin, loads);
  load_filter<kHeadDim, kSplit>(p, position, end, filter_plane, filter);
  float sums[S::kBlocks][S::kTiles][4] = {};
  for (int chunk = begin; chunk < end; chunk += kChunk) {
    copy_async_wait<0>();
    __syncthreads();
    store_inputs<S, kHeadDim, kSplit>(p, loads, inputs);
    __syncthreads();
    if (chunk + kChunk < end)
      load_chunk<S>(p, position, p.a, p.b, chunk + kChunk, loads);
    else
      load_chunk<S>(p, position, p.by_i, p.by_j, span, loads);
    multiply<S, kSplit>(sums, inputs + head * S::kPlane, filter + head * filter_plane, time_warp, span, chunk, length, taps);
  }
  write_outputs<S, kHeadDim>(p, position, inputs, time_warp, head, sums, loads);
}

int64_t filter_plane_size(int64_t length) { return kZeros + (length + 15) / 16 * 16; }
// Shared memory of a block.
template <class S>
int64_t shared_bytes(int64_t filter_plane) {
  return 16 * S::Loads::kCount + 4 * S::kHeads * (S::kPlane + filter_plane);
}

template <int kHeadDim, bool kSplit, int kSpan>
Status launch(const Convolution& p, Queue queue) {
  using S = Shape<kHeadDim, kSpan>;
  const int64_t spans = (p.length + kSpan - 1) / kSpan, row_blocks = (p.rows + S::kRows - 1) / S::kRows;
  const int64_t filter_plane = filter_plane_size(p.length), bytes = shared_bytes<S>(filter_plane);
  const auto kernel = convolve_kernel<kHeadDim, kSplit, kSpan>;
  if (const cudaError_t e = allow_shared_memory(kernel, static_cast<int>(bytes)); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(spans * row_blocks * (p.channels / kChannels));
  kernel<<<blocks, kThreads, static_cast<size_t>(bytes), stream_of(queue)>>>(p, static_cast<int>(filter_plane));
  return launched();
}

template <int kHeadDim, bool kSplit>
Status launch(const Convolution& p, Queue queue) {
  return p.length <= 64 ? launch<kHeadDim, kSplit, 64>(p, queue) : launch<kHeadDim, kSplit, 256>(p, queue);
}

}  // namespace

bool fits(int64_t length, int head_dim) {
  const int64_t plane = filter_plane_size(length),
                bytes = head_dim == 1 ? shared_bytes<Shape<1, 256>>(plane) : shared_bytes<Shape<2, 256>>(plane);
  return bytes <= block_shared_memory();
}

Status convolve(const Convolution& p, int head_dim, bool single_tf32, Queue queue) {
  if (p.rows == 0 || p.length == 0) return {};
  if (head_dim == 1) return single_tf32 ? launch<1, false>(p, queue) : launch<1, true>(p, queue);
  return single_tf32 ? launch<2, false>(p, queue) : launch<2, true>(p, queue);
}

}  // namespace detail::long_conv

bool gated_long_conv_takes(const GatedLongConv& p) {
  if (p.head_dim > 2) return detail::long_conv::takes_pairs(p);
  const auto aligned = [](const float* data, int64_t stride) { return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0; };
  const bool whole = p.q != nullptr && p.v != nullptr;
  return (p.head_dim == 1 || (p.head_dim == 2 && whole)) && p.channels % detail::long_conv::kChannels == 0 &&
         p.length <= kGatedLongConvLength && detail::long_conv::fits(p.length, p.head_dim) && aligned(p.q, p.q_stride) &&
         aligned(p.k, p.k_stride) && aligned(p.v, p.v_stride) && aligned(p.y, p.y_stride);
}

Status gated_long_conv_forward(const GatedLongConv& p, Queue queue) {
  if (!gated_long_conv_takes(p)) return Status{"gated_long_conv: no kernel for these sizes"};
  if (p.head_dim > 2) return detail::long_conv::forward_by_pairs(p, queue);
  detail::long_conv::Convolution c;
  c.a = {p.k, p.k_stride}, c.b = {p.v, p.v_stride}, c.by_i = {p.q, p.q_stride}, c.sum_i = {p.y, p.y_stride};
  c.filter = p.filter, c.rows = p.rows, c.length = p.length, c.channels = p.channels, c.taps = p.taps;
  return detail::long_conv::convolve(c, p.head_dim, p.single_tf32, queue);
}

}  // namespace based::kernels::cuda
