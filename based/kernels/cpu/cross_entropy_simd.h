// What cross_entropy.cpp checks and splits, and cross_entropy.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/cross_entropy.h"

namespace based::kernels::cpu {

// Rows begin .. end.
BASED_DECLARE_SIMD(void, cross_entropy_rows, (const CrossEntropy&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
