// Shared parts of the Hopper kernels for Taylor attention with feature_dim ≤ 16 and bf16 inputs: one warpgroup (128 threads) processes
// chunks of 64 tokens of one head and up to 64 columns of the head dimension.
//
// Columns of the feature tiles. With x padded to 16 dimensions, column f of 160 is
//   f = 16 o + c, o < 8, c < 16:   x_c · x_{(c + o) mod 16}     (every pair at cyclic distance o, once)
//   f = 128 + c, c < 8:            x_c · x_{c + 8}
//   f = 136:                       1                            (137 … 143: 0)
//   f = 144 + i:                   x_i
// so that a tile of 16 columns is the product of x with itself rotated by o, two products an instruction. The weight ½ of the squares is
// applied to q's features. The state in registers has these columns; it is converted from and to the packed order of taylor.h where it is
// loaded and stored.
#pragma once
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/wgmma.cuh"
#include "based/kernels/taylor/cuda/segments.cuh"

namespace based::kernels::cuda::detail {

constexpr int kChunk = 64;                                      // tokens of a chunk
constexpr int kThreads = 128;                                   // one warpgroup
constexpr int kColumns = 160;                                   // feature columns
constexpr int kSliceWidth = 64;                                 // most columns of the head dimension in one block
constexpr uint32_t kUnitColumn = kChunk * 16;                   // bytes between groups of 8 columns of a feature tile
constexpr uint32_t kFeatureBytes = kColumns / 8 * kUnitColumn;  // a feature tile, or a bf16 image of the state
constexpr uint32_t kValueBytes = kChunk * 128;                  // a tile of v
constexpr int kStateFloats = 80 * kThreads + 16 * 32 + 32;      // a RegisterState as it is parked in scratch memory between kernels

constexpr int64_t kLargestStride = 1 << 25;  // limit of v_stride: offsets within a tile are 32-bit to save registers

inline int64_t parked_floats(const TaylorAttention& p, const SegmentPlan& plan) {
  return plan.numbers * p.heads * plan.slices * kStateFloats;
}

// Two blocks for each multiprocessor, with `jobs` blocks for each segment, head and slice.
inline SegmentPlan plan_segments(const TaylorAttention& p, int jobs) {
  return plan_segments(p, {.chunk = kChunk, .slice_width = kSliceWidth, .blocks = 2 * multiprocessors(), .jobs = jobs});
}

__device__ __forceinline__ Packed packed_column(int f, int d) {
  if (f < 136) return packed_pair(f & 15, ((f & 15) + (f >> 4)) & 15, d);
  if (f == 136) return {0, 1.0F};
  const int i = f - 144;
  return {i >= 0 && i < d ? 1 + i : -1, 1.0F};
}

// The state of a head, or of a slice of its columns, in the registers of a warpgroup.
struct RegisterState {
  float kv[80];    // Σ v φ(k)ᵀ [64 x 160]: rows head dimension, columns features, in wgmma's accumulator layout
  float kk[2][4];  // Σ k kᵀ [16 x 16], in every warp: mma accumulators, kk[j/8]
  float k1[2][4];  // Σ k, the same in every row: k1[i/8]
  float count;     // Σ 1

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& x : kv) x = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) kk[0][i] = kk[1][i] = k1[0][i] = k1[1][i] = 0;
    count = 0;
  }

  // Adds a state that `park` stored.
  __device__ __forceinline__ void add(const float* parked) {
    const int tid = threadIdx.x, lane = tid % 32;
    const float4* tiles = reinterpret_cast<const float4*>(parked);
#pragma unroll
    for (int i = 0; i < 20; ++i) {
      const float4 x = tiles[i * kThreads + tid];
      kv[4 * i] += x.x, kv[4 * i + 1] += x.y, kv[4 * i + 2] += x.z, kv[4 * i + 3] += x.w;
    }
    const float* rest = parked + 80 * kThreads;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      kk[0][i] += rest[i * 32 + lane], kk[1][i] += rest[(4 + i) * 32 + lane];
      k1[0][i] += rest[(8 + i) * 32 + lane], k1[1][i] += rest[(12 + i) * 32 + lane];
    }
    count += rest[16 * 32];
  }

  __device__ __forceinline__ void park(float* parked) const {
    const int tid = threadIdx.x, lane = tid % 32;
    float4* tiles = reinterpret_cast<float4*>(parked);
#pragma unroll
    for (int i = 0; i < 20; ++i) tiles[i * kThreads + tid] = make_float4(kv[4 * i], kv[4 * i + 1], kv[4 * i + 2], kv[4 * i + 3]);
    if (tid >= 32) return;
    float* rest = parked + 80 * kThreads;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rest[i * 32 + lane] = kk[0][i], rest[(4 + i) * 32 + lane] = kk[1][i];
      rest[(8 + i) * 32 + lane] = k1[0][i], rest[(12 + i) * 32 + lane] = k1[1][i];
    }
    if (lane == 0) rest[16 * 32] = count;
  }
};

// A head's packed state in global memory, of which a block holds the columns [first, first + width).
struct PackedState {
  float* kv;  // [packed_features, head_dim]
  float* k;   // [packed_features]
  int feature_dim, head_dim, first, width;

  __device__ __forceinline__ void load(RegisterState& s) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 80; ++i) {
      const int column = 16 * warp + lane / 4 + (i & 2 ? 8 : 0);
      const Packed f = packed_column(8 * (i / 4) + 2 * (lane % 4) + (i & 1), feature_dim);
      s.kv[i] = f.number >= 0 && column < width ? kv[static_cast<int64_t>(f.number) * head_dim + first + column] * f.scale : 0.0F;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + (i & 2 ? 8 : 0), column = 8 * (i / 4) + 2 * (lane % 4) + (i & 1);
      const Packed f = packed_pair(row, column, feature_dim);
      s.kk[i / 4][i % 4] = f.number >= 0 ? k[f.number] * f.scale : 0.0F;
      s.k1[i / 4][i % 4] = column < feature_dim ? k[1 + column] : 0.0F;
    }
    s.count = k[0];
  }

  __device__ __forceinline__ void store(const RegisterState& s) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 80; ++i) {
      const int column = 16 * warp + lane / 4 + (i & 2 ? 8 : 0);
      const Packed f = packed_column(8 * (i / 4) + 2 * (lane % 4) + (i & 1), feature_dim);
      if (f.number >= 0 && column < width) kv[static_cast<int64_t>(f.number) * head_dim + first + column] = s.kv[i] / f.scale;
    }
    if (first != 0 || warp != 0) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4 + (i & 2 ? 8 : 0), column = 8 * (i / 4) + 2 * (lane % 4) + (i & 1);
      const Packed f = packed_pair(row, column, feature_dim);
      if (f.number >= 0 && row <= column) k[f.number] = s.kk[i / 4][i % 4] / f.scale;
      if (row == 0 && column < feature_dim) k[1 + column] = s.k1[i / 4][i % 4];
    }
    if (lane == 0) k[0] = s.count;
  }
};

// A row of q or k in registers: up to 16 elements, two a register, padded with zeros.
struct Row16 {
  uint32_t x[8];
  __device__ __forceinline__ void load(const bf16* p, int dim, bool valid) {
    uint4 a = make_uint4(0, 0, 0, 0), b = a;
    if (valid) {
      a = __ldg(reinterpret_cast<const uint4*>(p));
      if (dim == 16) b = __ldg(reinterpret_cast<const uint4*>(p) + 1);
    }
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  }
  // The row rotated so that register `by` comes first; by < 4.
  __device__ __forceinline__ Row16 rotated(int by) const {
    Row16 once, r;
#pragma unroll
    for (int i = 0; i < 8; ++i) once.x[i] = by & 1 ? x[(i + 1) & 7] : x[i];
#pragma unroll
    for (int i = 0; i < 8; ++i) r.x[i] = by & 2 ? once.x[(i + 2) & 7] : once.x[i];
    return r;
  }
  // Elements 2m + o and 2m + o + 1, modulo 16.
  __device__ __forceinline__ uint32_t pair(int m, int o) const {
    const int i = m + o / 2;
    return o % 2 == 0 ? x[i & 7] : __byte_perm(x[i & 7], x[(i + 1) & 7], 0x5432);
  }
};

// Stores half of the features of token `token` of the chunk, columns 8·half … 8·half + 7 of every 16, to `tile`: [column / 8][token] units
// of 16 bytes.
__device__ __forceinline__ void store_features(uint32_t tile, const Row16& row, int token, int half) {
  Row16 x;
#pragma unroll
  for (int i = 0; i < 8; ++i) x.x[i] = half ? row.x[(i + 4) & 7] : row.x[i];
  const uint32_t at = tile + half * kUnitColumn + token * 16;
#pragma unroll
  for (int o = 0; o < 8; ++o) {
    uint32_t f[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) f[m] = mul_bf16(x.x[m], x.pair(m, o));
    store_shared_16(at + 2 * o * kUnitColumn, f[0], f[1], f[2], f[3]);
  }
  if (half == 0) {
    store_shared_16(at + 16 * kUnitColumn, mul_bf16(x.x[0], x.x[4]), mul_bf16(x.x[1], x.x[5]), mul_bf16(x.x[2], x.x[6]),
                    mul_bf16(x.x[3], x.x[7]));
  } else {
    store_shared_16(at + 16 * kUnitColumn, 0x3f80, 0, 0, 0);  // the constant feature
  }
  store_shared_16(at + 18 * kUnitColumn, x.x[0], x.x[1], x.x[2], x.x[3]);
}

// Computes feature tile `o` (16 columns) of the 16 query rows of a warp, as the A operand of an mma. a and b are the thread's two rows,
// rotated by lane mod 4.
__device__ __forceinline__ void query_features(uint32_t (&f)[4], const Row16& a, const Row16& b, int o) {
  if (o < 8) {
    f[0] = mul_bf16(a.x[0], a.pair(0, o)), f[1] = mul_bf16(b.x[0], b.pair(0, o));
    f[2] = mul_bf16(a.x[4], a.pair(4, o)), f[3] = mul_bf16(b.x[4], b.pair(4, o));
    if (o == 0) {
#pragma unroll
      for (uint32_t& x : f) x = mul_bf16(x, 0x3f003f00);
    }
  } else if (o == 8) {
    f[0] = mul_bf16(a.x[0], a.x[4]), f[1] = mul_bf16(b.x[0], b.x[4]);
    f[2] = f[3] = threadIdx.x % 4 == 0 ? 0x3f80 : 0;
  } else {
    f[0] = a.x[0], f[1] = b.x[0], f[2] = a.x[4], f[3] = b.x[4];
  }
}

// Copies up to 64 rows of `width` ≤ 64 elements to a tile of 128-byte rows whose 16-byte units are swizzled by unit ^ (row mod 8); fills
// the rest of the tile with zeros.
__device__ __forceinline__ void copy_value_tile(uint32_t tile, const bf16* first, int row_stride, int rows, int width) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = (threadIdx.x + i * kThreads) / 8, unit = threadIdx.x % 8;
    const bool valid = row < rows && unit * 8 < width;
    copy_async_16(tile + row * 128 + ((unit ^ (row & 7)) * 16), first + (valid ? row * row_stride + unit * 8 : 0), valid);
  }
}

__device__ __forceinline__ uint32_t shared_base() {
  extern __shared__ uint8_t shared[];
  return (shared_address(shared) + 1023) & ~1023U;
}

// The head and slice of a block.
struct ChunkBlock {
  const bf16 *q, *k, *v;  // at token 0 of this head and slice
  bf16* y;
  int64_t qk_stride, v_stride, y_stride;  // elements from one token to the next
  int head, first, width;                 // columns [first, first + width) of the head dimension

  __device__ __forceinline__ ChunkBlock(const TaylorAttention& p, const SegmentPlan& plan, int slice) {
    head = blockIdx.y, first = slice * plan.width, width = min(plan.width, p.head_dim - first);
    qk_stride = p.qk_stride, v_stride = p.v_stride, y_stride = int64_t{p.heads} * p.head_dim;
    q = static_cast<const bf16*>(p.q) + head * p.feature_dim, k = static_cast<const bf16*>(p.k) + head * p.feature_dim;
    v = static_cast<const bf16*>(p.v) + int64_t{head} * p.head_dim + first;
    y = static_cast<bf16*>(p.y) + int64_t{head} * p.head_dim + first;
  }
};

__device__ __forceinline__ float* parked_state(const TaylorAttention& p, const SegmentPlan& plan, int64_t number, int slice) {
  return plan.parked + ((number * p.heads + blockIdx.y) * plan.slices + slice) * kStateFloats;
}

// Multiplies up to `rows` rows of accumulators by `scale` and stores them at `output`, which is at token 0 of this head and slice and whose
// tokens are `stride` elements apart. The rows pass through a tile in shared memory, of which each warp uses its own part.
__device__ __forceinline__ void store_output(bf16* output, int64_t stride, const ChunkBlock& block, uint32_t tile, const float (&out)[32],
                                             float2 scale, int64_t token, int rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8;
  const int row = 16 * warp + 8 * (matrix & 1) + lane % 8;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float* o = out + 4 * j;
    stmatrix(tile + row * 128 + (((j + (matrix >> 1)) ^ (row & 7)) * 16), pack_bf16(o[0] * scale.x, o[1] * scale.x),
             pack_bf16(o[2] * scale.y, o[3] * scale.y), pack_bf16(o[4] * scale.x, o[5] * scale.x),
             pack_bf16(o[6] * scale.y, o[7] * scale.y));
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = 16 * warp + 4 * i + lane / 8, unit = lane % 8;
    if (r < rows && unit * 8 < block.width) {
      *reinterpret_cast<uint4*>(output + (token + r) * stride + unit * 8) = load_shared_16(tile + r * 128 + ((unit ^ (r & 7)) * 16));
    }
  }
  __syncwarp();
}

#if BASED_HAS_WGMMA
// kv += vᵀ φ(k) over a chunk, as one asynchronous wgmma group.
__device__ __forceinline__ void add_chunk(RegisterState& s, uint32_t values, uint32_t features) {
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    wgmma_64x160x16_transposed(s.kv, operand(values + step * 2048, 0, 1024, Swizzle::bytes128),
                               operand(features + step * 256, 128, kUnitColumn, Swizzle::none));
  }
  wgmma_commit();
}
#endif

// Adds a chunk to the denominator's part of the state: Σ k kᵀ, Σ k and the count. Where kWeighted, each token is weighted by one of the 64
// floats at `weights` in shared memory.
template <bool kWeighted>
__device__ __forceinline__ void add_chunk_sums(RegisterState& s, uint32_t features, int tokens, uint32_t weights) {
  const int lane = threadIdx.x % 32, matrix = lane / 8;
  uint32_t one[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  const uint32_t at = features + (18 + (matrix & 1)) * kUnitColumn + (8 * (matrix >> 1) + lane % 8) * 16;
#pragma unroll
  for (int step = 0; step < kChunk / 16; ++step) {
    uint32_t kt[4];
    ldmatrix_transposed(kt, at + step * 256);
    uint32_t b[4] = {kt[0], kt[1], kt[2], kt[3]};
    if constexpr (kWeighted) {
      const float2 w0 = load_shared_float2(weights + (16 * step + 2 * (lane % 4)) * 4),
                   w1 = load_shared_float2(weights + (16 * step + 8 + 2 * (lane % 4)) * 4);
      one[0] = one[1] = pack_bf16(w0.x, w0.y), one[2] = one[3] = pack_bf16(w1.x, w1.y);
      b[0] = mul_bf16(b[0], one[0]), b[1] = mul_bf16(b[1], one[0]), b[2] = mul_bf16(b[2], one[2]), b[3] = mul_bf16(b[3], one[2]);
    }
    mma_16x8x16(s.kk[0], kt, b[0], b[2]);
    mma_16x8x16(s.kk[1], kt, b[1], b[3]);
    mma_16x8x16(s.k1[0], one, kt[0], kt[2]);
    mma_16x8x16(s.k1[1], one, kt[1], kt[3]);
  }
  if constexpr (kWeighted) {
    float sum = load_shared_float(weights + lane * 4) + load_shared_float(weights + lane * 4 + 128);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0U, sum, distance);
    s.count += sum;
  } else {
    s.count += static_cast<float>(tokens);
  }
}

// Stores the state as bf16, for products with features of rows, to `high`: [column / 8][head dimension] units. Where kLow, stores the
// rounding error, also as bf16, to `low`.
template <bool kLow>
__device__ __forceinline__ void store_state(const RegisterState& s, uint32_t high, uint32_t low) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = lane / 8;
  const uint32_t at = (matrix >> 1) * kUnitColumn + (16 * warp + 8 * (matrix & 1) + lane % 8) * 16;
#pragma unroll
  for (int g = 0; g < kColumns / 8; g += 2) {
    uint32_t h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = s.kv[4 * g + 2 * i], b = s.kv[4 * g + 2 * i + 1];
      h[i] = pack_bf16(a, b);
      l[i] = kLow ? pack_bf16(a - low_float(h[i]), b - high_float(h[i])) : 0;
    }
    stmatrix(high + at + g * kUnitColumn, h[0], h[1], h[2], h[3]);
    if constexpr (kLow) stmatrix(low + at + g * kUnitColumn, l[0], l[1], l[2], l[3]);
  }
}

// u = Σk + factor · Σkkᵀ x for the thread's two rows of x (an A operand), in the accumulator layout of 16 columns.
__device__ __forceinline__ void sums_product(const RegisterState& s, const uint32_t (&x)[4], float factor, float (&u)[2][4]) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    u[n][0] = u[n][2] = s.k1[n][0], u[n][1] = u[n][3] = s.k1[n][1];
    const float a0 = factor * s.kk[0][2 * n], a1 = factor * s.kk[0][2 * n + 1], b0 = factor * s.kk[1][2 * n],
                b1 = factor * s.kk[1][2 * n + 1];
    const uint32_t ha = pack_bf16(a0, a1), hb = pack_bf16(b0, b1);
    mma_16x8x16(u[n], x, ha, hb);
    mma_16x8x16(u[n], x, pack_bf16(a0 - low_float(ha), a1 - high_float(ha)), pack_bf16(b0 - low_float(hb), b1 - high_float(hb)));
  }
}

// The inputs of a state's sums, all at token 0 of this head: x (k, or q in the backward direction), values (v, or the gradients of the
// numerators), and the weights of the denominator's sums, [tokens, heads] (the gradients of the denominators).
struct Source {
  const bf16 *x, *values;
  int64_t stride;  // elements from one token's values to the next
  const float* weights;
};

#if BASED_HAS_WGMMA
// Shared memory of sum_tokens: two tiles of values, the features, two chunks of weights.
constexpr uint32_t kSumFeatures = 2 * kValueBytes, kSumWeights = kSumFeatures + kFeatureBytes;
#endif
constexpr uint32_t kSumShared = 2 * kValueBytes + kFeatureBytes + 2 * kChunk * 4 + 1024;

#if BASED_HAS_WGMMA
// Adds tokens [begin, end) to the state.
template <bool kWeighted>
__device__ __forceinline__ void sum_tokens(const Source& source, const TaylorAttention& p, const ChunkBlock& block, RegisterState& s,
                                           int64_t begin, int64_t end) {
  const uint32_t base = shared_base(), features = base + kSumFeatures;
  const int token = threadIdx.x % kChunk, half = threadIdx.x / kChunk;
  Row16 x;
  float weight = 0;
  const auto request = [&](int64_t at, uint32_t stage) {
    copy_value_tile(base + stage * kValueBytes, source.values + at * source.stride, source.stride,
                    static_cast<int>(min(end - at, int64_t{kChunk})), block.width);
    x.load(source.x + (at + token) * block.qk_stride, p.feature_dim, at + token < end);
    if constexpr (kWeighted) weight = at + token < end ? source.weights[(at + token) * p.heads] : 0.0F;
  };
  request(begin, 0);
  copy_async_commit();
  uint32_t stage = 0;
  for (int64_t at = begin; at < end; at += kChunk, stage ^= 1) {
    store_features(features, x, token, half);
    if (kWeighted && half == 0) store_shared_float(base + kSumWeights + token * 4, weight);
    if (at + kChunk < end) request(at + kChunk, stage ^ 1);
    copy_async_commit();
    copy_async_wait<1>();
    fence_shared_proxy();
    __syncthreads();
    wgmma_begin();
    add_chunk(s, base + stage * kValueBytes, features);
    add_chunk_sums<kWeighted>(s, features, static_cast<int>(min(end - at, int64_t{kChunk})), base + kSumWeights);
    wgmma_wait<0>();
    __syncthreads();
  }
}
#endif

}  // namespace based::kernels::cuda::detail
