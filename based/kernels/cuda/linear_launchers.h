// The forms of the linear layer that linear() chooses from.
#pragma once
#include <cuda_runtime.h>

#include <span>

#include "based/kernels/linear.h"

namespace based::kernels::cuda::detail {

// Up to 512 rows in bf16 on Hopper, where faster than a library: products by wgmma, sums shared by a cluster.
bool linear_sm90_supports(const Linear&);
Status linear_sm90(const Linear&, Stream);
// The same with outputs that come in two halves, y = the first times the SiLU of the second; y_stride a multiple of 8.
bool linear_swiglu_sm90_supports(const Linear&);
Status linear_swiglu_sm90(const Linear&, Stream);

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
int64_t joined_norm_parts(int64_t width);
int64_t joined_norm_squares(int64_t rows, int64_t width);
// In the place of a captured launch of the same layer; `linear_sm90_supports`, y in bf16. After a norm, p.x is what the layer before gave.
Status put_linear_before_norm(cudaGraphNode_t node, const Linear& p, const NormAfter& after);
Status put_linear_swiglu_after_norm(cudaGraphNode_t node, const Linear& p, const NormBefore& before);
// Up to kMostLayersAtOnce layers of the same x in one launch; alike but for weight, bias, out and y.
constexpr int kMostLayersAtOnce = 3;
Status put_linears_after_norm(cudaGraphNode_t node, std::span<const Linear> layers, const NormBefore& before);

}  // namespace based::kernels::cuda::detail
