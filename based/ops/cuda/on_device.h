// What the operators' GPU backends share: the device of a call and its current stream.
#pragma once
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <initializer_list>

#include "based/ops/arguments.h"

namespace based::ops {

struct NamedTensor {
  const char* name;
  OptionalTensor tensor;
};

// While one lives, launches go to the device of the arguments. Throws Error where they lie on different ones: a kernel would read another
// memory's addresses.
class OnDevice {
 public:
  OnDevice(const char* op, std::initializer_list<NamedTensor> arguments);

 private:
  static c10::Device common_device(const char* op, std::initializer_list<NamedTensor> arguments);
  c10::cuda::CUDAGuard guard_;
};

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
