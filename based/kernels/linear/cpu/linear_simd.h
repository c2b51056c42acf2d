// The function that linear.cpp calls, compiled once per instruction set in linear.simd.cpp.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/linear/linear.h"

namespace based::kernels::cpu {

// Threads process output columns in multiples of this number.
constexpr int64_t linear_columns = 8;

// Computes columns begin .. end of y for all rows.
BASED_DECLARE_SIMD(void, linear_range, (const Linear&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
