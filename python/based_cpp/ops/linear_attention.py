"""Attention whose weights are inner products of features, so that the past is two sums:
kv [rows, heads, features, head_dim], Σ k vᵀ, and k [rows, heads, features], Σ k, both in fp32 (fp64 for fp64 inputs)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._registration import define, differentiable, fake, outputs_of, reference, sum_type
from ._rows import equal_runs, join, prefill_slots, require_tokens, tokens_of

_CHUNK = 128  # tokens whose weights are computed pair by pair

define("linear_attention_backward(Tensor grad_y, Tensor? grad_kv_state, Tensor? grad_k_state, Tensor q, Tensor k, Tensor v, "
       "Tensor cu_seqlens, Tensor? initial_kv_state, Tensor? initial_k_state, float eps, bool final_state) -> "
       "(Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_initial_kv_state, Tensor grad_initial_k_state)")


def linear_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, initial_kv_state: Tensor | None = None,
                     initial_k_state: Tensor | None = None, eps: float = 0.0,
                     final_state: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """y_t = Σ_{j≤t} (q_t·k_j) v_j / (Σ_{j≤t} q_t·k_j + eps) of packed rows. Differentiable in q, k, v and the initial states.

    q, k [tokens, heads, features], which are features already; v [tokens, heads, head_dim]; cu_seqlens int64 [rows + 1].
    Returns y [tokens, heads, head_dim] and the sums kv and k after each row, without rows if not `final_state`.
    """
    return torch.ops.based.linear_attention(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, eps, final_state)


def linear_attention_pairs(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, eps: float) -> Tensor:
    """y of linear_attention for rows that start from zero, by the weight of every pair of tokens. Differentiable in q, k, v.

    q, k [tokens, heads, features], v and y [tokens, heads, head_dim]. On a GPU in fp32 with features and head_dim up to 128 a kernel
    computes it.
    """
    return torch.ops.based.linear_attention_pairs(q, k, v, cu_seqlens, eps)


def linear_attention_prefill(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, kv_state: Tensor, k_state: Tensor, slots: Tensor,
                             eps: float) -> Tensor:
    """y of rows that continue from slots of the sums [slots, heads, …], updated in place. Without a gradient."""
    return torch.ops.based.linear_attention_prefill(q, k, v, cu_seqlens, kv_state, k_state, slots, eps)


def linear_attention_step(q: Tensor, k: Tensor, v: Tensor, kv_state: Tensor, k_state: Tensor, slots: Tensor, eps: float) -> Tensor:
    """One token for each slot, q, k, v [rows, heads, …]. Updates the sums in place. Without a gradient."""
    return torch.ops.based.linear_attention_step(q, k, v, kv_state, k_state, slots, eps)


def _sums(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, kv: Tensor, sum_k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numerator [tokens, heads, head_dim], denominator [tokens, heads, 1], and the sums after each row, in the type of sums."""
    dtype, head_dim = sum_type(q), v.shape[2]
    columns = torch.cat((v.to(dtype), torch.ones_like(v[..., :1], dtype=dtype)), -1)
    initial = torch.cat((kv, sum_k.unsqueeze(-1)), -1)
    outputs, states = [], []
    for run in equal_runs(cu_seqlens, q.shape[0]):
        run_q, run_k, run_v = (tokens_of(x.to(dtype), run).transpose(1, 2) for x in (q, k, columns))
        state = initial[run.first_row : run.first_row + run.rows]
        for begin in range(0, run.length, _CHUNK):
            chunk_q, chunk_k, chunk_v = (x[:, :, begin : begin + _CHUNK] for x in (run_q, run_k, run_v))
            y = (chunk_q @ chunk_k.transpose(-1, -2)).tril() @ chunk_v + chunk_q @ state
            state = state + chunk_k.transpose(-1, -2) @ chunk_v
            outputs.append(y.transpose(1, 2))
        chunks = -(-run.length // _CHUNK)
        if chunks:
            outputs[-chunks:] = [torch.cat(outputs[-chunks:], 1).flatten(0, 1)]
        states.append(state)
    totals, state = join(outputs, columns), join(states, initial)
    return totals[..., :head_dim], totals[..., head_dim:], state[..., :head_dim].contiguous(), state[..., head_dim].contiguous()


def _zero_sums(q: Tensor, v: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    shape, kind = (rows, q.shape[1], q.shape[2]), {"dtype": sum_type(q), "device": q.device}
    return torch.zeros(*shape, v.shape[2], **kind), torch.zeros(shape, **kind)


@differentiable("linear_attention", "linear_attention_backward", outputs="y kv_state k_state",
                gradients="q k v initial_kv_state initial_k_state")
def _linear_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, initial_kv_state: Tensor | None, initial_k_state: Tensor | None,
                      eps: float, final_state: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    require_tokens("linear_attention", q.shape[0], k=k, v=v)
    rows = cu_seqlens.shape[0] - 1
    zeros = _zero_sums(q, v, rows)
    numerator, denominator, kv, sum_k = _sums(q, k, v, cu_seqlens, zeros[0] if initial_kv_state is None else initial_kv_state,
                                              zeros[1] if initial_k_state is None else initial_k_state)
    y = (numerator / (denominator + eps)).to(v.dtype).contiguous()
    return (y, kv, sum_k) if final_state else (y, kv.new_empty(0, *kv.shape[1:]), sum_k.new_empty(0, *sum_k.shape[1:]))


@fake("linear_attention")
def _(q, k, v, cu_seqlens, initial_kv_state, initial_k_state, eps, final_state=True):
    rows, dtype = cu_seqlens.shape[0] - 1 if final_state else 0, sum_type(q)
    shape = (rows, q.shape[1], q.shape[2])
    return v.new_empty(v.shape), q.new_empty((*shape, v.shape[2]), dtype=dtype), q.new_empty(shape, dtype=dtype)


@differentiable("linear_attention_pairs_forward", "linear_attention_pairs_backward", outputs="y denominator", gradients="q k v")
def _pairs(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    numerator, denominator, _, _ = _sums(q, k, v, cu_seqlens, *_zero_sums(q, v, cu_seqlens.shape[0] - 1))
    return (numerator / (denominator + eps)).to(v.dtype).contiguous(), (denominator + eps).squeeze(-1).contiguous()


@fake("linear_attention_pairs_forward")
def _(q, k, v, cu_seqlens, eps):
    return v.new_empty(v.shape), q.new_empty(q.shape[:2], dtype=sum_type(q))


outputs_of("linear_attention_pairs_forward", 0, "linear_attention_pairs")


@reference("linear_attention_prefill")
def _prefill(q, k, v, cu_seqlens, kv_state, k_state, slots, eps):
    return prefill_slots(slots, cu_seqlens, lambda kv, sum_k: _linear_attention(q, k, v, cu_seqlens, kv, sum_k, eps), kv_state, k_state)


@fake("linear_attention_prefill")
def _(q, k, v, cu_seqlens, kv_state, k_state, slots, eps):
    return v.new_empty(v.shape)


@reference("linear_attention_step")
def _step(q, k, v, kv_state, k_state, slots, eps):
    each_token = torch.arange(q.shape[0] + 1, device=q.device)  # each row of the step is a row of one token
    return _prefill(q, k, v, each_token, kv_state, k_state, slots, eps)


@fake("linear_attention_step")
def _(q, k, v, kv_state, k_state, slots, eps):
    return v.new_empty(v.shape)
