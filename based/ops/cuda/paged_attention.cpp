#include "based/ops/paged_attention.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const PagedAttentionKernels kCuda{kernels::cuda::paged_attention_scratch,
                                  launch_with_scratch<kernels::cuda::paged_attention_step, kernels::PagedAttention>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<PagedAttentionStep, [](const PagedAttentionStep& in) { return paged_attention_step_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
