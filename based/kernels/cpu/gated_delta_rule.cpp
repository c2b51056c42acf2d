#include "based/kernels/gated_delta_rule.h"

#include "based/kernels/cpu/gated_delta_rule_simd.h"
#include "based/kernels/cpu/parallel.h"

namespace based::kernels::cpu {

Status gated_delta_rule_step(const GatedDeltaRule& a) {
  if (const char* what = wrong_with(a)) return {what};
  if (a.tokens != a.rows) return {"gated_delta_rule_step: a row has one token"};
  if (a.rows > 0 && !(a.state && a.slot)) return {"gated_delta_rule_step: a tensor is null"};
  // A thread should have some 64 KiB of state to go through, or starting it costs more than it saves.
  const int64_t state_bytes = int64_t{4} * a.key_dim * a.value_dim, grain = 1 + 65536 / state_bytes;
  parallel_for(a.rows * a.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) BASED_DISPATCH(gated_delta_rule_head, a, item / a.heads, item % a.heads);
  });
  return {};
}

}  // namespace based::kernels::cpu
