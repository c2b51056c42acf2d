// Shared memory of the kernel of a whole step.
#pragma once
#include "based/kernels/cuda/launch.h"
#include "based/kernels/step_program.h"

namespace based::kernels::cuda::detail {

constexpr int kStepUnderWay = 44 << 10;             // bytes at most between memory and a ring: behind more, mailboxes' words wait
constexpr int kStepRows = 96;                       // of weights, whose sums are in shared memory together, twice
constexpr int kStepSumStride = kStepMostWarps + 4;  // of a row's sums: reading four at once, neighbours are in different banks
constexpr int kStepTileStages = kStepTileRows / 2;  // at most, of a tile
constexpr int kStepSlots = 4;                       // instructions in shared memory

// An instruction and its companions; source i begins in the i-th part, as many bytes behind a multiple of 16 as in memory.
struct StepSlot {
  StepInstruction step;
  char companions[kStepMostThreads * 8];
  static constexpr int kPart = kStepBiased * 8 + 32;
};

// Shared memory: stages of the ring, then this.
struct StepShared {
  uint64_t full[kStepMostStages], empty[kStepMostStages], slot_full[kStepSlots], slot_empty[kStepSlots];
  StepSlot slots[kStepSlots];
  uint4 x[kStepMostThreads];  // 8 elements each
  alignas(16) float sums[2 * kStepRows * kStepSumStride];
  float features[2][kStepFeatures];  // of a query, of a key
  float2 turns[64];                  // what prefetch_window saw
  int64_t position;
  alignas(16) float warps[kStepMostWarps];
};

}  // namespace based::kernels::cuda::detail
