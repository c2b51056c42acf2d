#include "based/ops/taylor_deferred.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const TaylorDeferredKernels kCuda{
    [](const kernels::TaylorAttention& p) { return kernels::taylor_deferred_takes(p, kernels::cuda::this_gpu()); },
    launch<kernels::cuda::taylor_deferred_step, kernels::TaylorDeferred>,
    launch<kernels::cuda::taylor_deferred_flush, kernels::TaylorDeferred>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<TaylorDeferredStep, [](const TaylorDeferredStep& in) { return taylor_deferred_step_with(kCuda, in); }>(m);
  implement<TaylorDeferredFlush, [](const TaylorDeferredFlush& in) { taylor_deferred_flush_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
