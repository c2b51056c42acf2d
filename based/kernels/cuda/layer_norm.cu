// LayerNorm with the residual addition: each element is read once and written once, by a part of a warp that holds its row in registers.
#include "based/kernels/cuda/layer_norm.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// Of a backward on a multiprocessor: what its registers allow.
constexpr int64_t kMostBlocks = 5, kMostColumns = 1024;

template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ LayerNorm p) {
  using Rows = Row<kLanes, kUnits, kVector>;
  overlap_kernels();
  const Rows in{p.width};
  const int64_t row = Rows::first(), from = min(row, p.rows - 1);  // lanes without a row take part in the sums
  float s[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) load_sum<X, T>(p, in, from, u, s[u]);
  const Statistics of = statistics_of(in, s, p.eps);
  if (row >= p.rows) return;
  keep<Rows>(p, row, of);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (p.sum != nullptr) in.template store<X>(p.sum, row, u, s[u]);
    float y[kUnit];
    normalise<T>(in, p, of, u, s[u], y);
    in.template store<T>(p.y, row, u, y);
  }
}

// Rows of a block, then those gridDim.x blocks further on, …: their gradients, and the block's part of grad_weight and grad_bias in
// `partial` [blocks, 2, width].
template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_backward(const __grid_constant__ LayerNormBackward p, float* partial) {
  using Rows = Row<kLanes, kUnits, kVector>;
  __shared__ float shared[kMostWidth];
  overlap_kernels();
  const LayerNorm& f = p.forward;
  const Rows in{f.width};
  ColumnSums<kUnits> sums;
  for (int64_t begin = blockIdx.x * int64_t{Rows::kRows}; begin < f.rows; begin += int64_t{gridDim.x} * Rows::kRows) {
    const int64_t row = begin + threadIdx.x / kLanes, from = min(row, f.rows - 1);  // lanes without a row take part in the sums
    const bool mine = row < f.rows;
    const Statistics of{f.mean[from], f.inverse_std[from]};
    float unit[kUnits][kUnit], g[kUnits][kUnit], other[kUnits][kUnit] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      in.template load<X>(f.x, from, u, unit[u]);
      in.template load<T>(p.grad_y, from, u, g[u]);
      if (p.grad_sum != nullptr) in.template load<T>(p.grad_sum, from, u, other[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) to_units(of, unit[u]);
    backward_of_norm<T>(in, f, of.inverse_std, mine, unit, other, g, sums);
    if (!mine) continue;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) in.template store<T>(p.grad_x, row, u, g[u]);
  }
  add_up_rows(in, sums, shared, partial + blockIdx.x * 2 * f.width);
}

constexpr const char* kUnsupported = "layer_norm: width or types have no kernel";

}  // namespace

bool layer_norm_supports(int64_t width, DType x_dtype, DType dtype) {
  return width >= 1 && width <= kMostWidth && (x_dtype == DType::f32 || x_dtype == dtype);
}

Status layer_norm_forward(const LayerNorm& p, Stream stream) {
  if (!layer_norm_supports(p.width, p.x_dtype, p.dtype)) return {kUnsupported};
  if (p.rows == 0) return {};
  return choose_types(p, [&]<typename X, typename T>() {
    return choose_row(p.width, is_aligned(p), [&]<int kLanes, int kUnits, bool kVector>() {
      const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kThreads / kLanes));
      return launch_overlapped(norm_rows<X, T, kLanes, kUnits, kVector>, {blocks, kThreads}, stream, p);
    });
  });
}

int64_t layer_norm_backward_scratch(const LayerNormBackward& p) {
  return backward_blocks(p.forward, kMostBlocks, kMostColumns) * 2 * p.forward.width * 4;
}

Status layer_norm_backward(const LayerNormBackward& p, void* scratch, Stream stream) {
  const LayerNorm& f = p.forward;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  const int64_t blocks = backward_blocks(f, kMostBlocks, kMostColumns);
  auto* partial = static_cast<float*>(scratch);
  const bool vector = is_aligned(f) && aligned16(p.grad_y) && aligned16(p.grad_sum) && aligned16(p.grad_x);
  const Status status = choose_types(f, [&]<typename X, typename T>() {
    return choose_row(f.width, vector, [&]<int kLanes, int kUnits, bool kVector>() {
      const Launch launch{static_cast<unsigned>(blocks), kThreads};
      return launch_overlapped(norm_rows_backward<X, T, kLanes, kUnits, kVector>, launch, stream, p, partial);
    });
  });
  if (!status.ok()) return status;
  const Launch sums{static_cast<unsigned>(ceil_div(2 * f.width, kSumColumns)), kSumThreads};
  return launch_overlapped(sum_columns<2>, sums, stream, partial, blocks, f.width, Columns<2>{{p.grad_weight, p.grad_bias}});
}

}  // namespace based::kernels::cuda
