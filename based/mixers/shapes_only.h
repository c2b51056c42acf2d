// Models without memory: how large something would be is known before it is made.
#pragma once
#include "based/core/thread_flag.h"
#include "based/ops/torch.h"

namespace based {

// While one lives on this thread, new parameters and states are torch's meta tensors: they have shapes and types, and no memory.
struct ShapesOnly : ThreadFlag<ShapesOnly> {};

// Where new parameters lie.
inline torch::Device parameter_device() { return ShapesOnly::active() ? torch::kMeta : torch::kCPU; }

// Of a state beside this weight: its type and device, without gradients.
inline torch::TensorOptions state_options(const torch::Tensor& weight) {
  const torch::TensorOptions options = weight.options().requires_grad(false);
  return ShapesOnly::active() ? options.device(torch::kMeta) : options;
}

}  // namespace based
