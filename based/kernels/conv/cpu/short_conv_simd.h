// Functions that short_conv.cpp calls, compiled once per instruction set in short_conv.simd.cpp.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/conv/short_conv.h"

namespace based::kernels::cpu {

constexpr int32_t short_conv_max_taps = 128;
// Channels per block; channels per work item of the backward.
constexpr int64_t short_conv_block = 64, short_conv_backward_block = 16;

// Tokens per piece of a row. At least the number of taps, so that only the first piece of a row needs its state.
constexpr int64_t short_conv_piece = 128;
static_assert(short_conv_piece >= short_conv_max_taps);

// Processes pieces begin .. end, counted over all rows. In a step each row has one token, and row_start is ignored.
BASED_DECLARE_SIMD(void, short_conv_pieces, (const ShortConv&, bool step, int64_t begin, int64_t end))

// Processes channels begin .. end of all rows.
BASED_DECLARE_SIMD(void, short_conv_backward_channels, (const ShortConvBackward&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
