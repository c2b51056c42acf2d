// The part of CPU linear attention that is compiled once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/linear_attention.h"

namespace based::kernels::cpu {

// One head of one row.
BASED_DECLARE_SIMD(void, linear_attention_token, (const LinearAttentionStep&, int64_t row, int64_t head))

}  // namespace based::kernels::cpu
