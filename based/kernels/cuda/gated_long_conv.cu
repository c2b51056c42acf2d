// A warp has a head's convolution of all the block's copies over 256 outputs, in blocks of 16: an output block takes the inputs before it,
// 8 tokens at a time. A fragment of T depends on t − s alone, so from one 8 inputs to the next only half of it is read from shared memory.
#include "based/kernels/cuda/gated_long_conv.cuh"

namespace based::kernels::cuda {
namespace detail::long_conv {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kZeros = kChunk;  // in front of a filter in shared memory: taps of inputs that lie ahead

// `kSpan`: the outputs of a block, for whose sums its threads have registers.
template <int kHeadDim, int kSpanOf>
struct Shape {
  static constexpr int kSpan = kSpanOf, kBlocksAtOnce = kSpan > 64 ? 2 : 3;  // of a multiprocessor
  static constexpr int kHeads = kChannels / kHeadDim, kTiles = kHeadDim, kColumns = 8 * kTiles, kRows = kColumns / (kHeadDim * kHeadDim);
  static constexpr int kTimeWarps = kWarps / kHeads;       // warps of a head, which take its blocks in turns
  static constexpr int kBlocks = kSpan / 16 / kTimeWarps;  // of a warp
  static constexpr int kStride = kHeadDim == 1 ? 8 : 24;   // floats of a token: 8 columns of four tokens lie in 32 banks
  static constexpr int kPlane = kChunk * kStride + (kHeadDim == 1 ? 4 : 8);
  static constexpr int kItems = Item<kRows>::kCount / kThreads;
  using Ahead = Requests<2, kItems, kThreads>;
  static_assert(kHeadDim == 1 || kHeadDim == 2);
};

struct Place {
  int64_t first_row, channel;
  int span;
};

template <class S>
__device__ __forceinline__ Place place_of(const Convolution& p) {
  const int64_t spans = (p.length + S::kSpan - 1) / S::kSpan, groups = p.channels / kChannels, block = blockIdx.x;
  const int64_t of_rows = block / spans;
  return {of_rows / groups * S::kRows, of_rows % groups * kChannels, static_cast<int>(block % spans)};
}

__device__ __forceinline__ int64_t token_of(const Convolution& p, int64_t row, int time) {
  return row * p.length + (p.reversed ? p.length - 1 - time : time);
}

template <int kHeadDim, bool kSplit>
__device__ void load_filter(const Convolution& p, const Place& place, int end, int plane, float* filter) {
  const int64_t first = place.channel / kHeadDim;
  for (int i = threadIdx.x; i < kChannels / kHeadDim * plane; i += kThreads) {
    const int head = i / plane, tap = i % plane - kZeros;
    const bool there = tap >= 0 && tap < end && tap < p.taps;
    filter[i] = there ? operand<kSplit>(__ldg(p.filter + (first + head) * p.taps + tap)) : 0.0F;
  }
}

// Two arrays' items of the chunk that begins at `first`.
template <class S>
__device__ __forceinline__ void ask(const Convolution& p, const Place& place, const Columns& a, const Columns& b, int first,
                                    const typename S::Ahead& ahead) {
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * kThreads);
    const int64_t row = place.first_row + item.row, token = token_of(p, row, first + item.token), channel = place.channel + 4 * item.half;
    const bool there = row < p.rows && first + item.token < p.length;
    ahead.ask(0, i, a, token, channel, there);
    ahead.ask(1, i, b, token, channel, there);
  }
  copy_async_commit();
}

template <class S, int kHeadDim, bool kSplit>
__device__ __forceinline__ void store_inputs(const Convolution& p, const typename S::Ahead& ahead, float* inputs) {
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * kThreads);
    const int at = item.token * S::kStride + item.row * kHeadDim * kHeadDim;
    store_products<kHeadDim, kSplit>(inputs, S::kPlane, item.half, at, ahead.take(0, i, p.a), ahead.take(1, i, p.b));
  }
}

// What the inputs of a chunk give to a warp's blocks.
template <class S, bool kSplit>
__device__ __forceinline__ void multiply(float (&sums)[S::kBlocks][S::kTiles][4], const float* inputs, const float* filter, int time_warp,
                                         int span, int chunk, int length, int taps) {
  constexpr int kGroup = kSplit ? 2 : 8;  // of 8 inputs, whose registers are held at once
  const int lane = threadIdx.x % 32, of_row = lane / 4, of_column = lane % 4;
#pragma unroll
  for (int group = 0; group < kChunk / 8; group += kGroup) {
    Registers<2, kSplit> b[kGroup][S::kTiles];
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          b[i][tile].set(half, inputs[((group + i) * 8 + of_column + 4 * half) * S::kStride + tile * 8 + of_row]);
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
      const int first = span + 16 * (block * S::kTimeWarps + time_warp);
      if (first < chunk || first >= length || first - chunk - kChunk >= taps) continue;
      const float* taps = filter + kZeros + first - chunk - 8 * group + of_row - of_column;
      float next = taps[8], next_4 = taps[4];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const float here = taps[-8 * i], here_4 = taps[-8 * i - 4];
        Registers<4, kSplit> a;
        a.set(0, here), a.set(1, next), a.set(2, here_4), a.set(3, next_4);
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) multiply_add<kSplit>(sums[block][tile], a, b[i][tile]);
        next = here, next_4 = here_4;
      }
    }
  }
}

// Four channels of one token from their heads' planes, read out by `by_i` and `by_j`.
template <int kHeadDim>
__device__ __forceinline__ void read_out(const float* z, int plane, float4 by_i, float4 by_j, float4& sum_i, float4& sum_j) {
  if constexpr (kHeadDim == 1) {
    const float4 of = make_float4(z[0], z[plane], z[2 * plane], z[3 * plane]);
    sum_i = make_float4(by_i.x * of.x, by_i.y * of.y, by_i.z * of.z, by_i.w * of.w);
    sum_j = make_float4(by_j.x * of.x, by_j.y * of.y, by_j.z * of.z, by_j.w * of.w);
  } else {
    const float4 f = *reinterpret_cast<const float4*>(z), g = *reinterpret_cast<const float4*>(z + plane);
    sum_i = make_float4(by_i.x * f.x + by_i.y * f.z, by_i.x * f.y + by_i.y * f.w, by_i.z * g.x + by_i.w * g.z, by_i.z * g.y + by_i.w * g.w);
    sum_j = make_float4(by_j.x * f.x + by_j.y * f.y, by_j.x * f.z + by_j.y * f.w, by_j.z * g.x + by_j.w * g.y, by_j.z * g.z + by_j.w * g.w);
  }
}

template <class S, int kHeadDim>
__device__ __forceinline__ void write_chunk(const Convolution& p, const Place& place, const float* staged, int first,
                                            const typename S::Ahead& ahead) {
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * kThreads);
    const int64_t row = place.first_row + item.row;
    if (row >= p.rows || first + item.token >= p.length) continue;
    const float* z = staged + kChannels / kHeadDim / 2 * item.half * S::kPlane + item.token * S::kStride + item.row * kHeadDim * kHeadDim;
    const float4 by_i = ahead.take(0, i, p.by_i), by_j = ahead.take(1, i, p.by_j);
    float4 sum_i, sum_j;
    read_out<kHeadDim>(z, S::kPlane, by_i, by_j, sum_i, sum_j);
    const int64_t token = token_of(p, row, first + item.token), channel = place.channel + 4 * item.half;
    if (p.sum_i.data != nullptr) store4(p.sum_i, token, channel, sum_i);
    if (p.sum_j.data != nullptr) store4(p.sum_j, token, channel, sum_j);
  }
}

// What reads out the first chunk has been asked for.
template <class S, int kHeadDim>
__device__ __forceinline__ void write_outputs(const Convolution& p, const Place& place, float* staged, int time_warp, int head,
                                              const float (&sums)[S::kBlocks][S::kTiles][4], const typename S::Ahead& ahead) {
  const int lane = threadIdx.x % 32, span = place.span * S::kSpan;
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
        float* to = staged + head * S::kPlane + (first + lane / 4) * S::kStride + 8 * tile + 2 * (lane % 4);
        const auto& of = sums[block][tile];
        *reinterpret_cast<float2*>(to) = make_float2(of[0], of[1]);
        *reinterpret_cast<float2*>(to + 8 * S::kStride) = make_float2(of[2], of[3]);
      }
    }
    copy_async_wait<0>();
    __syncthreads();
    write_chunk<S, kHeadDim>(p, place, staged, chunk, ahead);
    if (part + 1 < S::kSpan / kChunk) ask<S>(p, place, p.by_i, p.by_j, chunk + kChunk, ahead);
  }
}

template <int kHeadDim, bool kSplit, int kSpan>
__global__ void __launch_bounds__(kThreads, Shape<kHeadDim, kSpan>::kBlocksAtOnce) convolve_kernel(const Convolution p, int filter_plane) {
  using S = Shape<kHeadDim, kSpan>;
  extern __shared__ float4 shared[];
  const typename S::Ahead ahead{shared};
  float* const inputs = reinterpret_cast<float*>(shared + S::Ahead::kCount);
  float* const filter = inputs + S::kHeads * S::kPlane;
  const Place place = place_of<S>(p);
  const int warp = threadIdx.x / 32, head = warp % S::kHeads, time_warp = warp / S::kHeads, span = place.span * kSpan;
  const int length = static_cast<int>(p.length), end = min(length, span + kSpan), taps = static_cast<int>(min(p.taps, p.length));
  const int begin = max(0, span - taps + 1) / kChunk * kChunk;
  ask<S>(p, place, p.a, p.b, begin, ahead);
  load_filter<kHeadDim, kSplit>(p, place, end, filter_plane, filter);
  float sums[S::kBlocks][S::kTiles][4] = {};
  for (int chunk = begin; chunk < end; chunk += kChunk) {
    copy_async_wait<0>();
    __syncthreads();
    store_inputs<S, kHeadDim, kSplit>(p, ahead, inputs);
    __syncthreads();
    if (chunk + kChunk < end)
      ask<S>(p, place, p.a, p.b, chunk + kChunk, ahead);
    else
      ask<S>(p, place, p.by_i, p.by_j, span, ahead);
    multiply<S, kSplit>(sums, inputs + head * S::kPlane, filter + head * filter_plane, time_warp, span, chunk, length, taps);
  }
  write_outputs<S, kHeadDim>(p, place, inputs, time_warp, head, sums, ahead);
}

int64_t filter_plane_of(int64_t length) { return kZeros + (length + 15) / 16 * 16; }
// Of a block.
template <class S>
int64_t shared_bytes(int64_t filter_plane) {
  return 16 * S::Ahead::kCount + 4 * S::kHeads * (S::kPlane + filter_plane);
}

template <int kHeadDim, bool kSplit, int kSpan>
Status launch(const Convolution& p, Stream stream) {
  using S = Shape<kHeadDim, kSpan>;
  const int64_t spans = (p.length + kSpan - 1) / kSpan, of_rows = (p.rows + S::kRows - 1) / S::kRows;
  const int64_t filter_plane = filter_plane_of(p.length), bytes = shared_bytes<S>(filter_plane);
  const auto kernel = convolve_kernel<kHeadDim, kSplit, kSpan>;
  if (const cudaError_t e = allow_shared_memory(kernel, static_cast<int>(bytes)); e != cudaSuccess) return status_of(e);
  const auto blocks = static_cast<unsigned>(spans * of_rows * (p.channels / kChannels));
  kernel<<<blocks, kThreads, static_cast<size_t>(bytes), stream_of(stream)>>>(p, static_cast<int>(filter_plane));
  return launched();
}

template <int kHeadDim, bool kSplit>
Status launch(const Convolution& p, Stream stream) {
  return p.length <= 64 ? launch<kHeadDim, kSplit, 64>(p, stream) : launch<kHeadDim, kSplit, 256>(p, stream);
}

}  // namespace

bool fits(int64_t length, int head_dim) {
  const int64_t plane = filter_plane_of(length),
                bytes = head_dim == 1 ? shared_bytes<Shape<1, 256>>(plane) : shared_bytes<Shape<2, 256>>(plane);
  return bytes <= device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

Status convolve(const Convolution& p, int head_dim, bool single_tf32, Stream stream) {
  if (p.rows == 0 || p.length == 0) return {};
  if (head_dim == 1) return single_tf32 ? launch<1, false>(p, stream) : launch<1, true>(p, stream);
  return single_tf32 ? launch<2, false>(p, stream) : launch<2, true>(p, stream);
}

}  // namespace detail::long_conv

bool gated_long_conv_takes(const GatedLongConv& p) {
  const auto aligned = [](const float* data, int64_t stride) { return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0; };
  const bool whole = p.q != nullptr && p.v != nullptr;
  return (p.head_dim == 1 || (p.head_dim == 2 && whole)) && p.channels % detail::long_conv::kChannels == 0 &&
         p.length <= kGatedLongConvLength && detail::long_conv::fits(p.length, p.head_dim) && aligned(p.q, p.q_stride) &&
         aligned(p.k, p.k_stride) && aligned(p.v, p.v_stride) && aligned(p.y, p.y_stride);
}

Status gated_long_conv_forward(const GatedLongConv& p, Stream stream) {
  if (!gated_long_conv_takes(p)) return Status{"gated_long_conv: no kernel for these sizes"};
  detail::long_conv::Convolution to;
  to.a = {p.k, p.k_stride}, to.b = {p.v, p.v_stride}, to.by_i = {p.q, p.q_stride}, to.sum_i = {p.y, p.y_stride};
  to.filter = p.filter, to.rows = p.rows, to.length = p.length, to.channels = p.channels, to.taps = p.taps;
  return detail::long_conv::convolve(to, p.head_dim, p.single_tf32, stream);
}

}  // namespace based::kernels::cuda
