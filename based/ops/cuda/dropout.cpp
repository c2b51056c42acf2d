#include "based/ops/dropout.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<Dropout, [](const Dropout& in) { return dropout_with(launch<kernels::cuda::dropout, kernels::DropElements>, in); }>(m);
}

}  // namespace
}  // namespace based::ops
