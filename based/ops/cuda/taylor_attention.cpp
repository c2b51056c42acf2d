#include "based/ops/taylor_attention.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const TaylorAttentionKernels kCuda{kernels::cuda::taylor_attention_scratch,
                                   launch_with_scratch<kernels::cuda::taylor_attention_forward, kernels::TaylorAttention>,
                                   kernels::cuda::taylor_attention_backward_scratch,
                                   launch_with_scratch<kernels::cuda::taylor_attention_backward, kernels::TaylorAttentionBackward>,
                                   launch<kernels::cuda::taylor_attention_step, kernels::TaylorAttention>,
                                   /*step_head_dim=*/256,
                                   /*step_scales=*/true,
                                   kernels::cuda::taylor_attention_takes_strides};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<TaylorAttentionForward, [](const TaylorAttentionForward& in) { return taylor_attention_forward_with(kCuda, in.of); }>(m);
  implement<TaylorAttentionBackward, [](const TaylorAttentionBackward& in) { return taylor_attention_backward_with(kCuda, in); }>(m);
  implement<TaylorAttentionPrefill, [](const TaylorAttentionPrefill& in) { return taylor_attention_prefill_with(kCuda, in); }>(m);
  implement<TaylorAttentionStep, [](const TaylorAttentionStep& in) { return taylor_attention_step_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
