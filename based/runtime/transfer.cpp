#include "based/runtime/transfer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace based::runtime {

// The pinned block returns to LibTorch's allocator at once, which reuses it only after the copy has ended.
Tensor to_device(const Tensor& host, torch::Device device) {
  if (device.is_cpu()) return host;
  return device.is_cuda() ? host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true) : host.to(device);
}

ToHost::ToHost(const Tensor& like) {
  const bool gpu = like.device().is_cuda();
  host_ = torch::empty(like.sizes(), torch::dtype(like.scalar_type()).pinned_memory(gpu));
  if (gpu) copied_.emplace(like.device().type());
}

void ToHost::begin(const Tensor& from) {
  host_.copy_(from, /*non_blocking=*/true);
  if (copied_) copied_->record(c10::impl::VirtualGuardImpl(from.device().type()).getStream(from.device()));
}

const Tensor& ToHost::wait() {
  if (copied_) copied_->synchronize();
  return host_;
}

}  // namespace based::runtime
