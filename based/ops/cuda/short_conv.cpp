#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

const ShortConvKernels kCuda{launch<kernels::cuda::short_conv_forward, kernels::ShortConv>, kernels::cuda::short_conv_backward_scratch,
                             launch_with_scratch<kernels::cuda::short_conv_backward, kernels::ShortConvBackward>,
                             launch<kernels::cuda::short_conv_step, kernels::ShortConv>};

std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
                                   const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  const OnDevice device(
      "short_conv",
      {{"x", x}, {"weight", weight}, {"bias", bias}, {"gate", gate}, {"cu_seqlens", cu_seqlens}, {"initial_state", initial_state}});
  return short_conv_with(kCuda, x, weight, bias, gate, silu, cu_seqlens, initial_state);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_y, const OptionalTensor& grad_state, const Tensor& x,
                                                            const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate,
                                                            bool silu, const Tensor& cu_seqlens, const OptionalTensor& initial_state) {
  const OnDevice device("short_conv_backward", {{"grad_y", grad_y},
                                                {"grad_state", grad_state},
                                                {"x", x},
                                                {"weight", weight},
                                                {"bias", bias},
                                                {"gate", gate},
                                                {"cu_seqlens", cu_seqlens},
                                                {"initial_state", initial_state}});
  return short_conv_backward_with(kCuda, grad_y, grad_state, x, weight, bias, gate, silu, cu_seqlens, initial_state);
}

Tensor prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu,
               const Tensor& cu_seqlens, Tensor state, const Tensor& slots) {
  const OnDevice device(
      "short_conv_prefill",
      {{"x", x}, {"weight", weight}, {"bias", bias}, {"gate", gate}, {"cu_seqlens", cu_seqlens}, {"state", state}, {"slots", slots}});
  return short_conv_prefill_with(kCuda, {x, weight, bias, gate, silu}, cu_seqlens, state, slots);
}

Tensor step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& gate, bool silu, Tensor state,
            const Tensor& slots) {
  const OnDevice device("short_conv_step",
                        {{"x", x}, {"weight", weight}, {"bias", bias}, {"gate", gate}, {"state", state}, {"slots", slots}});
  return short_conv_step_with(kCuda, x, weight, bias, gate, silu, state, slots);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("short_conv", forward);
  m.impl("short_conv_backward", backward);
  m.impl("short_conv_prefill", prefill);
  m.impl("short_conv_step", step);
}

}  // namespace
}  // namespace based::ops
