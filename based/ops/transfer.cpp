#include "based/ops/transfer.h"

namespace based::ops {

// The pinned block goes back to LibTorch's allocator at once, which hands it out again only when the copy is over.
Tensor to_device(const Tensor& host, torch::Device device) {
  return device.is_cpu() ? host : host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
}

}  // namespace based::ops
