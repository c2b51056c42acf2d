#include "based/kernels/gated_delta_rule.h"

#include "based/kernels/cpu/gated_delta_rule_simd.h"
#include "based/kernels/cpu/parallel.h"

namespace based::kernels::cpu {
namespace {

const char* wrong_with(const GatedDeltaRuleStep& a) {
  if (a.rows < 0) return "gated_delta_rule_step: rows must not be negative";
  if (a.key_dim < 1 || a.key_dim > gated_delta_rule_max_key_dim) return "gated_delta_rule_step: key_dim must be 1..1024";
  if (a.value_dim < 1 || a.key_heads < 1 || a.heads < 1) return "gated_delta_rule_step: heads and value_dim must be at least 1";
  if (a.heads % a.key_heads != 0) return "gated_delta_rule_step: heads must be a multiple of key_heads";
  if (a.log_decay && a.decay_dim != 1 && a.decay_dim != a.key_dim) return "gated_delta_rule_step: decay_dim must be 1 or key_dim";
  if (a.bonus && (a.beta || a.delta)) return "gated_delta_rule_step: a bonus goes without beta and delta";
  if (a.rows > 0 && !(a.q && a.k && a.v && a.y && a.state && a.slot)) return "gated_delta_rule_step: a tensor is null";
  return nullptr;
}

}  // namespace

Status gated_delta_rule_step(const GatedDeltaRuleStep& a) {
  if (const char* what = wrong_with(a)) return {what};
  // A thread should have some 64 KiB of state to go through, or starting it costs more than it saves.
  const int64_t state_bytes = int64_t{4} * a.key_dim * a.value_dim, grain = 1 + 65536 / state_bytes;
  parallel_for(a.rows * a.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) BASED_DISPATCH(gated_delta_rule_head, a, item / a.heads, item % a.heads);
  });
  return {};
}

}  // namespace based::kernels::cpu
