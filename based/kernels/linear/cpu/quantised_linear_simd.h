// The function that quantised_linear.cpp calls, compiled once per instruction set in quantised_linear.simd.cpp.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/linear/quantised_linear.h"

namespace based::kernels::cpu {

// Threads process output columns in multiples of this number.
constexpr int64_t quantised_columns = 4;

// Computes columns begin .. end of y for all rows.
BASED_DECLARE_SIMD(void, quantised_linear_range, (const QuantisedLinear&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
