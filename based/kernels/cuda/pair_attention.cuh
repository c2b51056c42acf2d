// Parts of the fp32 kernels for attention over pairs of tokens. A block owns 64 tokens of a row and of one head, 16 for each warp, and
// walks over the tokens on the other side, 32 at a time, on tensor cores in TF32. An operand x is big + small, each of TF32, and a product
// big·big + big·small + small·big, which is fp32 but for the last bits; or x rounded to TF32, and one product.
#pragma once
#include <cmath>

#include "based/kernels/cuda/causal_sm90.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/pair_attention.h"
#include "based/kernels/dropout.h"

namespace based::kernels::cuda::detail::pairs {

using causal::find_place;
using causal::Order;
using causal::Place;

constexpr int kOwn = 64, kOther = 32, kThreads = 128;
constexpr int kBlocks = kOther / 8;  // of 8 columns, of the scores of a warp

// Floats of a row in shared memory: 4 more than a multiple of 16, so that 8 rows' four floats, and 8 columns of four rows, lie in 32 banks.
__host__ __device__ constexpr int padded(int width) { return (width + 15) / 16 * 16; }
__host__ __device__ constexpr int pitch_of(int width) { return padded(width) + 4; }

// d += a·b on one warp: a 16 x 8, b 8 x 8, TF32. Lane l has row l / 4 and l / 4 + 8, columns l mod 4 and l mod 4 + 4 of a; these rows and
// column l / 4 of b; row l / 4 and l / 4 + 8, columns 2 (l mod 4) and the next of d.
__device__ __forceinline__ void mma_16x8x8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four registers of an operand. The tensor cores ignore the last 13 bits.
template <bool kSplit>
struct Parts {
  uint32_t big[4], small[kSplit ? 4 : 1];

  __device__ __forceinline__ void set(int i, float x) {
    if constexpr (kSplit) {
      big[i] = __float_as_uint(x) & 0xffffe000U;
      small[i] = __float_as_uint(x - __uint_as_float(big[i])) + 0x1000U;  // to be rounded, not cut off
    } else {
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(big[i]) : "f"(x));
    }
  }
  __device__ __forceinline__ void load(uint32_t address) {
    uint32_t x[4];
    ldmatrix(x, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) set(i, __uint_as_float(x[i]));
  }
};

// Two neighbouring blocks of 8 columns; b holds two registers of each. Small products come first.
template <bool kSplit>
__device__ __forceinline__ void multiply_add(float (&d0)[4], float (&d1)[4], const Parts<kSplit>& a, const Parts<kSplit>& b) {
  if constexpr (kSplit) {
    mma_16x8x8(d0, a.small, b.big[0], b.big[1]), mma_16x8x8(d1, a.small, b.big[2], b.big[3]);
    mma_16x8x8(d0, a.big, b.small[0], b.small[1]), mma_16x8x8(d1, a.big, b.small[2], b.small[3]);
  }
  mma_16x8x8(d0, a.big, b.big[0], b.big[1]), mma_16x8x8(d1, a.big, b.big[2], b.big[3]);
}

// A warp's accumulators: 16 rows, 8 columns a block.
template <int kCount>
using Sums = float[kCount][4];

// s = a·bᵀ: 16 rows of a, 32 rows of b, both `pitch` floats apart in shared memory, of which `width` count.
template <bool kSplit>
__device__ __forceinline__ void dot_rows(Sums<kBlocks>& s, const float* a, const float* b, int pitch, int width) {
  const int lane = threadIdx.x % 32;
  uint32_t of_a = shared_address(a + lane % 16 * pitch + lane / 16 * 4);
  uint32_t of_b = shared_address(b + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 4);
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll 2
  for (int k = 0; k < width; k += 8, of_a += 32, of_b += 32) {
    Parts<kSplit> x, y[2];
    x.load(of_a), y[0].load(of_b), y[1].load(of_b + 64 * pitch);
    multiply_add(s[0], s[1], x, y[0]);
    multiply_add(s[2], s[3], x, y[1]);
  }
}

// sums += w·x: 16 rows of w, 32 rows of x in shared memory, of which `width` columns count. Column 2j of w's 8 is taken for its column j,
// 2j + 1 for j + 4, since so lanes have them; rows of x likewise.
template <bool kSplit, int kCount>
__device__ __forceinline__ void add_weighted(Sums<kCount>& sums, const Sums<kBlocks>& w, const float* x, int pitch, int width) {
  Parts<kSplit> a[kBlocks];
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) a[k].set(0, w[k][0]), a[k].set(1, w[k][2]), a[k].set(2, w[k][1]), a[k].set(3, w[k][3]);
  const float* at = x + threadIdx.x % 4 * 2 * pitch + threadIdx.x % 32 / 4;
#pragma unroll
  for (int n = 0; n < kCount; n += 2) {
    if (8 * n >= width) continue;
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      const float* even = at + 8 * k * pitch + 8 * n;
      Parts<kSplit> b;
      b.set(0, even[0]), b.set(1, even[pitch]), b.set(2, even[8]), b.set(3, even[pitch + 8]);
      multiply_add(sums[n], sums[n + 1], a[k], b);
    }
  }
}

// Row and column of a lane's element e of block n: rows l / 4 and 8 more, columns 2 (l mod 4) and the next.
__device__ __forceinline__ int row_of(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ __forceinline__ int column_of(int n, int e) { return 8 * n + threadIdx.x % 4 * 2 + e % 2; }

// Rows of `width` floats, `count` of kRows, `stride` apart in memory; the others, and columns up to the pitch's, are zeros. Asynchronous.
template <int kRows>
__device__ __forceinline__ void load_rows(float* to, const float* from, int64_t stride, int width, int count, bool in_fours) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = padded(width), pitch = pitch_of(width);
  for (int r = warp; r < kRows; r += kThreads / 32) {
    const float* row = from + (r < count ? r * stride : 0);
    if (in_fours) {
      for (int c = 4 * lane; c < columns; c += 128) {
        const bool valid = r < count && c < width;
        copy_async_16(shared_address(to + r * pitch + c), valid ? row + c : from, valid);
      }
    } else {
      for (int c = lane; c < columns; c += 32) {
        if (r < count && c < width) {
          copy_async_4(shared_address(to + r * pitch + c), row + c);
        } else {
          to[r * pitch + c] = 0;
        }
      }
    }
  }
}

// A warp's rows, each times its factor, `rows` of them.
template <int kCount>
__device__ __forceinline__ void store_rows(float* to, int64_t stride, int width, int rows, bool in_fours, const Sums<kCount>& sums,
                                           float first, float second) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row_of(2 * half) >= rows) continue;
    const float factor = half == 0 ? first : second;
    float* row = to + row_of(2 * half) * stride;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int c = column_of(n, 0);
      const float a = sums[n][2 * half] * factor, b = sums[n][2 * half + 1] * factor;
      if (in_fours && c < width) {
        *reinterpret_cast<float2*>(row + c) = make_float2(a, b);
      } else {
        if (c < width) row[c] = a;
        if (c + 1 < width) row[c + 1] = b;
      }
    }
  }
}

// Which pairs a row has: query i sees key j where i + shift − window < j ≤ i + shift.
struct Sight {
  int shift, window;
  __device__ __forceinline__ explicit Sight(const Problem& p, const Place& at)
      : shift(at.shift()), window(p.of.window > 0 && p.of.window < causal::kAllKeys ? static_cast<int>(p.of.window) : causal::kAllKeys) {}
  __device__ __forceinline__ bool operator()(int query, int key) const {
    const int last = query + shift;
    return key <= last && key > last - window;
  }
  // Any of `queries` and `keys` that follow these.
  __device__ __forceinline__ bool any(int query, int queries, int key, int keys) const {
    return key <= query + queries - 1 + shift && key + keys - 1 > query + shift - window;
  }
};

// What is dropped.
struct Draw {
  uint64_t key = 0;
  uint32_t threshold;
  float scale;
  int heads;
  __device__ __forceinline__ explicit Draw(const CausalAttention& p)
      : threshold(p.dropout.threshold), scale(p.dropout.scale), heads(p.heads) {
    if (threshold != 0) key = dropout_key(p.dropout.seed, static_cast<uint64_t>(*p.dropout.step), p.dropout.place);
  }
  __device__ __forceinline__ bool any() const { return threshold != 0; }
  // What the weight of a pair is multiplied by.
  __device__ __forceinline__ float factor(int64_t query_token, int head, int key_of_row) const {
    const uint64_t element = (static_cast<uint64_t>(query_token * heads + head) << 20) + static_cast<uint64_t>(key_of_row);
    return is_dropped(key, element, threshold) ? 0.0F : scale;
  }
};

// The weight of a pair from its score q·k, what it is normalised by, and its slope: w' / w's sum, by which gradients of scores are.
struct Weighed {
  float weight, slope;
};
struct SoftmaxWeight {
  static constexpr bool kTaylor = false;
  // From log_sum_exp.
  __device__ __forceinline__ static float norm(float statistic) { return statistic * causal::kLog2e; }
  __device__ __forceinline__ static Weighed pair(float score, float scale_log2, float norm) {
    const float w = exp2_approx(fmaf(score, scale_log2, -norm));
    return {w, w};
  }
};
struct TaylorWeight {
  static constexpr bool kTaylor = true;
  // From the denominator.
  __device__ __forceinline__ static float norm(float statistic) { return 1 / statistic; }
  __device__ __forceinline__ static Weighed pair(float score, float, float norm) {
    return {fmaf(score, fmaf(score, 0.5F, 1.0F), 1.0F) * norm, (1 + score) * norm};
  }
};

// One of kernels by widths: `run<Weight, blocks of q and k, blocks of v, split>` for the smallest that take them.
template <template <class, int, int, bool> class Run, class... Arguments>
Status choose(const Problem& p, const Arguments&... arguments) {
  const auto split = [&](auto weight, auto qk, auto v) {
    using Weight = decltype(weight);
    return p.of.single_tf32 ? Run<Weight, qk.value, v.value, false>::launch(arguments...)
                            : Run<Weight, qk.value, v.value, true>::launch(arguments...);
  };
  using std::integral_constant;
  constexpr integral_constant<int, 4> k32{};
  constexpr integral_constant<int, 8> k64{};
  constexpr integral_constant<int, 16> k128{};
  const bool narrow = p.of.head_dim <= 64;
  if (!p.taylor) return narrow ? split(SoftmaxWeight{}, k64, k64) : split(SoftmaxWeight{}, k128, k128);
  if (p.qk_dim <= 32) return narrow ? split(TaylorWeight{}, k32, k64) : split(TaylorWeight{}, k32, k128);
  return split(TaylorWeight{}, k64, k128);
}

template <typename Kernel, typename Params>
Status launch_parts(Kernel* kernel, const Params& params, const CausalAttention& of, int64_t tokens, int heads, bool last_first, int bytes,
                    Stream stream) {
  const Order order = causal::make_order(of, tokens, kOwn, last_first);
  if (!causal::fits(order)) return {"attention over pairs: too many tokens for one launch"};
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  kernel<<<causal::grid_of(order, heads), kThreads, bytes, stream_of(stream)>>>(params, order);
  return launched();
}

// Bytes of shared memory of the forward: own rows of q, other ones of both widths; of the gradients: both of both widths, and the
// statistics of the other side.
inline int forward_bytes(const Problem& p) { return ((kOwn + kOther) * pitch_of(p.qk_dim) + kOther * pitch_of(p.of.head_dim)) * 4; }
inline int shared_bytes(const Problem& p) { return (kOwn + kOther) * (pitch_of(p.qk_dim) + pitch_of(p.of.head_dim)) * 4 + 2 * kOther * 4; }

}  // namespace based::kernels::cuda::detail::pairs
