#include "based/ops/rowwise_activation.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<RowwiseActivation, [](const RowwiseActivation& in) {
    return has_kernel(in.x) ? rowwise_activation_with(launch<kernels::cuda::activate, kernels::Activate>, in)
                            : rowwise_activation_reference(in);
  }>(m);
}

}  // namespace
}  // namespace based::ops
