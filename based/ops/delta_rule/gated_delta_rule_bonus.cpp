#include "based/ops/delta_rule/gated_delta_rule_bonus.h"

#include "based/ops/delta_rule/gated_delta_rule_forms.h"

namespace based::ops {
namespace {

// Tensors [tokens, heads, …] of packed rows, moved by one token within each row; the token without a neighbour gets zeros.
class RowShift {
 public:
  RowShift(const Tensor& cu_seqlens, int64_t tokens) : tokens_(tokens) {
    starts_ = at::zeros({tokens + 1, 1, 1}, cu_seqlens.options().dtype(at::kBool)).index_fill_(0, cu_seqlens, true);
  }
  Tensor next(const Tensor& x) const {
    return at::constant_pad_nd(x.narrow(0, 1, tokens_ - 1), {0, 0, 0, 0, 0, 1}).masked_fill_(starts_.narrow(0, 1, tokens_), 0);
  }
  Tensor previous(const Tensor& x) const {
    return at::constant_pad_nd(x.narrow(0, 0, tokens_ - 1), {0, 0, 0, 0, 1, 0}).masked_fill_(starts_.narrow(0, 0, tokens_), 0);
  }

 private:
  int64_t tokens_;
  Tensor starts_;  // whether a token is the first of its row; the end of the last row counts as one
};

}  // namespace

// y_t = scale · (S_{t−1}ᵀq_t + (q_t · u⊙k_t) v_t). The first term is what token t − 1 reads with q_t in the rule without a bonus, except at
// the first token of a row, which reads the initial state. The second term is differentiated here.
Result<GatedDeltaRuleBackward> gated_delta_rule_gradient_with_bonus(const GatedDeltaRuleBackward& in,
                                                                    const GatedDeltaRuleGradient& gradient) {
  const auto& [inputs, cu_seqlens, initial_state] = in.forward;
  const at::ScalarType type = sum_type(inputs.q);
  const int64_t tokens = inputs.q.size(0), key_heads = inputs.q.size(1), copies = inputs.v.size(1) / key_heads;
  const auto by_head = [&](const Tensor& x) { return copies == 1 ? x.to(type) : x.to(type).repeat_interleave(copies, 1); };

  const RowShift shift(cu_seqlens, tokens);
  GatedDeltaRuleInputs shifted = inputs;
  shifted.q = shift.next(inputs.q), shifted.bonus = std::nullopt;
  const Tensor shifted_grad_y = shift.next(in.grad_y);
  const auto [read_q, read_k, read_v, grad_log_decay, grad_beta, no_bonus, read_initial] =
      gradient({shifted_grad_y, in.grad_state, {shifted, cu_seqlens, initial_state}});

  const Tensor q = by_head(inputs.q), k = by_head(inputs.k), bonus = inputs.bonus->to(type), grad_y = in.grad_y.to(type) * inputs.scale;
  const Tensor weight = (grad_y * inputs.v.to(type)).sum(-1, /*keepdim=*/true), weighted_bonus = weight * bonus, qk = q * k;
  Tensor grad_q = shift.previous(read_q).to(type) + sum_to_key_heads(weighted_bonus * k, key_heads), grad_initial = read_initial;
  const Tensor grad_k = read_k.to(type) + sum_to_key_heads(weighted_bonus * q, key_heads);
  const Tensor grad_v = read_v.to(type) + (bonus * qk).sum(-1, /*keepdim=*/true) * grad_y;
  if (initial_state) {
    const Tensor begins = cu_seqlens.narrow(0, 0, cu_seqlens.size(0) - 1), ends = cu_seqlens.narrow(0, 1, cu_seqlens.size(0) - 1);
    const Tensor first = begins.clamp_max(tokens - 1), is_empty = (begins == ends).view({-1, 1, 1});
    const Tensor first_grad_y = grad_y.index_select(0, first).masked_fill_(is_empty, 0).unsqueeze(2);  // [rows, heads, 1, value_dim]
    grad_q.index_add_(0, first, sum_to_key_heads((*initial_state * first_grad_y).sum(-1), key_heads));
    grad_initial = read_initial + q.index_select(0, first).unsqueeze(-1) * first_grad_y;
  }
  return {grad_q.to(inputs.q.scalar_type()),
          grad_k.to(inputs.k.scalar_type()),
          grad_v.to(inputs.v.scalar_type()),
          grad_log_decay,
          grad_beta,
          (weight * qk).sum(0).to(inputs.bonus->scalar_type()),
          grad_initial};
}

}  // namespace based::ops
