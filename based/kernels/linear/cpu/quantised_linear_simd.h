// The functions that quantised_linear.cpp calls, compiled once per instruction set in quantised_linear.simd.cpp.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/linear/quantised_linear.h"

namespace based::kernels::cpu {

// Threads process output columns in multiples of this number.
constexpr int64_t quantised_columns = 8;

// The length of a row of activations that quantised_linear_arrange writes.
constexpr int64_t quantised_width(int64_t in) { return (in + 127) / 128 * 128; }

// Writes x as fp32 [rows, quantised_width(in)], completed by zeros, in the order in which quantised_linear_range reads it.
BASED_DECLARE_SIMD(void, quantised_linear_arrange, (const QuantisedLinear&, float* to))

// Computes columns begin .. end of y for all rows.
BASED_DECLARE_SIMD(void, quantised_linear_range, (const QuantisedLinear&, const float* arranged, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
