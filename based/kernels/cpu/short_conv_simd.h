// What short_conv.cpp checks and splits, and short_conv.simd.cpp computes once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/short_conv.h"

namespace based::kernels::cpu {

constexpr int32_t short_conv_max_taps = 128;
// Channels that are worked on together; a thread of the backward may get a part of that many.
constexpr int64_t short_conv_block = 64, short_conv_backward_block = 16;

// A row is cut into pieces of this many tokens. No fewer than taps, so that only a row's first piece needs its state.
constexpr int64_t short_conv_piece = 128;
static_assert(short_conv_piece >= short_conv_max_taps);

// Pieces begin .. end, counted over all rows. A step's rows are one token each, whatever row_start says.
BASED_DECLARE_SIMD(void, short_conv_pieces, (const ShortConv&, bool step, int64_t begin, int64_t end))

// Channels begin .. end of all rows.
BASED_DECLARE_SIMD(void, short_conv_backward_channels, (const ShortConvBackward&, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
