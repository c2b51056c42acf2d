// The part of the gated delta rule's step that is compiled once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/gated_delta_rule.h"

namespace based::kernels::cpu {

// One head of one row.
BASED_DECLARE_SIMD(void, gated_delta_rule_head, (const GatedDeltaRule&, int64_t row, int64_t head))

}  // namespace based::kernels::cpu
