// torch.ops.based_cpp.gradient_norm: the norm of all gradients, and whether a training step may use them.
#pragma once
#include <optional>
#include <vector>

#include "based/runtime/torch.h"

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
  Tensor loss_and_norm;   // double [2]: the loss, and the 2-norm over all gradients
  Tensor update_enabled;  // float []: `enabled` where both are finite, or 0
  Tensor scale;  // []: the factor that limits the norm to clip, clip/(norm + 1e-6) as in torch, or 1; fp64 where the first gradient is
};

// Squares of 16-bit gradients are summed in fp32. Each call gives the same bits. No gradient.
GradientNorm gradient_norm(const GradientNormOf& in);

}  // namespace based::ops
