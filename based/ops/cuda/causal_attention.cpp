// In bf16 kernels of our own on Hopper, elsewhere the flash attention that LibTorch carries; in fp32 the reference, but for the step.
#include "based/kernels/causal_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include "based/kernels/causal_attention_plan.h"
#include "based/ops/cuda/on_device.h"
#include "based/ops/launch.h"

namespace based::ops {
namespace {

using Forward = std::tuple<Tensor, Tensor>;            // y, log_sum_exp
using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of q, k, v

const CausalAttentionKernels kCuda{kernels::cuda::causal_attention_scratch,
                                   launch_with_scratch<kernels::cuda::causal_attention_forward, kernels::CausalAttention>,
                                   kernels::cuda::causal_attention_backward_scratch,
                                   launch_with_scratch<kernels::cuda::causal_attention_backward, kernels::CausalAttentionBackward>,
                                   launch<kernels::cuda::causal_attention_step, kernels::CausalAttentionStep>,
                                   /*joint_gradients=*/true};
const CausalAttentionKernels kNoKernels{};

bool kernels_apply(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k,
                   int64_t window, double scale) {
  if (q.scalar_type() != at::kBFloat16) return false;
  return kernels::cuda::causal_attention_supports(prepare_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale).arguments);
}

bool flash_applies(const Tensor& q, const Tensor& k) {
  return q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 && q.size(0) > 0 && k.size(0) < std::numeric_limits<int32_t>::max();
}

// `window` keys seen, the token's own included, as keys to the left of it; none: all.
std::optional<int64_t> keys_to_the_left(int64_t window) { return window == 0 ? std::nullopt : std::optional(window - 1); }

Tensor with_unit_stride(const Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

// While one lives, ATen's flash attention adds up gradients in a fixed order instead of by atomics.
class FixedOrder {
 public:
  FixedOrder() {
    at::Context& context = at::globalContext();
    context.setDeterministicFillUninitializedMemory(was_on_ && fills_);
    context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~FixedOrder() {
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(was_on_, warned_);
    context.setDeterministicFillUninitializedMemory(fills_);
  }
  FixedOrder(const FixedOrder&) = delete;
  FixedOrder& operator=(const FixedOrder&) = delete;

 private:
  bool was_on_ = at::globalContext().deterministicAlgorithms(), warned_ = at::globalContext().deterministicAlgorithmsWarnOnly();
  bool fills_ = at::globalContext().deterministicFillUninitializedMemory();
};

Forward forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q, const Tensor& cu_seqlens_k, int64_t window,
                double scale) {
  const OnDevice device("causal_attention", {{"q", q}, {"k", k}, {"v", v}, {"cu_seqlens_q", cu_seqlens_q}, {"cu_seqlens_k", cu_seqlens_k}});
  check_causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window);
  if (kernels_apply(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale))
    return causal_attention_forward_with(kCuda, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  if (!flash_applies(q, k)) return causal_attention_forward_with(kNoKernels, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale);
  // The longest row is on the GPU; all tokens are an upper bound of it, which costs empty blocks only.
  const auto [y, log_sum_exp, seed, offset, none] = at::_flash_attention_forward(
      with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), cu_seqlens_q.to(at::kInt), cu_seqlens_k.to(at::kInt), q.size(0),
      k.size(0), /*dropout_p=*/0, /*is_causal=*/true, /*return_debug_mask=*/false, scale, keys_to_the_left(window), /*window_right=*/0);
  return {y.contiguous(), log_sum_exp.t().contiguous()};
}

Gradients backward(const Tensor& grad_y, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens_q,
                   const Tensor& cu_seqlens_k, int64_t window, double scale, const Tensor& y, const Tensor& log_sum_exp) {
  const OnDevice device("causal_attention_backward", {{"grad_y", grad_y},
                                                      {"q", q},
                                                      {"k", k},
                                                      {"v", v},
                                                      {"cu_seqlens_q", cu_seqlens_q},
                                                      {"cu_seqlens_k", cu_seqlens_k},
                                                      {"y", y},
                                                      {"log_sum_exp", log_sum_exp}});
  if (kernels_apply(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale))
    return causal_attention_backward_with(kCuda, grad_y, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, y, log_sum_exp);
  if (!flash_applies(q, k))
    return causal_attention_backward_with(kNoKernels, grad_y, q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, y, log_sum_exp);
  const Tensor no_dropout = at::empty({2}, q.options().dtype(at::kUInt64));
  const FixedOrder fixed_order;
  auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      grad_y.contiguous(), with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), y.contiguous(), log_sum_exp.t().contiguous(),
      cu_seqlens_q.to(at::kInt), cu_seqlens_k.to(at::kInt), q.size(0), k.size(0), /*dropout_p=*/0, /*is_causal=*/true, no_dropout,
      no_dropout, scale, keys_to_the_left(window), /*window_right=*/0);
  return {grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()};
}

Tensor step(const Tensor& q, const Tensor& k, const Tensor& v, Tensor k_ring, Tensor v_ring, const Tensor& positions, const Tensor& slots,
            double scale) {
  const OnDevice device("causal_attention_step",
                        {{"q", q}, {"k", k}, {"v", v}, {"k_ring", k_ring}, {"v_ring", v_ring}, {"positions", positions}, {"slots", slots}});
  return causal_attention_step_with(kCuda, q, k, v, k_ring, v_ring, positions, slots, scale);
}

Tensor rotary_step(Tensor qkv, Tensor k_ring, Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale, int64_t dim,
                   double base) {
  const OnDevice device("rotary_attention_step",
                        {{"qkv", qkv}, {"k_ring", k_ring}, {"v_ring", v_ring}, {"positions", positions}, {"slots", slots}});
  const auto [q, k, v] = columns_of_heads("rotary_attention_step", qkv, k_ring);
  if (has_kernel(qkv) && has_kernel(k_ring) && dim == q.size(2)) {
    CausalAttentionStepLaunch launch = prepare_causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale);
    if (kernels::causal_attention_step_fuses_rotary(launch.arguments, kernels::cuda::this_gpu())) {
      launch.arguments.rotary_base = base;
      require_ok(kernels::cuda::causal_attention_step(launch.arguments, current_stream()));
      return launch.y;
    }
  }
  return rotary_attention_step_apart(qkv, k_ring, v_ring, positions, slots, scale, dim, base);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  m.impl("causal_attention_forward", forward);
  m.impl("causal_attention_backward", backward);
  m.impl("causal_attention_step", step);
  m.impl("rotary_attention_step", rotary_step);
}

}  // namespace
}  // namespace based::ops
