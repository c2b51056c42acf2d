#include "based/kernels/sampling/adjusted_logits.h"

#include <bit>

#include "based/kernels/common/cpu/parallel.h"

namespace based::kernels::cpu {

Status adjusted_logits(const AdjustedLogits& p) {
  parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t token = 0; token < p.vocab; ++token) {
        const int64_t from = row * p.logits_stride + token, at = row * p.vocab + token;
        const float logit = p.dtype == DType::f32
                                ? static_cast<const float*>(p.logits)[from]
                                : std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(p.logits)[from]) << 16);
        p.adjusted[at] = adjusted_logit(p, logit, row, token, at);
      }
  });
  return {};
}

namespace {
const DefineLaunchers<AdjustedLogitsLaunchers> kAdjustedLogitsLaunchers(Device::cpu, {.adjusted_logits = on_cpu<adjusted_logits>});
}

}  // namespace based::kernels::cpu
