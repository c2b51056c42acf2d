// Shared memory of the step program's kernel.
#pragma once
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/step/step_program.h"

namespace based::kernels::cuda::detail {

constexpr int kStepBytesInFlight = 44 << 10;        // most bytes of weights in flight: more would delay reads of the mailboxes
constexpr int kStepRows = 96;                       // rows of weights whose sums are in shared memory; there are two such buffers
constexpr int kStepSumStride = kStepMostWarps + 4;  // pitch of a row's sums, for reads of four at a time without bank conflicts
constexpr int kStepTileStages = kStepTileRows / 2;  // most stages of a tile
constexpr int kStepSlots = 4;                       // instructions in shared memory
constexpr int kStepDigitBytes = 1024;               // for each warp of a program with int8 weights: 4 digits of up to 256 elements of x

// An instruction and its companions. Source i is in part i, at the same offset modulo 16 as in global memory.
struct StepSlot {
  StepInstruction step;
  char companions[kStepMostThreads * 8];
  static constexpr int kPart = kStepBiased * 8 + 32;
  static_assert(kStepSources * kPart <= kStepMostThreads * 8);
};

// Follows the stages of the ring in shared memory.
struct StepShared {
  uint64_t full[kStepMostStages], empty[kStepMostStages], slot_full[kStepSlots], slot_empty[kStepSlots];
  StepSlot slots[kStepSlots];
  uint4 x[kStepMostThreads];  // 8 elements each
  alignas(16) float sums[2 * kStepRows * kStepSumStride];
  float features[2][kStepFeatures];  // features of the query, and of the key
  float2 rotations[64];              // rotary rotations of the position, computed by prefetch_window
  int64_t position;
  alignas(16) float warps[kStepMostWarps];
  // Present only in programs with int8 weights, kStepDigitBytes for each warp, after this struct.
  __device__ __forceinline__ uint32_t* digits() { return reinterpret_cast<uint32_t*>(this + 1); }
};

}  // namespace based::kernels::cuda::detail
