#include "based/kernels/linear_attention/linear_attention.h"

#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/linear_attention/cpu/linear_attention_simd.h"

namespace based::kernels::cpu {

Status linear_attention_step(const LinearAttentionStep& a) {
  if (a.heads < 1 || a.features < 1 || a.head_dim < 1) return {"linear_attention_step: heads, features and head_dim must be at least 1"};
  if (a.rows < 0) return {"linear_attention_step: rows must not be negative"};
  if (a.rows > 0 && (!a.q || !a.k || !a.v || !a.y)) return {"linear_attention_step: q, k, v or y is null"};
  if (a.rows > 0 && (!a.kv_state || !a.k_state)) return {"linear_attention_step: kv_state or k_state is null"};
  // A thread needs about 64 KiB of state to process, or waking it costs more than it saves.
  const int64_t state_bytes = a.features * a.head_dim * 4, grain = 1 + 65536 / state_bytes;
  parallel_for(a.rows * a.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) BASED_DISPATCH(linear_attention_token, a, item / a.heads, item % a.heads);
  });
  return {};
}

namespace {
const DefineLaunchers<LinearAttentionStepLaunchers> kLinearAttentionStepLaunchers(Device::cpu, {.step = on_cpu<linear_attention_step>});
}

}  // namespace based::kernels::cpu
