// What pointwise.cpp checks and splits, and pointwise.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/pointwise.h"

namespace based::kernels::cpu {

constexpr int32_t rotary_max_dim = 256;

// Rows (or tokens) begin .. end.
BASED_DECLARE_SIMD(void, rms_norm_rows, (const RmsNorm&, int64_t begin, int64_t end))
// grad_weight [width] gets the sum of these rows alone.
BASED_DECLARE_SIMD(void, rms_norm_backward_rows, (const RmsNormBackward&, int64_t begin, int64_t end, float* grad_weight))
BASED_DECLARE_SIMD(void, swiglu_rows, (const Swiglu&, int64_t begin, int64_t end))
BASED_DECLARE_SIMD(void, swiglu_backward_rows, (const SwigluBackward&, int64_t begin, int64_t end))
// frequency [dim / 2]: the angle that each pair turns by from one position to the next.
BASED_DECLARE_SIMD(void, rotary_tokens, (const Rotary&, const double* frequency, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
