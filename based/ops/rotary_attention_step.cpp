#include "based/ops/arguments.h"
#include "based/ops/causal_attention.h"
#include "based/ops/launch.h"
#include "based/ops/pointwise.h"

namespace based::ops {
namespace {

constexpr const char* kOp = "rotary_attention_step";

Tensor step_meta(Tensor qkv, Tensor k_ring, Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale, int64_t, double) {
  const auto [q, k, v] = columns_of_heads(kOp, qkv, k_ring);
  return causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale);
}

Tensor step_autograd(Tensor qkv, Tensor k_ring, Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale, int64_t dim,
                     double base) {
  require_no_gradient(kOp, {qkv, k_ring, v_ring});
  const at::AutoDispatchBelowADInplaceOrView guard;
  return rotary_attention_step(std::move(qkv), k_ring, v_ring, positions, slots, scale, dim, base);
}

}  // namespace

Tensor rotary_attention_step_apart(Tensor qkv, Tensor k_ring, Tensor v_ring, const Tensor& positions, const Tensor& slots, double scale,
                                   int64_t dim, double base) {
  const auto [q, k, v] = columns_of_heads(kOp, qkv, k_ring);
  rotary_(qkv, positions, {q.size(1) + k.size(1), q.size(2), dim, base});
  return causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale);
}

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
  static const auto op = find_operator<decltype(rotary_attention_step_apart)>("based::rotary_attention_step");
  return op.call(std::move(qkv), k_ring, v_ring, positions, slots, scale, dim, base);
}

namespace {

TORCH_LIBRARY_FRAGMENT(based, m) {
  m.def(
      "rotary_attention_step(Tensor(a!) qkv, Tensor(b!) k_ring, Tensor(c!) v_ring, Tensor positions, Tensor slots, float scale, "
      "int dim, float base) -> Tensor");
}

TORCH_LIBRARY_IMPL(based, CompositeExplicitAutograd, m) { m.impl("rotary_attention_step", rotary_attention_step_apart); }
TORCH_LIBRARY_IMPL(based, Meta, m) { m.impl("rotary_attention_step", step_meta); }
TORCH_LIBRARY_IMPL(based, Autograd, m) { m.impl("rotary_attention_step", step_autograd); }

}  // namespace
}  // namespace based::ops
