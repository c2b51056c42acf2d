// Selective scan (Mamba): a diagonal state space model with `state_size` state elements per channel. Step size, input and readout depend on
// the token:
//   h_t = exp(δ_t A) h_{t−1} + δ_t B_t x_t,   y_t = (C_t·h_t + D x_t) silu(z_t),   A = −exp(A_log),   δ_t = softplus(dt_t + dt_bias)
#pragma once
#include "based/kernels/common/launchers.h"

namespace based::kernels {

constexpr int64_t kSelectiveScanStates = 256;    // maximum state_size
constexpr int64_t kSelectiveScanChunk = 32;      // tokens per chunk; the state before each chunk is kept for the backward
constexpr int64_t kSelectiveScanCudaChunk = 16;  // the same on a GPU

struct SelectiveScan {            // caller owns all memory; strides count elements from one token to the next
  const void* x = nullptr;        // [tokens, channels]
  const void* dt = nullptr;       // [tokens, channels]
  const void* z = nullptr;        // [tokens, channels], or null: no gate
  const void* A_log = nullptr;    // [channels, state_size]
  const void* B = nullptr;        // [tokens, groups, state_size]; a group is channels / groups adjacent channels
  const void* C = nullptr;        // [tokens, groups, state_size]
  const void* D = nullptr;        // [channels], or null: 0
  const void* dt_bias = nullptr;  // [channels], or null: 0
  void* y = nullptr;              // [tokens, channels]
  float* state = nullptr;         // [slots, channels, state_size], read, then updated in place; null: every row starts from zero, and the
                                  // final state is not returned
  float* chunk_states = nullptr;  // [selective_scan_chunks(…, the device's chunk), state_size, channels], written: the state before each
                                  // chunk of a row; or null
  const int64_t* row_start = nullptr;  // [rows + 1], tokens of row r are row_start[r] .. row_start[r+1]
  const int64_t* slot = nullptr;       // [rows], index of each row in `state`, distinct; null: row r uses slot r
  int64_t tokens = 0, rows = 0, channels = 0, groups = 1, state_size = 0;
  int64_t x_stride = 0, dt_stride = 0, z_stride = 0, b_stride = 0, c_stride = 0, y_stride = 0;
  bool softplus = true;      // false: δ = dt + dt_bias
  DType dtype = DType::f32;  // type of x, dt, z, A_log, B, C, D, dt_bias and y; sums are fp32
  // CUDA, in a step: no earlier kernel in the queue writes A_log, D, dt_bias or slots, or accesses the state. So this kernel may read them
  // while earlier kernels still run.
  bool state_is_private = false;
};

// The number of a row's first chunk. Chunk numbers of packed rows have gaps, so that they do not depend on the lengths of other rows.
constexpr int64_t selective_scan_first_chunk(int64_t row, int64_t row_start, int64_t chunk = kSelectiveScanChunk) {
  return row_start / chunk + row;
}
constexpr int64_t selective_scan_chunks(int64_t tokens, int64_t rows, int64_t chunk = kSelectiveScanChunk) { return tokens / chunk + rows; }

// Gradients have the same bits for any number of threads.
struct SelectiveScanBackward {
  SelectiveScan forward;                // y and state are ignored; chunk_states as written by the forward
  const void* grad_y = nullptr;         // [tokens, channels], contiguous
  const float* grad_state = nullptr;    // gradient of the final state, [rows, channels, state_size], or null
  void* grad_x = nullptr;               // [tokens, channels], contiguous
  void* grad_dt = nullptr;              // [tokens, channels], contiguous
  void* grad_z = nullptr;               // [tokens, channels], rows grad_z_stride apart; null if there is no gate
  void* grad_B = nullptr;               // [tokens, groups, state_size], contiguous
  void* grad_C = nullptr;               // [tokens, groups, state_size], contiguous
  float* grad_A_log = nullptr;          // [channels, state_size]
  float* grad_D = nullptr;              // [channels], or null
  float* grad_dt_bias = nullptr;        // [channels], or null
  float* grad_initial_state = nullptr;  // [rows, channels, state_size], or null
  int64_t grad_z_stride = 0;
};

namespace cpu {
Status selective_scan_forward(const SelectiveScan&);
int64_t selective_scan_backward_scratch(const SelectiveScanBackward&);  // bytes
Status selective_scan_backward(const SelectiveScanBackward&, void* scratch);
// One token per row (tokens == rows, row_start is ignored). The bits of a row do not depend on the other rows.
Status selective_scan_step(const SelectiveScan&);
}  // namespace cpu

// As on the CPU. The bits of a row's y and state do not depend on the other rows.
namespace cuda {
int64_t selective_scan_forward_scratch(const SelectiveScan&);  // bytes
Status selective_scan_forward(const SelectiveScan&, void* scratch, Queue);
int64_t selective_scan_backward_scratch(const SelectiveScanBackward&);  // bytes
// Whether this GPU's shared memory holds the gradients of a block's states: with 99 KB for state_size up to 208.
bool selective_scan_backward_takes(const SelectiveScan&);
Status selective_scan_backward(const SelectiveScanBackward&, void* scratch, Queue);
Status selective_scan_step(const SelectiveScan&, Queue);
}  // namespace cuda

// A device's launchers, as above.
struct SelectiveScanLaunchers {
  int64_t (*forward_scratch)(const SelectiveScan&);
  Status (*forward)(const SelectiveScan&, void* scratch, Queue);
  int64_t (*backward_scratch)(const SelectiveScanBackward&);
  Status (*backward)(const SelectiveScanBackward&, void* scratch, Queue);
  Status (*step)(const SelectiveScan&, Queue);
  int64_t chunk;  // tokens per chunk
};

}  // namespace based::kernels
