#include "based/ops/linear_attention.h"

#include "based/ops/cuda/on_device.h"

namespace based::ops {
namespace {

const LinearAttentionPairsKernels kCuda{kernels::cuda::linear_attention_takes,
                                        launch<kernels::cuda::linear_attention_forward, kernels::LinearAttention>,
                                        kernels::cuda::linear_attention_backward_scratch,
                                        launch_with_scratch<kernels::cuda::linear_attention_backward, kernels::LinearAttentionBackward>};

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<LinearAttentionPairsForward,
            [](const LinearAttentionPairsForward& in) { return linear_attention_pairs_forward_with(kCuda, in.of); }>(m);
  implement<LinearAttentionPairsBackward,
            [](const LinearAttentionPairsBackward& in) { return linear_attention_pairs_backward_with(kCuda, in); }>(m);
}

}  // namespace
}  // namespace based::ops
