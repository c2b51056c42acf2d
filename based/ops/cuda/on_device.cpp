#include "based/ops/cuda/on_device.h"

namespace based::ops {

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
