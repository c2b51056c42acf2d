// Functions that rms_norm.cpp calls, compiled once for each instruction set (rms_norm.simd.cpp).
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/norm/rms_norm.h"

namespace based::kernels::cpu {

// Rows begin .. end.
BASED_DECLARE_SIMD(void, rms_norm_rows, (const RmsNorm&, int64_t begin, int64_t end))
// grad_weight [width] gets the sum of these rows alone.
BASED_DECLARE_SIMD(void, rms_norm_backward_rows, (const RmsNormBackward&, int64_t begin, int64_t end, float* grad_weight))

}  // namespace based::kernels::cpu
