// Parts of the fp32 kernels for attention over pairs of tokens. A block owns 64 tokens of a row and of one head, 16 for each warp, and
// walks over the tokens on the other side, 32 at a time, on tensor cores in TF32. An operand x is big + small, each of TF32, and a product
// big·big + big·small + small·big, which is fp32 but for the last bits; or x rounded to TF32, and one product.
#pragma once
#include <cmath>

#include "based/kernels/cuda/causal_sm90.cuh"
#include "based/kernels/cuda/launch.h"
#include "based/kernels/cuda/pair_attention.h"
#include "based/kernels/cuda/tf32.cuh"
#include "based/kernels/dropout.h"

namespace based::kernels::cuda::detail::pairs {

using causal::Order;
using causal::Place;

constexpr int kOwn = 64, kOther = 32, kThreads = 128;
// Floats between rows of multiples of 16 in shared memory, so that 8 rows' four floats, and 8 columns of four rows, lie in 32 banks.
constexpr int kPadding = 4;
constexpr int64_t kMostStride = 1 << 30;  // of a token, in elements: kernels reckon with 32 bits of it
constexpr int kBlocks = kOther / 8;       // of 8 columns, of the scores of a warp
// Two tiles of the other side, so that one is loaded while another is used, where a block then needs no more shared memory than this.
constexpr int kMostBytesOfTwo = 80 << 10;

// Of 16 rows or columns by 8.
template <bool kSplit>
struct Parts : Registers<4, kSplit> {
  __device__ __forceinline__ void load(uint32_t address) {
    uint32_t x[4];
    ldmatrix(x, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) this->set(i, __uint_as_float(x[i]));
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
// 2j + 1 for j + 4, since so lanes have them; rows of x likewise. Of 16 columns of x the even ones are one block of sums and the odd ones
// the next, so that a lane reads two neighbours at once and ends with four neighbours of a row.
template <bool kSplit, int kCount>
__device__ __forceinline__ void add_weighted(Sums<kCount>& sums, const Sums<kBlocks>& w, const float* x, int pitch, int width) {
  const auto rounded = [](float weight) { return kSplit ? weight : round_to_tf32(weight); };
  Parts<kSplit> a[kBlocks];
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    a[k].set(0, rounded(w[k][0])), a[k].set(1, rounded(w[k][2]));
    a[k].set(2, rounded(w[k][1])), a[k].set(3, rounded(w[k][3]));
  }
  const float* at = x + threadIdx.x % 4 * 2 * pitch + threadIdx.x % 32 / 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount; n += 2) {
    if (8 * n >= width) continue;
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      const float* row = at + 8 * k * pitch + 8 * n;
      const float2 even = *reinterpret_cast<const float2*>(row), odd = *reinterpret_cast<const float2*>(row + pitch);
      Parts<kSplit> b;
      b.set(0, even.x), b.set(1, odd.x), b.set(2, even.y), b.set(3, odd.y);
      multiply_add(sums[n], sums[n + 1], a[k], b);
    }
  }
}

// Row and column of a lane's element e of block n of scores: rows l / 4 and 8 more, columns 2 (l mod 4) and the next.
__device__ __forceinline__ int row_of(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ __forceinline__ int column_of(int n, int e) { return 8 * n + threadIdx.x % 4 * 2 + e % 2; }

// A thread's part of rows in shared memory: four columns of every step-th row.
struct Part {
  int row, column, step;
  __device__ __forceinline__ explicit Part(const Layout& l)
      : row(static_cast<int>(threadIdx.x) >> l.shift),
        column((static_cast<int>(threadIdx.x) & ((1 << l.shift) - 1)) * 4),
        step(kThreads >> l.shift) {}
};

// Rows [first, first + kRows) of `rows` of a matrix, `stride` floats apart; the others, and columns up to the pitch's, are zeros.
// Asynchronous.
template <int kRows>
__device__ __forceinline__ void load_rows(float* to, const float* matrix, int first, int rows, int stride, const Layout& l, bool in_fours) {
  const Part part(l);
  if (part.column >= l.pitch - kPadding) return;
  int row = first + part.row;
  uint32_t shared = shared_address(to + part.row * l.pitch + part.column);
  const float* at = matrix + static_cast<int64_t>(row) * stride + part.column;
  const int64_t apart = static_cast<int64_t>(part.step) * stride;
  const uint32_t shared_apart = part.step * l.pitch * 4;
  if (in_fours) {
    rows = part.column < l.width ? rows : 0;
#pragma unroll 2
    for (; row < first + kRows; row += part.step, at += apart, shared += shared_apart) copy_async_16(shared, at, row < rows);
    return;
  }
#pragma unroll 1
  for (; row < first + kRows; row += part.step, at += apart, shared += shared_apart) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if (row < rows && part.column + i < l.width) {
        copy_async_4(shared + 4 * i, at + i);
      } else {
        to[(row - first) * l.pitch + part.column + i] = 0;
      }
    }
  }
}

// After the wait for load_rows: where products are of one part, what this thread has loaded is rounded here, once for all warps.
template <int kRows, bool kSplit>
__device__ __forceinline__ void round_rows(float* rows, const Layout& l) {
  if constexpr (!kSplit) {
    const Part part(l);
    if (part.column >= l.pitch - kPadding) return;
    float* at = rows + part.row * l.pitch + part.column;
#pragma unroll 2
    for (int row = part.row; row < kRows; row += part.step, at += part.step * l.pitch) {
      float4& x = *reinterpret_cast<float4*>(at);
      x = make_float4(round_to_tf32(x.x), round_to_tf32(x.y), round_to_tf32(x.z), round_to_tf32(x.w));
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
    for (int n = 0; n < kCount; n += 2) {
      const int c = 8 * n + threadIdx.x % 4 * 4;
      const float x[4] = {sums[n][2 * half] * factor, sums[n + 1][2 * half] * factor, sums[n][2 * half + 1] * factor,
                          sums[n + 1][2 * half + 1] * factor};
      if (in_fours) {
        if (c < width) *reinterpret_cast<float4*>(row + c) = make_float4(x[0], x[1], x[2], x[3]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (c + i < width) row[c + i] = x[i];
      }
    }
  }
}

// Places [from, from + count) of a row.
struct Span {
  int from;
  uint32_t count;
  __device__ __forceinline__ bool contains(int i) const { return static_cast<uint32_t>(i - from) < count; }
};

// Which pairs a row has: query i sees key j where i + shift − window < j ≤ i + shift.
struct Sight {
  int shift, window;
  __device__ __forceinline__ explicit Sight(const Problem& p, const Place& at)
      : shift(at.shift()), window(p.of.window > 0 && p.of.window < causal::kAllKeys ? static_cast<int>(p.of.window) : causal::kAllKeys) {}
  __device__ __forceinline__ Span keys_of(int query) const { return {query + shift - window + 1, static_cast<uint32_t>(window)}; }
  // Of a row's `queries`.
  __device__ __forceinline__ Span queries_of(int key, int queries) const {
    return {key - shift, static_cast<uint32_t>(max(min(window, queries - key + shift), 0))};
  }
  // Any of `queries` and `keys` that follow these.
  __device__ __forceinline__ bool any(int query, int queries, int key, int keys) const {
    return key <= query + queries - 1 + shift && key + keys - 1 > query + shift - window;
  }
};

// The block's place, as causal::find_place() says it. Where rows are equally long the row is known without a search.
template <bool kOfKeys>
__device__ __forceinline__ bool find_row(const CausalAttention& p, const Order& o, Place& place) {
  const uint32_t section = blockIdx.z / o.parts, part = blockIdx.z - section * o.parts, row = section * o.together + blockIdx.y;
  if (row >= o.rows) return false;
  const uint32_t number = row * o.parts + (o.last_first ? o.parts - 1 - part : part);
  const int64_t queries[2] = {p.q_start[row], p.q_start[row + 1]}, keys[2] = {p.k_start[row], p.k_start[row + 1]};
  const int64_t(&own)[2] = kOfKeys ? keys : queries;
  const int64_t first = own[0] / kOwn + row;
  if (number < first || number > own[1] / kOwn + row) return causal::find_place<kOwn, kOfKeys>(p, o, place);
  place.q_begin = queries[0], place.k_begin = keys[0];
  place.queries = warp_uniform(static_cast<int>(queries[1] - queries[0])), place.keys = warp_uniform(static_cast<int>(keys[1] - keys[0]));
  place.head = static_cast<int>(blockIdx.x), place.row = static_cast<int>(row), place.share = o.share;
  place.part = warp_uniform(static_cast<int>(number - first));
  return place.part * kOwn < (kOfKeys ? place.keys : place.queries);
}

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
  static constexpr bool kSoftmax = true;
  // From log_sum_exp.
  __device__ __forceinline__ static float norm(float statistic) { return statistic * causal::kLog2e; }
  __device__ __forceinline__ static Weighed pair(float score, float scale_log2, float norm) {
    const float w = exp2_approx(fmaf(score, scale_log2, -norm));
    return {w, w};
  }
};
// Of weights that need no largest score; Function has weight(score) and slope(score).
template <class Function>
struct PlainWeight : Function {
  static constexpr bool kSoftmax = false;
  // From the denominator.
  __device__ __forceinline__ static float norm(float statistic) { return 1 / statistic; }
  __device__ __forceinline__ static Weighed pair(float score, float, float norm) {
    return {Function::weight(score) * norm, Function::slope(score) * norm};
  }
};
struct TaylorFunction {
  __device__ __forceinline__ static float weight(float score) { return fmaf(score, fmaf(score, 0.5F, 1.0F), 1.0F); }
  __device__ __forceinline__ static float slope(float score) { return 1 + score; }
};
struct LinearFunction {
  __device__ __forceinline__ static float weight(float score) { return score; }
  __device__ __forceinline__ static float slope(float) { return 1; }
};
using TaylorWeight = PlainWeight<TaylorFunction>;
using LinearWeight = PlainWeight<LinearFunction>;

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
  if (p.weights == Weights::softmax) return narrow ? split(SoftmaxWeight{}, k64, k64) : split(SoftmaxWeight{}, k128, k128);
  if (p.weights == Weights::linear) {
    if (!narrow) return split(LinearWeight{}, k128, k128);
    return p.qk_dim <= 64 ? split(LinearWeight{}, k64, k64) : split(LinearWeight{}, k128, k64);
  }
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

inline Layout layout_of(int width) {
  const int padded = (width + 15) / 16 * 16;
  int shift = 2;
  while (4 << shift < padded) ++shift;
  return {width, padded + kPadding, shift};
}

// Of a block: own rows of q, tiles of the other side of both widths; for gradients own rows of both widths, and what the other side is
// normalised by with each tile.
struct SharedMemory {
  int bytes;
  int32_t turn;  // floats from one tile to the other; 0: there is one
};
inline SharedMemory shared_memory(const Problem& p, bool gradients) {
  const int qk = layout_of(p.qk_dim).pitch, v = layout_of(p.of.head_dim).pitch;
  const int own = kOwn * (gradients ? qk + v : qk), tile = kOther * (qk + v + (gradients ? 2 : 0));
  const int two = (own + 2 * tile) * 4;
  return two <= kMostBytesOfTwo ? SharedMemory{two, tile} : SharedMemory{(own + tile) * 4, 0};
}

// What kernels read of a problem's shapes.
inline void lay_out(Problem& p, bool gradients) {
  p.qk = layout_of(p.qk_dim), p.v = layout_of(p.of.head_dim), p.turn = shared_memory(p, gradients).turn;
}

}  // namespace based::kernels::cuda::detail::pairs
