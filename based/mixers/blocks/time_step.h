// The time step of state space models: softplus(projection + bias).
#pragma once
#include "based/ops/torch.h"

namespace based {

// [n], whose softplus is uniform in the logarithm over low … high, but at least `least`; empty under SkipInitialisation.
torch::Tensor initial_time_step_bias(int64_t n, double low = 0.001, double high = 0.1, double least = 1e-4);
// [n], the logarithm of a uniform draw in low … high, low ≥ 0: A_log of rates exp(−dt · exp(A_log)). Finite also for low = 0.
torch::Tensor initial_rate_log(int64_t n, double low, double high);

}  // namespace based
