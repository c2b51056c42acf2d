"""Exact softmax attention: causal, over all keys or a sliding window (paper, section 4.2), with rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from . import training
from ._registration import define, differentiable, fake, gradient, outputs_of, reference, sum_type
from ._rows import Run, equal_runs, join, other_tokens_of, tokens_of

_BLOCK = 256  # queries whose scores are in memory at once

define("rotary(Tensor x, Tensor positions, int heads, int head_dim, int dim, float base, bool interleaved, bool inverse) -> Tensor")


def causal_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, window: int, scale: float,
                     dropout_p: float = 0.0, seed: int = 0, step: Tensor | None = None, place: int = 0, first_token: int = 0) -> Tensor:
    """Softmax attention of packed rows. Differentiable in q, k and v.

    A row's queries are its last tokens: with Lq queries and Lk ≥ Lq keys, query i attends to keys j with
    i + Lk − Lq − window < j ≤ i + Lk − Lq.

    Args:
        q: [q_tokens, heads, head_dim], head_dim 1 to 256.
        k, v: [k_tokens, kv_heads, head_dim]; heads is a multiple of kv_heads.
        cu_seqlens_q, cu_seqlens_k: int64 [rows + 1], the offsets of the rows.
        window: keys of a query, that of its own token included; 0 means all.
        scale: the factor of q·k before the softmax.
        dropout_p: probability in [0, 1) that a weight is dropped after the softmax; the weights that remain are divided by 1 − p.
        seed, step, place, first_token: with the pair's position they determine which weights are dropped; see training.dropout.

    Returns:
        [q_tokens, heads, head_dim].
    """
    return torch.ops.based.causal_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout_p, seed, step, place, first_token)


def causal_attention_step(q: Tensor, k: Tensor, v: Tensor, k_ring: Tensor, v_ring: Tensor, positions: Tensor, slots: Tensor,
                          scale: float) -> Tensor:
    """One token for each slot (paper, algorithm 3). Without a gradient.

    The rings [slots, capacity, kv_heads, head_dim] hold key p at p mod capacity. Writes k and v [rows, kv_heads, head_dim] as keys
    p = positions[row], and attends to the last min(p + 1, capacity) keys. positions and slots int64 [rows].
    Returns [rows, heads, head_dim].
    """
    return torch.ops.based.causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale)


def paged_attention_step(q: Tensor, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, positions: Tensor,
                         slots: Tensor, scale: float) -> Tensor:
    """One token for each slot over keys in pages of a pool. Without a gradient.

    k_pages, v_pages [pages, page_tokens, kv_heads, head_dim], page_tokens a power of two; page_table int64 [slots, slot_pages], the
    page of the pool that holds a slot's page, −1 for none. A slot without a page for its new key is idle and gives 0.
    Returns [rows, heads, head_dim].
    """
    return torch.ops.based.paged_attention_step(q, k, v, k_pages, v_pages, page_table, positions, slots, scale)


def rotary(x: Tensor, positions: Tensor, heads: int, head_dim: int, dim: int, base: float = 10000.0, interleaved: bool = False,
           inverse: bool = False) -> Tensor:
    """Rotary positions on the first `dim` dimensions of each of the first `heads` heads of x [tokens, columns]. Differentiable in x.

    positions int64 [tokens]. Halves (a, b) become (a cos − b sin, a sin + b cos) with angle = position · base^(−2i/dim).
    `interleaved` rotates pairs (2i, 2i + 1) instead of halves; `inverse` rotates back.
    """
    return torch.ops.based.rotary(x, positions, heads, head_dim, dim, base, interleaved, inverse)


def rotary_(x: Tensor, positions: Tensor, heads: int, head_dim: int, dim: int, base: float = 10000.0, interleaved: bool = False,
            inverse: bool = False) -> Tensor:
    """rotary() of x [tokens, columns] in place. Without a gradient. Returns x."""
    torch.ops.based.rotary_(x, positions, heads, head_dim, dim, base, interleaved, inverse)
    return x


def rotary_attention_step(qkv: Tensor, k_ring: Tensor, v_ring: Tensor, positions: Tensor, slots: Tensor, scale: float, dim: int,
                          base: float) -> Tensor:
    """causal_attention_step for the output of a joint projection, qkv [rows, (heads + 2 kv_heads)·head_dim], which it overwrites.

    Queries and keys are first rotated by their positions, in halves, on the first `dim` dimensions. Returns [rows, heads, head_dim].
    """
    return torch.ops.based.rotary_attention_step(qkv, k_ring, v_ring, positions, slots, scale, dim, base)


def _kept_weights(heads: int, run: Run, queries: tuple[int, int], keys: tuple[int, int], p: float, seed: int, step: Tensor, place: int,
                  first_token: int) -> Tensor:
    """Factors of the weights, 0 or 1/(1 − p), [rows, heads, queries, keys]."""
    device = step.device
    rows = torch.arange(run.rows, device=device).view(-1, 1, 1, 1) * run.length + run.first_token + first_token
    tokens = rows + torch.arange(*queries, device=device).view(-1, 1)
    element = ((tokens * heads + torch.arange(heads, device=device).view(-1, 1, 1)) << 20) + torch.arange(*keys, device=device)
    return (~training.is_dropped(element, p, seed, step, place)).to(torch.float64) / (1 - p)


@differentiable("causal_attention_forward", "causal_attention_backward", outputs="y log_sum_exp", gradients="q k v")
def _forward_reference(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, window: int, scale: float,
                       dropout_p: float = 0.0, seed: int = 0, step: Tensor | None = None, place: int = 0,
                       first_token: int = 0) -> tuple[Tensor, Tensor]:
    dtype, heads, kv_heads = sum_type(q), q.shape[1], k.shape[1]
    outputs, sums = [], []
    for run in equal_runs(cu_seqlens_q, q.shape[0], cu_seqlens_k):
        if run.other_length < run.length:
            raise ValueError(f"causal_attention: a row must have at least as many keys as queries, got {run.other_length} and {run.length}")
        queries = tokens_of(q.to(dtype), run).transpose(1, 2).unflatten(1, (kv_heads, heads // kv_heads))
        keys = other_tokens_of(k.to(dtype), run).transpose(1, 2).unsqueeze(2)
        values = other_tokens_of(v.to(dtype), run).transpose(1, 2).unsqueeze(2)
        before = run.other_length - run.length
        for begin in range(0, run.length, _BLOCK):
            end = min(begin + _BLOCK, run.length)
            first, last = (0 if window == 0 else max(0, begin + before - window + 1)), end + before
            distance = (torch.arange(begin + before, end + before, device=q.device)[:, None] - torch.arange(first, last, device=q.device))
            hidden = distance < 0 if window == 0 else (distance < 0) | (distance >= window)
            scores = (queries[..., begin:end, :] @ keys[..., first:last, :].transpose(-1, -2) * scale).masked_fill(hidden, -torch.inf)
            weights = scores.softmax(-1)
            if dropout_p > 0:
                kept = _kept_weights(heads, run, (begin, end), (first, last), dropout_p, seed, step, place, first_token)
                weights = weights * kept.to(dtype).view_as(weights)
            outputs.append((weights @ values[..., first:last, :]).flatten(1, 2))  # [rows, heads, queries, head_dim]
            sums.append(scores.logsumexp(-1).flatten(1, 2))
        blocks = -(-run.length // _BLOCK)
        if blocks:
            outputs[-blocks:] = [torch.cat(outputs[-blocks:], 2).transpose(1, 2).flatten(0, 1)]
            sums[-blocks:] = [torch.cat(sums[-blocks:], 2).transpose(1, 2).flatten(0, 1)]
    return join(outputs, q).to(q.dtype), join(sums, q[:, :, 0].to(dtype))


@fake("causal_attention_forward")
def _(q, k, v, cu_seqlens_q, cu_seqlens_k, window, scale, dropout_p=0.0, seed=0, step=None, place=0, first_token=0):
    return q.new_empty(q.shape), q.new_empty(q.shape[:2], dtype=sum_type(q))


outputs_of("causal_attention_forward", 0, "causal_attention")


def _attend(q: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> Tensor:
    """q [rows, heads, head_dim], keys and values [rows, keys, kv_heads, head_dim], visible [rows, keys] -> q's shape."""
    dtype = sum_type(q)
    query = q.to(dtype).unflatten(1, (keys.shape[2], -1)).unsqueeze(1)  # [rows, 1, kv_heads, group, head_dim]
    scores = (query * keys.to(dtype).unsqueeze(3)).sum(-1) * scale  # [rows, keys, kv_heads, group]
    weights = scores.masked_fill(~visible[:, :, None, None], -torch.inf).softmax(1)
    # Entries that are not visible may be uninitialised, and 0 times NaN is NaN.
    visible_values = values.to(dtype).masked_fill(~visible[:, :, None, None], 0).unsqueeze(3)
    return (weights.unsqueeze(-1) * visible_values).sum(1).flatten(1, 2).to(q.dtype)


@reference("causal_attention_step")
def _step(q, k, v, k_ring, v_ring, positions, slots, scale):
    capacity = k_ring.shape[1]
    for ring, fresh in ((k_ring, k), (v_ring, v)):
        ring.index_put_((slots, positions % capacity), fresh.to(ring.dtype))
    visible = torch.arange(capacity, device=q.device) <= positions[:, None]
    return _attend(q, k_ring.index_select(0, slots), v_ring.index_select(0, slots), visible, scale)


@fake("causal_attention_step")
def _(q, k, v, k_ring, v_ring, positions, slots, scale):
    return q.new_empty(q.shape)


@reference("paged_attention_step")
def _paged_step(q, k, v, k_pages, v_pages, page_table, positions, slots, scale):
    page_tokens, slot_pages = k_pages.shape[1], page_table.shape[1]
    pages = page_table.index_select(0, slots)  # [rows, slot_pages]
    page = (positions // page_tokens).clamp_max(slot_pages - 1)
    active = (positions < slot_pages * page_tokens) & (pages.gather(1, page[:, None]).squeeze(1) >= 0)
    order = torch.arange(slot_pages * page_tokens, device=q.device)
    places = pages[:, order // page_tokens].clamp_min(0) * page_tokens + order % page_tokens  # in the pool
    written = places.gather(1, positions[:, None].clamp_max(order.shape[0] - 1)).squeeze(1)
    flat = [pool.flatten(0, 1) for pool in (k_pages, v_pages)]
    for pool, fresh in zip(flat, (k, v)):
        pool[written[active]] = fresh[active].to(pool.dtype)
    visible = order <= positions[:, None]
    y = _attend(q, flat[0][places], flat[1][places], visible, scale)
    return y.masked_fill(~active[:, None, None], 0)


@fake("paged_attention_step")
def _(q, k, v, k_pages, v_pages, page_table, positions, slots, scale):
    return q.new_empty(q.shape)


def _rotated(x, positions, heads, head_dim, dim, base, interleaved, inverse):
    if dim == 0:
        return x.clone(memory_format=torch.contiguous_format)
    dtype = sum_type(x)
    # In fp64: an angle at position 100,000 would have 3 correct digits in fp32.
    exponent = torch.arange(dim // 2, device=x.device, dtype=torch.float64) * (-2.0 / dim)
    angle = positions.to(torch.float64)[:, None] * torch.pow(torch.tensor(base, dtype=torch.float64, device=x.device), exponent)
    cosine, sine = angle.cos().to(dtype).unsqueeze(1), (-angle.sin() if inverse else angle.sin()).to(dtype).unsqueeze(1)
    by_head = x[:, : heads * head_dim].unflatten(1, (heads, head_dim))
    pairs = by_head[..., :dim].to(dtype)
    a, b = (pairs[..., ::2], pairs[..., 1::2]) if interleaved else (pairs[..., : dim // 2], pairs[..., dim // 2 :])
    new_a, new_b = a * cosine - b * sine, a * sine + b * cosine
    both = torch.stack((new_a, new_b), -1).flatten(2) if interleaved else torch.cat((new_a, new_b), 2)
    rotated = torch.cat((both.to(x.dtype), by_head[..., dim:]), 2).flatten(1)
    return torch.cat((rotated, x[:, heads * head_dim :]), 1)


@reference("rotary_")
def _rotate_in_place(x, positions, heads, head_dim, dim, base, interleaved, inverse):
    x.copy_(_rotated(x, positions, heads, head_dim, dim, base, interleaved, inverse))


@fake("rotary_")
def _(x, positions, heads, head_dim, dim, base, interleaved, inverse):
    return None


@reference("rotary")
def _rotate_a_copy(x, positions, heads, head_dim, dim, base, interleaved, inverse):
    y = x.clone(memory_format=torch.contiguous_format)
    torch.ops.based.rotary_(y, positions, heads, head_dim, dim, base, interleaved, inverse)
    return y


@fake("rotary")
def _(x, positions, heads, head_dim, dim, base, interleaved, inverse):
    return x.new_empty(x.shape)


def _save_rotation(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])
    ctx.rotation = inputs[2:]


def _rotate_back(ctx, grad):
    (positions,), (*rotation, inverse) = ctx.saved_tensors, ctx.rotation
    return (torch.ops.based.rotary(grad, positions, *rotation, not inverse), *[None] * 7)


gradient("rotary", _save_rotation, _rotate_back, differentiable=True)


@reference("rotary_attention_step")
def _rotary_step(qkv, k_ring, v_ring, positions, slots, scale, dim, base):
    kv_heads, head_dim = k_ring.shape[2:]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    torch.ops.based.rotary_(qkv, positions, heads + kv_heads, head_dim, dim, base, False, False)
    q, k, v = qkv.unflatten(1, (-1, head_dim)).split((heads, kv_heads, kv_heads), 1)
    return torch.ops.based.causal_attention_step(q, k, v, k_ring, v_ring, positions, slots, scale)


@fake("rotary_attention_step")
def _(qkv, k_ring, v_ring, positions, slots, scale, dim, base):
    kv_heads, head_dim = k_ring.shape[2:]
    return qkv.new_empty((qkv.shape[0], qkv.shape[1] // head_dim - 2 * kv_heads, head_dim))
