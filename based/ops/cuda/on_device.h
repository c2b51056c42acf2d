// What the operators' GPU backends share: the device of a call and its current stream.
#pragma once
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "based/ops/operator.h"

namespace based::ops {

void warn_of_missing_code();  // once

// Throws Error where an argument lies elsewhere: a kernel would read another memory's addresses.
inline void require_on(const char* op, std::string_view argument, const Tensor& tensor, c10::Device device) {
  require(tensor.device() == device, op, argument, " must be on ", device, ", got ", tensor.device());
}

// The device of an operator's arguments. Throws Error where they lie on different ones.
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

// A function of an operator's struct whose launches go to the device of its arguments.
template <class Op, auto kFunction>
Result<Op> on_device(const Op& op) {
  const c10::cuda::CUDAGuard guard(common_device(op));
  warn_of_missing_code();
  return kFunction(op);
}

// Registers it, under the key of a library's block.
template <class Op, auto kFunction>
void implement(torch::Library& library) {
  library.impl(op_name<Op>(), &Dispatch<Op>::template unboxed<on_device<Op, kFunction>>);
}

inline kernels::Stream current_stream() { return {c10::cuda::getCurrentCUDAStream().stream()}; }

// A launcher of kernels/cuda as an entry of a backend's table: on the current stream.
template <auto kLaunch, class Params>
kernels::Status launch(const Params& p) {
  return kLaunch(p, current_stream());
}
template <auto kLaunch, class Params>
kernels::Status launch_with_scratch(const Params& p, void* scratch) {
  return kLaunch(p, scratch, current_stream());
}

}  // namespace based::ops
