// What selective_scan.cpp checks and splits, and selective_scan_*.simd.cpp compute once an instruction set.
#pragma once
#include "based/kernels/cpu/isa.h"
#include "based/kernels/selective_scan.h"

namespace based::kernels::cpu {

// Channels that are worked on together, all of one group.
constexpr int64_t scan_block = 64;

struct ScanBlock {
  int64_t group = 0, first = 0, n = 0;  // channels first .. first + n
  int64_t number = 0;                   // of all blocks
};

// A share of the work: a block of channels of some rows.
struct ScanPart {
  ScanBlock block;
  int64_t row_begin = 0, row_end = 0;
  int64_t row_part = 0;  // the number of this stretch of rows
};

// Where a backward's parts put what they sum.
struct ScanSums {
  float* token;    // [blocks, 2, tokens, state_size]: the gradients of B and C
  float* channel;  // [row parts, channels, state_size + 2]: those of A_log, D and dt_bias
  float* thread;   // scan_thread_floats of this thread's own
};
// Decays and states of a chunk, and its B and C.
constexpr int64_t scan_thread_floats(int64_t state_size) { return kSelectiveScanChunk * state_size * (2 * 16 + 2); }

// One token a row where it is a step, whatever row_start says.
BASED_DECLARE_SIMD(void, selective_scan_part, (const SelectiveScan&, const ScanPart&, bool step))
BASED_DECLARE_SIMD(void, selective_scan_backward_part, (const SelectiveScanBackward&, const ScanPart&, const ScanSums&))
// Tokens begin .. end of grad_B and grad_C, out of the parts' sums.
BASED_DECLARE_SIMD(void, selective_scan_sum_tokens, (const SelectiveScanBackward&, const float* sums, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
