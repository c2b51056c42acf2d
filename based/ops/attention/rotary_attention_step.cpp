#include "based/ops/attention/rotary_attention_step.h"

#include "based/ops/attention/causal_attention.h"
#include "based/ops/attention/rotary.h"
#include "based/ops/framework/on_device.h"

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

Tensor rotary_attention_step(Tensor qkv, Tensor& k_ring, Tensor& v_ring, const Tensor& positions, const Tensor& slots, double scale,
                             int64_t dim, double base) {
  return call(RotaryAttentionStep{qkv, k_ring, v_ring, positions, slots, scale, dim, base});
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

TORCH_LIBRARY_FRAGMENT(BASED_OPERATOR_NAMESPACE, m) {
  define<RotaryAttentionStep>(m).reference<rotate_then_attend>().meta<step_meta>().kernel<step>().without_gradient();
}

}  // namespace
}  // namespace based::ops
