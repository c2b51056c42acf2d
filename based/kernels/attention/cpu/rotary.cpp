#include "based/kernels/attention/rotary.h"

#include <algorithm>
#include <cmath>

#include "based/kernels/attention/cpu/rotary_simd.h"
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"

namespace based::kernels::cpu {

Status rotary(const Rotary& p) {
  if (p.tokens < 0 || p.heads < 1 || p.head_dim < 1) return {"rotary: heads and head_dim must be at least 1, tokens not negative"};
  if (p.dim < 0 || p.dim % 2 != 0 || p.dim > p.head_dim || p.dim > rotary_max_dim)
    return {"rotary: dim must be even, at most head_dim and at most 256"};
  if (p.tokens > 0 && (!p.x || !p.y || !p.position)) return {"rotary: x, y and position must be given"};
  double frequency[rotary_max_dim / 2];
  for (int32_t i = 0; i < p.dim / 2; ++i) frequency[i] = std::pow(p.base, -2.0 * i / p.dim);
  // Starting a second thread costs a few microseconds, in which one thread works through about 32 * 1024 numbers.
  const int64_t token_cost = std::max<int64_t>(1, static_cast<int64_t>(p.heads) * p.head_dim + 16 * p.dim);
  parallel_for(p.tokens, std::max<int64_t>(1, 32 * 1024 / token_cost),
               [&](int64_t begin, int64_t end) { BASED_DISPATCH(rotary_tokens, p, frequency, begin, end); });
  return {};
}

namespace {
const DefineLaunchers<RotaryLaunchers> kRotaryLaunchers(Device::cpu, {.rotate = on_cpu<rotary>});
}

}  // namespace based::kernels::cpu
