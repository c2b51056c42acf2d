// The hidden layer of a gated MLP on the device against sums in double, and its speed.
#pragma once
#include "bench/cuda/harness.cuh"

namespace based::bench {

void verify_gated_mlp(Report& report);
void time_gated_mlp(Report& report);

}  // namespace based::bench
