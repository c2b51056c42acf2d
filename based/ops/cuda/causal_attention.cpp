// In bf16 kernels of our own on Hopper, elsewhere the flash attention that LibTorch carries; in fp32 those of pairs of tokens.
#include "based/kernels/causal_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>

#include "based/kernels/causal_attention_plan.h"
#include "based/ops/causal_attention.h"
#include "based/ops/cuda/on_device.h"
#include "based/ops/rotary_attention_step.h"

namespace based::ops {
namespace {

const CausalAttentionKernels kCuda{kernels::cuda::causal_attention_scratch,
                                   launch_with_scratch<kernels::cuda::causal_attention_forward, kernels::CausalAttention>,
                                   kernels::cuda::causal_attention_backward_scratch,
                                   launch_with_scratch<kernels::cuda::causal_attention_backward, kernels::CausalAttentionBackward>,
                                   launch<kernels::cuda::causal_attention_step, kernels::CausalAttentionStep>,
                                   /*joint_gradients=*/true,
                                   /*drops=*/true};
const CausalAttentionKernels kNoKernels{};

bool kernels_apply(const CausalAttention& in) {
  return has_kernel(in.q) && kernels::cuda::causal_attention_supports(prepare_causal_attention(in).arguments);
}

// Its dropout draws otherwise.
bool flash_applies(const CausalAttention& in) {
  const Tensor &q = in.q, &k = in.k;
  return q.scalar_type() == at::kBFloat16 && in.dropout_p == 0 && q.size(2) % 8 == 0 && q.size(0) > 0 &&
         k.size(0) < std::numeric_limits<int32_t>::max();
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

Result<CausalAttentionForward> forward(const CausalAttentionForward& op) {
  const CausalAttention& in = op.of;
  const Tensor &q = in.q, &k = in.k, &v = in.v;
  check_causal_attention(in);
  if (kernels_apply(in)) return causal_attention_forward_with(kCuda, in);
  if (!flash_applies(in)) return causal_attention_forward_with(kNoKernels, in);
  // The longest row is on the GPU; all tokens are an upper bound of it, which costs empty blocks only.
  const auto [y, log_sum_exp, seed, offset, none] =
      at::_flash_attention_forward(with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), in.cu_seqlens_q.to(at::kInt),
                                   in.cu_seqlens_k.to(at::kInt), q.size(0), k.size(0), /*dropout_p=*/0, /*is_causal=*/true,
                                   /*return_debug_mask=*/false, in.scale, keys_to_the_left(in.window), /*window_right=*/0);
  return {y.contiguous(), log_sum_exp.t().contiguous()};
}

Result<CausalAttentionBackward> backward(const CausalAttentionBackward& in) {
  const Tensor &q = in.of.q, &k = in.of.k, &v = in.of.v;
  if (kernels_apply(in.of)) return causal_attention_backward_with(kCuda, in);
  if (!flash_applies(in.of)) return causal_attention_backward_with(kNoKernels, in);
  const Tensor no_dropout = at::empty({2}, q.options().dtype(at::kUInt64));
  const FixedOrder fixed_order;
  auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      in.grad_y.contiguous(), with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), in.y.contiguous(),
      in.log_sum_exp.t().contiguous(), in.of.cu_seqlens_q.to(at::kInt), in.of.cu_seqlens_k.to(at::kInt), q.size(0), k.size(0),
      /*dropout_p=*/0,
      /*is_causal=*/true, no_dropout, no_dropout, in.of.scale, keys_to_the_left(in.of.window), /*window_right=*/0);
  return {grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()};
}

Tensor rotary_step(const RotaryAttentionStep& in) {
  const auto [q, k, v] = columns_of_heads("rotary_attention_step", in.qkv, in.k_ring);
  if (has_kernel(in.qkv) && has_kernel(in.k_ring) && in.dim == q.size(2)) {
    CausalAttentionStepLaunch launch = prepare_causal_attention_step({q, k, v, in.k_ring, in.v_ring, in.positions, in.slots, in.scale});
    if (kernels::causal_attention_step_fuses_rotary(launch.arguments, kernels::cuda::this_gpu())) {
      launch.arguments.rotary_base = in.base;
      require_ok(kernels::cuda::causal_attention_step(launch.arguments, current_stream()));
      return launch.y;
    }
  }
  return rotary_attention_step_fallback(in);
}

TORCH_LIBRARY_IMPL(based, CUDA, m) {
  implement<CausalAttentionForward, forward>(m);
  implement<CausalAttentionBackward, backward>(m);
  implement<CausalAttentionStep, [](const CausalAttentionStep& in) { return causal_attention_step_with(kCuda, in); }>(m);
  implement<RotaryAttentionStep, rotary_step>(m);
}

}  // namespace
}  // namespace based::ops
