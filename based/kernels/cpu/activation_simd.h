// What activation.cpp checks and splits, and activation.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/activation.h"
#include "based/kernels/cpu/isa.h"

namespace based::kernels::cpu {

// Rows begin .. end.
BASED_DECLARE_SIMD(void, activate_rows, (const Activate&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
