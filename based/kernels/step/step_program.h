// A decode step of one sequence as one persistent kernel. The layers of a step depend on one another and read 2.7 GB of weights; run as
// separate kernels they leave the memory idle between layers. The blocks of a step program stay resident and prefetch the weights of the
// next layers while they wait for each other's results. The host plans the program (decode/step_program.h) and the kernel executes it. A
// program may read several consecutive tokens of the sequence, each with the bits of a program of one token.
#pragma once
#include "based/kernels/attention/causal_attention.h"
#include "based/kernels/conv/short_conv.h"
#include "based/kernels/linear/linear.h"
#include "based/kernels/norm/rms_norm.h"
#include "based/kernels/taylor/taylor.h"

namespace based::kernels {

enum class StepKind : int32_t {
  norm,             // every block computes the whole norm; the residual sum stays in registers, y in shared memory
  linear,           // y = weight · x + bias
  swiglu,           // outputs in pairs: the value and its gate
  conv,             // outputs in pairs: the input of a short convolution and the gate of its output
  taylor,           // a block computes kStepColumns columns of a head
  window,           // a block computes a head
  prefetch_taylor,  // loads the state of a later `taylor` to registers
  prefetch_window,  // loads the keys, values and position of a later `window`
};

struct LinearWithConv {
  Linear linear;                 // rows: tokens
  ShortConvTokens conv;          // here and below: `padding` is 0
  const float* scale = nullptr;  // [linear.out]; then the weight is int8 [out, in], of which a row is multiplied by its scale
};
union StepArguments {
  StepArguments() : norm() {}
  RmsNorm norm;
  LinearWithConv linear;
  TaylorTokens taylor;
  CausalAttentionTokens window;
};

// How outputs are divided among the blocks: each has `each` of them, the first `extra` blocks have one more.
struct StepShare {
  int32_t each = 0, extra = 0;
  int32_t turn = 0;  // offset added to blockIdx.x, modulo the number of blocks, to get the index of a block's share
};

struct alignas(16) StepInstruction {
  StepKind kind = StepKind::norm;
  StepShare share;
  bool x_is_shared = false;  // linear: x is the last norm's y
  bool loads_x = false;      // norm: x is not the last norm's sum
  int32_t groups = 0;        // linear: groups of 32 elements of x that a warp multiplies
  int32_t stage_shift = 0;   // linear: 2^stage_shift rows of the weight in a stage
  uint32_t stores = 0;       // bit i: output i is also stored to its tensor; not needed where a later instruction overwrites it
  // Mailboxes, through which blocks exchange outputs: each element is a word {launch number, bf16}, so a block that polls a word knows from
  // the word itself whether the element has arrived.
  const uint32_t* in[3] = {};  // mailboxes of `add`; of x; or of q, k, v; null: the input is read from its tensor
  uint32_t* out = nullptr;
  int32_t in_stride[3] = {}, out_stride = 0;  // elements from one token to the next, in the mailboxes and in the tensors
  StepArguments arguments;
};

// The weights that a block requests for one layer; in the order of the layers.
struct alignas(16) StepFetch {
  const char* weight = nullptr;
  int64_t to_gate = 0;  // bytes from a value's row to its gate's row; 0: no pairs
  StepShare share;
  int32_t row_bytes = 0;
};

// Other inputs of an instruction that no earlier instruction writes. They are copied to shared memory some instructions early, because the
// latency of memory is high while it streams weights. Source i has each[i] bytes for each output of the block's share; where `whole`,
// each[i] is all of its bytes. Sources begin and end at multiples of 16 bytes.
constexpr int kStepSources = 7;
struct alignas(16) StepCompanions {
  const char* source[kStepSources] = {};
  int32_t each[kStepSources] = {};
  bool whole = false;
  const int64_t* slot = nullptr;  // slot of source kStepState
  int64_t slot_bytes = 0;
  StepShare share;
};
enum : int { kStepBias, kStepGateBias, kStepTaps, kStepTapsBias, kStepState, kStepScale, kStepGateScale };

struct StepProgram {
  const StepInstruction* instructions = nullptr;
  const StepCompanions* companions = nullptr;  // one for each instruction
  const StepFetch* fetches = nullptr;
  unsigned* counters = nullptr;  // [2]: number of launches so far, and of blocks of this launch that have ended
  int32_t instruction_count = 0, fetch_count = 0;
  bool has_int8 = false;  // whether an instruction has int8 weights
  int32_t tokens = 1;     // 1 to kStepTokens; 1 if has_int8
  int32_t width = 0;      // the residual stream's
  int32_t x_bytes = 0;    // with several tokens: most shared memory that an instruction needs for a token's x, see step_x_bytes
  int32_t threads = 0;    // threads of a block that compute, a multiple of 32; two more warps request copies
  int32_t stages = 0;     // stages of the ring of weights; set by step_program
};

constexpr int kStepTokens = 8;  // most tokens
constexpr int kStepMostThreads = 512;
constexpr int kStepFewestThreads = 256;
constexpr int kStepMostStages = 16;
constexpr int kStepMostWarps = kStepMostThreads / 32, kStepFewestWarps = kStepFewestThreads / 32;
constexpr int kStepTileRows = 16;   // rows of weights of an mma tile
constexpr int kStepBiased = 64;     // most outputs of a block's share if they need companions
constexpr int kStepColumns = 16;    // columns of a head's state that a block handles
constexpr int kStepHeld = 3;        // vectors of those columns that a thread holds in registers
constexpr int kStepFeatures = 192;  // most packed features
constexpr int kStepMostKeys = 128;  // most keys of a window
constexpr int kStepFeatureDim = 18;
static_assert(packed_features(kStepFeatureDim) <= kStepFeatures && packed_features(kStepFeatureDim + 1) > kStepFeatures);

// Whether the share of a linear layer is small enough for companions. Biases and pairs need them; scales are read from memory without them.
constexpr bool step_has_companions(const StepShare& share) { return share.each + (share.extra > 0 ? 1 : 0) <= kStepBiased; }
constexpr int step_stage_bytes(int threads) { return 2 * 16 * threads; }
// Rows of weights in a stage: 1, 2, 4, 8 or 16; 0 where not even one fits.
constexpr int step_stage_rows(int threads, int64_t row_bytes) {
  int rows = kStepTileRows;
  while (rows > 0 && rows * row_bytes > step_stage_bytes(threads)) rows /= 2;
  return rows;
}
// Shared memory for a token's x in a program of several tokens. The 64 bytes after x let threads that read neighbouring tokens use
// different banks.
constexpr int32_t step_x_bytes(int64_t elements) { return static_cast<int32_t>(2 * elements + 64); }
// The same for a window: the query and the new key in fp32, the scores, and the new value.
constexpr int32_t step_window_bytes(int32_t head_dim) { return 2 * 4 * head_dim + 4 * kStepMostKeys + 2 * head_dim; }

namespace cuda {
// Runs the program on Hopper, as a cooperative launch, since all of its blocks, one for each multiprocessor, must be resident.
Status step_program(const StepProgram&, Queue);
}  // namespace cuda

// A GPU's launcher, as above.
struct StepProgramLaunchers {
  Status (*run)(const StepProgram&, Queue);
};

}  // namespace based::kernels
