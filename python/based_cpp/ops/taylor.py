"""Second-order Taylor linear attention (paper, section 4.1).

The weight of a query and a key is 1 + s + s²/2 with s = q·k, where q and k are already scaled by feature_dim^-1/4. It is the inner
product of packed features φ(x) = (1, x, products xᵢxⱼ with i ≤ j), 1 + d + d(d+1)/2 of them, so the past is a state of two sums:
kv [rows, heads, features, head_dim], Σ φ(k)vᵀ, and k [rows, heads, features], Σ φ(k). Both are fp32 (fp64 for fp64 inputs).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._registration import composite, differentiable, fake, outputs_of, reference, sum_type
from ._rows import equal_runs, join, prefill_slots, tokens_of

_CHUNK = 64  # tokens whose weights are computed pair by pair


def packed_features(feature_dim: int) -> int:
    """The number of packed features, 1 + d + d(d+1)/2."""
    return 1 + feature_dim + feature_dim * (feature_dim + 1) // 2


def taylor_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, initial_kv_state: Tensor | None = None,
                     initial_k_state: Tensor | None = None, decay: Tensor | None = None, final_state: bool = True,
                     decay_denominator: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Taylor attention of all rows of a packed batch. Differentiable in q, k, v and the initial states.

    Args:
        q, k: [tokens, heads, feature_dim], scaled by feature_dim^-1/4; feature_dim 1 to 64.
        v: [tokens, heads, head_dim].
        cu_seqlens: int64 [rows + 1], the offsets of the rows.
        initial_kv_state, initial_k_state: the sums before each row; None means zero.
        decay: fixed rates [heads] in (0, 1], without a gradient; None means 1.
        final_state: without it the returned states have no rows.
        decay_denominator: whether the denominator and its state decay too.

    Returns:
        y [tokens, heads, head_dim], and the sums kv and k after each row.
    """
    return torch.ops.based.taylor_attention(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, decay, final_state, decay_denominator)


def taylor_attention_prefill(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, kv_state: Tensor, k_state: Tensor, slots: Tensor,
                             decay: Tensor | None = None, decay_denominator: bool = True) -> Tensor:
    """The same for rows that continue from slots of a state, which it updates in place. Without a gradient.

    Row r continues from slot slots[r], int64 [rows]; no slot occurs twice. Returns y [tokens, heads, head_dim].
    """
    return torch.ops.based.taylor_attention_prefill(q, k, v, cu_seqlens, kv_state, k_state, slots, decay, decay_denominator)


def taylor_attention_step(q: Tensor, k: Tensor, v: Tensor, kv_state: Tensor, k_state: Tensor, slots: Tensor, decay: Tensor | None = None,
                          scale: float = 1.0, decay_denominator: bool = True) -> Tensor:
    """One token for each slot (paper, algorithm 2). Updates the state [slots, heads, …] in place. Without a gradient.

    q, k [rows, heads, feature_dim], which are multiplied by `scale` first; v [rows, heads, head_dim]; slots int64 [rows].
    Returns y [rows, heads, head_dim].
    """
    return torch.ops.based.taylor_attention_step(q, k, v, kv_state, k_state, slots, decay, scale, decay_denominator)


def taylor_attention_quadratic(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, decay: Tensor | None = None,
                               decay_denominator: bool = True) -> Tensor:
    """y of taylor_attention by the weight of every pair of tokens, for tests: shapes as there. Rows start from zero. Without a gradient."""
    return torch.ops.based.taylor_attention_quadratic(q, k, v, cu_seqlens, decay, decay_denominator)


def taylor_features(x: Tensor) -> Tensor:
    """The packed features φ(x): [..., d] -> [..., 1 + d + d(d+1)/2], with φ(q)·φ(k) = 1 + q·k + (q·k)²/2."""
    return torch.ops.based.taylor_features(x)


@composite("taylor_features")
def _features(x: Tensor) -> Tensor:
    d = x.shape[-1]
    first, second = torch.triu_indices(d, d, device=x.device)
    factors = torch.ones(first.shape, dtype=x.dtype, device=x.device).masked_fill(first == second, math.sqrt(0.5))
    return torch.cat([torch.ones_like(x[..., :1]), x, x[..., first] * x[..., second] * factors], -1)


def _decay_power(decay: Tensor, exponent: Tensor) -> Tensor:
    """decay^exponent, [heads, …]."""
    return decay.view(-1, *[1] * exponent.dim()).pow(exponent)


def _causal_weights(q: Tensor, k: Tensor, decay: Tensor | None) -> Tensor:
    s = q @ k.transpose(-1, -2)
    weights = (1 + s + s * s / 2).tril()
    if decay is None:
        return weights
    position = torch.arange(q.shape[-2], device=q.device, dtype=q.dtype)
    return weights * _decay_power(decay, (position[:, None] - position).clamp_min(0))


def _chunks(q: Tensor, k: Tensor, v: Tensor, state: Tensor, decay: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Σ weights·v [rows, heads, length, width] and the state [rows, heads, features, width] after the rows."""
    sums = []
    for begin in range(0, q.shape[2], chunk):
        part = slice(begin, begin + chunk)
        chunk_q, chunk_k, chunk_v = q[:, :, part], k[:, :, part], v[:, :, part]
        features, before = _features(chunk_k), _features(chunk_q) @ state
        if decay is not None:
            size = chunk_q.shape[2]
            position = torch.arange(size, device=q.device, dtype=q.dtype)
            before = before * _decay_power(decay, position + 1).unsqueeze(-1)
            features = features * _decay_power(decay, size - 1 - position).unsqueeze(-1)
            state = state * decay.pow(size).view(-1, 1, 1)
        sums.append(_causal_weights(chunk_q, chunk_k, decay) @ chunk_v + before)
        state = state + features.transpose(-1, -2) @ chunk_v
    return torch.cat(sums, 2) if sums else torch.zeros_like(v), state


@differentiable("taylor_attention_forward", "taylor_attention_backward", outputs="y kv_state k_state denominator",
                gradients="q k v initial_kv_state initial_k_state")
def _forward_reference(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, initial_kv_state: Tensor | None = None,
                       initial_k_state: Tensor | None = None, decay: Tensor | None = None, final_state: bool = True,
                       decay_denominator: bool = True, chunk: int = _CHUNK) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, rows, heads, head_dim = sum_type(q), cu_seqlens.shape[0] - 1, q.shape[1], v.shape[2]
    features = packed_features(q.shape[2])
    kv = initial_kv_state if initial_kv_state is not None else torch.zeros(rows, heads, features, head_dim, dtype=dtype, device=q.device)
    sum_k = initial_k_state if initial_k_state is not None else torch.zeros(rows, heads, features, dtype=dtype, device=q.device)
    rates = None if decay is None else decay.to(dtype)
    numerators, denominators, kv_states, k_states = [], [], [], []
    for run in equal_runs(cu_seqlens, q.shape[0]):
        run_q, run_k, run_v = (tokens_of(x.to(dtype), run).transpose(1, 2) for x in (q, k, v))
        of_rows = slice(run.first_row, run.first_row + run.rows)
        numerator, new_kv = _chunks(run_q, run_k, run_v, kv[of_rows], rates, chunk)
        denominator, new_k = _chunks(run_q, run_k, torch.ones_like(run_v[..., :1]), sum_k[of_rows].unsqueeze(-1),
                                     rates if decay_denominator else None, chunk)
        numerators.append(numerator.transpose(1, 2).flatten(0, 1))
        denominators.append(denominator.transpose(1, 2).flatten(0, 1))
        kv_states.append(new_kv)
        k_states.append(new_k.squeeze(-1))
    denominator = join(denominators, torch.ones(q.shape[0], heads, 1, dtype=dtype, device=q.device))
    y = (join(numerators, v.to(dtype)) / denominator).to(v.dtype)
    if not final_state:
        kv_states, k_states, kv, sum_k = [], [], kv.new_empty(0, *kv.shape[1:]), sum_k.new_empty(0, *sum_k.shape[1:])
    return y, join(kv_states, kv), join(k_states, sum_k), denominator.squeeze(-1).contiguous()


@fake("taylor_attention_forward")
def _(q, k, v, cu_seqlens, initial_kv_state=None, initial_k_state=None, decay=None, final_state=True, decay_denominator=True):
    rows, heads, features = cu_seqlens.shape[0] - 1 if final_state else 0, q.shape[1], packed_features(q.shape[2])
    sums = {"dtype": sum_type(q)}
    return (v.new_empty(v.shape), q.new_empty((rows, heads, features, v.shape[2]), **sums), q.new_empty((rows, heads, features), **sums),
            q.new_empty((q.shape[0], heads), **sums))


outputs_of("taylor_attention_forward", slice(3), "taylor_attention")


@reference("taylor_attention_quadratic")
def _quadratic(q, k, v, cu_seqlens, decay=None, decay_denominator=True):
    return _forward_reference(q, k, v, cu_seqlens, decay=decay, decay_denominator=decay_denominator, chunk=max(1, q.shape[0]))[0]


@fake("taylor_attention_quadratic")
def _(q, k, v, cu_seqlens, decay=None, decay_denominator=True):
    return v.new_empty(v.shape)


@reference("taylor_attention_prefill")
def _prefill(q, k, v, cu_seqlens, kv_state, k_state, slots, decay=None, decay_denominator=True):
    def from_states(kv: Tensor, sum_k: Tensor) -> tuple[Tensor, ...]:
        return _forward_reference(q, k, v, cu_seqlens, kv, sum_k, decay, True, decay_denominator)[:3]

    return prefill_slots(slots, cu_seqlens, from_states, kv_state, k_state)


@fake("taylor_attention_prefill")
def _(q, k, v, cu_seqlens, kv_state, k_state, slots, decay=None, decay_denominator=True):
    return v.new_empty(v.shape)


@reference("taylor_attention_step")
def _step(q, k, v, kv_state, k_state, slots, decay=None, scale=1.0, decay_denominator=True):
    dtype = sum_type(q)
    q_features, k_features, values = _features(q.to(dtype) * scale), _features(k.to(dtype) * scale), v.to(dtype)
    kv, sum_k = kv_state.index_select(0, slots), k_state.index_select(0, slots)
    if decay is not None:
        kv = kv * decay.to(dtype).view(-1, 1, 1)
        sum_k = sum_k * decay.to(dtype).view(-1, 1) if decay_denominator else sum_k
    kv, sum_k = kv + k_features.unsqueeze(-1) * values.unsqueeze(-2), sum_k + k_features
    kv_state.index_copy_(0, slots, kv)
    k_state.index_copy_(0, slots, sum_k)
    y = (q_features.unsqueeze(-1) * kv).sum(-2) / (q_features * sum_k).sum(-1, keepdim=True)
    return y.to(v.dtype)


@fake("taylor_attention_step")
def _(q, k, v, kv_state, k_state, slots, decay=None, scale=1.0, decay_denominator=True):
    return v.new_empty(v.shape)
