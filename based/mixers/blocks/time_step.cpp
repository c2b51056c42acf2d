#include "based/mixers/blocks/time_step.h"

#include <algorithm>
#include <cmath>

#include "based/mixers/kit/parameters.h"

namespace based {

Tensor initial_time_step_bias(int64_t n, double low, double high, double floor) {
  const Tensor step = initial_uniform({n}, std::log(low), std::log(high)).exp().clamp_min(floor);
  return step + torch::log(-torch::expm1(-step));  // the inverse of softplus
}

// Uniform fp32 draws are low plus multiples of 2⁻²⁴ of the range, so 0 can be drawn if low = 0. The clamp replaces it by the next draw.
Tensor initial_rate_log(int64_t n, double low, double high) {
  return initial_uniform({n}, low, high).clamp_min(std::max(low, (high - low) * 0x1p-24)).log();
}

}  // namespace based
