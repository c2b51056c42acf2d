// grad_q is the forward's convolution multiplied by grad_y. grad_k and grad_v are a convolution reversed in time. The filter's gradient is
// the sum over each diagonal of G[t, s] = Σ w_t u_s, where w are products of q and grad_y, u are products of k and v, and Σ runs over rows
// and columns. G is computed in blocks of 16 t by 8 s. Blocks with the same t − s are accumulated in the same registers. Each of two warps
// per head handles every second of the 32 differences of a band.
#include <algorithm>

#include "based/kernels/conv/cuda/gated_long_conv.cuh"

namespace based::kernels::cuda {
namespace detail::long_conv {
namespace {

constexpr int kBand = 256;               // number of differences t − s that a block sums
constexpr int kPartial = kBand + 16;     // number of differences that it stores: 16 more, since its blocks extend past the band's ends
constexpr int kDifferences = kBand / 8;  // differences in units of blocks
constexpr int kRing = (kBand + kChunk) / kChunk;  // chunks of u in the ring in shared memory
constexpr int kDifferenceWarps = 2;               // warps per head
constexpr int kOwnedDifferences = kDifferences / kDifferenceWarps;

template <int kHeadDim>
struct Shape {
  static constexpr int kHeads = kChannels / kHeadDim, kRows = 8 / (kHeadDim * kHeadDim), kThreads = 32 * kHeads * kDifferenceWarps;
  static constexpr int kPad = 4 * kHeadDim;  // padding, so that the planes that a warp writes together are in different banks
  static constexpr int kPlane = kChunk * 8 + kPad, kRingPlane = kRing * kChunk * 8 + kPad;
  static constexpr int kStagedHeads = 4 / kHeadDim;  // heads whose sums are in shared memory together at the end
  static constexpr int kItems = Item<kRows>::kCount / kThreads;
  using Loads = Prefetch<4, kItems, kThreads>;
  static constexpr int kBytes = 16 * Loads::kCount + 4 * kHeads * (kPlane + kRingPlane);
  static_assert(4 * kHeads * (kPlane + kRingPlane) >= 4 * kStagedHeads * kDifferences * 128);
};

struct FilterGradient {
  Columns k, v, q, grad_y;
  float* partial = nullptr;  // [splits, bands, channels / head_dim, kPartial]
  int64_t rows = 0, length = 0, channels = 0;
  int splits = 1, bands = 1, taps = 0;  // taps: min(taps, length)
};

// Offset of column `n` of a token in a plane. Four columns of 8 tokens are in 32 different banks.
__device__ __forceinline__ int plane_offset(int token, int n) { return token * 8 + (n ^ (token & 4)); }

// Starts loading a chunk of each operand of some rows. The chunk of w begins at token `w_begin`, that of u at `u_begin`.
template <int kHeadDim>
__device__ __forceinline__ void load_chunk(const FilterGradient& p, int64_t first_row, int64_t first_channel, int w_begin, int u_begin,
                                           const typename Shape<kHeadDim>::Loads& loads) {
  using S = Shape<kHeadDim>;
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * S::kThreads);
    const int64_t row = first_row + item.row, channel = first_channel + 4 * item.half;
    const int64_t w = w_begin + item.token, u = u_begin + item.token;
    loads.load(0, i, p.q, row * p.length + w, channel, row < p.rows && w < p.length);
    loads.load(1, i, p.grad_y, row * p.length + w, channel, row < p.rows && w < p.length);
    loads.load(2, i, p.k, row * p.length + u, channel, row < p.rows && u < p.length);
    loads.load(3, i, p.v, row * p.length + u, channel, row < p.rows && u < p.length);
  }
  copy_async_commit();
}

// Stores the products of two tensors, which were loaded as arrays `first` and `first` + 1.
template <int kHeadDim, bool kSplit>
__device__ __forceinline__ void store(const typename Shape<kHeadDim>::Loads& loads, int first, const Columns& a, const Columns& b,
                                      float* planes, int plane) {
  using S = Shape<kHeadDim>;
#pragma unroll
  for (int i = 0; i < S::kItems; ++i) {
    const Item<S::kRows> item(static_cast<int>(threadIdx.x) + i * S::kThreads);
    store_products<kHeadDim, kSplit>(planes, plane, item.half, plane_offset(item.token, item.row * kHeadDim * kHeadDim),
                                     loads.get(first, i, a), loads.get(first + 1, i, b));
  }
}

template <bool kSplit>
__device__ __forceinline__ void multiply(float (&sums)[kOwnedDifferences][4], const float* w, const float* ring, int chunk, int band,
                                         int warp, int taps) {
  const int lane = threadIdx.x % 32, lane_row = lane / 4, lane_column = lane % 4;
  const int ring_begin = (chunk - band * (kBand / kChunk)) % kRing * kChunk;  // ring position of the tokens of chunk − band
#pragma unroll 1
  for (int block = 0; block < kChunk; block += 16) {
    Registers<4, kSplit> a;
#pragma unroll
    for (int i = 0; i < 4; ++i) a.set(i, w[plane_offset(block + lane_row + 8 * (i % 2), lane_column + 4 * (i / 2))]);
#pragma unroll
    for (int owned = 0; owned < kOwnedDifferences; ++owned) {
      const int difference = kDifferenceWarps * owned + warp - 1;  // plus 32 for each band
      const int offset = block - 8 * difference;                   // offset of s from the latest chunk of u
      if ((chunk - band * (kBand / kChunk)) * kChunk + offset < 0 || band * kBand + 8 * difference - 7 >= taps) continue;
      int token = ring_begin + offset;
      if (token < 0) token += kRing * kChunk;
      Registers<2, kSplit> b;
      b.set(0, ring[plane_offset(token + lane_row, lane_column)]), b.set(1, ring[plane_offset(token + lane_row, lane_column + 4)]);
      multiply_add<kSplit>(sums[owned], a, b);
    }
  }
}

// Sums one diagonal. Entry (t, s) of the block with a given difference is blocks[difference][t][s].
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
__device__ __forceinline__ void write_sums(const FilterGradient& p, float* blocks, const float (&sums)[kOwnedDifferences][4], int head,
                                           int warp, float* partial) {
  using S = Shape<kHeadDim>;
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < S::kHeads; first += S::kStagedHeads) {
    __syncthreads();
    if (head >= first && head < first + S::kStagedHeads) {
#pragma unroll
      for (int owned = 0; owned < kOwnedDifferences; ++owned) {
        float* entry = blocks + ((head - first) * kDifferences + kDifferenceWarps * owned + warp) * 128 + lane / 4 * 8 + 2 * (lane % 4);
        *reinterpret_cast<float2*>(entry) = make_float2(sums[owned][0], sums[owned][1]);
        *reinterpret_cast<float2*>(entry + 64) = make_float2(sums[owned][2], sums[owned][3]);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < S::kStagedHeads * kPartial; i += S::kThreads) {
      const int index = i / kPartial, out = i % kPartial;
      partial[(first + index) * kPartial + out] = diagonal_sum(blocks + index * kDifferences * 128, out);
    }
  }
}

template <int kHeadDim, bool kSplit>
__global__ void __launch_bounds__(Shape<kHeadDim>::kThreads) filter_gradient_kernel(const FilterGradient p) {
  using S = Shape<kHeadDim>;
  extern __shared__ float4 shared[];
  const typename S::Loads loads{shared};
  float* const w = reinterpret_cast<float*>(shared + S::Loads::kCount);
  float* const ring = w + S::kHeads * S::kPlane;
  const int group = blockIdx.x, split = blockIdx.y, band = blockIdx.z;
  const int head = threadIdx.x / 32 % S::kHeads, warp = threadIdx.x / 32 / S::kHeads;
  const int64_t channel = int64_t{group} * kChannels, row_groups = (p.rows + S::kRows - 1) / S::kRows;
  const int chunks = static_cast<int>((p.length + kChunk - 1) / kChunk), first = band * (kBand / kChunk);
  float sums[kOwnedDifferences][4] = {};
  load_chunk<kHeadDim>(p, split * S::kRows, channel, first * kChunk, 0, loads);
  for (int64_t rows = split; rows < row_groups; rows += p.splits) {
    for (int chunk = first; chunk < chunks; ++chunk) {
      copy_async_wait<0>();
      __syncthreads();
      store<kHeadDim, kSplit>(loads, 0, p.q, p.grad_y, w, S::kPlane);
      store<kHeadDim, kSplit>(loads, 2, p.k, p.v, ring + (chunk - first) % kRing * kChunk * 8, S::kRingPlane);
      __syncthreads();
      const bool last = chunk + 1 == chunks;
      const int next = last ? first : chunk + 1;
      load_chunk<kHeadDim>(p, (last ? rows + p.splits : rows) * S::kRows, channel, next * kChunk, (next - first) * kChunk, loads);
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
      const float* sums = p.partial + ((int64_t{split} * p.bands + band) * heads + head) * kPartial;
      sum += sums[out];
      if (band + 1 < p.bands && out > kBand) sum += sums[int64_t{heads} * kPartial + out - kBand];
    }
  }
  gradient[i] = sum;
}

template <int kHeadDim>
FilterGradient make_plan(const GatedLongConvBackward& b) {
  using S = Shape<kHeadDim>;
  const GatedLongConv& p = b.forward;
  FilterGradient plan;
  plan.k = {p.k, p.k_stride}, plan.v = {p.v, p.v_stride}, plan.q = {p.q, p.q_stride}, plan.grad_y = {b.grad_y, b.grad_y_stride};
  plan.rows = p.rows, plan.length = p.length, plan.channels = p.channels;
  plan.taps = static_cast<int>(std::min(p.taps, p.length));
  const int64_t blocks = (p.length + 15) / 16, max_difference = std::min<int64_t>((plan.taps + 6) / 8, 2 * (blocks - 1));
  plan.bands = static_cast<int>(1 + (std::max<int64_t>(0, max_difference - (kDifferences - 2)) + kDifferences - 1) / kDifferences);
  const int64_t row_groups = (p.rows + S::kRows - 1) / S::kRows, blocks_per_split = p.channels / kChannels * plan.bands;
  const int64_t resident = int64_t{multiprocessors()} * kHeadDim;
  plan.splits =
      static_cast<int>(std::clamp<int64_t>(resident / std::max<int64_t>(1, blocks_per_split), 1, std::max<int64_t>(1, row_groups)));
  return plan;
}
FilterGradient make_plan(const GatedLongConvBackward& b) { return b.forward.head_dim == 1 ? make_plan<1>(b) : make_plan<2>(b); }

template <int kHeadDim, bool kSplit>
Status launch(const FilterGradient& p, Queue queue) {
  using S = Shape<kHeadDim>;
  const auto kernel = filter_gradient_kernel<kHeadDim, kSplit>;
  if (const cudaError_t e = allow_shared_memory(kernel, S::kBytes); e != cudaSuccess) return status_of(e);
  const dim3 grid(static_cast<unsigned>(p.channels / kChannels), static_cast<unsigned>(p.splits), static_cast<unsigned>(p.bands));
  kernel<<<grid, S::kThreads, S::kBytes, stream_of(queue)>>>(p);
  return launched();
}

Status filter_gradient(FilterGradient p, const GatedLongConvBackward& b, void* scratch, Queue queue) {
  p.partial = static_cast<float*>(scratch);
  const bool single = b.forward.single_tf32, one = b.forward.head_dim == 1;
  const Status status = one ? (single ? launch<1, false>(p, queue) : launch<1, true>(p, queue))
                            : (single ? launch<2, false>(p, queue) : launch<2, true>(p, queue));
  if (!status.ok()) return status;
  const int heads = static_cast<int>(p.channels / b.forward.head_dim), taps = static_cast<int>(b.forward.taps);
  const auto blocks = static_cast<unsigned>((int64_t{heads} * taps + 255) / 256);
  if (blocks > 0) add_partials<<<blocks, 256, 0, stream_of(queue)>>>(p, heads, taps, b.grad_filter);
  return launched();
}

}  // namespace
}  // namespace detail::long_conv

bool gated_long_conv_backward_takes(const GatedLongConv& p) {
  if (p.head_dim > 2) return detail::long_conv::takes_pairs(p);
  const int bytes = p.head_dim == 1 ? detail::long_conv::Shape<1>::kBytes : detail::long_conv::Shape<2>::kBytes;
  return gated_long_conv_takes(p) && bytes <= detail::block_shared_memory();
}

int64_t gated_long_conv_backward_scratch(const GatedLongConvBackward& b) {
  if (b.forward.head_dim > 2) return detail::long_conv::scratch_of_pairs(b.forward);
  const auto p = detail::long_conv::make_plan(b);
  return int64_t{4} * p.splits * p.bands * (p.channels / b.forward.head_dim) * detail::long_conv::kPartial;
}

Status gated_long_conv_backward(const GatedLongConvBackward& b, void* scratch, Queue queue) {
  namespace conv = detail::long_conv;
  const GatedLongConv& p = b.forward;
  if (p.head_dim > 2 && conv::takes_pairs(p)) return conv::backward_by_pairs(b, scratch, queue);
  GatedLongConv outputs = p;
  outputs.q = b.grad_q, outputs.k = b.grad_k, outputs.v = b.grad_v, outputs.y = const_cast<float*>(b.grad_y);
  outputs.q_stride = b.grad_q_stride, outputs.k_stride = b.grad_k_stride, outputs.v_stride = b.grad_v_stride;
  outputs.y_stride = b.grad_y_stride;
  if (!gated_long_conv_backward_takes(p) || !gated_long_conv_takes(outputs))
    return Status{"gated_long_conv_backward: no kernel for these sizes"};
  conv::Convolution c;
  c.filter = p.filter, c.rows = p.rows, c.length = p.length, c.channels = p.channels, c.taps = p.taps;
  const conv::Columns q{p.q, p.q_stride}, k{p.k, p.k_stride}, v{p.v, p.v_stride}, grad_y{b.grad_y, b.grad_y_stride};
  if (p.q != nullptr) {
    c.a = k, c.b = v, c.by_j = grad_y, c.sum_j = {b.grad_q, b.grad_q_stride};
    if (const Status status = conv::convolve(c, p.head_dim, p.single_tf32, queue); !status.ok()) return status;
  }
  c.reversed = true;
  c.a = grad_y, c.b = {};
  if (p.q != nullptr) c.a = q, c.b = grad_y;
  c.by_j = v, c.sum_j = {b.grad_k, b.grad_k_stride};
  if (p.v != nullptr) c.by_i = k, c.sum_i = {b.grad_v, b.grad_v_stride};
  if (const Status status = conv::convolve(c, p.head_dim, p.single_tf32, queue); !status.ok()) return status;
  return conv::filter_gradient(conv::make_plan(b), b, scratch, queue);
}

namespace {
const DefineLaunchers<GatedLongConvLaunchers> kLaunchers(Device::cuda, {.supports = gated_long_conv_takes,
                                                                        .backward_supports = gated_long_conv_backward_takes,
                                                                        .forward = gated_long_conv_forward,
                                                                        .backward_scratch = gated_long_conv_backward_scratch,
                                                                        .backward = gated_long_conv_backward});
}

}  // namespace based::kernels::cuda
