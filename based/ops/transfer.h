// From the CPU to where the work is done, without waiting for it.
#pragma once
#include "based/ops/torch.h"

namespace based::ops {

using torch::Tensor;

// On a GPU the copy is made from pinned memory, in the order of the current stream: it runs beside whatever the host does next, and is
// there for all that is launched later. On the CPU it is `host` itself.
Tensor to_device(const Tensor& host, torch::Device device);

}  // namespace based::ops
