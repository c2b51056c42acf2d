// Taylor attention on the device against sums in double, and its speed.
#pragma once
#include "bench/cuda/harness.cuh"

namespace based::bench {

// Small shapes: ragged rows, states, decay, all types. `quick`: those that fit a sanitizer's patience.
void verify_taylor(Report& report, bool quick);
void time_taylor(Report& report);

}  // namespace based::bench
