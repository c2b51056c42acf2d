// The part of the activations that is compiled once an instruction set.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/pointwise/activation.h"

namespace based::kernels::cpu {

// Computes rows [begin, end).
BASED_DECLARE_SIMD(void, activate_rows, (const Activate&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
