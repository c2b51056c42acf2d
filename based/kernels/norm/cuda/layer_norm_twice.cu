// Two consecutive LayerNorms: y = norm2(t), t = s + norm1(s), s = x + add. t stays in registers, and the backward recomputes it.
#include "based/kernels/norm/cuda/layer_norm.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// The backward's blocks of a multiprocessor, as limited by registers; see backward_blocks.
constexpr int64_t kMaxBlocks = 4, kMaxColumns = 512;

// to = s + norm(s), rounded as if the norm were stored and then added; `to` may be s.
template <typename X, typename T, typename Rows>
__device__ __forceinline__ void add_norm(const Rows& layout, const LayerNorm& p, const Statistics& statistics, int u,
                                         const float (&s)[kUnit], float (&to)[kUnit]) {
  float y[kUnit];
  normalise<T>(layout, p, statistics, u, s, y);
#pragma unroll
  for (int c = 0; c < kUnit; ++c) to[c] = rounded<X>(s[c]) + rounded<T>(y[c]);
}

template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_twice(const __grid_constant__ LayerNormTwice p) {
  using Rows = Row<kLanes, kUnits, kVector>;
  overlap_kernels();
  const LayerNorm &a = p.first, &b = p.second;
  const Rows layout{a.width};
  const int64_t row = Rows::first(), from = min(row, a.rows - 1);  // lanes without a row take part in the warp's sums
  const bool mine = row < a.rows;
  float s[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) load_sum<X, T>(a, layout, from, u, s[u]);
  const Statistics first = statistics_of(layout, s, a.eps);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (mine && a.sum != nullptr) layout.template store<X>(a.sum, row, u, s[u]);
    add_norm<X, T>(layout, a, first, u, s[u], s[u]);
  }
  const Statistics second = statistics_of(layout, s, a.eps);
  if (!mine) return;
  store_statistics<Rows>(a, row, first), store_statistics<Rows>(b, row, second);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (b.sum != nullptr) layout.template store<X>(b.sum, row, u, s[u]);
    float y[kUnit];
    normalise<T>(layout, b, second, u, s[u], y);
    layout.template store<T>(b.y, row, u, y);
  }
}

// Computes the gradients of the block's rows, with a stride of gridDim.x blocks, and writes the block's part of the four column sums to
// `partial` [blocks, 4, width].
template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_twice_backward(const __grid_constant__ LayerNormTwiceBackward p, float* partial) {
  using Rows = Row<kLanes, kUnits, kVector>;
  __shared__ float shared[kMaxWidth];
  overlap_kernels();
  const LayerNorm &a = p.first, &b = p.second;
  const Rows layout{a.width};
  ColumnSums<kUnits> first_sums, second_sums;
  for (int64_t begin = blockIdx.x * int64_t{Rows::kRows}; begin < a.rows; begin += int64_t{gridDim.x} * Rows::kRows) {
    const int64_t row = begin + threadIdx.x / kLanes, from = min(row, a.rows - 1);  // lanes without a row take part in the warp's sums
    const bool mine = row < a.rows;
    const Statistics first{a.mean[from], a.inverse_std[from]}, second{b.mean[from], b.inverse_std[from]};
    float s[kUnits][kUnit], normalised[kUnits][kUnit], g[kUnits][kUnit], other[kUnits][kUnit] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      layout.template load<X>(a.x, from, u, s[u]);
      layout.template load<T>(p.grad_y, from, u, g[u]);
      if (p.grad_sum != nullptr) layout.template load<T>(p.grad_sum, from, u, other[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      add_norm<X, T>(layout, a, first, u, s[u], normalised[u]);
      standardise(second, normalised[u]);
    }
    norm_backward<T>(layout, b, second.inverse_std, mine, normalised, other, g, second_sums);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) standardise(first, s[u]);
    norm_backward<T>(layout, a, first.inverse_std, mine, s, g, g,
                     first_sums);  // g is the gradient of t: it flows to s directly and through the norm
    if (!mine) continue;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) layout.template store<T>(p.grad_x, row, u, g[u]);
  }
  float* to = partial + blockIdx.x * 4 * a.width;
  add_up_rows(layout, first_sums, shared, to);
  add_up_rows(layout, second_sums, shared, to + 2 * a.width);
}

bool is_aligned(const LayerNormTwice& p) { return detail::is_aligned(p.first) && detail::is_aligned(p.second); }

constexpr const char* kUnsupported = "layer_norm_twice: no kernel for this width or these types";

}  // namespace

Status layer_norm_twice_forward(const LayerNormTwice& p, Queue queue) {
  const LayerNorm& f = p.first;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  if (f.rows == 0) return {};
  return choose_types(f, [&]<typename X, typename T>() {
    return choose_row(f.width, is_aligned(p), [&]<int kLanes, int kUnits, bool kVector>() {
      const auto blocks = static_cast<unsigned>(ceil_div(f.rows, kThreads / kLanes));
      return launch_overlapped(norm_rows_twice<X, T, kLanes, kUnits, kVector>, {blocks, kThreads}, queue, p);
    });
  });
}

int64_t layer_norm_twice_backward_scratch(const LayerNormTwiceBackward& p) {
  return backward_blocks(p.first, kMaxBlocks, kMaxColumns) * 4 * p.first.width * 4;
}

Status layer_norm_twice_backward(const LayerNormTwiceBackward& p, void* scratch, Queue queue) {
  const LayerNorm& f = p.first;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  const int64_t blocks = backward_blocks(f, kMaxBlocks, kMaxColumns);
  auto* partial = static_cast<float*>(scratch);
  const bool vector = is_aligned({p.first, p.second}) && aligned16(p.grad_y) && aligned16(p.grad_sum) && aligned16(p.grad_x);
  const Status status = choose_types(f, [&]<typename X, typename T>() {
    return choose_row(f.width, vector, [&]<int kLanes, int kUnits, bool kVector>() {
      const Launch launch{static_cast<unsigned>(blocks), kThreads};
      return launch_overlapped(norm_rows_twice_backward<X, T, kLanes, kUnits, kVector>, launch, queue, p, partial);
    });
  });
  if (!status.ok()) return status;
  const Launch sums{static_cast<unsigned>(ceil_div(4 * f.width, kSumColumns)), kSumThreads};
  const Columns<4> columns{{p.grad_weight[0], p.grad_bias[0], p.grad_weight[1], p.grad_bias[1]}};
  return launch_overlapped(sum_columns<4>, sums, queue, partial, blocks, f.width, columns);
}

}  // namespace based::kernels::cuda
