// grad_q is the forward's convolution read out by grad_y, grad_k and grad_v a convolution that runs backwards in time. The filter's
// gradient sums G[t, s] = Σ w_t u_s over all copies, w of (q, grad_y) and u of (k, v), along its diagonals: blocks of 16 t and 8 s with the
// same t − s share their registers, and a warp has every other such difference of 32.
#include <algorithm>

#include "based/kernels/cuda/gated_long_conv.cuh"

namespace based::kernels::cuda {
namespace detail::long_conv {
namespace {

constexpr int kBand = 256;                        // differences of t and s that a block sums
constexpr int kPartial = kBand + 16;              // what it writes: those from −16 on, of blocks at the band's ends
constexpr int kDifferences = kBand / 8;           // of blocks
constexpr int kRing = (kBand + kChunk) / kChunk;  // chunks of u in shared memory
constexpr int kDifferenceWarps = 2;               // of a head
constexpr int kOwn = kDifferences / kDifferenceWarps;

template <int kHeadDim>
struct Shape {
  static constexpr int kHeads = kChannels / kHeadDim, kRows = 8 / (kHeadDim * kHeadDim), kThreads = 32 * kHeads * kDifferenceWarps;
  static constexpr int kPad = 4 * kHeadDim;  // so that the planes that a warp writes at once lie in different banks
  static constexpr int kPlane = kChunk * 8 + kPad, kRingPlane = kRing * kChunk * 8 + kPad;
  static constexpr int kHeadsAtOnce = 4 / kHeadDim;  // whose sums are in shared memory at the end
  static constexpr int kItems = Item<kRows>::kCount / kThreads;
  using Ahead = Requests<4, kItems, kThreads>;
  static constexpr int kBytes = 16 * Ahead::kCount + 4 * kHeads * (kPlane + kRingPlane);
  static_assert(4 * kHeads * (kPlane + kRingPlane) >= 4 * kHeadsAtOnce * kDifferences * 128);
};

struct FilterGradient {
  Columns k, v, q, grad_y;
  float* partial = nullptr;  // [splits, bands, channels / head_dim, kPartial]
  int64_t rows = 0, length = 0, channels = 0;
  int splits = 1, bands = 1, taps = 0;  // taps and bands of the tokens that a row has
};

// Where column `n` of a token lies in a plane: 8 tokens' four columns lie in 32 banks.
__device__ __forceinline__ int place_of(int token, int n) { return token * 8 + (n ^ (token & 4)); }

// A chunk of each operand of some rows: that of w begins at token `of_w`, that of u at `of_u`.
template <int kHeadDim>
__device__ __forceinline__ void ask(const FilterGradient& p, int64_t first_row, int64_t first_channel, int of_w, int of_u,
                                    const typename Shape<kHeadDim>::Ahead& ahead) {
  using S = Shape<kHeadDim>;
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * S::kThreads);
    const int64_t row = first_row + item.row, channel = first_channel + 4 * item.half;
    const int64_t w = of_w + item.token, u = of_u + item.token;
    ahead.ask(0, i, p.q, row * p.length + w, channel, row < p.rows && w < p.length);
    ahead.ask(1, i, p.grad_y, row * p.length + w, channel, row < p.rows && w < p.length);
    ahead.ask(2, i, p.k, row * p.length + u, channel, row < p.rows && u < p.length);
    ahead.ask(3, i, p.v, row * p.length + u, channel, row < p.rows && u < p.length);
  }
  copy_async_commit();
}

// The products of two arrays, the first of which was asked for as `first`.
template <int kHeadDim, bool kSplit>
__device__ __forceinline__ void store(const typename Shape<kHeadDim>::Ahead& ahead, int first, const Columns& a, const Columns& b,
                                      float* planes, int plane) {
  using S = Shape<kHeadDim>;
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * S::kThreads);
    store_products<kHeadDim, kSplit>(planes, plane, item.half, place_of(item.token, item.row * kHeadDim * kHeadDim),
                                     ahead.take(first, i, a), ahead.take(first + 1, i, b));
  }
}

template <bool kSplit>
__device__ __forceinline__ void multiply(float (&sums)[kOwn][4], const float* w, const float* ring, int chunk, int band, int warp,
                                         int taps) {
  const int lane = threadIdx.x % 32, of_row = lane / 4, of_column = lane % 4;
  const int of_ring = (chunk - band * (kBand / kChunk)) % kRing * kChunk;  // where the tokens of chunk − band lie
#pragma unroll 1
  for (int block = 0; block < kChunk; block += 16) {
    Registers<4, kSplit> a;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.set(i, w[place_of(block + of_row + 8 * (i % 2), of_column + 4 * (i / 2))]);
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      const int difference = kDifferenceWarps * own + warp - 1;  // and 32 for each band
      const int offset = block - 8 * difference;                 // of s in the chunk that u has latest
      if ((chunk - band * (kBand / kChunk)) * kChunk + offset < 0 || band * kBand + 8 * difference - 7 >= taps) continue;
      int at = of_ring + offset;
      if (at < 0) at += kRing * kChunk;
      Registers<2, kSplit> b;
      b.set(0, ring[place_of(at + of_row, of_column)]), b.set(1, ring[place_of(at + of_row, of_column + 4)]);
      multiply_add<kSplit>(sums[own], a, b);
    }
  }
}

// Entry (t, s) of the block of a difference is at [difference][t][s].
__device__ __forceinline__ float diagonal_sum(const float* blocks, int out) {
  float sum = 0;
  for (int s = 0; s < 8; ++s) {
    const int shifted = out - 8 + s, difference = shifted >> 3, t = shifted & 7;
    if (difference >= 0 && difference < kDifferences) sum += blocks[difference * 128 + t * 8 + s];
    if (difference >= 1 && difference <= kDifferences) sum += blocks[(difference - 1) * 128 + (t + 8) * 8 + s];
  }
  return sum;
}

template <int kHeadDim>
__device__ __forceinline__ void write_sums(const FilterGradient& p, float* blocks, const float (&sums)[kOwn][4], int head, int warp,
                                           float* partial) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < S::kHeads; first += S::kHeadsAtOnce) {
    __syncthreads();
    if (head >= first && head < first + S::kHeadsAtOnce) {
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        float* to = blocks + ((head - first) * kDifferences + kDifferenceWarps * own + warp) * 128 + lane / 4 * 8 + 2 * (lane % 4);
        *reinterpret_cast<float2*>(to) = make_float2(sums[own][0], sums[own][1]);
        *reinterpret_cast<float2*>(to + 64) = make_float2(sums[own][2], sums[own][3]);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S::kHeadsAtOnce * kPartial; i += S::kThreads) {
      const int of = i / kPartial, out = i % kPartial;
      partial[(first + of) * kPartial + out] = diagonal_sum(blocks + of * kDifferences * 128, out);
    }
  }
}

template <int kHeadDim, bool kSplit>
__global__ void __launch_bounds__(Shape<kHeadDim>::kThreads) filter_gradient_kernel(const FilterGradient p) {
  using S = Shape<kHeadDim>;
  extern __shared__ float4 shared[];
  const typename S::Ahead ahead{shared};
  float* const w = reinterpret_cast<float*>(shared + S::Ahead::kCount);
  float* const ring = w + S::kHeads * S::kPlane;
  const int group = blockIdx.x, split = blockIdx.y, band = blockIdx.z;
  const int head = threadIdx.x / 32 % S::kHeads, warp = threadIdx.x / 32 / S::kHeads;
  const int64_t channel = int64_t{group} * kChannels, row_groups = (p.rows + S::kRows - 1) / S::kRows;
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk), first = band * (kBand / kChunk);
  float sums[kOwn][4] = {};
  ask<kHeadDim>(p, split * S::kRows, channel, first * kChunk, 0, ahead);
  for (int64_t rows = split; rows < row_groups; rows += p.splits) {
    for (int chunk = first; chunk < chunks; ++chunk) {
      copy_async_wait<0>();
      __syncthreads();
      store<kHeadDim, kSplit>(ahead, 0, p.q, p.grad_y, w, S::kPlane);
      store<kHeadDim, kSplit>(ahead, 2, p.k, p.v, ring + (chunk - first) % kRing * kChunk * 8, S::kRingPlane);
      __syncthreads();
      const bool last = chunk + 1 == chunks;
      const int next = last ? first : chunk + 1;
      ask<kHeadDim>(p, (last ? rows + p.splits : rows) * S::kRows, channel, next * kChunk, (next - first) * kChunk, ahead);
      multiply<kSplit>(sums, w + head * S::kPlane, ring + head * S::kRingPlane, chunk, band, warp, p.taps);
    }
  }
  copy_async_wait<0>();
  const int64_t heads = p.channels / kHeadDim;
  write_sums<kHeadDim>(p, w, sums, head, warp, p.partial + ((int64_t{split} * p.bands + band) * heads + channel / kHeadDim) * kPartial);
}

__global__ void add_partials(const FilterGradient p, int heads, int taps, float* gradient) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{heads} * taps) return;
  const int head = static_cast<int>(i / taps), tap = static_cast<int>(i % taps);
  float sum = 0;
  if (tap < p.taps) {
    const int band = tap / kBand, out = tap % kBand + 16;
    for (int split = 0; split < p.splits; ++split) {
      const float* from = p.partial + ((int64_t{split} * p.bands + band) * heads + head) * kPartial;
      sum += from[out];
      if (band + 1 < p.bands && out > kBand) sum += from[int64_t{heads} * kPartial + out - kBand];
    }
  }
  gradient[i] = sum;
}

template <int kHeadDim>
FilterGradient plan_of(const GatedLongConvBackward& b) {
  using S = Shape<kHeadDim>;
  const GatedLongConv& p = b.forward;
  FilterGradient to;
  to.k = {p.k, p.k_stride}, to.v = {p.v, p.v_stride}, to.q = {p.q, p.q_stride}, to.grad_y = {b.grad_y, b.grad_y_stride};
  to.rows = p.rows, to.length = p.length, to.channels = p.channels;
  to.taps = static_cast<int>(std::min(p.taps, p.length));
  const int64_t blocks = (p.length + 15) / 16, most = std::min<int64_t>((to.taps + 6) / 8, 2 * (blocks - 1));  // the largest difference
  to.bands = static_cast<int>(1 + (std::max<int64_t>(0, most - (kDifferences - 2)) + kDifferences - 1) / kDifferences);
  const int64_t row_groups = (p.rows + S::kRows - 1) / S::kRows, others = p.channels / kChannels * to.bands;
  const int64_t resident = int64_t{multiprocessors()} * kHeadDim;
  to.splits = static_cast<int>(std::clamp<int64_t>(resident / std::max<int64_t>(1, others), 1, std::max<int64_t>(1, row_groups)));
  return to;
}
FilterGradient plan_of(const GatedLongConvBackward& b) { return b.forward.head_dim == 1 ? plan_of<1>(b) : plan_of<2>(b); }

template <int kHeadDim, bool kSplit>
Status launch(const FilterGradient& p, Stream stream) {
  using S = Shape<kHeadDim>;
  const auto kernel = filter_gradient_kernel<kHeadDim, kSplit>;
  if (const cudaError_t e = allow_shared_memory(kernel, S::kBytes); e != cudaSuccess) return status_of(e);
  const dim3 grid(static_cast<unsigned>(p.channels / kChannels), static_cast<unsigned>(p.splits), static_cast<unsigned>(p.bands));
  kernel<<<grid, S::kThreads, S::kBytes, stream_of(stream)>>>(p);
  return launched();
}

Status filter_gradient(FilterGradient p, const GatedLongConvBackward& b, void* scratch, Stream stream) {
  p.partial = static_cast<float*>(scratch);
  const bool single = b.forward.single_tf32, one = b.forward.head_dim == 1;
  const Status status = one ? (single ? launch<1, false>(p, stream) : launch<1, true>(p, stream))
                            : (single ? launch<2, false>(p, stream) : launch<2, true>(p, stream));
  if (!status.ok()) return status;
  const int heads = static_cast<int>(p.channels / b.forward.head_dim), taps = static_cast<int>(b.forward.taps);
  const auto blocks = static_cast<unsigned>((int64_t{heads} * taps + 255) / 256);
  if (blocks > 0) add_partials<<<blocks, 256, 0, stream_of(stream)>>>(p, heads, taps, b.grad_filter);
  return launched();
}

}  // namespace
}  // namespace detail::long_conv

bool gated_long_conv_backward_takes(const GatedLongConv& p) {
  const int bytes = p.head_dim == 1 ? detail::long_conv::Shape<1>::kBytes : detail::long_conv::Shape<2>::kBytes;
  return gated_long_conv_takes(p) && bytes <= detail::device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

int64_t gated_long_conv_backward_scratch(const GatedLongConvBackward& b) {
  const auto p = detail::long_conv::plan_of(b);
  return int64_t{4} * p.splits * p.bands * (p.channels / b.forward.head_dim) * detail::long_conv::kPartial;
}

Status gated_long_conv_backward(const GatedLongConvBackward& b, void* scratch, Stream stream) {
  namespace conv = detail::long_conv;
  const GatedLongConv& p = b.forward;
  GatedLongConv outputs = p;
  outputs.q = b.grad_q, outputs.k = b.grad_k, outputs.v = b.grad_v, outputs.y = const_cast<float*>(b.grad_y);
  outputs.q_stride = b.grad_q_stride, outputs.k_stride = b.grad_k_stride, outputs.v_stride = b.grad_v_stride;
  outputs.y_stride = b.grad_y_stride;
  if (!gated_long_conv_backward_takes(p) || !gated_long_conv_takes(outputs))
    return Status{"gated_long_conv_backward: no kernel for these sizes"};
  conv::Convolution to;
  to.filter = p.filter, to.rows = p.rows, to.length = p.length, to.channels = p.channels, to.taps = p.taps;
  const conv::Columns q{p.q, p.q_stride}, k{p.k, p.k_stride}, v{p.v, p.v_stride}, grad_y{b.grad_y, b.grad_y_stride};
  if (p.q != nullptr) {
    to.a = k, to.b = v, to.by_j = grad_y, to.sum_j = {b.grad_q, b.grad_q_stride};
    if (const Status status = conv::convolve(to, p.head_dim, p.single_tf32, stream); !status.ok()) return status;
  }
  to.reversed = true;
  to.a = grad_y, to.b = {};
  if (p.q != nullptr) to.a = q, to.b = grad_y;
  to.by_j = v, to.sum_j = {b.grad_k, b.grad_k_stride};
  if (p.v != nullptr) to.by_i = k, to.sum_i = {b.grad_v, b.grad_v_stride};
  if (const Status status = conv::convolve(to, p.head_dim, p.single_tf32, stream); !status.ok()) return status;
  return conv::filter_gradient(conv::plan_of(b), b, scratch, stream);
}

}  // namespace based::kernels::cuda
