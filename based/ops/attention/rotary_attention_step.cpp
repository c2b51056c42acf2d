#include "based/ops/attention/rotary_attention_step.h"

#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/rotary.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/tokens_step.h"

namespace based::ops {

std::tuple<Tensor, Tensor, Tensor> columns_of_heads(const char* op, const Tensor& qkv, const Tensor& k_ring) {
  require_shape(op, "k_ring", k_ring, {-1, -1, -1, -1});
  const int64_t kv_heads = k_ring.size(2), head_dim = k_ring.size(3), heads = qkv.size(-1) / std::max<int64_t>(head_dim, 1) - 2 * kv_heads;
  require(heads >= 1, op, "qkv must have the columns of queries, keys and values of ", kv_heads, " heads of ", head_dim, ", got ",
          qkv.sizes());
  require_shape(op, "qkv", qkv, {-1, (heads + 2 * kv_heads) * head_dim});
  const Tensor all = qkv.view({qkv.size(0), heads + 2 * kv_heads, head_dim});
  return {all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads), all.narrow(1, heads + kv_heads, kv_heads)};
}

kernels::CausalAttentionTokens rotary_attention_tokens_arguments(const RotaryAttentionTokens& in, const Tensor& y) {
  const auto [q, k, v] = columns_of_heads("rotary_attention_tokens", in.qkv, in.k_ring);
  kernels::CausalAttentionTokens to{causal_attention_step_arguments({q, k, v, in.k_ring, in.v_ring, in.positions, in.slots, in.scale}, y),
                                    in.tokens, q.size(0) - in.tokens};
  to.step.rows = 1, to.step.rotary_base = in.base;
  if (in.kept_k_ring.size(0) > 0) to.kept_k_ring = in.kept_k_ring.mutable_data_ptr(), to.kept_v_ring = in.kept_v_ring.mutable_data_ptr();
  return to;
}

Tensor rotary_attention_step(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, double scale,
                             int64_t dim, double base) {
  return call(RotaryAttentionStep{qkv, k_ring, v_ring, positions, slots, scale, dim, base});
}

Tensor rotary_attention_tokens(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, KeptRings kept,
                               int64_t tokens, double scale, int64_t dim, double base) {
  return call(RotaryAttentionTokens{qkv, k_ring, v_ring, positions, slots, kept.k, kept.v, tokens, scale, dim, base});
}

namespace {

Tensor rotate_then_attend(const RotaryAttentionStep& in) {
  const auto [q, k, v] = columns_of_heads("rotary_attention_step", in.qkv, in.k_ring);
  rotary_(in.qkv, in.positions, {q.size(1) + k.size(1), q.size(2), in.dim, in.base});
  return call(CausalAttentionStep{q, k, v, in.k_ring, in.v_ring, in.positions, in.slots, in.scale});
}

Tensor step(const RotaryAttentionStep& in) {
  const auto* table = launchers_of<kernels::CausalAttentionLaunchers>(in.qkv);
  if (table == nullptr || table->step_fuses_rotary == nullptr) return rotate_then_attend(in);
  const auto [q, k, v] = columns_of_heads("rotary_attention_step", in.qkv, in.k_ring);
  if (!has_kernel(in.k_ring) || in.dim != q.size(2)) return rotate_then_attend(in);
  CausalAttentionStepLaunch launch = prepare_causal_attention_step({q, k, v, in.k_ring, in.v_ring, in.positions, in.slots, in.scale});
  if (!table->step_fuses_rotary(launch.arguments)) return rotate_then_attend(in);
  launch.arguments.rotary_base = in.base;
  require_ok(table->step(launch.arguments, queue_of(in.qkv)));
  return launch.y;
}

Tensor step_meta(const RotaryAttentionStep& in) {
  const auto [q, k, v] = columns_of_heads("rotary_attention_step", in.qkv, in.k_ring);
  return call(CausalAttentionStep{q, k, v, in.k_ring, in.v_ring, in.positions, in.slots, in.scale});
}

void check(const RotaryAttentionTokens& in) {
  constexpr const char* op = "rotary_attention_tokens";
  columns_of_heads(op, in.qkv, in.k_ring);
  require_shape(op, "positions", in.positions, {in.qkv.size(0)});
  require_type(op, "positions", in.positions, at::kLong);
  check_tokens_step(op, in.tokens, kernels::kCausalAttentionTokens, in.qkv.size(0), in.slots,
                    {{"k_ring", in.k_ring, in.kept_k_ring}, {"v_ring", in.v_ring, in.kept_v_ring}});
  require(in.kept_k_ring.size(0) == 0 || in.kept_v_ring.size(0) > 0, op, "kept_k_ring and kept_v_ring must be given together");
}

Tensor tokens_reference(const RotaryAttentionTokens& in) {
  check(in);
  const auto step_row = [&](const auto& row) {
    return call(RotaryAttentionStep{row(in.qkv), in.k_ring, in.v_ring, row(in.positions), in.slots, in.scale, in.dim, in.base});
  };
  return step_each_token(in.tokens, in.qkv.size(0), in.slots,
                         {{"k_ring", in.k_ring, in.kept_k_ring}, {"v_ring", in.v_ring, in.kept_v_ring}}, step_row);
}

Tensor tokens(const RotaryAttentionTokens& in) {
  const auto* table = launchers_of<kernels::CausalAttentionLaunchers>(in.qkv);
  const Tensor q = std::get<0>(columns_of_heads("rotary_attention_tokens", in.qkv, in.k_ring));
  if (table == nullptr || table->step_takes_tokens == nullptr || !has_kernel(in.k_ring) || in.dim != q.size(2)) return tokens_reference(in);
  check(in);
  const Tensor positions = in.positions.contiguous(), slots = in.slots.contiguous(), y = at::empty(q.sizes(), q.options());
  const kernels::CausalAttentionTokens to = rotary_attention_tokens_arguments(
      {in.qkv, in.k_ring, in.v_ring, positions, slots, in.kept_k_ring, in.kept_v_ring, in.tokens, in.scale, in.dim, in.base}, y);
  if (!table->step_takes_tokens(to.step)) return tokens_reference(in);
  require_ok(table->step_tokens(to, queue_of(in.qkv)));
  return y;
}

Tensor tokens_meta(const RotaryAttentionTokens& in) {
  check(in);
  const Tensor q = std::get<0>(columns_of_heads("rotary_attention_tokens", in.qkv, in.k_ring));
  return at::empty(q.sizes(), q.options());
}

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<RotaryAttentionTokens>(m).reference<tokens_reference>().meta<tokens_meta>().kernel<tokens>().without_gradient();
  define<RotaryAttentionStep>(m).reference<rotate_then_attend>().meta<step_meta>().kernel<step>().without_gradient();
}

}  // namespace
}  // namespace based::ops
