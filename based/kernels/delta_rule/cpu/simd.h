// The part of the gated delta rule's step that is compiled once an instruction set.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/delta_rule/delta_rule.h"

namespace based::kernels::cpu {

// Processes one head of one row.
BASED_DECLARE_SIMD(void, gated_delta_rule_head, (const GatedDeltaRule&, int64_t row, int64_t head))

}  // namespace based::kernels::cpu
