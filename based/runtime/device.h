// Conversions from torch's devices and streams to the kernels' ones.
#pragma once
#include "based/kernels/common/kernel.h"
#include "based/runtime/torch.h"

namespace based::runtime {

// The device whose kernels compute on this tensor: a GPU, or the CPU for everything else.
inline kernels::Device kernel_device(const at::Tensor& tensor) { return tensor.is_cuda() ? kernels::Device::cuda : kernels::Device::cpu; }

// Where a launch on this tensor runs: the current stream of its device.
kernels::Queue queue_of(const at::Tensor& tensor);

}  // namespace based::runtime
