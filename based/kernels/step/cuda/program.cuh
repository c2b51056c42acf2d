// Shared memory of the step program's kernel.
#pragma once
#include "based/kernels/common/cuda/launch.h"
#include "based/kernels/step/step_program.h"

namespace based::kernels::cuda::detail {

constexpr int kStepBytesInFlight = 44 << 10;        // most bytes of weights in flight: more would delay reads of the mailboxes
constexpr int kStepRows = 96;                       // rows of weights whose sums are in shared memory; there are two such buffers
constexpr int kStepTokenRows = 256;                 // with several tokens: rows times tokens
constexpr int kStepSumStride = kStepMostWarps + 4;  // pitch of a row's sums, for reads of four at a time without bank conflicts
// With several tokens there is one buffer, of the sums of some rows for one token, and then for the next one. Its pitch lets threads of
// neighbouring tokens read four sums at a time without bank conflicts.
constexpr int step_rows_of_tokens(int tokens) { return kStepTokenRows / tokens; }
constexpr int step_sums_pitch(int tokens) { return step_rows_of_tokens(tokens) * kStepSumStride + 4; }
constexpr int kStepTileStages = kStepTileRows / 2;  // most stages of a tile
constexpr int kStepSlots = 4;                       // instructions in shared memory
constexpr int kStepDigitBytes = 1024;               // for each warp of a program with int8 weights: 4 digits of up to 256 elements of x

// Tokens: the most tokens of a program, 1, 2, 4 or 8, and those of which a thread keeps the residual stream. kHeld is less where a stream
// needs only a part of the threads; the others keep the other tokens.
template <int kMost, int kOfThread>
struct Tokens {
  static constexpr int kTokens = kMost, kHeld = kOfThread;
};
using OneToken = Tokens<1, 1>;

// An instruction and its companions. Source i is in part i, at the same offset modulo 16 as in global memory.
struct StepSlot {
  StepInstruction step;
  char companions[kStepMostThreads * 8];
  static constexpr int kPart = kStepBiased * 8 + 32;
  static_assert(kStepSources * kPart <= kStepMostThreads * 8);
};

// kTokens: the most tokens. After this struct: x, of step_x_total() bytes, then the digits of a program with int8 weights, kStepDigitBytes
// for each warp.
template <int kTokens>
struct alignas(16) StepShared {
  static constexpr int kSums = kTokens == 1 ? 2 * kStepRows * kStepSumStride : kTokens * step_sums_pitch(kTokens);
  uint64_t full[kStepMostStages], empty[kStepMostStages], slot_full[kStepSlots], slot_empty[kStepSlots];
  StepSlot slots[kStepSlots];
  alignas(16) float sums[kSums];
  // With several tokens: a head's queries and keys, and the block's columns of its values.
  float inputs[kTokens == 1 ? 1 : kTokens * (2 * kStepFeatureDim + kStepColumns)];
  float2 rotations[kTokens][64];  // rotary rotations of the position, computed by prefetch_window
  int64_t position;
  alignas(16) float warps[kTokens][kStepMostWarps];

  // In `sums`, for `taylor`: the warps' parts of y, [token][warp][column], and the features of the query and of the key.
  __device__ __forceinline__ float* parts(int token) { return sums + token * kStepMostWarps * kStepColumns; }
  __device__ __forceinline__ float* features(int token, int which) { return parts(kTokens) + (2 * token + which) * kStepFeatures; }
  static_assert(kTokens * (kStepMostWarps * kStepColumns + 2 * kStepFeatures) <= kSums);
  // Each instruction divides x among the tokens by its own pitch.
  __device__ __forceinline__ uint4* x() { return reinterpret_cast<uint4*>(this + 1); }  // 8 elements each
  __device__ __forceinline__ uint32_t* digits() { return reinterpret_cast<uint32_t*>(x() + kStepMostThreads); }
};
constexpr int step_x_total(const StepProgram& program) {
  return program.tokens == 1 ? kStepMostThreads * static_cast<int>(sizeof(uint4)) : program.tokens * program.x_bytes;
}

}  // namespace based::kernels::cuda::detail
