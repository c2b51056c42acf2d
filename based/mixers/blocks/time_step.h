// Initial parameters of the time step of state space models, softplus(projection + bias).
#pragma once
#include "based/runtime/torch.h"

namespace based {

// Biases [n] whose softplus is log-uniform in [low, high], raised to at least `floor`. Uninitialised under SkipInitialisation.
torch::Tensor initial_time_step_bias(int64_t n, double low = 0.001, double high = 0.1, double floor = 1e-4);
// Logarithms [n] of uniform draws from [low, high], low ≥ 0: the A_log of decay rates exp(−dt · exp(A_log)). Finite for low = 0 too: a draw
// of 0 is raised to the smallest positive draw.
torch::Tensor initial_rate_log(int64_t n, double low, double high);

}  // namespace based
