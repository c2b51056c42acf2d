// Two LayerNorms of one stream, the second one of what the first one was added to: the sum between them stays in registers, and the
// backward computes it again.
#include "based/kernels/cuda/layer_norm.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Of a backward on a multiprocessor: what its registers allow.
constexpr int64_t kMostBlocks = 4, kMostColumns = 512;

// s + the norm of s, with the roundings of a norm that is written and then added; `to` may be s.
template <typename X, typename T, typename Rows>
__device__ __forceinline__ void add_norm(const Rows& in, const LayerNorm& p, const Statistics& of, int u, const float (&s)[kUnit],
                                         float (&to)[kUnit]) {
  float y[kUnit];
  normalise<T>(in, p, of, u, s, y);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) to[c] = rounded<X>(s[c]) + rounded<T>(y[c]);
}

template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_twice(const __grid_constant__ LayerNormTwice p) {
  using Rows = Row<kLanes, kUnits, kVector>;
  overlap_kernels();
  const LayerNorm &a = p.first, &b = p.second;
  const Rows in{a.width};
  const int64_t row = Rows::first(), from = min(row, a.rows - 1);  // lanes without a row take part in the sums
  const bool mine = row < a.rows;
  float s[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) load_sum<X, T>(a, in, from, u, s[u]);
  const Statistics first = statistics_of(in, s, a.eps);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (mine && a.sum != nullptr) in.template store<X>(a.sum, row, u, s[u]);
    add_norm<X, T>(in, a, first, u, s[u], s[u]);
  }
  const Statistics second = statistics_of(in, s, a.eps);
  if (!mine) return;
  keep<Rows>(a, row, first), keep<Rows>(b, row, second);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (b.sum != nullptr) in.template store<X>(b.sum, row, u, s[u]);
    float y[kUnit];
    normalise<T>(in, b, second, u, s[u], y);
    in.template store<T>(b.y, row, u, y);
  }
}

// Rows of a block, then those gridDim.x blocks further on, …: their gradients, and the block's part of the four column sums in `partial`
// [blocks, 4, width].
template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_twice_backward(const __grid_constant__ LayerNormTwiceBackward p, float* partial) {
  using Rows = Row<kLanes, kUnits, kVector>;
  __shared__ float shared[kMostWidth];
  overlap_kernels();
  const LayerNorm &a = p.first, &b = p.second;
  const Rows in{a.width};
  ColumnSums<kUnits> of_first, of_second;
  for (int64_t begin = blockIdx.x * int64_t{Rows::kRows}; begin < a.rows; begin += int64_t{gridDim.x} * Rows::kRows) {
    const int64_t row = begin + threadIdx.x / kLanes, from = min(row, a.rows - 1);  // lanes without a row take part in the sums
    const bool mine = row < a.rows;
    const Statistics first{a.mean[from], a.inverse_std[from]}, second{b.mean[from], b.inverse_std[from]};
    float s[kUnits][kUnit], unit[kUnits][kUnit], g[kUnits][kUnit], other[kUnits][kUnit] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      in.template load<X>(a.x, from, u, s[u]);
      in.template load<T>(p.grad_y, from, u, g[u]);
      if (p.grad_sum != nullptr) in.template load<T>(p.grad_sum, from, u, other[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      add_norm<X, T>(in, a, first, u, s[u], unit[u]);
      to_units(second, unit[u]);
    }
    backward_of_norm<T>(in, b, second.inverse_std, mine, unit, other, g, of_second);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) to_units(first, s[u]);
    backward_of_norm<T>(in, a, first.inverse_std, mine, s, g, g, of_first);  // g goes to the sum and to the norm
    if (!mine) continue;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) in.template store<T>(p.grad_x, row, u, g[u]);
  }
  float* to = partial + blockIdx.x * 4 * a.width;
  add_up_rows(in, of_first, shared, to);
  add_up_rows(in, of_second, shared, to + 2 * a.width);
}

bool is_aligned(const LayerNormTwice& p) { return detail::is_aligned(p.first) && detail::is_aligned(p.second); }

constexpr const char* kUnsupported = "layer_norm_twice: width or types have no kernel";

}  // namespace

Status layer_norm_twice_forward(const LayerNormTwice& p, Stream stream) {
  const LayerNorm& f = p.first;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  if (f.rows == 0) return {};
  return choose_types(f, [&]<typename X, typename T>() {
    return choose_row(f.width, is_aligned(p), [&]<int kLanes, int kUnits, bool kVector>() {
      const auto blocks = static_cast<unsigned>(ceil_div(f.rows, kThreads / kLanes));
      return launch_overlapped(norm_rows_twice<X, T, kLanes, kUnits, kVector>, {blocks, kThreads}, stream, p);
    });
  });
}

int64_t layer_norm_twice_backward_scratch(const LayerNormTwiceBackward& p) {
  return backward_blocks(p.first, kMostBlocks, kMostColumns) * 4 * p.first.width * 4;
}

Status layer_norm_twice_backward(const LayerNormTwiceBackward& p, void* scratch, Stream stream) {
  const LayerNorm& f = p.first;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  const int64_t blocks = backward_blocks(f, kMostBlocks, kMostColumns);
  auto* partial = static_cast<float*>(scratch);
  const bool vector = is_aligned({p.first, p.second}) && aligned16(p.grad_y) && aligned16(p.grad_sum) && aligned16(p.grad_x);
  const Status status = choose_types(f, [&]<typename X, typename T>() {
    return choose_row(f.width, vector, [&]<int kLanes, int kUnits, bool kVector>() {
      const Launch launch{static_cast<unsigned>(blocks), kThreads};
      return launch_overlapped(norm_rows_twice_backward<X, T, kLanes, kUnits, kVector>, launch, stream, p, partial);
    });
  });
  if (!status.ok()) return status;
  const Launch sums{static_cast<unsigned>(ceil_div(4 * f.width, kSumColumns)), kSumThreads};
  const Columns<4> columns{{p.grad_weight[0], p.grad_bias[0], p.grad_weight[1], p.grad_bias[1]}};
  return launch_overlapped(sum_columns<4>, sums, stream, partial, blocks, f.width, columns);
}

}  // namespace based::kernels::cuda
