#include "based/runtime/card.h"

#include <ATen/cuda/CUDAContext.h>

namespace based::runtime {
namespace {

std::string name_of_gpu(torch::Device device) {
  const c10::DeviceIndex index = device.has_index() ? device.index() : at::cuda::current_device();
  return at::cuda::getDeviceProperties(index)->name;
}
[[maybe_unused]] const CardNamer kCardNamer = card_namer_of(torch::kCUDA) = name_of_gpu;

}  // namespace

}  // namespace based::runtime
