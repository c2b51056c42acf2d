// torch.ops.based.adamw_: a step of AdamW on many tensors, with 16-bit copies of what it updates.
#pragma once
#include <optional>
#include <vector>

#include "based/kernels/adamw.h"
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// Lists have one entry a parameter, of one shape and on one device.
struct AdamwStep {
  std::vector<Tensor> masters;                        // updated; fp32 or fp64
  std::vector<Tensor> rounded;                        // gain the masters' rounding; where a parameter has none, the master itself
  std::vector<Tensor> gradients;                      // any floating type; read, not scaled in place
  std::vector<Tensor> first_moments, second_moments;  // updated; the masters' types
  std::vector<Tensor> steps;                          // float [], updated: how many steps there were
  Tensor rate;                                        // [], on a GPU float
  std::optional<Tensor> scale;                        // [], float or the masters' type: multiplies the gradients; absent: 1
  std::optional<Tensor> usable;                       // float []: nothing changes where it is 0 instead of 1; absent: 1
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0;
};

// The formula is in kernels/adamw.h. No gradient.
void adamw_(const AdamwStep& step);

// Inside of based/ops.

// By this kernel, on the device that it is for, or by ATen's fused update where the kernel does not take the tensors.
void adamw_with(kernels::Status (*kernel)(const kernels::Adamw&), const AdamwStep& step);

// The operator as the dispatcher calls it.
template <void (*kRun)(const AdamwStep&)>
void adamw_unpacked(at::TensorList masters, at::TensorList rounded, at::TensorList gradients, at::TensorList first_moments,
                    at::TensorList second_moments, at::TensorList steps, const Tensor& rate, const std::optional<Tensor>& scale,
                    const std::optional<Tensor>& usable, double beta1, double beta2, double eps, double decay) {
  kRun({masters.vec(), rounded.vec(), gradients.vec(), first_moments.vec(), second_moments.vec(), steps.vec(), rate, scale, usable, beta1,
        beta2, eps, decay});
}

}  // namespace based::ops
