// torch.ops.based_cpp.taylor_attention: second-order Taylor linear attention (paper, section 4.1), all rows of a packed batch at once.
#pragma once
#include <tuple>

#include "based/kernels/taylor/taylor.h"
#include "based/ops/taylor/taylor_attention_reference.h"
#include "based/ops/taylor/taylor_operators.h"

namespace based::ops {

// References to the tensors of a caller's state, which a function updates or replaces.
struct TaylorStateRef {
  Tensor &kv, &k;
  TaylorStateRef(Tensor& kv_sums, Tensor& k_sums) : kv(kv_sums), k(k_sums) {}
  TaylorStateRef(TaylorState& state) : kv(state.kv), k(state.k) {}
};

// q, k [tokens, heads, feature_dim] (already scaled by feature_dim^-1/4), v [tokens, heads, head_dim], cu_seqlens int64 [rows + 1],
// initial_state of the rows (zero where absent).
// Returns y [tokens, heads, head_dim] and the final state. Differentiable in q, k, v and both tensors of initial_state.
// feature_dim 1..64. Throws Error naming operator, argument and value.
std::tuple<Tensor, TaylorState> taylor_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                                 const std::optional<TaylorState>& initial_state = {}, const TaylorDecay& decay = {});

// Only y, for rows that start from zero. The final state is not computed, which saves memory and, in fp32 on a GPU, time.
Tensor taylor_attention_without_state(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                                      const TaylorDecay& decay = {});

// The same for rows that continue from slots of a state: row r continues from slots[r], none twice. Where gradients are on, the function is
// differentiable and replaces the state's tensors. Where they are off, and as the operator torch.ops.based_cpp.taylor_attention_prefill, it
// updates them in place.
Tensor taylor_attention_prefill(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens, TaylorStateRef state,
                                const Tensor& slots, const TaylorDecay& decay = {});

// One token for each slot (paper, algorithm 2): the state [slots, heads, …] is updated in place at `slots` (int64 [rows]);
// q, k, v [rows, heads, …]; q and k are multiplied by `scale` first. Returns [rows, heads, head_dim]. No gradients.
Tensor taylor_attention_step(const Tensor& q, const Tensor& k, const Tensor& v, TaylorState& state, const Tensor& slots,
                             const TaylorDecay& decay = {}, double scale = 1);

// taylor_attention_step for the first `tokens` rows of q, k and v, consecutive tokens of the sequence at slots[0], at most
// kernels::kTaylorStepTokens. The state after each of them but the last is written to `kept`, [tokens − 1 or more, …], unless it has no
// rows. Returns [rows, heads, head_dim]; rows after the tokens repeat the last one.
Tensor taylor_attention_tokens(const Tensor& q, const Tensor& k, const Tensor& v, int64_t tokens, TaylorStateRef state, const Tensor& slots,
                               const TaylorState& kept, const TaylorDecay& decay = {}, double scale = 1);

// A launch's arguments and the tensors that own their memory.
struct TaylorLaunch {
  Tensor q, k, v, cu_seqlens, decay;
  kernels::TaylorAttention arguments;
};
struct TaylorStepLaunch : TaylorLaunch {
  Tensor slots, y;
};
// The kernel's arguments for a step, without the scale. All tensors are contiguous; decay is fp32 or absent.
kernels::TaylorAttention taylor_step_arguments(const TaylorAttentionStep& in, const Tensor& y);
TaylorStepLaunch prepare_taylor_step(const TaylorAttentionStep& in);
kernels::TaylorTokens taylor_tokens_arguments(const TaylorAttentionTokens& in, const Tensor& y);  // with the scale

}  // namespace based::ops
