// torch.ops.based.gradient_norm: what a training step decides by before it updates anything.
#pragma once
#include "based/kernels/gradient_norm.h"
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

struct GradientNormOf {
  std::vector<Tensor> gradients;  // any floating types and shapes, on the loss's device; may be none
  Tensor loss;                    // fp32 or fp64 []
  std::optional<Tensor> enabled;  // float []; absent: 1
  double clip = 0;                // largest norm; 0: any
};
// All on the loss's device.
struct GradientNorm {
  Tensor figures;  // double [2]: the loss, and the 2-norm over all gradients
  Tensor usable;   // float []: `enabled` where both are finite, or 0
  Tensor scale;    // []: takes the norm to at most clip, clip/(norm + 1e-6) as torch does, or 1; fp64 where the first gradient is
};

// Squares of 16-bit gradients are summed in fp32. The same bits each time. No gradient.
GradientNorm gradient_norm(const GradientNormOf& of);

// Inside of based/ops.

struct GradientNormKernel {
  int64_t (*scratch)(const kernels::GradientNorm&);
  kernels::Status (*run)(const kernels::GradientNorm&, void* scratch);
};
// By this kernel, on the device that it is for, or by ATen where the kernel does not take the tensors.
GradientNorm gradient_norm_with(const GradientNormKernel& kernel, const GradientNormOf& of);

// The operator as the dispatcher calls it.
template <GradientNorm (*kRun)(const GradientNormOf&)>
std::tuple<Tensor, Tensor, Tensor> gradient_norm_unpacked(at::TensorList gradients, const Tensor& loss,
                                                          const std::optional<Tensor>& enabled, double clip) {
  const auto [figures, usable, scale] = kRun({gradients.vec(), loss, enabled, clip});
  return {figures, usable, scale};
}

}  // namespace based::ops
