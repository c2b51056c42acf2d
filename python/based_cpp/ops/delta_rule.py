"""The gated delta rule: linear attention whose state decays, with or without the delta rule's correction.

GLA, DeltaNet, Gated DeltaNet, Mamba-2 and RWKV-5 are this recurrence with different gates. For a head and token t:
D = diag(exp(log_decay_t)) S_{t−1}; S_t = D + k_t (beta_t (v_t − Dᵀk_t))ᵀ with `delta`, else D + k_t (beta_t v_t)ᵀ; y_t = scale · S_tᵀq_t.
With a bonus u, which excludes beta and delta, y_t = scale · (S_{t−1}ᵀq_t + (q_t · u⊙k_t) v_t).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import differentiable, fake, reference, sum_type
from ._rows import equal_runs, join, prefill_slots, require_tokens, tokens_of

_CHUNK = 64  # tokens whose weights are computed pair by pair
_BLOCK = 16  # the same where each channel of a key has a decay of its own, which makes the weights larger by a factor of key_dim


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, bonus: Tensor | None, delta: bool,
                     scale: float, cu_seqlens: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The recurrence of the module's description on packed rows. Differentiable in all tensors but cu_seqlens.

    Args:
        q, k: [tokens, key_heads, key_dim]; head h reads head h · key_heads / heads.
        v: [tokens, heads, value_dim].
        log_decay: [tokens, heads] or [tokens, heads, key_dim], none above 0; None means no decay.
        beta: [tokens, heads]; None means 1.
        bonus: [heads, key_dim].
        cu_seqlens: int64 [rows + 1], the offsets of the rows.
        initial_state: [rows, heads, key_dim, value_dim] in fp32 (fp64 for fp64 inputs); None means zero.
        log_decay, beta and bonus have q's type or the state's.

    Returns:
        y [tokens, heads, value_dim], and the state after each row.
    """
    return torch.ops.based.gated_delta_rule(q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, initial_state)


def gated_delta_rule_prefill(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, bonus: Tensor | None,
                             delta: bool, scale: float, cu_seqlens: Tensor, state: Tensor, slots: Tensor) -> Tensor:
    """y of rows that continue from slots of `state` [slots, heads, key_dim, value_dim], updated in place. Without a gradient."""
    return torch.ops.based.gated_delta_rule_prefill(q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, state, slots)


def gated_delta_rule_step(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, bonus: Tensor | None, delta: bool,
                          scale: float, state: Tensor, slots: Tensor) -> Tensor:
    """One token for each slot: q, k, v, log_decay, beta [rows, …]. Updates `state` in place. Without a gradient."""
    return torch.ops.based.gated_delta_rule_step(q, k, v, log_decay, beta, bonus, delta, scale, state, slots)


def _decays_between(g: Tensor) -> Tensor:
    """exp(Σ g_l over j < l ≤ i) for j ≤ i, else 0: [..., i, j, c] of g [..., n, c].

    Sums are of the terms themselves, not differences of longer sums, so that strong decays cancel nothing and no exponent is above 0.
    """
    n = g.shape[-2]
    ones = torch.ones(n, n, dtype=torch.bool, device=g.device)
    terms = torch.where(ones.tril(-1).unsqueeze(-1), g.unsqueeze(-2), torch.zeros((), dtype=g.dtype, device=g.device))
    return terms.cumsum(-3).masked_fill(ones.triu(1).unsqueeze(-1), -torch.inf).exp()


def _decays_to_end(g: Tensor) -> Tensor:
    """exp(Σ g_l over l > j): the decay of token j by the end of the chunk."""
    return F.pad(g[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2).exp()


def _scores(readers: list[Tensor], k: Tensor, g: Tensor | None) -> tuple[list[Tensor], Tensor]:
    """For each reader x the decayed products Σ_c x_ic k_jc exp(Σ g_lc over j < l ≤ i) for j ≤ i; and the keys, decayed to the end."""
    if g is not None and g.shape[-1] > 1:
        return _scores_of_channels(readers, k, g)
    products = [x @ k.transpose(-1, -2) for x in readers]
    if g is None:
        return [p.tril() for p in products], k
    decays = _decays_between(g).squeeze(-1)
    return [p * decays for p in products], k * _decays_to_end(g)


def _scores_of_channels(readers: list[Tensor], k: Tensor, g: Tensor) -> tuple[list[Tensor], Tensor]:
    """By blocks. Keys of earlier blocks are decayed to the beginning of the block; the rest of the exponent is applied to the reader."""
    size, lines, earlier = k.shape[-2], [[] for _ in readers], None
    for begin in range(0, size, _BLOCK):
        block = (..., slice(begin, begin + _BLOCK), slice(None))
        block_k, block_g = k[block], g[block]
        from_begin, decayed_k = block_g.cumsum(-2).exp(), _decays_between(block_g) * block_k.unsqueeze(-3)
        for reader, reader_lines in zip(readers, lines):
            x = reader[block]
            line = (decayed_k @ x.unsqueeze(-1)).squeeze(-1)
            line = line if earlier is None else torch.cat(((x * from_begin) @ earlier.transpose(-1, -2), line), -1)
            reader_lines.append(F.pad(line, (0, size - line.shape[-1])))
        own = block_k * _decays_to_end(block_g)
        earlier = own if earlier is None else torch.cat((earlier * from_begin[..., -1:, :], own), -2)
    return [torch.cat(reader_lines, -2) for reader_lines in lines], earlier


def _one_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, delta: bool, state: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors [rows, heads, length, …]; `state` before the chunk. With `delta` the u of S = D + k uᵀ solve one triangular system."""
    products, k_at_end = _scores([q, k] if delta else [q], k, g)
    from_begin = None if g is None else g.cumsum(-2).exp()

    def from_state(x: Tensor) -> Tensor:
        return (x if from_begin is None else x * from_begin) @ state

    def times_beta(x: Tensor) -> Tensor:
        return x if beta is None else x * beta

    if delta:
        system = times_beta(products[1].tril(-1))
        u = torch.linalg.solve_triangular(system, times_beta(v - from_state(k)), upper=False, unitriangular=True)
    else:
        u = times_beta(v)
    kept = state if from_begin is None else state * from_begin[..., -1:, :].transpose(-1, -2)
    return products[0] @ u + from_state(q), kept + k_at_end.transpose(-1, -2) @ u


def _chunks(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor | None, delta: bool, state: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for begin in range(0, q.shape[2], _CHUNK):
        part = [None if x is None else x[:, :, begin : begin + _CHUNK] for x in (q, k, v, g, beta)]
        y, state = _one_chunk(*part, delta, state)
        outputs.append(y)
    return torch.cat(outputs, 2) if outputs else torch.zeros_like(v), state


def _with_bonus(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, bonus: Tensor, scale: float, cu_seqlens: Tensor,
                initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
    """By the rule without a bonus, whose gradient has a kernel on a GPU.

    Token t reads the state before it, as token t − 1 would with the q of token t. The first token of a row reads the initial state.
    """
    dtype, tokens, shared_by = sum_type(q), q.shape[0], v.shape[1] // q.shape[1]
    starts = torch.zeros(tokens + 1, 1, 1, dtype=torch.bool, device=q.device).index_fill(0, cu_seqlens, True)
    next_q = F.pad(q[1:], (0, 0, 0, 0, 0, 1)).masked_fill(starts[1:], 0)
    read, state = torch.ops.based.gated_delta_rule(next_q, k, v, log_decay, None, None, False, scale, cu_seqlens, initial_state)
    y = F.pad(read[:-1], (0, 0, 0, 0, 1, 0)).masked_fill(starts[:-1], 0).to(dtype)
    wide_q, wide_k = (x.to(dtype).repeat_interleave(shared_by, 1) for x in (q * scale, k))
    if initial_state is not None:
        first = cu_seqlens[:-1].clamp(max=tokens - 1)
        first_q = wide_q[first].masked_fill((cu_seqlens[:-1] == cu_seqlens[1:]).view(-1, 1, 1), 0)
        y = y.index_add(0, first, (first_q.unsqueeze(-2) @ initial_state).squeeze(-2))
    own = (wide_q * bonus.to(dtype) * wide_k).sum(-1, keepdim=True)
    return (y + own * v).to(v.dtype), state


@differentiable("gated_delta_rule", "gated_delta_rule_backward", outputs="y state",
                gradients="q k v log_decay beta bonus initial_state")
def _gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, bonus: Tensor | None, delta: bool,
                      scale: float, cu_seqlens: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    require_tokens("gated_delta_rule", q.shape[0], k=k, v=v, log_decay=log_decay, beta=beta)
    if bonus is not None and q.shape[0] > 0:
        return _with_bonus(q, k, v, log_decay, bonus, scale, cu_seqlens, initial_state)
    dtype, rows, heads, shared_by = sum_type(q), cu_seqlens.shape[0] - 1, v.shape[1], v.shape[1] // q.shape[1]
    initial = initial_state
    if initial is None:
        initial = torch.zeros(rows, heads, q.shape[2], v.shape[2], dtype=dtype, device=q.device)
    outputs, states = [], []
    for run in equal_runs(cu_seqlens, q.shape[0]):

        def heads_first(packed: Tensor | None, copies: int = 1) -> Tensor | None:
            if packed is None:
                return None
            packed = packed.unsqueeze(-1) if packed.dim() == 2 else packed
            return tokens_of(packed.to(dtype), run).transpose(1, 2).repeat_interleave(copies, 1)

        run_q, run_k, run_v = heads_first(q, shared_by) * scale, heads_first(k, shared_by), heads_first(v)
        gates, state = (heads_first(log_decay), heads_first(beta), delta), initial[run.first_row : run.first_row + run.rows]
        y, new_state = _chunks(run_q, run_k, run_v, *gates, state)
        outputs.append(y.transpose(1, 2).flatten(0, 1))
        states.append(new_state)
    return join(outputs, v).to(v.dtype), join(states, initial)


@fake("gated_delta_rule")
def _(q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, initial_state=None):
    return v.new_empty(v.shape), v.new_empty((cu_seqlens.shape[0] - 1, v.shape[1], q.shape[2], v.shape[2]), dtype=sum_type(v))


@reference("gated_delta_rule_prefill")
def _prefill(q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, state, slots):
    def from_state(initial: Tensor) -> tuple[Tensor, Tensor]:
        return _gated_delta_rule(q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, initial)

    return prefill_slots(slots, cu_seqlens, from_state, state)


@fake("gated_delta_rule_prefill")
def _(q, k, v, log_decay, beta, bonus, delta, scale, cu_seqlens, state, slots):
    return v.new_empty(v.shape)


@reference("gated_delta_rule_step")
def _step(q, k, v, log_decay, beta, bonus, delta, scale, state, slots):
    each_token = torch.arange(q.shape[0] + 1, device=q.device)  # each row of the step is a row of one token
    return _prefill(q, k, v, log_decay, beta, bonus, delta, scale, each_token, state, slots)


@fake("gated_delta_rule_step")
def _(q, k, v, log_decay, beta, bonus, delta, scale, state, slots):
    return v.new_empty(v.shape)
