// The part of the cross entropy that is compiled once an instruction set.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/training/cross_entropy.h"

namespace based::kernels::cpu {

// Computes rows [begin, end).
BASED_DECLARE_SIMD(void, cross_entropy_rows, (const CrossEntropy&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
