// What dropout.cpp checks and splits, and dropout.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/dropout.h"

namespace based::kernels::cpu {

// Elements begin .. end.
BASED_DECLARE_SIMD(void, drop_elements, (const DropElements&, uint64_t key, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
