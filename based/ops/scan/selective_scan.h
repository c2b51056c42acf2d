// torch.ops.based_cpp.selective_scan: the recurrence of Mamba, a diagonal state space whose step, input and readout depend on the token.
#pragma once
#include <tuple>

#include "based/kernels/scan/scan.h"
#include "based/ops/framework/operator.h"

namespace based::ops {

// h_t = exp(δ_t A) h_{t−1} + δ_t B_t x_t, y_t = (C_t·h_t + D x_t) silu(z_t), a state h of its own for each channel; A = −exp(A_log), so
// that no state grows; δ_t = softplus(dt_t + dt_bias), or without `softplus`, dt_t + dt_bias.
struct SelectiveScanInputs {
  Tensor x, dt;                 // [tokens, channels]; may be column slices of a wider tensor, as B, C and z
  Tensor A_log;                 // [channels, state_size], state_size 1..256
  Tensor B, C;                  // [tokens, groups, state_size]: a group is channels / groups neighbours
  OptionalTensor D = {};        // [channels]; absent: 0
  OptionalTensor z = {};        // [tokens, channels]; absent: no gate
  OptionalTensor dt_bias = {};  // [channels]; absent: 0
  bool softplus = true;
};

// y [tokens, channels] and the final state [rows, channels, state_size] of packed rows, cu_seqlens int64 [rows + 1]; all of one type, the
// state fp32 (fp64 in fp64), from initial_state (zero where absent). Differentiable in every tensor but cu_seqlens. Throws Error naming
// operator, argument and value.
std::tuple<Tensor, Tensor> selective_scan(const SelectiveScanInputs& inputs, const Tensor& cu_seqlens,
                                          const OptionalTensor& initial_state = {});
// Token by token in ATen.
std::tuple<Tensor, Tensor> selective_scan_reference(const SelectiveScanInputs& inputs, const Tensor& cu_seqlens,
                                                    const OptionalTensor& initial_state = {});

// y of rows that go on from slots of a state [slots, channels, state_size]: row r's is that of slots[r], none twice. Where gradients are
// on, it is differentiable and the state is replaced; where they are off, and as torch.ops.based_cpp.selective_scan_prefill, in place.
Tensor selective_scan_prefill(const SelectiveScanInputs& inputs, const Tensor& cu_seqlens, Tensor& state, const Tensor& slots);

// One token for each slot: x, dt, z [rows, channels], B, C [rows, groups, state_size]; the state is updated in place. No gradients.
Tensor selective_scan_step(const SelectiveScanInputs& inputs, Tensor& state, const Tensor& slots);

// The operators.
struct SelectiveScan {
  SelectiveScanInputs inputs;
  const Tensor& cu_seqlens;
  const OptionalTensor& initial_state;
  BASED_OPERATOR("selective_scan -> y, state", inputs.x, inputs.dt, inputs.A_log, inputs.B, inputs.C, inputs.D, inputs.z, inputs.dt_bias,
                 inputs.softplus, cu_seqlens, initial_state)
};
// The scan with the states that the backward starts from: the state before each chunk of a row, [chunks, state_size, channels]. The
// reference has kSelectiveScanChunk tokens a chunk, a device's kernels SelectiveScanLaunchers::chunk.
struct SelectiveScanForward {
  SelectiveScan scan;
  BASED_OPERATOR("selective_scan_forward -> y, state, chunk_states", scan.inputs.x, scan.inputs.dt, scan.inputs.A_log, scan.inputs.B,
                 scan.inputs.C, scan.inputs.D, scan.inputs.z, scan.inputs.dt_bias, scan.inputs.softplus, scan.cu_seqlens,
                 scan.initial_state)
};
struct SelectiveScanBackward {
  const Tensor& grad_y;
  const OptionalTensor& grad_state;
  SelectiveScan forward;
  const Tensor& chunk_states;
  BASED_OPERATOR("selective_scan_backward -> grad_x, grad_dt, grad_A_log, grad_B, grad_C, grad_D, grad_z, grad_dt_bias, grad_initial_state",
                 grad_y, grad_state, forward.inputs.x, forward.inputs.dt, forward.inputs.A_log, forward.inputs.B, forward.inputs.C,
                 forward.inputs.D, forward.inputs.z, forward.inputs.dt_bias, forward.inputs.softplus, forward.cu_seqlens,
                 forward.initial_state, chunk_states)
};
struct SelectiveScanPrefill {
  SelectiveScanInputs inputs;
  const Tensor& cu_seqlens;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("selective_scan_prefill -> y", inputs.x, inputs.dt, inputs.A_log, inputs.B, inputs.C, inputs.D, inputs.z, inputs.dt_bias,
                 inputs.softplus, cu_seqlens, written(state), slots)
};
struct SelectiveScanStep {
  SelectiveScanInputs inputs;
  const Tensor& state;
  const Tensor& slots;
  BASED_OPERATOR("selective_scan_step -> y", inputs.x, inputs.dt, inputs.A_log, inputs.B, inputs.C, inputs.D, inputs.z, inputs.dt_bias,
                 inputs.softplus, written(state), slots)
};

// Internal to based/ops: the gradients, that of z in `grad_z` where it is defined: [tokens, channels], rows any distance apart.
Result<SelectiveScanBackward> selective_scan_backward_to(const SelectiveScanBackward& in, const Tensor& grad_z);

// The kernel's arguments for a step. Each row of the tensors is contiguous; rows may be any distance apart.
kernels::SelectiveScan selective_scan_step_arguments(const SelectiveScanStep& in, const Tensor& y);

}  // namespace based::ops
