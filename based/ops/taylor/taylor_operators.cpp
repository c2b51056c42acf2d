#include "based/ops/taylor/taylor_operators.h"

#include "based/ops/framework/tokens_step.h"
#include "based/ops/taylor/taylor_arguments.h"

namespace based::ops {
namespace {

void check_decay(const char* op, const OptionalTensor& decay, const Tensor& q) {
  check_taylor_decay(op, decay, q, [](const Tensor& rates) { return rates.to(at::kDouble).contiguous(); });
}

// States that are updated in place, for `rows` of their slots.
template <class Op>
void check_taylor_slots(const char* op, const Op& in, int64_t rows) {
  check_taylor_state(op, in.kv_state, in.k_state, in.kv_state.dim() ? in.kv_state.size(0) : -1, in.q, in.v);
  require_state_slots(op, {in.kv_state, in.k_state}, in.slots, rows);
}

}  // namespace

void check_taylor_attention(const char* op, const TaylorAttention& in) {
  check_taylor_qkv(op, in.q, in.k, in.v);
  require_row_starts(op, "cu_seqlens", in.cu_seqlens);
  require(in.initial_kv_state.has_value() == in.initial_k_state.has_value(), op,
          "initial_kv_state and initial_k_state must be given together");
  if (in.initial_kv_state) check_taylor_state(op, *in.initial_kv_state, *in.initial_k_state, in.cu_seqlens.size(0) - 1, in.q, in.v);
  check_decay(op, in.decay, in.q);
}

void check_taylor_attention_step(const char* op, const TaylorAttentionStep& in) {
  check_taylor_qkv(op, in.q, in.k, in.v);
  check_taylor_slots(op, in, in.q.size(0));
  check_decay(op, in.decay, in.q);
}

void check_taylor_attention_tokens(const char* op, const TaylorAttentionTokens& in) {
  check_taylor_qkv(op, in.q, in.k, in.v);
  check_taylor_slots(op, in, 1);
  check_tokens_step(op, in.tokens, kernels::kTaylorStepTokens, in.q.size(0), in.slots,
                    {{"kv_state", in.kv_state, in.kept_kv_state}, {"k_state", in.k_state, in.kept_k_state}});
  require(in.kept_kv_state.size(0) == 0 || in.kept_k_state.size(0) > 0, op, "kept_kv_state and kept_k_state must be given together");
  check_decay(op, in.decay, in.q);
}

void check_taylor_attention_prefill(const char* op, const TaylorAttentionPrefill& in) {
  check_taylor_attention(op, {in.q, in.k, in.v, in.cu_seqlens, {}, {}, in.decay});
  check_taylor_slots(op, in, in.cu_seqlens.size(0) - 1);
}

}  // namespace based::ops
