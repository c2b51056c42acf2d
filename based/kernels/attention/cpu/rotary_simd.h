// The part of rotary positions on the CPU that is compiled once per instruction set.
#pragma once
#include "based/kernels/attention/rotary.h"
#include "based/kernels/common/cpu/isa.h"

namespace based::kernels::cpu {

constexpr int32_t rotary_max_dim = 256;

// Tokens begin .. end. frequency [dim / 2]: the angle that each pair turns by from one position to the next.
BASED_DECLARE_SIMD(void, rotary_tokens, (const Rotary&, const double* frequency, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
