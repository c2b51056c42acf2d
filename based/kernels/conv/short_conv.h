// Gated depthwise causal convolution with a few taps: the core of BaseConv (paper, appendix "Convolution"):
//   y_t = act(bias + Σ_j weight[:, j] x_{t−taps+1+j}) ⊙ gate_t,   act = SiLU or identity
#pragma once
#include "based/kernels/common/gpu.h"
#include "based/kernels/common/launchers.h"

namespace based::kernels {

constexpr int32_t kShortConvTaps = 128;  // maximum number of taps
// In ShortConv::recent: an input that is not there. It is a NaN that no conversion to bf16 returns.
constexpr uint32_t kNoRecentInput = 0xffff;

struct ShortConv {                     // caller owns all memory; strides count elements from one token to the next
  const void* x = nullptr;             // [tokens, channels]
  const void* gate = nullptr;          // [tokens, channels], or null: 1
  const void* weight = nullptr;        // [channels, taps]
  const void* bias = nullptr;          // [channels], or null: 0
  void* y = nullptr;                   // [tokens, channels]
  float* state = nullptr;              // [slots, channels, taps − 1], inputs before the row, oldest first; read, then updated in place;
                                       // null: every row starts from zero, and the final state is not returned
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]
  const int64_t* slot = nullptr;       // [rows], index of each row in `state`, distinct; null: row r uses slot r
  int64_t tokens = 0, rows = 0, channels = 0;
  int64_t x_stride = 0, gate_stride = 0, y_stride = 0;
  int32_t taps = 3;  // 1..kShortConvTaps
  bool silu = true;
  DType dtype = DType::f32;  // type of x, gate, weight, bias and y; sums are fp32
  // CUDA, in a step: no earlier kernel in the queue writes weight, bias or slots, or accesses the state. So this kernel may read them while
  // earlier kernels still run.
  bool state_is_private = false;
  // CUDA, in a step: [slots, channels], the last two inputs in bf16, the older one in the lower half; read and updated instead of the
  // state, in half of its bytes. A half may be kNoRecentInput. If both are, the inputs are those of the state; if the older one is, it is
  // the state's newer one. null: the state is read and updated. Requires short_conv_has_recent().
  uint32_t* recent = nullptr;
  bool adds_input = false;  // CUDA, not in a step: adds x_t to y_t; requires x_bias = null
  // CUDA, not in a step: biases [channels] added in fp32 to x and to the gate when they are read, or null: 0. The inputs in `state` already
  // include them.
  const void *x_bias = nullptr, *gate_bias = nullptr;
};

// Whether a step handles four channels a thread.
inline bool short_conv_step_has_fours(const ShortConv& p) {
  return (p.taps == 3 || p.taps == 4) && p.channels % 4 == 0 && p.x_stride % 4 == 0 && p.y_stride % 4 == 0 && p.gate_stride % 4 == 0 &&
         aligned16(p.x) && aligned16(p.weight) && aligned16(p.bias) && aligned16(p.gate) && aligned16(p.y) && aligned16(p.state);
}
inline bool short_conv_has_recent(const ShortConv& p) { return short_conv_step_has_fours(p) && p.taps == 3 && p.dtype == DType::bf16; }
// Moves recent inputs of some slots into the state: its value is then that after the same steps without `recent`.
struct ShortConvFlush {
  float* state = nullptr;         // [slots, channels, 2]
  uint32_t* recent = nullptr;     // [slots, channels]; kNoRecentInput afterwards
  const int64_t* slot = nullptr;  // [rows], distinct
  int64_t rows = 0, channels = 0;
};

// A step of up to kShortConvStepTokens consecutive tokens of one sequence, with the bits of a step for each of them.
constexpr int32_t kShortConvStepTokens = 8;
struct ShortConvTokens {
  ShortConv step;               // rows = 1, tokens: of the sequence; x and gate [tokens, channels], y [tokens + padding, channels]
  int64_t padding = 0;          // rows of y that repeat its last token
  float* kept_state = nullptr;  // [tokens − 1, channels, taps − 1], the state after each token but the last; may be null
};

// Gradients have the same bits for any number of threads. `initial_state` is the state before the forward.
struct ShortConvBackward {
  ShortConv forward;                     // y and state are ignored
  const float* initial_state = nullptr;  // [rows, channels, taps − 1], or null for zero
  const void* grad_y = nullptr;          // [tokens, channels], contiguous
  const float* grad_state = nullptr;     // gradient of the final state, [rows, channels, taps − 1], or null
  void* grad_x = nullptr;                // [tokens, channels], rows grad_x_stride apart
  void* grad_gate = nullptr;             // [tokens, channels], rows grad_gate_stride apart; null if there is no gate
  float* grad_weight = nullptr;          // [channels, taps]
  float* grad_bias = nullptr;            // [channels], or null
  float* grad_initial_state = nullptr;   // [rows, channels, taps − 1], or null
  int64_t grad_x_stride = 0, grad_gate_stride = 0;
  float* grad_sums = nullptr;  // [2, channels]: sums of the unrounded grad_x and grad_gate over all tokens, or null; CUDA only, see
                               // short_conv_backward_sums()
};

namespace cpu {
Status short_conv_forward(const ShortConv&);
Status short_conv_backward(const ShortConvBackward&);
// One token per row (tokens == rows, row_start is ignored). The bits of a row do not depend on the other rows.
Status short_conv_step(const ShortConv&);
}  // namespace cpu

namespace cuda {
Status short_conv_forward(const ShortConv&, Queue);
bool short_conv_backward_sums(const ShortConvBackward&);  // whether grad_sums is supported: gate, SiLU, 3 or 4 taps, no adds_input
int64_t short_conv_backward_scratch(const ShortConvBackward&);
Status short_conv_backward(const ShortConvBackward&, void* scratch, Queue);
Status short_conv_step(const ShortConv&, Queue);
Status short_conv_tokens(const ShortConvTokens&, Queue);
Status short_conv_flush(const ShortConvFlush&, Queue);
}  // namespace cuda

// A device's launchers, as above.
struct ShortConvLaunchers {
  Status (*forward)(const ShortConv&, Queue);
  int64_t (*backward_scratch)(const ShortConvBackward&);  // bytes
  Status (*backward)(const ShortConvBackward&, void* scratch, Queue);
  Status (*step)(const ShortConv&, Queue);
  bool (*backward_sums)(const ShortConvBackward&);       // whether the backward can write grad_sums
  bool adds_input;                                       // whether forward and backward support adds_input
  Status (*step_tokens)(const ShortConvTokens&, Queue);  // null: a step for each token
  Status (*flush)(const ShortConvFlush&, Queue);         // null: steps have no recent inputs
};

}  // namespace based::kernels
