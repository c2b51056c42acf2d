#include "based/ops/cuda/on_device.h"

#include <mutex>

#include "based/core/log.h"
#include "based/kernels/device_code.h"

namespace based::ops {

OnDevice::OnDevice(const char* op, std::initializer_list<NamedTensor> arguments) : guard_(common_device(op, arguments)) {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const char* what = kernels::cuda::missing_code()) log_warning(what);
  });
}

c10::Device OnDevice::common_device(const char* op, std::initializer_list<NamedTensor> arguments) {
  const Tensor* first = nullptr;
  for (const NamedTensor& argument : arguments)
    if (first == nullptr && argument.tensor && argument.tensor->is_cuda()) first = &*argument.tensor;
  BASED_ASSERT(first != nullptr);
  for (const NamedTensor& argument : arguments)
    if (argument.tensor && argument.tensor->defined())
      require(argument.tensor->device() == first->device(), op, argument.name, " must be on ", first->device(), ", got ",
              argument.tensor->device());
  return first->device();
}

}  // namespace based::ops
