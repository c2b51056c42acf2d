#include "based/runtime/device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace based::runtime {

kernels::Queue queue_of(const at::Tensor& tensor) {
  if (!tensor.is_cuda()) return {};
  const c10::impl::DeviceGuardImplInterface* cuda = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  return kernels::on_stream(cuda->getStreamNativeHandle(cuda->getStream(tensor.device())));
}

}  // namespace based::runtime
