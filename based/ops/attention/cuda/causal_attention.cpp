// In bf16, where the library has no kernel for the device or the shape, LibTorch's flash attention runs. The library's kernels and flash
// attention need head dimensions that are multiples of 8, so other heads are padded with zeros.
#include "based/ops/attention/causal_attention.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/constant_pad_nd.h>

#include "based/ops/framework/on_device.h"

namespace based::ops {
namespace {

// Dropout is excluded: flash attention has other draws.
bool flash_applies(const CausalAttention& in) {
  const Tensor &q = in.q, &k = in.k;
  return q.scalar_type() == at::kBFloat16 && in.dropout_p == 0 && q.size(2) % 8 == 0 && q.size(0) > 0 &&
         k.size(0) < std::numeric_limits<int32_t>::max();
}

bool runs(const CausalAttention& in) { return has_causal_attention_kernel(in) || flash_applies(in); }

// Heads padded to the next multiple of 8, where a kernel runs for these only. Zeros change no score, and give zeros in the columns that
// unpadded() removes.
class PaddedHeads {
 public:
  explicit PaddedHeads(const CausalAttention& in) : in_(in), missing_(-in.q.size(2) & 7) {
    if (missing_ == 0 || runs(in)) return;
    q_ = padded(in.q), k_ = padded(in.k), v_ = padded(in.v);
    used_ = runs(call());
  }
  bool used() const { return used_; }
  CausalAttention call() const {
    return {q_,       k_,       v_,        in_.cu_seqlens_q, in_.cu_seqlens_k, in_.window, in_.scale, in_.dropout_p,
            in_.seed, in_.step, in_.place, in_.first_token};
  }
  Tensor padded(const Tensor& x) const { return at::constant_pad_nd(x, {0, missing_}); }
  Tensor unpadded(const Tensor& x) const { return x.narrow(2, 0, in_.q.size(2)).contiguous(); }

 private:
  CausalAttention in_;
  int64_t missing_;
  Tensor q_, k_, v_;
  bool used_ = false;
};

// The number of keys before the token's own in a window of `window` keys; none: all.
std::optional<int64_t> keys_to_the_left(int64_t window) { return window == 0 ? std::nullopt : std::optional(window - 1); }

Tensor with_unit_stride(const Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

// During its lifetime ATen's flash attention adds gradients in a fixed order instead of by atomics.
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
  const CausalAttention& in = op.inputs;
  const Tensor &q = in.q, &k = in.k, &v = in.v;
  check_causal_attention(in);
  if (const PaddedHeads heads(in); heads.used()) {
    auto [y, log_sum_exp] = forward(CausalAttentionForward{heads.call()});
    return {heads.unpadded(y), std::move(log_sum_exp)};
  }
  if (!flash_applies(in) || has_causal_attention_kernel(in)) return causal_attention_forward(op);
  // The length of the longest row is on the GPU. The number of all tokens is an upper bound, which costs empty blocks only.
  const auto [y, log_sum_exp, seed, offset, none] =
      at::_flash_attention_forward(with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), in.cu_seqlens_q.to(at::kInt),
                                   in.cu_seqlens_k.to(at::kInt), q.size(0), k.size(0), /*dropout_p=*/0, /*is_causal=*/true,
                                   /*return_debug_mask=*/false, in.scale, keys_to_the_left(in.window), /*window_right=*/0);
  return {y.contiguous(), log_sum_exp.t().contiguous()};
}

Result<CausalAttentionBackward> backward(const CausalAttentionBackward& in) {
  const CausalAttention& inputs = in.forward;
  const Tensor &q = inputs.q, &k = inputs.k, &v = inputs.v;
  if (const PaddedHeads heads(inputs); heads.used()) {
    const auto [grad_q, grad_k, grad_v] =
        backward(CausalAttentionBackward{heads.padded(in.grad_y), heads.call(), heads.padded(in.y), in.log_sum_exp});
    return {heads.unpadded(grad_q), heads.unpadded(grad_k), heads.unpadded(grad_v)};
  }
  if (!flash_applies(inputs) || has_causal_attention_kernel(inputs)) return causal_attention_backward(in);
  const Tensor no_dropout = at::empty({2}, q.options().dtype(at::kUInt64));
  const FixedOrder fixed_order;
  auto [grad_q, grad_k, grad_v] = at::_flash_attention_backward(
      in.grad_y.contiguous(), with_unit_stride(q), with_unit_stride(k), with_unit_stride(v), in.y.contiguous(),
      in.log_sum_exp.t().contiguous(), inputs.cu_seqlens_q.to(at::kInt), inputs.cu_seqlens_k.to(at::kInt), q.size(0), k.size(0),
      /*dropout_p=*/0,
      /*is_causal=*/true, no_dropout, no_dropout, inputs.scale, keys_to_the_left(inputs.window), /*window_right=*/0);
  return {grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()};
}

TORCH_LIBRARY_IMPL(BASED_OPERATOR_NAMESPACE, CUDA, m) {
  implement<CausalAttentionForward, forward>(m);
  implement<CausalAttentionBackward, backward>(m);
}

}  // namespace
}  // namespace based::ops
