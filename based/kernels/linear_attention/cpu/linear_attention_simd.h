// The part of CPU linear attention that is compiled once per instruction set.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/linear_attention/linear_attention.h"

namespace based::kernels::cpu {

// Performs the step of one head of one row.
BASED_DECLARE_SIMD(void, linear_attention_token, (const LinearAttentionStep&, int64_t row, int64_t head))

}  // namespace based::kernels::cpu
