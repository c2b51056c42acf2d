// A step of one sequence in one kernel. Its layers read 2.7 GB of weights in the order of the layers, and each waits for the one before it;
// as kernels of their own they leave memory idle in between. The program's blocks stay on their multiprocessors and stream the weights of
// all layers ahead, while they wait for each other. This is what a host plans (decode/step_program.h) and the kernel executes.
#pragma once
#include "based/kernels/causal_attention.h"
#include "based/kernels/linear.h"
#include "based/kernels/pointwise.h"
#include "based/kernels/short_conv.h"
#include "based/kernels/taylor_attention.h"

namespace based::kernels {

enum class StepKind : int32_t {
  norm,             // by every block for itself; the sum stays in registers, y in shared memory
  linear,           // y = weight · x + bias
  swiglu,           // outputs in pairs, the second is the gate
  conv,             // outputs in pairs, of which a short convolution and its gate are made
  taylor,           // a block 16 columns of a head
  window,           // a block a head
  prefetch_taylor,  // what a later taylor or window reads in all blocks and one of them writes
  prefetch_window,
};

struct LinearWithConv {
  Linear linear;
  ShortConv conv;
};
union StepArguments {
  StepArguments() : norm() {}
  RmsNorm norm;
  LinearWithConv linear;
  TaylorAttention taylor;
  CausalAttentionStep window;
};

// How outputs are shared out over the blocks: `extra` blocks have one more.
struct StepShare {
  int32_t each = 0, extra = 0;
  int32_t turn = 0;  // which block has the first share
};

struct alignas(16) StepInstruction {
  StepKind kind = StepKind::norm;
  StepShare share;
  bool x_is_shared = false;  // linear: x is the last norm's y
  bool loads_x = false;      // norm: x is not the last norm's sum
  int32_t groups = 0;        // linear: 32 elements of x each, of a warp
  int32_t stage_shift = 0;   // linear: 2^stage_shift rows of the weight in a stage
  uint32_t stores = 0;       // bit i: whether output i goes to its memory, too; where a later one overwrites it, it need not
  // Mailboxes: an output's elements as words of {launch, bf16}, so that who waits for one sees by itself that it has come.
  const uint32_t* in[3] = {};  // of add; x; q, k, v; null: from memory
  uint32_t* out = nullptr;
  StepArguments arguments;
};

// What a block's requests need of a layer, in the order of the layers.
struct alignas(16) StepFetch {
  const char* weight = nullptr;
  int64_t to_gate = 0;  // bytes; 0: no pairs
  StepShare share;
  int32_t row_bytes = 0;
};

// What else an instruction reads that no instruction before it writes: brought to shared memory some instructions ahead, since memory busy
// with weights answers late. Of source i bytes each[i] for every output of the block's share, or all of them where `whole`. Sources begin
// and end at multiples of 16 bytes.
constexpr int kStepSources = 5;
struct alignas(16) StepCompanions {
  const char* source[kStepSources] = {};
  int32_t each[kStepSources] = {};
  bool whole = false;
  const int64_t* slot = nullptr;  // of the last source, which is a state
  int64_t slot_bytes = 0;
  StepShare share;
};
enum : int { kStepBias, kStepGateBias, kStepTaps, kStepTapsBias, kStepState };

struct StepProgram {
  const StepInstruction* instructions = nullptr;
  const StepCompanions* companions = nullptr;  // of each instruction
  const StepFetch* fetches = nullptr;
  unsigned* counters = nullptr;  // launches so far, and blocks that have ended
  int32_t instruction_count = 0, fetch_count = 0;
  int32_t threads = 0;  // that compute, a multiple of 32; two warps more request
  int32_t stages = 0;   // of the ring of weights; the launch sets it
};

constexpr int kStepMostThreads = 512;
constexpr int kStepFewestThreads = 256;
constexpr int kStepMostStages = 16;
constexpr int kStepMostWarps = kStepMostThreads / 32, kStepFewestWarps = kStepFewestThreads / 32;
constexpr int kStepTileRows = 16;   // of weights, that are multiplied together
constexpr int kStepBiased = 64;     // outputs of a block's share, if they need companions
constexpr int kStepColumns = 16;    // of a head's state, a block's share
constexpr int kStepHeld = 3;        // vectors of that share that a thread holds
constexpr int kStepFeatures = 192;  // at most

constexpr int step_stage_bytes(int threads) { return 2 * 16 * threads; }
// Rows of weights in a stage: 1, 2, 4, 8 or 16; 0 where they do not fit.
constexpr int step_stage_rows(int threads, int64_t row_bytes) {
  int rows = kStepTileRows;
  while (rows > 0 && rows * row_bytes > step_stage_bytes(threads)) rows /= 2;
  return rows;
}

namespace cuda {
// All of its blocks, one for each multiprocessor, must be resident at once: a cooperative launch. On Hopper.
Status step_program(const StepProgram&, Stream);
}  // namespace cuda

}  // namespace based::kernels
