"""The selective scan of Mamba: a diagonal state space model whose step, input and readout depend on the token.

h_t = exp(δ_t A) h_{t−1} + δ_t B_t x_t and y_t = (C_t·h_t + D x_t) silu(z_t), with a state h of its own for each channel, A = −exp(A_log)
and δ_t = softplus(dt_t + dt_bias), or dt_t + dt_bias without `softplus`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import differentiable, fake, outputs_of, reference, sum_type
from ._rows import equal_runs, join, prefill_slots, tokens_of

_CHUNK, _CUDA_CHUNK = 32, 16  # tokens between two states that the backward starts from, on the CPU and on a GPU, as in the kernels


def selective_scan(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, dt_bias: Tensor | None,
                   softplus: bool, cu_seqlens: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The scan of packed rows. Differentiable in all tensors but cu_seqlens.

    Args:
        x, dt, z: [tokens, channels]; without z there is no gate.
        A_log: [channels, state_size], state_size 1 to 256.
        B, C: [tokens, groups, state_size]; a group is channels / groups neighbouring channels.
        D, dt_bias: [channels]; None means 0.
        cu_seqlens: int64 [rows + 1], the offsets of the rows.
        initial_state: [rows, channels, state_size] in fp32 (fp64 for fp64 inputs); None means zero.

    Returns:
        y [tokens, channels], and the state after each row.
    """
    return torch.ops.based.selective_scan(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state)


def selective_scan_prefill(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
                           dt_bias: Tensor | None, softplus: bool, cu_seqlens: Tensor, state: Tensor, slots: Tensor) -> Tensor:
    """y of rows that continue from slots of `state` [slots, channels, state_size], updated in place. Without a gradient."""
    return torch.ops.based.selective_scan_prefill(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, state, slots)


def selective_scan_step(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
                        dt_bias: Tensor | None, softplus: bool, state: Tensor, slots: Tensor) -> Tensor:
    """One token for each slot: x, dt, z [rows, channels], B, C [rows, groups, state_size]. Updates `state` in place. No gradient."""
    return torch.ops.based.selective_scan_step(x, dt, A_log, B, C, D, z, dt_bias, softplus, state, slots)


@differentiable("selective_scan_forward", "selective_scan_backward", outputs="y state chunk_states",
                gradients="x dt A_log B C D z dt_bias initial_state")
def _forward_reference(x: Tensor, dt: Tensor, A_log: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
                       dt_bias: Tensor | None, softplus: bool, cu_seqlens: Tensor,
                       initial_state: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    dtype, rows, (channels, size) = sum_type(x), cu_seqlens.shape[0] - 1, A_log.shape
    inputs, step, A = x.to(dtype), dt.to(dtype), -A_log.to(dtype).exp()
    step = step if dt_bias is None else step + dt_bias.to(dtype)
    step = F.softplus(step) if softplus else step
    B, C = (group.to(dtype).repeat_interleave(channels // group.shape[1], 1) for group in (B, C))
    initial = torch.zeros(rows, channels, size, dtype=dtype, device=x.device) if initial_state is None else initial_state
    chunk = _chunk_of(x)
    chunk_states = _empty_chunk_states(x, rows, size, dtype).zero_()
    read, states = [], []
    for run in equal_runs(cu_seqlens, x.shape[0]):
        h = initial[run.first_row : run.first_row + run.rows]
        run_step, run_in, run_B, run_C = (tokens_of(t, run) for t in (step, step * inputs, B, C))
        of_tokens = []
        for t in range(run.length):
            if t % chunk == 0:
                for row in range(run.rows):
                    first = (run.first_token + row * run.length) // chunk + run.first_row + row
                    chunk_states[first + t // chunk] = h[row].detach().t()
            h = (run_step[:, t].unsqueeze(-1) * A).exp() * h + run_in[:, t].unsqueeze(-1) * run_B[:, t]
            of_tokens.append((h * run_C[:, t]).sum(-1))
        if of_tokens:
            read.append(torch.stack(of_tokens, 1).flatten(0, 1))
        states.append(h)
    y = join(read, inputs)
    y = y if D is None else y + D.to(dtype) * inputs
    y = y if z is None else y * F.silu(z.to(dtype))
    return y.to(x.dtype), join(states, initial), chunk_states


def _chunk_of(x: Tensor) -> int:
    return _CUDA_CHUNK if x.is_cuda else _CHUNK


def _empty_chunk_states(x: Tensor, rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """A row that begins at token t has its first chunk at t // chunk + row: the offsets alone determine it."""
    return x.new_empty((x.shape[0] // _chunk_of(x) + rows, size, x.shape[1]), dtype=dtype)


@fake("selective_scan_forward")
def _(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state=None):
    rows, size, dtype = cu_seqlens.shape[0] - 1, A_log.shape[1], sum_type(x)
    return x.new_empty(x.shape), x.new_empty((rows, x.shape[1], size), dtype=dtype), _empty_chunk_states(x, rows, size, dtype)


outputs_of("selective_scan_forward", slice(2), "selective_scan")


@reference("selective_scan")
def _scan(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state=None):
    return _forward_reference(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state)[:2]


@fake("selective_scan")
def _(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial_state=None):
    state = x.new_empty((cu_seqlens.shape[0] - 1, x.shape[1], A_log.shape[1]), dtype=sum_type(x))
    return x.new_empty(x.shape), state


@reference("selective_scan_prefill")
def _prefill(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, state, slots):
    return prefill_slots(slots, cu_seqlens, lambda initial: _forward_reference(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, initial)[:2],
                         state)


@fake("selective_scan_prefill")
def _(x, dt, A_log, B, C, D, z, dt_bias, softplus, cu_seqlens, state, slots):
    return x.new_empty(x.shape)


@reference("selective_scan_step")
def _step(x, dt, A_log, B, C, D, z, dt_bias, softplus, state, slots):
    each_token = torch.arange(x.shape[0] + 1, device=x.device)  # each row of the step is a row of one token
    return _prefill(x, dt, A_log, B, C, D, z, dt_bias, softplus, each_token, state, slots)


@fake("selective_scan_step")
def _(x, dt, A_log, B, C, D, z, dt_bias, softplus, state, slots):
    return x.new_empty(x.shape)
