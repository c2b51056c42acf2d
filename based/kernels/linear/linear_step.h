// The Hopper linear kernel: the problems it supports, and its variants for decode steps, in which an RMS norm is fused into the layers
// before and after it, and a short convolution into the layer before it.
#pragma once
#include <climits>
#include <span>

#include "based/kernels/common/gpu.h"
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/linear/linear.h"

namespace based::kernels {

constexpr int kLinearRows = 128, kLinearOutputs = 64;  // rows and outputs of a block; with more rows it may have twice as many of both

// With more outputs, each multiprocessor reads the rows so often that the larger tiles of cuBLAS are faster, even in a decode step, where
// this kernel prefetches weights while the previous kernel runs. More than kLinearRows rows are worthwhile only in a decode step, and only
// where the largest tiles, which are for y in bf16, need at most one block per multiprocessor.
inline bool linear_hopper_is_faster(const Linear& p, const Gpu& gpu) {
  if (p.rows > cuda::most_linear_rows(p.weight_is_constant)) return false;
  if (p.rows > kLinearRows) {
    if (p.y_dtype != DType::bf16) return ceil_div(p.out, kLinearOutputs) * ceil_div(p.rows, kLinearRows) <= 2 * gpu.multiprocessors;
    return ceil_div(p.out, 2 * kLinearOutputs) * ceil_div(p.rows, 2 * kLinearRows) <= gpu.multiprocessors;
  }
  return p.out <= (p.rows <= 32 ? INT32_MAX - 4096 : 8192);
}

// Up to 512 rows in bf16 on Hopper, if faster than cuBLAS. The kernel multiplies with wgmma and reduces sums across a cluster.
inline bool linear_hopper_supports(const Linear& p, const Gpu& gpu) {
  return gpu.runs_hopper_code && p.dtype == DType::bf16 && !p.accumulate && p.in > 0 && p.out % 4 == 0 && p.y_stride % 4 == 0 &&
         p.in % 8 == 0 && p.x_stride % 8 == 0 && p.weight_stride % 8 == 0 && p.in <= INT32_MAX && linear_hopper_is_faster(p, gpu) &&
         aligned16(p.x) && aligned16(p.weight) && aligned16(p.bias) && aligned16(p.y);
}
// As above, with SwiGLU: y = the first half of the outputs times the SiLU of the second half. y_stride must be a multiple of 8.
inline bool linear_swiglu_hopper_supports(const Linear& p, const Gpu& gpu) {
  return linear_hopper_supports(p, gpu) && p.y_dtype == DType::bf16 && p.out % 16 == 0 && p.y_stride % 8 == 0;
}

// Support on any GPU: see linear_supports() and linear_swiglu_supports() in linear.h.
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
// Whether a layer of one row may share a launch with other layers. With more outputs it would need larger blocks than the others.
inline bool linear_at_once_supports(const Linear& p, const Gpu& gpu) {
  return p.rows == 1 && p.out > 0 && p.out <= int64_t{128} * gpu.multiprocessors && linear_supports(p, gpu);
}

// An RMS norm between two layers of 2 to 512 rows, split between their kernels. The layer before the norm adds its outputs to the residual
// stream, and stores the stream times the norm's weight (as y) and the sum of squares of each tile's rows. The layer after the norm
// multiplies this y by its own weights, and scales the sums by 1 / rms.
struct NormAfter {
  const float* x = nullptr;      // [rows, out], the residual stream
  float* sum = nullptr;          // [rows, out], x + outputs; may be x
  const void* weight = nullptr;  // [out], bf16, constant
  void* y = nullptr;             // [rows, out], bf16: sum · weight
  float* squares = nullptr;      // [joined_norm_squares(rows, out)]: for each 128 rows, [joined_norm_parts(out), 128]
};
struct NormBefore {
  const float* squares = nullptr;  // sums of squares of the residual stream from which the layer's x was computed
  int64_t parts = 0;
  float eps = 0;
};
// A step of a short convolution, as a part of the layer whose outputs are its input and then its gate, or as many outputs that it does not
// read, and after a norm. The sums are rounded to bf16, as the layer stores them, so that the bits are those of two kernels.
struct ConvAfter {
  float* state = nullptr;                         // [slots, channels, taps − 1], private to this launch: see ShortConv::state_is_private
  uint32_t* recent = nullptr;                     // as ShortConv::recent, with 3 taps
  const int64_t* slot = nullptr;                  // [rows]
  const void *weight = nullptr, *bias = nullptr;  // [channels, taps] and [channels], bf16, constant; bias may be null
  void* rest = nullptr;     // [rows, channels], bf16: the outputs that are not convolved; null where they are the gate
  int64_t rest_stride = 0;  // elements from one row to the next
  bool silu = true;
};
// The parts of other operators that a layer computes.
struct JoinedParts {
  NormBefore before;
  NormAfter after;
  ConvAfter conv;
};
constexpr int64_t joined_norm_parts(int64_t width) { return ceil_div(width, kLinearOutputs); }
constexpr int64_t joined_norm_squares(int64_t rows, int64_t width) {
  return ceil_div(rows, kLinearRows) * joined_norm_parts(width) * kLinearRows;
}
constexpr int convolved_taps(bool has_gate) { return has_gate ? 3 : 4; }  // Based's and Mamba's
constexpr int kFewConvolvedRows = 32;                                     // with recent inputs, the kernel needs more
// Whether a layer, with outputs for both halves, can convolve. Where it needs larger tiles, a kernel of its own is faster (measured).
inline bool linear_conv_supports(const Linear& p, const ShortConv& conv, const Gpu& gpu) {
  return conv.taps == convolved_taps(conv.gate != nullptr) && conv.state_is_private && conv.dtype == DType::bf16 &&
         p.out == 2 * conv.channels && p.rows == conv.rows && (conv.recent == nullptr || p.rows > kFewConvolvedRows) &&
         (conv.gate != nullptr || (p.y_stride % 8 == 0 && aligned16(p.y))) && conv.channels % 8 == 0 && conv.y_stride % 8 == 0 &&
         aligned16(conv.y) &&
         (p.rows <= kLinearRows || ceil_div(p.out, kLinearOutputs) * ceil_div(p.rows, kLinearRows) <= gpu.multiprocessors) &&
         linear_swiglu_hopper_supports(p, gpu);
}
constexpr int kMostLayersAtOnce = 5;

namespace cuda {
// Both require linear_hopper_supports() and y in bf16. In a layer after a norm, p.x is NormAfter::y of the layer before the norm.
Status linear_before_norm(const Linear& p, const NormAfter& after, Queue queue);
Status linear_swiglu_after_norm(const Linear& p, const NormBefore& before, Queue queue);
// The outputs are the convolution's x and then its gate; p.y is not written. Without a gate, the second half of each row of p.y is written.
// Requires linear_conv_supports() and slots.
Status linear_conv_after_norm(const Linear& p, const ShortConv& conv, const NormBefore& before, Queue queue);
// Up to kMostLayersAtOnce layers with the same x in one launch. They may differ only in weight, bias, out and y.
Status linears_after_norm(std::span<const Linear> layers, const NormBefore& before, Queue queue);
// Up to kMostLayersAtOnce layers of one row in one launch, on any GPU. All have the same types and satisfy linear_at_once_supports(). Each
// output has the same bits as with a launch of its own.
Status linears_of_one_row(std::span<const Linear> layers, Queue queue);
}  // namespace cuda

namespace cuda::detail {
Status linear_sm90(const Linear&, Queue);
Status linear_swiglu_sm90(const Linear&, Queue);
}  // namespace cuda::detail

// A GPU's launchers, as above.
struct LinearStepLaunchers {
  Status (*before_norm)(const Linear&, const NormAfter&, Queue);
  Status (*swiglu_after_norm)(const Linear&, const NormBefore&, Queue);
  Status (*conv_after_norm)(const Linear&, const ShortConv&, const NormBefore&, Queue);
  Status (*layers_after_norm)(std::span<const Linear>, const NormBefore&, Queue);
  Status (*layers_of_one_row)(std::span<const Linear>, Queue);
};

}  // namespace based::kernels
