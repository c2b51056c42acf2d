#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

using kernels::TaylorAttention;
using kernels::TaylorAttentionBackward;

const TaylorAttentionKernels kCuda{kernels::cuda::taylor_attention_scratch,
                                   launch_with_scratch<kernels::cuda::taylor_attention_forward, TaylorAttention>,
                                   kernels::cuda::taylor_attention_backward_scratch,
                                   launch_with_scratch<kernels::cuda::taylor_attention_backward, TaylorAttentionBackward>,
                                   launch<kernels::cuda::taylor_attention_step, TaylorAttention>,
                                   /*step_head_dim=*/256,
                                   /*step_scales=*/true,
                                   kernels::cuda::taylor_attention_takes_strides};

std::tuple<Tensor, Tensor, Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                   const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state,
                                                   const OptionalTensor& decay) {
  const OnDevice device("taylor_attention", {{"q", q},
                                             {"k", k},
                                             {"v", v},
                                             {"cu_seqlens", cu_seqlens},
                                             {"initial_kv_state", initial_kv_state},
                                             {"initial_k_state", initial_k_state},
                                             {"decay", decay}});
  return taylor_attention_forward_with(kCuda, q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_y, const OptionalTensor& grad_kv_state,
                                                            const OptionalTensor& grad_k_state, const Tensor& q, const Tensor& k,
                                                            const Tensor& v, const Tensor& cu_seqlens,
                                                            const OptionalTensor& initial_kv_state, const OptionalTensor& initial_k_state,
                                                            const OptionalTensor& decay, const Tensor& y, const Tensor& denominator) {
  const OnDevice device("taylor_attention_backward", {{"grad_y", grad_y},
                                                      {"grad_kv_state", grad_kv_state},
                                                      {"grad_k_state", grad_k_state},
                                                      {"q", q},
                                                      {"k", k},
                                                      {"v", v},
                                                      {"cu_seqlens", cu_seqlens},
                                                      {"initial_kv_state", initial_kv_state},
                                                      {"initial_k_state", initial_k_state},
                                                      {"decay", decay},
                                                      {"y", y},
                                                      {"denominator", denominator}});
  return taylor_attention_backward_with(kCuda, grad_y, grad_kv_state, grad_k_state, q, k, v, cu_seqlens, initial_kv_state, initial_k_state,
                                        decay, y, denominator);
}

Tensor prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, Tensor kv_state, Tensor k_state,
               const Tensor& slots, const OptionalTensor& decay) {
  const OnDevice device("taylor_attention_prefill", {{"q", q},
                                                     {"k", k},
                                                     {"v", v},
                                                     {"cu_seqlens", cu_seqlens},
                                                     {"kv_state", kv_state},
                                                     {"k_state", k_state},
                                                     {"slots", slots},
                                                     {"decay", decay}});
  return taylor_attention_prefill_with(kCuda, q, k, v, cu_seqlens, {kv_state, k_state}, slots, decay);
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor kv_state, Tensor k_state, const Tensor& slots,
            const OptionalTensor& decay, double scale) {
  const OnDevice device("taylor_attention_step",
                        {{"q", q}, {"k", k}, {"v", v}, {"kv_state", kv_state}, {"k_state", k_state}, {"slots", slots}, {"decay", decay}});
  return taylor_attention_step_with(kCuda, q, k, v, {kv_state, k_state}, slots, decay, scale);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("taylor_attention_forward", forward);
  m.impl("taylor_attention_backward", backward);
  m.impl("taylor_attention_prefill", prefill);
  m.impl("taylor_attention_step", step);
}

}  // namespace
}  // namespace based::ops
