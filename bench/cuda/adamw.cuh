// AdamW on the device against sums in double, and its speed.
#pragma once
#include "bench/cuda/harness.cuh"

namespace based::bench {

void verify_adamw(Report& report);
void time_adamw(Report& report);

}  // namespace based::bench
