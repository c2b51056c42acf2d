#include "based/kernels/delta_rule/delta_rule.h"

#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/delta_rule/cpu/simd.h"

namespace based::kernels::cpu {

Status gated_delta_rule_step(const GatedDeltaRule& a) {
  if (const char* error = validate(a)) return {error};
  if (a.tokens != a.rows) return {"gated_delta_rule_step: a row has one token"};
  if (a.rows > 0 && !(a.state && a.slot)) return {"gated_delta_rule_step: a tensor is null"};
  // A thread should process at least some 64 KiB of state, or starting it costs more time than it saves.
  const int64_t state_bytes = int64_t{4} * a.key_dim * a.value_dim, grain = 1 + 65536 / state_bytes;
  parallel_for(a.rows * a.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) BASED_DISPATCH(gated_delta_rule_head, a, item / a.heads, item % a.heads);
  });
  return {};
}

namespace {
const DefineLaunchers<GatedDeltaRuleLaunchers> kGatedDeltaRuleLaunchers(Device::cpu, {.step = on_cpu<gated_delta_rule_step>});
}

}  // namespace based::kernels::cpu
