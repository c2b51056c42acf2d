// Functions that scan.cpp calls, compiled once per instruction set in forward.simd.cpp and backward.simd.cpp.
#pragma once
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/scan/scan.h"

namespace based::kernels::cpu {

// Channels per block. All channels of a block belong to one group.
constexpr int64_t scan_block = 64;

struct ScanBlock {
  int64_t group = 0, first = 0, n = 0;  // channels first .. first + n
  int64_t number = 0;                   // index among all blocks
};

// A work item: a block of channels for a range of rows.
struct ScanPart {
  ScanBlock block;
  int64_t row_begin = 0, row_end = 0;
  int64_t row_part = 0;  // index of this range of rows
};

// Destinations of the partial sums of the backward.
struct ScanSums {
  float* token;    // [blocks, 2, tokens, state_size]: gradients of B and C
  float* channel;  // [row parts, channels, state_size + 2]: gradients of A_log, D and dt_bias
  float* thread;   // working memory of this thread, scan_thread_floats()
};
// Floats of a thread's working memory: decays and states of a chunk, and its B and C.
constexpr int64_t scan_thread_floats(int64_t state_size) { return kSelectiveScanChunk * state_size * (2 * 16 + 2); }

// If `step`, each row has one token and row_start is ignored.
BASED_DECLARE_SIMD(void, selective_scan_part, (const SelectiveScan&, const ScanPart&, bool step))
BASED_DECLARE_SIMD(void, selective_scan_backward_part, (const SelectiveScanBackward&, const ScanPart&, const ScanSums&))
// Computes tokens begin .. end of grad_B and grad_C from the partial sums.
BASED_DECLARE_SIMD(void, selective_scan_sum_tokens, (const SelectiveScanBackward&, const float* sums, int64_t begin, int64_t end))

}  // namespace based::kernels::cpu
