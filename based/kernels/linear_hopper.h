// The linear layer on Hopper: what its kernel takes, and its forms in a step of decoding, where norms are parts of the layers around them.
#pragma once
#include <climits>
#include <span>

#include "based/kernels/gpu.h"
#include "based/kernels/linear.h"

namespace based::kernels {

constexpr int kLinearRows = 128, kLinearOutputs = 64;  // of a block

// Beyond these outputs each multiprocessor reads the rows so often that a library's larger tiles are faster, even in a step, where this
// kernel's weights come while the one before it runs. More rows than a block's, in a step alone: two blocks for each multiprocessor.
inline bool linear_hopper_is_faster(const Linear& p, const Gpu& gpu) {
  if (p.rows > cuda::most_linear_rows(p.weight_is_constant)) return false;
  if (p.rows > kLinearRows) return ceil_div(p.out, kLinearOutputs) * ceil_div(p.rows, kLinearRows) <= 2 * gpu.multiprocessors;
  return p.out <= (p.rows <= 32 ? INT32_MAX - 4096 : 8192);
}

// Up to 512 rows in bf16 on Hopper, where faster than a library: products by wgmma, sums shared by a cluster.
inline bool linear_hopper_supports(const Linear& p, const Gpu& gpu) {
  return gpu.runs_hopper_code && p.dtype == DType::bf16 && !p.accumulate && p.in > 0 && p.out % 4 == 0 && p.y_stride % 4 == 0 &&
         p.in % 8 == 0 && p.x_stride % 8 == 0 && p.weight_stride % 8 == 0 && p.in <= INT32_MAX && linear_hopper_is_faster(p, gpu) &&
         aligned16(p.x) && aligned16(p.weight) && aligned16(p.bias) && aligned16(p.y);
}
// The same with outputs that come in two halves, y = the first times the SiLU of the second; y_stride a multiple of 8.
inline bool linear_swiglu_hopper_supports(const Linear& p, const Gpu& gpu) {
  return linear_hopper_supports(p, gpu) && p.y_dtype == DType::bf16 && p.out % 16 == 0 && p.y_stride % 8 == 0;
}

// Any GPU's kernels: see linear_supports() and linear_swiglu_supports() in linear.h.
inline bool linear_supports(const Linear& p, const Gpu& gpu) {
  const int64_t unit = 16 / dtype_size(p.dtype);
  const bool whole_units =
      p.in % unit == 0 && p.x_stride % unit == 0 && p.weight_stride % unit == 0 && aligned16(p.x) && aligned16(p.weight);
  return whole_units && p.out <= INT32_MAX / 2 && p.in <= INT32_MAX / 16 && (p.rows <= 4 || linear_hopper_supports(p, gpu));
}
inline bool linear_swiglu_supports(const Linear& p, const Gpu& gpu) {
  if (p.rows > 1) return linear_swiglu_hopper_supports(p, gpu);
  return p.dtype == p.y_dtype && p.out % 2 == 0 && !p.accumulate && linear_supports(p, gpu);
}
// Whether a layer of one row may share a launch with others: not so many outputs that its blocks would be larger than theirs.
inline bool linear_at_once_supports(const Linear& p, const Gpu& gpu) {
  return p.rows == 1 && p.out > 0 && p.out <= int64_t{128} * gpu.multiprocessors && linear_supports(p, gpu);
}

// A norm between two layers of 2 to 512 rows, as its halves in their kernels. The layer before it adds its outputs to the residual
// stream, in the place of y, and gives the stream times the norm's weight and each tile's sums of squares; the layer after it multiplies
// that, and its sums by 1 / rms.
struct NormAfter {
  const float* x = nullptr;      // [rows, out], the residual stream
  float* sum = nullptr;          // [rows, out], x + outputs; may be x
  const void* weight = nullptr;  // [out], bf16, constant
  void* y = nullptr;             // [rows, out], bf16: sum · weight
  float* squares = nullptr;      // [joined_norm_squares(rows, out)]: for each 128 rows, [joined_norm_parts(out), 128]
};
struct NormBefore {
  const float* squares = nullptr;  // of the layer's x before weights
  int64_t parts = 0;
  float eps = 0;
};
struct JoinedNorm {
  NormBefore before;
  NormAfter after;
};
constexpr int64_t joined_norm_parts(int64_t width) { return ceil_div(width, kLinearOutputs); }
constexpr int64_t joined_norm_squares(int64_t rows, int64_t width) {
  return ceil_div(rows, kLinearRows) * joined_norm_parts(width) * kLinearRows;
}
constexpr int kMostLayersAtOnce = 5;

namespace cuda {
// `linear_hopper_supports`, y in bf16. After a norm, p.x is what the layer before it gave.
Status linear_before_norm(const Linear& p, const NormAfter& after, Stream stream);
Status linear_swiglu_after_norm(const Linear& p, const NormBefore& before, Stream stream);
// Up to kMostLayersAtOnce layers of the same x in one launch; alike but for weight, bias, out and y.
Status linears_after_norm(std::span<const Linear> layers, const NormBefore& before, Stream stream);
// Up to kMostLayersAtOnce layers of one row, `linear_at_once_supports`, of the same types, on any GPU: each with the bits of its own
// launch.
Status linears_of_one_row(std::span<const Linear> layers, Stream stream);
}  // namespace cuda

namespace cuda::detail {
Status linear_sm90(const Linear&, Stream);
Status linear_swiglu_sm90(const Linear&, Stream);
}  // namespace cuda::detail

}  // namespace based::kernels
