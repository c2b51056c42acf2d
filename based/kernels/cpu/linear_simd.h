// What linear.cpp checks and splits, and linear.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/linear.h"

namespace based::kernels::cpu {

// Output columns are handed to threads in multiples of this many.
constexpr int64_t linear_columns = 8;

// Columns begin .. end of y, all rows.
BASED_DECLARE_SIMD(void, linear_range, (const Linear&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
