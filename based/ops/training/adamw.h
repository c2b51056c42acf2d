// torch.ops.based_cpp.adamw_: a step of AdamW on many tensors, with 16-bit copies of the parameters.
#pragma once
#include <optional>
#include <vector>

#include "based/runtime/torch.h"

namespace based::ops {

using torch::Tensor;

// Each list has one entry for each parameter. The entries of a parameter have one shape; all tensors are on one device.
struct AdamwStep {
  std::vector<Tensor> masters;    // updated; fp32 or fp64
  std::vector<Tensor> rounded;    // receive the masters' rounding; where a parameter has no 16-bit copy, the master itself
  std::vector<Tensor> gradients;  // any floating type; read, not scaled in place
  std::vector<Tensor> first_moments, second_moments;  // updated; the masters' types
  std::vector<Tensor> steps;                          // float [], updated: the number of steps so far
  Tensor rate;                                        // [], on a GPU float
  std::optional<Tensor> scale;                        // [], float or the masters' type: multiplies the gradients; absent: 1
  std::optional<Tensor> update_enabled;               // float []: nothing changes where it is 0; absent: 1
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0;
};

// The formula is in kernels/training/adamw.h. No gradient.
void adamw_(const AdamwStep& step);

}  // namespace based::ops
