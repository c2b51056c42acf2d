// The part of dropout that is compiled once an instruction set.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/training/dropout.h"

namespace based::kernels::cpu {

// Computes elements [begin, end).
BASED_DECLARE_SIMD(void, drop_elements, (const DropElements&, uint64_t key, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
