"""Causal convolutions: short depthwise ones (paper, appendix "Convolution") and those as long as the sequence, by FFT."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import composite, define, differentiable, fake, reference, sum_type
from ._rows import equal_runs, join, other_tokens_of, prefill_slots, tokens_of

define("long_conv_backward(Tensor grad_y, Tensor x, Tensor filter, Tensor cu_seqlens, Tensor? history=None, Tensor? cu_history=None) -> "
       "(Tensor grad_x, Tensor grad_filter, Tensor grad_history)")


def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor | None, silu: bool, cu_seqlens: Tensor,
               initial_state: Tensor | None = None, adds_input: bool = False) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution of packed rows, gated. Differentiable in all tensors but cu_seqlens.

    y_t = act(bias + Σ_j weight[:, j] x_{t−taps+1+j}) ⊙ gate_t with act = SiLU if `silu`, else the identity.

    Args:
        x, gate: [tokens, channels]; without a gate its factor is 1.
        weight: [channels, taps], taps 1 to 128; the last tap weighs the current token.
        bias: [channels].
        cu_seqlens: int64 [rows + 1], the offsets of the rows.
        initial_state: [rows, channels, taps − 1] in fp32 (fp64 for fp64 inputs), the inputs before each row, oldest first; None means zero.
        adds_input: whether x_t is added to y_t.

    Returns:
        y [tokens, channels], and the state after each row.
    """
    return torch.ops.based.short_conv(x, weight, bias, gate, silu, cu_seqlens, initial_state, adds_input)


def short_conv_prefill(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor | None, silu: bool, cu_seqlens: Tensor, state: Tensor,
                       slots: Tensor) -> Tensor:
    """y of rows that continue from slots of `state` [slots, channels, taps − 1], which it updates in place. Without a gradient."""
    return torch.ops.based.short_conv_prefill(x, weight, bias, gate, silu, cu_seqlens, state, slots)


def short_conv_step(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor | None, silu: bool, state: Tensor,
                    slots: Tensor) -> Tensor:
    """One token for each slot, x and gate [rows, channels]. Updates `state` [slots, channels, taps − 1] in place. Without a gradient."""
    return torch.ops.based.short_conv_step(x, weight, bias, gate, silu, state, slots)


def projected_conv(x: Tensor, in_weight: Tensor, in_bias: Tensor | None, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor,
                   initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """[u, gate] = x·in_weightᵀ + in_bias, then short_conv(u, weight, bias, gate, silu): the first half of BaseConv. Differentiable.

    x [tokens, in], in_weight [2·channels, in], in_bias [2·channels]. Returns y [tokens, channels] and the state after each row.
    """
    return torch.ops.based.projected_conv(x, in_weight, in_bias, weight, bias, cu_seqlens, initial_state)


def projected_conv_prefill(x: Tensor, in_weight: Tensor, in_bias: Tensor | None, weight: Tensor, bias: Tensor | None, cu_seqlens: Tensor,
                           state: Tensor, slots: Tensor) -> Tensor:
    """The same for rows that continue from slots of `state` [slots, channels, taps − 1], as short_conv_prefill. Returns y [tokens, channels].

    Without a gradient.
    """
    return torch.ops.based.projected_conv_prefill(x, in_weight, in_bias, weight, bias, cu_seqlens, state, slots)


def long_conv(x: Tensor, filter: Tensor, cu_seqlens: Tensor, history: Tensor | None = None, cu_history: Tensor | None = None) -> Tensor:
    """y_t = Σ_{j<taps} filter[:, j] x_{t−j}, by FFT, without wrapping around. Differentiable in x, filter and history.

    x [tokens, channels], filter [channels, taps]. history [sum, channels] with offsets cu_history int64 [rows + 1] holds the inputs
    before each row. Returns [tokens, channels].
    """
    return torch.ops.based.long_conv(x, filter, cu_seqlens, history, cu_history)


def gated_long_conv(k: Tensor, filter: Tensor, q: Tensor | None, v: Tensor | None, length: int) -> Tensor:
    """A long convolution of products of keys and values, read by queries, as in H3 and Hyena. Differentiable in all tensors.

    For each head of channels / heads channels, over the tokens s ≤ t of a row: y_t[j] = Σ_i q_t[i] Σ_s filter[head, t − s] k_s[i] v_s[j].

    Args:
        k, q, v: [tokens, channels]; q and v may be None, which means 1, if each head has one channel.
        filter: [heads, taps] in fp32 (fp64 for fp64 inputs).
        length: tokens of each row.

    Returns:
        [tokens, channels].
    """
    return torch.ops.based.gated_long_conv(k, filter, q, v, length)


def diagonal_filter(log_dt: Tensor, log_decay: Tensor, frequency: Tensor, B: Tensor, C: Tensor, D: Tensor, taps: int) -> Tensor:
    """The impulse response [groups, taps] of a diagonal state space model with complex poles (H3). Differentiable in all tensors.

    log_dt, D [groups]; log_decay, frequency [groups, poles], poles 1 to 256; B, C [groups, poles, 2], real and imaginary parts.
    A = −exp(log_decay) + i·frequency is discretised by the bilinear rule with dt = exp(log_dt), in fp64.
    """
    return torch.ops.based.diagonal_filter(log_dt, log_decay, frequency, B, C, D, taps)


@differentiable("short_conv", "short_conv_backward", outputs="y state", gradients="x weight bias gate initial_state")
def _short_conv(x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor | None, silu: bool, cu_seqlens: Tensor,
                initial_state: Tensor | None = None, adds_input: bool = False) -> tuple[Tensor, Tensor]:
    dtype, rows, channels, taps = sum_type(x), cu_seqlens.shape[0] - 1, x.shape[1], weight.shape[1]
    inputs, filter = x.to(dtype), weight.to(dtype)
    initial = torch.zeros(rows, channels, taps - 1, dtype=dtype, device=x.device) if initial_state is None else initial_state
    convolved, states = [], []
    for run in equal_runs(cu_seqlens, x.shape[0]):
        before = initial[run.first_row : run.first_row + run.rows].transpose(1, 2)
        padded = torch.cat((before, tokens_of(inputs, run)), 1)  # [rows, taps − 1 + length, channels]
        convolved.append(sum(padded[:, tap : tap + run.length] * filter[:, tap] for tap in range(taps)).flatten(0, 1))
        states.append(padded[:, run.length :].transpose(1, 2))
    y = _finished(join(convolved, inputs), bias, gate, silu)
    return (inputs + y if adds_input else y).to(x.dtype), join(states, initial)


def _finished(convolved: Tensor, bias: Tensor | None, gate: Tensor | None, silu: bool) -> Tensor:
    y = convolved if bias is None else convolved + bias.to(convolved.dtype)
    y = F.silu(y) if silu else y
    return y if gate is None else y * gate.to(convolved.dtype)


@fake("short_conv")
def _(x, weight, bias, gate, silu, cu_seqlens, initial_state=None, adds_input=False):
    return x.new_empty(x.shape), x.new_empty((cu_seqlens.shape[0] - 1, x.shape[1], weight.shape[1] - 1), dtype=sum_type(x))


@reference("short_conv_prefill")
def _prefill(x, weight, bias, gate, silu, cu_seqlens, state, slots):
    return prefill_slots(slots, cu_seqlens, lambda initial: _short_conv(x, weight, bias, gate, silu, cu_seqlens, initial), state)


@fake("short_conv_prefill")
def _(x, weight, bias, gate, silu, cu_seqlens, state, slots):
    return x.new_empty(x.shape)


@reference("short_conv_step")
def _step(x, weight, bias, gate, silu, state, slots):
    dtype = sum_type(x)
    inputs = torch.cat((state.index_select(0, slots), x.to(dtype).unsqueeze(2)), 2)  # [rows, channels, taps]
    state.index_copy_(0, slots, inputs[:, :, 1:])
    return _finished((inputs * weight.to(dtype)).sum(2), bias, gate, silu).to(x.dtype)


@fake("short_conv_step")
def _(x, weight, bias, gate, silu, state, slots):
    return x.new_empty(x.shape)


@composite("projected_conv")
def _projected(x, in_weight, in_bias, weight, bias, cu_seqlens, initial_state=None):
    u, gate = F.linear(x, in_weight, in_bias).chunk(2, 1)
    return torch.ops.based.short_conv(u, weight, bias, gate, True, cu_seqlens, initial_state)


@composite("projected_conv_prefill")
def _projected_prefill(x, in_weight, in_bias, weight, bias, cu_seqlens, state, slots):
    u, gate = F.linear(x, in_weight, in_bias).chunk(2, 1)
    return torch.ops.based.short_conv_prefill(u, weight, bias, gate, True, cu_seqlens, state, slots)


def _by_fft(x: Tensor, filter: Tensor, length: int) -> Tensor:
    """The last `length` outputs for x [rows, steps, channels] and filter [channels, taps] with taps ≤ steps."""
    steps = x.shape[1]
    size = 1 << (steps + filter.shape[1] - 2).bit_length()  # room for the tail, so that nothing wraps around
    spectrum = torch.fft.rfft(x.transpose(1, 2), size) * torch.fft.rfft(filter, size)
    return torch.fft.irfft(spectrum, size)[..., steps - length : steps].transpose(1, 2)


@differentiable("long_conv", "long_conv_backward", outputs="y", gradients="x filter history")
def _long_conv(x: Tensor, filter: Tensor, cu_seqlens: Tensor, history: Tensor | None = None, cu_history: Tensor | None = None) -> Tensor:
    dtype = sum_type(x)
    pieces = []
    for run in equal_runs(cu_seqlens, x.shape[0], cu_history):
        if run.length == 0:
            continue
        inputs = tokens_of(x.to(dtype), run)
        if history is not None:
            inputs = torch.cat((other_tokens_of(history.to(dtype), run), inputs), 1)
        pieces.append(_by_fft(inputs, filter[:, : inputs.shape[1]].to(dtype), run.length).flatten(0, 1))
    return join(pieces, x).to(x.dtype)


@fake("long_conv")
def _(x, filter, cu_seqlens, history=None, cu_history=None):
    return x.new_empty(x.shape)


@differentiable("gated_long_conv", "gated_long_conv_backward", outputs="y", gradients="k filter q v")
def _gated_long_conv(k: Tensor, filter: Tensor, q: Tensor | None, v: Tensor | None, length: int) -> Tensor:
    heads, tokens = filter.shape[0], k.shape[0]
    head_dim = k.shape[1] // heads

    def by_head(x: Tensor) -> Tensor:
        return x.to(filter.dtype).unflatten(1, (heads, head_dim))

    products = by_head(k).unsqueeze(3) if v is None else by_head(k).unsqueeze(3) * by_head(v).unsqueeze(2)
    inputs = products.reshape(tokens // length, length, heads * head_dim * head_dim)
    sums = _by_fft(inputs, filter[:, :length].repeat_interleave(head_dim * head_dim, 0), length)
    sums = sums.reshape(tokens, heads, head_dim, head_dim)
    read = sums if q is None else by_head(q).unsqueeze(3) * sums
    return read.sum(2).flatten(1).to(k.dtype).contiguous()


@fake("gated_long_conv")
def _(k, filter, q, v, length):
    return k.new_empty(k.shape)


def discrete_poles(log_dt: Tensor, log_decay: Tensor, frequency: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factors a, b, c [groups, poles], complex128, of h_t = a h_{t−1} + b u_t, y_t = Re Σ c h_t; see diagonal_filter.

    a = (1 + A dt/2) / (1 − A dt/2), b = B dt / (1 − A dt/2), and c = 2 C, since a pole represents its conjugate too.
    """
    def wide(x: Tensor) -> Tensor:
        return x.to(torch.float64)

    dt = wide(log_dt).exp().unsqueeze(1)
    half = torch.complex(-wide(log_decay).exp(), wide(frequency)) * (dt / 2)
    scale = 1 / (1 - half)
    return (1 + half) * scale, torch.view_as_complex(wide(B).contiguous()) * dt * scale, torch.view_as_complex(wide(C).contiguous()) * 2


def powers(a: Tensor, count: int) -> Tensor:
    """a^t for t < count, [groups, poles, count]."""
    return (a.log().unsqueeze(-1) * torch.arange(count, device=a.device, dtype=torch.float64)).exp()


@differentiable("diagonal_filter", "diagonal_filter_backward", outputs="filter", gradients="log_dt log_decay frequency B C D")
def _diagonal_filter(log_dt: Tensor, log_decay: Tensor, frequency: Tensor, B: Tensor, C: Tensor, D: Tensor, taps: int) -> Tensor:
    a, b, c = discrete_poles(log_dt, log_decay, frequency, B, C)
    response = ((c * b).unsqueeze(1) @ powers(a, taps)).squeeze(1).real
    return (response + F.pad(D.to(torch.float64).unsqueeze(1), (0, taps - 1))).to(sum_type(D)).contiguous()


@fake("diagonal_filter")
def _(log_dt, log_decay, frequency, B, C, D, taps):
    return log_dt.new_empty((log_dt.shape[0], taps), dtype=sum_type(log_dt))
