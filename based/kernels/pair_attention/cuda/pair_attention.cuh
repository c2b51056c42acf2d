// Common code of the fp32 kernels for attention over pairs of tokens. A block owns 64 tokens of a row and one head, 16 per warp, and loops
// over the tokens of the other side in tiles of 32. Products run on tensor cores in TF32. Either each operand is split into big + small,
// both TF32, and a product is big·big + big·small + small·big, which is accurate to fp32 but for the last bits. Or operands are rounded to
// TF32.
#pragma once
#include <cmath>

#include "based/kernels/common/cuda/attention_blocks.cuh"
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/common/cuda/tf32.cuh"
#include "based/kernels/pair_attention/pair_attention.h"
#include "based/kernels/training/dropout.h"

namespace based::kernels::cuda::detail::pairs {

using namespace attention_blocks;

constexpr int kOwned = 64, kOther = 32, kThreads = 128;
// Floats of padding after each row in shared memory. Row lengths are multiples of 16. With the padding, four floats of 8 rows, and 8
// columns of four rows, are in 32 different banks.
constexpr int kPadding = 4;
constexpr int64_t kMaxStride = 1 << 30;  // maximum stride of a token, in elements; kernels use 32-bit strides
constexpr int kBlocks = kOther / 8;      // blocks of 8 columns in a warp's scores
// A block uses two buffers for tiles of the other side, so that one is loaded while the other is used, if it then needs at most this much
// shared memory.
constexpr int kMaxDoubleBufferBytes = 80 << 10;

// An operand fragment of 16 rows (or columns) by 8.
template <bool kSplit>
struct Fragment : Registers<4, kSplit> {
  __device__ __forceinline__ void load(uint32_t address) {
    uint32_t x[4];
    ldmatrix(x, address);
#pragma unroll
    for (int i = 0; i < 4; ++i) this->set(i, __uint_as_float(x[i]));
  }
};

// d += a·b for two adjacent blocks of 8 columns; b holds two registers of each. Small products are added first.
template <bool kSplit>
__device__ __forceinline__ void multiply_add(float (&d0)[4], float (&d1)[4], const Fragment<kSplit>& a, const Fragment<kSplit>& b) {
  if constexpr (kSplit) {
    mma_16x8x8(d0, a.small, b.big[0], b.big[1]), mma_16x8x8(d1, a.small, b.big[2], b.big[3]);
    mma_16x8x8(d0, a.big, b.small[0], b.small[1]), mma_16x8x8(d1, a.big, b.small[2], b.small[3]);
  }
  mma_16x8x8(d0, a.big, b.big[0], b.big[1]), mma_16x8x8(d1, a.big, b.big[2], b.big[3]);
}

// A warp's accumulators: 16 rows, 8 columns per block.
template <int kCount>
using Sums = float[kCount][4];

// s = a·bᵀ for 16 rows of a and 32 rows of b in shared memory. Rows are `pitch` floats apart; the first `width` floats are used.
template <bool kSplit>
__device__ __forceinline__ void dot_rows(Sums<kBlocks>& s, const float* a, const float* b, int pitch, int width) {
  const int lane = threadIdx.x % 32;
  uint32_t a_address = shared_address(a + lane % 16 * pitch + lane / 16 * 4);
  uint32_t b_address = shared_address(b + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 4);
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
#pragma unroll 2
  for (int k = 0; k < width; k += 8, a_address += 32, b_address += 32) {
    Fragment<kSplit> x, y[2];
    x.load(a_address), y[0].load(b_address), y[1].load(b_address + 64 * pitch);
    multiply_add(s[0], s[1], x, y[0]);
    multiply_add(s[2], s[3], x, y[1]);
  }
}

// sums += w·x for 16 rows of w in registers and 32 rows of x in shared memory, of which `width` columns are used. An accumulator lane holds
// columns 2j and 2j + 1 of each 8 columns of w, but an operand lane needs columns j and j + 4. So w's columns, and equally the rows of x,
// are permuted. Of 16 columns of x, the even ones form one block of sums and the odd ones the next. So a lane loads two adjacent columns
// with one access, and ends with four adjacent columns of a row.
template <bool kSplit, int kCount>
__device__ __forceinline__ void add_weighted(Sums<kCount>& sums, const Sums<kBlocks>& w, const float* x, int pitch, int width) {
  const auto rounded = [](float weight) { return kSplit ? weight : round_to_tf32(weight); };
  Fragment<kSplit> a[kBlocks];
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    a[k].set(0, rounded(w[k][0])), a[k].set(1, rounded(w[k][2]));
    a[k].set(2, rounded(w[k][1])), a[k].set(3, rounded(w[k][3]));
  }
  const float* column = x + threadIdx.x % 4 * 2 * pitch + threadIdx.x % 32 / 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount; n += 2) {
    if (8 * n >= width) continue;
#pragma unroll
    for (int k = 0; k < kBlocks; ++k) {
      const float* row = column + 8 * k * pitch + 8 * n;
      const float2 even = *reinterpret_cast<const float2*>(row), odd = *reinterpret_cast<const float2*>(row + pitch);
      Fragment<kSplit> b;
      b.set(0, even.x), b.set(1, odd.x), b.set(2, even.y), b.set(3, odd.y);
      multiply_add(sums[n], sums[n + 1], a[k], b);
    }
  }
}

// Row and column of element e of block n in lane l's scores: rows l / 4 and l / 4 + 8, columns 2 (l mod 4) and 2 (l mod 4) + 1.
__device__ __forceinline__ int row_of(int e) { return threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ __forceinline__ int column_of(int n, int e) { return 8 * n + threadIdx.x % 4 * 2 + e % 2; }

// A thread's part of a tile in shared memory: four columns of every step-th row.
struct ThreadPart {
  int row, column, step;
  __device__ __forceinline__ explicit ThreadPart(const Layout& l)
      : row(static_cast<int>(threadIdx.x) >> l.shift),
        column((static_cast<int>(threadIdx.x) & ((1 << l.shift) - 1)) * 4),
        step(kThreads >> l.shift) {}
};

// Loads rows [first, first + kRows) of a matrix with `rows` rows, `stride` floats apart, into shared memory, asynchronously. Missing rows,
// and columns from the width to the pitch, are filled with zeros.
template <int kRows>
__device__ __forceinline__ void load_rows(float* tile, const float* matrix, int first, int rows, int stride, const Layout& l,
                                          bool in_fours) {
  const ThreadPart part(l);
  if (part.column >= l.pitch - kPadding) return;
  int row = first + part.row;
  uint32_t shared = shared_address(tile + part.row * l.pitch + part.column);
  const float* source = matrix + static_cast<int64_t>(row) * stride + part.column;
  const int64_t source_step = static_cast<int64_t>(part.step) * stride;
  const uint32_t shared_step = part.step * l.pitch * 4;
  if (in_fours) {
    rows = part.column < l.width ? rows : 0;
#pragma unroll 2
    for (; row < first + kRows; row += part.step, source += source_step, shared += shared_step) copy_async_16(shared, source, row < rows);
    return;
  }
#pragma unroll 1
  for (; row < first + kRows; row += part.step, source += source_step, shared += shared_step) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if (row < rows && part.column + i < l.width) {
        copy_async_4(shared + 4 * i, source + i);
      } else {
        tile[(row - first) * l.pitch + part.column + i] = 0;
      }
    }
  }
}

// Called after the wait for load_rows(). With single TF32 products, each thread rounds the elements that it has loaded, once for all warps.
template <int kRows, bool kSplit>
__device__ __forceinline__ void round_rows(float* rows, const Layout& l) {
  if constexpr (!kSplit) {
    const ThreadPart part(l);
    if (part.column >= l.pitch - kPadding) return;
    float* x4 = rows + part.row * l.pitch + part.column;
#pragma unroll 2
    for (int row = part.row; row < kRows; row += part.step, x4 += part.step * l.pitch) {
      float4& x = *reinterpret_cast<float4*>(x4);
      x = make_float4(round_to_tf32(x.x), round_to_tf32(x.y), round_to_tf32(x.z), round_to_tf32(x.w));
    }
  }
}

// Stores up to `rows` of a warp's 16 rows, scaled: a lane's first row by `first`, its second row by `second`.
template <int kCount>
__device__ __forceinline__ void store_rows(float* out, int64_t stride, int width, int rows, bool in_fours, const Sums<kCount>& sums,
                                           float first, float second) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row_of(2 * half) >= rows) continue;
    const float factor = half == 0 ? first : second;
    float* row = out + row_of(2 * half) * stride;
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

// Positions [first, first + count) of a row.
struct Span {
  int first;
  uint32_t count;
  __device__ __forceinline__ bool contains(int i) const { return static_cast<uint32_t>(i - first) < count; }
};

// The mask of a row: query i attends to key j if i + shift − window < j ≤ i + shift.
struct PairMask {
  int shift, window;
  __device__ __forceinline__ explicit PairMask(const Problem& p, const WorkItem& item)
      : shift(item.shift()), window(p.window > 0 && p.window < kAllKeys ? static_cast<int>(p.window) : kAllKeys) {}
  __device__ __forceinline__ Span visible_keys(int query) const { return {query + shift - window + 1, static_cast<uint32_t>(window)}; }
  // Those of the row's `queries` that attend to the key.
  __device__ __forceinline__ Span visible_queries(int key, int queries) const {
    return {key - shift, static_cast<uint32_t>(max(min(window, queries - key + shift), 0))};
  }
  // Whether any of the `queries` from `query` on attends to any of the `keys` from `key` on.
  __device__ __forceinline__ bool any(int query, int queries, int key, int keys) const {
    return key <= query + queries - 1 + shift && key + keys - 1 > query + shift - window;
  }
};

// As attention_blocks::find_item(), but without a search if all rows have equal lengths, as they have with FilterWeight.
template <bool kSplitKeys, class Weight>
__device__ __forceinline__ bool find_row(const Problem& p, const Order& o, WorkItem& item) {
  const uint32_t section = blockIdx.z / o.parts, part = blockIdx.z - section * o.parts, row = section * o.rows_in_cache + blockIdx.y;
  if (row >= o.rows) return false;
  const uint32_t part_of_row = o.last_first ? o.parts - 1 - part : part;
  if constexpr (Weight::kFilter) {
    item.q_begin = item.k_begin = int64_t{row} * p.row_length, item.queries = item.keys = p.row_length;
    item.head = static_cast<int>(blockIdx.x), item.row = static_cast<int>(row), item.heads_per_kv = o.heads_per_kv;
    item.part = static_cast<int>(part_of_row);
    return item.part * kOwned < item.queries;
  }
  const uint32_t number = row * o.parts + part_of_row;
  const int64_t queries[2] = {p.q_start[row], p.q_start[row + 1]}, keys[2] = {p.k_start[row], p.k_start[row + 1]};
  const int64_t(&starts)[2] = kSplitKeys ? keys : queries;
  const int64_t first = starts[0] / kOwned + row;
  if (number < first || number > starts[1] / kOwned + row) return find_item<kOwned, kSplitKeys>(p, o, item);
  item.q_begin = queries[0], item.k_begin = keys[0];
  item.queries = warp_uniform(static_cast<int>(queries[1] - queries[0])), item.keys = warp_uniform(static_cast<int>(keys[1] - keys[0]));
  item.head = static_cast<int>(blockIdx.x), item.row = static_cast<int>(row), item.heads_per_kv = o.heads_per_kv;
  item.part = warp_uniform(static_cast<int>(number - first));
  return item.part * kOwned < (kSplitKeys ? item.keys : item.queries);
}

// Dropout of weights.
struct Dropout {
  uint64_t key = 0;
  uint32_t threshold;
  float scale;
  int heads;
  __device__ __forceinline__ explicit Dropout(const Problem& p) : threshold(p.dropout.threshold), scale(p.dropout.scale), heads(p.heads) {
    if (threshold == 0) return;
    const uint64_t first = static_cast<uint64_t>(p.dropout.first_token * heads) << 20;
    key = dropout_key(p.dropout.seed, static_cast<uint64_t>(*p.dropout.step), p.dropout.place, first);
  }
  __device__ __forceinline__ bool any() const { return threshold != 0; }
  // The factor of a pair's weight: 0 or 1/(1 − p).
  __device__ __forceinline__ float factor(int64_t query_token, int head, int key_of_row) const {
    const uint64_t element = (static_cast<uint64_t>(query_token * heads + head) << 20) + static_cast<uint64_t>(key_of_row);
    return is_dropped(key, element, threshold) ? 0.0F : scale;
  }
};

// A pair's normalised weight, and its slope: the derivative of the unnormalised weight by the score, divided by the sum of weights. `tap`
// is filter[i − j] for FilterWeight, else it is not used.
struct WeightAndSlope {
  float weight, slope;
};
struct SoftmaxWeight {
  static constexpr bool kSoftmax = true, kFilter = false;
  // The normalising constant from log_sum_exp.
  __device__ __forceinline__ static float norm(float statistic) { return statistic * kLog2e; }
  __device__ __forceinline__ static WeightAndSlope pair(float score, float scale_log2, float norm, float) {
    const float w = exp2_approx(fmaf(score, scale_log2, -norm));
    return {w, w};
  }
};
// Weights that need no maximum of the scores. Function has weight(score) and slope(score).
template <class Function>
struct PlainWeight : Function {
  static constexpr bool kSoftmax = false, kFilter = false;
  // The normalising constant from the denominator.
  __device__ __forceinline__ static float norm(float statistic) { return 1 / statistic; }
  __device__ __forceinline__ static float weigh(float score, float) { return Function::weight(score); }
  __device__ __forceinline__ static WeightAndSlope pair(float score, float, float norm, float) {
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
// The score times a tap of the filter; no sum of weights divides it.
struct FilterWeight {
  static constexpr bool kSoftmax = false, kFilter = true;
  __device__ __forceinline__ static float weigh(float score, float tap) { return score * tap; }
  __device__ __forceinline__ static WeightAndSlope pair(float score, float, float, float tap) { return {score * tap, tap}; }
};

// The taps of a lane's 16 pairs of a tile, which have 10 distances i − j: the rows' step of 8 and the columns' of 8 n differ by −24 .. 8.
// kRowsAreQueries: rows are queries and columns keys, else rows are keys. Other weights than FilterWeight load nothing.
template <class Weight, bool kRowsAreQueries>
struct TileTaps {
  float taps[5][2];

  // `row` and `column`: the positions of the tile's first row and column.
  __device__ __forceinline__ TileTaps(const float* filter, int count, int row, int column) {
    if constexpr (Weight::kFilter) {
      const int distance = row + row_of(0) - column - column_of(0, 0);
#pragma unroll
      for (int i = 0; i < 5; ++i) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int of_rows = distance + 8 * (i - 3) - odd, d = kRowsAreQueries ? of_rows : -of_rows;
          taps[i][odd] = static_cast<uint32_t>(d) < static_cast<uint32_t>(count) ? __ldg(filter + d) : 0.0F;
        }
      }
    }
  }
  __device__ __forceinline__ float operator()(int n, int e) const {
    if constexpr (Weight::kFilter) return taps[e / 2 - n + 3][e % 2];
    return 1;
  }
};

// Launches Run<Weight, column blocks of q and k, column blocks of v, split> with the smallest instance that fits the widths.
template <template <class, int, int, bool> class Run, class... Arguments>
Status choose(const Problem& p, const Arguments&... arguments) {
  const auto split = [&](auto weight, auto qk, auto v) {
    using Weight = decltype(weight);
    return p.single_tf32 ? Run<Weight, qk.value, v.value, false>::launch(arguments...)
                         : Run<Weight, qk.value, v.value, true>::launch(arguments...);
  };
  using std::integral_constant;
  constexpr integral_constant<int, 4> k32{};
  constexpr integral_constant<int, 8> k64{};
  constexpr integral_constant<int, 16> k128{};
  const bool narrow = p.head_dim <= 64;
  if (p.weights == Weights::softmax) return narrow ? split(SoftmaxWeight{}, k64, k64) : split(SoftmaxWeight{}, k128, k128);
  if (p.weights == Weights::filter) return narrow ? split(FilterWeight{}, k64, k64) : split(FilterWeight{}, k128, k128);
  if (p.weights == Weights::linear) {
    if (!narrow) return split(LinearWeight{}, k128, k128);
    return p.qk_dim <= 64 ? split(LinearWeight{}, k64, k64) : split(LinearWeight{}, k128, k64);
  }
  if (p.qk_dim <= 32) return narrow ? split(TaylorWeight{}, k32, k64) : split(TaylorWeight{}, k32, k128);
  return split(TaylorWeight{}, k64, k128);
}

template <typename Kernel, typename Params>
Status launch_parts(Kernel* kernel, const Params& params, const Problem& problem, int64_t tokens, int heads, bool last_first, int bytes,
                    Queue queue) {
  const Order order = make_order(problem, tokens, kOwned, last_first);
  if (!fits(order)) return {"attention over pairs: too many tokens for one launch"};
  if (const cudaError_t e = allow_shared_memory(kernel, bytes); e != cudaSuccess) return status_of(e);
  kernel<<<grid_of(order, heads), kThreads, bytes, stream_of(queue)>>>(params, order);
  return launched();
}

inline Layout make_layout(int width) {
  const int padded = (width + 15) / 16 * 16;
  int shift = 2;
  while (4 << shift < padded) ++shift;
  return {width, padded + kPadding, shift};
}

// Shared memory of a block: the owned rows of q, and tiles of the other side of both widths. For gradients: owned rows of both widths, and
// with each tile the statistics of its queries.
struct SharedMemory {
  int bytes;
  int32_t buffer_step;  // floats from one buffer to the other; 0: a single buffer
};
inline SharedMemory shared_memory(const Problem& p, bool gradients) {
  const int qk = make_layout(p.qk_dim).pitch, v = make_layout(p.head_dim).pitch;
  const int own = kOwned * (gradients ? qk + v : qk), tile = kOther * (qk + v + (gradients ? 2 : 0));
  const int double_bytes = (own + 2 * tile) * 4;
  return double_bytes <= kMaxDoubleBufferBytes ? SharedMemory{double_bytes, tile} : SharedMemory{(own + tile) * 4, 0};
}

// Sets the members of a problem that depend on the launch.
inline void set_layout(Problem& p, bool gradients) {
  p.row_length = static_cast<int32_t>(p.q_tokens / p.rows);
  p.qk_layout = make_layout(p.qk_dim), p.v_layout = make_layout(p.head_dim), p.buffer_step = shared_memory(p, gradients).buffer_step;
}

}  // namespace based::kernels::cuda::detail::pairs
