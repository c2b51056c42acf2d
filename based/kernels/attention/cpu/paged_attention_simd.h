// The function that paged_attention.cpp calls, compiled once per instruction set in paged_attention.simd.cpp.
#pragma once
#include "based/kernels/attention/paged_attention.h"
#include "based/kernels/common/cpu/isa.h"

namespace based::kernels::cpu {

// Writes the new key and value into their page and computes the outputs of the heads that read this key head. The slot must not be idle.
BASED_DECLARE_SIMD(void, paged_attention_step_row, (const PagedAttention&, int64_t row, int64_t kv_head))

}  // namespace based::kernels::cpu
