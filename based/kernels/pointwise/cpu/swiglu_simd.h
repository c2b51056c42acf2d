// Functions that swiglu.cpp calls, compiled once for each instruction set (swiglu.simd.cpp).
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/pointwise/swiglu.h"

namespace based::kernels::cpu {

// Rows begin .. end.
BASED_DECLARE_SIMD(void, swiglu_rows, (const Swiglu&, int64_t begin, int64_t end))
BASED_DECLARE_SIMD(void, swiglu_backward_rows, (const SwigluBackward&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
