// Depthwise causal convolution with a few taps, gated: the core of BaseConv (paper, appendix "Convolution"):
//   y_t = act(bias + Σ_j weight[:, j] x_{t−taps+1+j}) ⊙ gate_t,   act = SiLU or identity
#pragma once
#include "based/kernels/kernel.h"

namespace based::kernels {

constexpr int32_t kShortConvTaps = 128;  // at most

struct ShortConv {               // caller owns all memory; strides count elements from one token to the next
  const void* x = nullptr;       // [tokens, channels]
  const void* gate = nullptr;    // [tokens, channels], or null: 1
  const void* weight = nullptr;  // [channels, taps]
  const void* bias = nullptr;    // [channels], or null: 0
  void* y = nullptr;             // [tokens, channels]
  float* state = nullptr;        // [slots, channels, taps − 1], the inputs before the row, oldest first; read, then updated in place;
                                 // null: every row starts from zero and leaves nothing
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]
  const int64_t* slot = nullptr;       // [rows], state row of each sequence, none twice; null: row r uses state row r
  int64_t tokens = 0, rows = 0, channels = 0;
  int64_t x_stride = 0, gate_stride = 0, y_stride = 0;
  int32_t taps = 3;  // 1..kShortConvTaps
  bool silu = true;
  DType dtype = DType::f32;  // of x, gate, weight, bias, y; sums are fp32
  // CUDA, one token a row: no kernel queued before this one writes weight, bias or slots or touches the state, so they may be read while
  // it still runs.
  bool state_is_private = false;
  bool adds_input = false;  // CUDA, not in a step: y_t is x_t more; x has its bias
  // CUDA, not in a step: added in fp32 to x and to the gate as they are read, [channels], or null: 0. A state's inputs have it already.
  const void *x_bias = nullptr, *gate_bias = nullptr;
};

// Gradients, the same bits for any number of threads. `initial_state` is the state that the forward started from.
struct ShortConvBackward {
  ShortConv forward;                     // y and state ignored
  const float* initial_state = nullptr;  // [rows, channels, taps − 1], or null for zero
  const void* grad_y = nullptr;          // [tokens, channels], contiguous
  const float* grad_state = nullptr;     // gradient of the final state, [rows, channels, taps − 1], or null
  void* grad_x = nullptr;                // [tokens, channels], rows grad_x_stride apart
  void* grad_gate = nullptr;             // [tokens, channels], rows grad_gate_stride apart; null where there is no gate
  float* grad_weight = nullptr;          // [channels, taps]
  float* grad_bias = nullptr;            // [channels], or null
  float* grad_initial_state = nullptr;   // [rows, channels, taps − 1], or null
  int64_t grad_x_stride = 0, grad_gate_stride = 0;
  float* grad_sums = nullptr;  // [2, channels]: grad_x and grad_gate, unrounded, summed over all tokens, or null; CUDA, see below
};

namespace cpu {
Status short_conv_forward(const ShortConv&);
Status short_conv_backward(const ShortConvBackward&);
// One token a row (tokens == rows, row_start ignored). Bit for bit the same for a row whatever the other rows are.
Status short_conv_step(const ShortConv&);
}  // namespace cpu

namespace cuda {
Status short_conv_forward(const ShortConv&, Stream);
bool short_conv_backward_sums(const ShortConvBackward&);  // whether grad_sums may be asked for: with a gate, SiLU, 3 or 4 taps, no x added
int64_t short_conv_backward_scratch(const ShortConvBackward&);
Status short_conv_backward(const ShortConvBackward&, void* scratch, Stream);
Status short_conv_step(const ShortConv&, Stream);
}  // namespace cuda

}  // namespace based::kernels
