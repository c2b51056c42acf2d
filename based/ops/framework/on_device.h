// Runs an operator's function on the device of its arguments, and finds the kernels of that device.
#pragma once
#include <c10/core/DeviceGuard.h>

#include "based/kernels/common/launchers.h"
#include "based/ops/framework/operator.h"
#include "based/runtime/device.h"

namespace based::ops {

using runtime::queue_of;

// Warns once where the program has no code for the current GPU's fast kernels.
void warn_of_missing_code();

// Throws Error unless `tensor` is on `device`: a kernel cannot use another device's addresses.
inline void require_on(const char* op, std::string_view argument, const Tensor& tensor, c10::Device device) {
  require(tensor.device() == device, op, argument, " must be on ", device, ", got ", tensor.device());
}

// The GPU that an operator's arguments are on. Throws Error where they are on different devices.
template <class Op>
c10::Device common_device(const Op& op) {
  std::optional<c10::Device> device;
  each_tensor(op, [&](std::string_view, const Tensor& tensor) {
    if (!device && tensor.is_cuda()) device = tensor.device();
  });
  BASED_ASSERT(device);
  each_tensor(op, [&](std::string_view argument, const Tensor& tensor) { require_on(op_name<Op>(), argument, tensor, *device); });
  return *device;
}

// Calls a function of an operator's struct with the GPU of its arguments as the current device.
template <class Op, Result<Op> (*kFunction)(const Op&)>
Result<Op> on_gpu(const Op& op) {
  const c10::DeviceGuard guard(common_device(op));
  warn_of_missing_code();
  return kFunction(op);
}

// Registers a function for GPUs, under the dispatch key of a TORCH_LIBRARY_IMPL block.
template <class Op, Result<Op> (*kFunction)(const Op&)>
void implement(torch::Library& library) {
  library.impl(op_name<Op>(), &Dispatch<Op>::template unboxed<on_gpu<Op, kFunction>>);
}

// The launchers of `tensor`'s device; null where the program has none, or where no kernel supports the tensor's type.
template <class Table>
const Table* launchers_of(const Tensor& tensor) {
  return has_kernel(tensor) ? kernels::launchers<Table>(runtime::kernel_device(tensor)) : nullptr;
}

// The same for a call of `op` that a kernel must also support. Where the result is null the reference runs; on a GPU, where that is far
// slower, this function warns once per operator.
template <class Table>
const Table* launchers_for(const char* op, const Tensor& tensor, bool supported = true) {
  const Table* table = launchers_of<Table>(tensor);
  return uses_kernel(op, tensor, supported && table != nullptr) ? table : nullptr;
}

}  // namespace based::ops
