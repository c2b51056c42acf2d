// What paged_attention.cpp checks and splits, and paged_attention.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/paged_attention.h"

namespace based::kernels::cpu {

// Writes the new key and value into their page and computes the outputs of the heads that read this key head. The slot is not idle.
BASED_DECLARE_SIMD(void, paged_attention_step_row, (const PagedAttention&, int64_t row, int64_t kv_head))

}  // namespace based::kernels::cpu
