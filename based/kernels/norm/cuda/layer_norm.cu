// LayerNorm with the residual addition. A group of lanes of a warp holds a row in registers, so each element is read once and written once.
#include "based/kernels/norm/cuda/layer_norm.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

// The backward's blocks of a multiprocessor, as limited by registers; see backward_blocks.
constexpr int64_t kMaxBlocks = 5, kMaxColumns = 1024;

template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows(const __grid_constant__ LayerNorm p) {
  using Rows = Row<kLanes, kUnits, kVector>;
  overlap_kernels();
  const Rows layout{p.width};
  const int64_t row = Rows::first(), from = min(row, p.rows - 1);  // lanes without a row take part in the warp's sums
  float s[kUnits][kUnit];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) load_sum<X, T>(p, layout, from, u, s[u]);
  const Statistics statistics = statistics_of(layout, s, p.eps);
  if (row >= p.rows) return;
  store_statistics<Rows>(p, row, statistics);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (p.sum != nullptr) layout.template store<X>(p.sum, row, u, s[u]);
    float y[kUnit];
    normalise<T>(layout, p, statistics, u, s[u], y);
    layout.template store<T>(p.y, row, u, y);
  }
}

// Computes the gradients of the block's rows, with a stride of gridDim.x blocks, and writes the block's part of grad_weight and grad_bias
// to `partial` [blocks, 2, width].
template <typename X, typename T, int kLanes, int kUnits, bool kVector>
__global__ void __launch_bounds__(kThreads) norm_rows_backward(const __grid_constant__ LayerNormBackward p, float* partial) {
  using Rows = Row<kLanes, kUnits, kVector>;
  __shared__ float shared[kMaxWidth];
  overlap_kernels();
  const LayerNorm& f = p.forward;
  const Rows layout{f.width};
  ColumnSums<kUnits> sums;
  for (int64_t begin = blockIdx.x * int64_t{Rows::kRows}; begin < f.rows; begin += int64_t{gridDim.x} * Rows::kRows) {
    const int64_t row = begin + threadIdx.x / kLanes, from = min(row, f.rows - 1);  // lanes without a row take part in the warp's sums
    const bool mine = row < f.rows;
    const Statistics statistics{f.mean[from], f.inverse_std[from]};
    float normalised[kUnits][kUnit], g[kUnits][kUnit], other[kUnits][kUnit] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      layout.template load<X>(f.x, from, u, normalised[u]);
      layout.template load<T>(p.grad_y, from, u, g[u]);
      if (p.grad_sum != nullptr) layout.template load<T>(p.grad_sum, from, u, other[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) standardise(statistics, normalised[u]);
    norm_backward<T>(layout, f, statistics.inverse_std, mine, normalised, other, g, sums);
    if (!mine) continue;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) layout.template store<T>(p.grad_x, row, u, g[u]);
  }
  add_up_rows(layout, sums, shared, partial + blockIdx.x * 2 * f.width);
}

constexpr const char* kUnsupported = "layer_norm: no kernel for this width or these types";

}  // namespace

bool layer_norm_supports(int64_t width, DType x_dtype, DType dtype) {
  return width >= 1 && width <= kMaxWidth && (x_dtype == DType::f32 || x_dtype == dtype);
}

Status layer_norm_forward(const LayerNorm& p, Queue queue) {
  if (!layer_norm_supports(p.width, p.x_dtype, p.dtype)) return {kUnsupported};
  if (p.rows == 0) return {};
  return choose_types(p, [&]<typename X, typename T>() {
    return choose_row(p.width, is_aligned(p), [&]<int kLanes, int kUnits, bool kVector>() {
      const auto blocks = static_cast<unsigned>(ceil_div(p.rows, kThreads / kLanes));
      return launch_overlapped(norm_rows<X, T, kLanes, kUnits, kVector>, {blocks, kThreads}, queue, p);
    });
  });
}

int64_t layer_norm_backward_scratch(const LayerNormBackward& p) {
  return backward_blocks(p.forward, kMaxBlocks, kMaxColumns) * 2 * p.forward.width * 4;
}

Status layer_norm_backward(const LayerNormBackward& p, void* scratch, Queue queue) {
  const LayerNorm& f = p.forward;
  if (!layer_norm_supports(f.width, f.x_dtype, f.dtype)) return {kUnsupported};
  const int64_t blocks = backward_blocks(f, kMaxBlocks, kMaxColumns);
  auto* partial = static_cast<float*>(scratch);
  const bool vector = is_aligned(f) && aligned16(p.grad_y) && aligned16(p.grad_sum) && aligned16(p.grad_x);
  const Status status = choose_types(f, [&]<typename X, typename T>() {
    return choose_row(f.width, vector, [&]<int kLanes, int kUnits, bool kVector>() {
      const Launch launch{static_cast<unsigned>(blocks), kThreads};
      return launch_overlapped(norm_rows_backward<X, T, kLanes, kUnits, kVector>, launch, queue, p, partial);
    });
  });
  if (!status.ok()) return status;
  const Launch sums{static_cast<unsigned>(ceil_div(2 * f.width, kSumColumns)), kSumThreads};
  return launch_overlapped(sum_columns<2>, sums, queue, partial, blocks, f.width, Columns<2>{{p.grad_weight, p.grad_bias}});
}

namespace {
const DefineLaunchers<LayerNormLaunchers> kLaunchers(Device::cuda, {.supports = layer_norm_supports,
                                                                    .forward = layer_norm_forward,
                                                                    .backward_scratch = layer_norm_backward_scratch,
                                                                    .backward = layer_norm_backward,
                                                                    .twice_forward = layer_norm_twice_forward,
                                                                    .twice_backward_scratch = layer_norm_twice_backward_scratch,
                                                                    .twice_backward = layer_norm_twice_backward});
}

}  // namespace based::kernels::cuda
