// Models without memory, by which the size of a model or state is computed before it is allocated.
#pragma once
#include "based/core/thread_flag.h"
#include "based/runtime/torch.h"

namespace based {

// While an object of this type exists on this thread, new parameters and states are meta tensors of torch: shapes and types without memory.
struct ShapesOnly : ThreadFlag<ShapesOnly> {};

// The device of new parameters.
inline torch::Device parameter_device() { return ShapesOnly::active() ? torch::kMeta : torch::kCPU; }

// Options of a state that stores activations: the weight's type and device, without gradients.
inline torch::TensorOptions state_options(const torch::Tensor& weight) {
  const torch::TensorOptions options = weight.options().requires_grad(false);
  return ShapesOnly::active() ? options.device(torch::kMeta) : options;
}

}  // namespace based
