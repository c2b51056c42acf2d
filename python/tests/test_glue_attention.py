"""The compiled operators of softmax attention against a masked softmax in torch."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, offsets, on_each_device, random

OPS = torch.ops.based
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def heads(tokens, dtype, device, keys=None):
    return [random(tokens, HEADS, HEAD_DIM, dtype=dtype, device=device, seed=1),
            *(random(keys or tokens, KV_HEADS, HEAD_DIM, dtype=dtype, device=device, seed=seed) for seed in (2, 3))]


def attend(q, k, v, window, scale):
    """One row, whose queries are its last tokens."""
    k, v = (t.double().repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
    score = torch.einsum("ihd,jhd->hij", q.double(), k) * scale
    distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    hidden = (distance < 0) | ((distance >= window) if window else False)
    weight = score.masked_fill(hidden.to(q.device), -torch.inf).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weight, v)


@on_each_device
@of_each_type
@pytest.mark.parametrize("window", [0, 1, 7])
def test_rows_and_windows(device, dtype, window):
    q, k, v = heads(25, dtype, device)
    starts = offsets(20, 5, device=device)
    y, log_sum_exp = OPS.causal_attention_forward(q, k, v, starts, starts, window, 0.25)
    expected = torch.cat([attend(q[a:b], k[a:b], v[a:b], window, 0.25) for a, b in ((0, 20), (20, 25))])
    assert_near(y, expected, dtype)
    assert log_sum_exp.shape == (25, HEADS)


@on_each_device
def test_keys_before_the_queries(device):
    q, k, v = heads(6, torch.float32, device, keys=20)
    y = OPS.causal_attention_forward(q, k, v, offsets(6, device=device), offsets(20, device=device), 8, 0.25)[0]
    assert_near(y, attend(q, k, v, 8, 0.25))


@on_each_device
def test_gradients_of_columns(device):
    qkv = random(12, HEADS + 2 * KV_HEADS, HEAD_DIM, device=device)
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
    starts, cotangent = offsets(12, device=device), random(12, HEADS, HEAD_DIM, device=device, seed=5)
    y, log_sum_exp = OPS.causal_attention_forward(q, k, v, starts, starts, 5, 0.25)
    found = OPS.causal_attention_backward(cotangent, q, k, v, starts, starts, 5, 0.25, 0.0, 0, None, 0, 0, y, log_sum_exp)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    attend(*leaves, 5, 0.25).backward(cotangent.double())
    for gradient, leaf in zip(found, leaves):
        assert gradient.is_contiguous()
        assert_near(gradient, leaf.grad)


@on_each_device
@of_each_type
def test_steps_over_a_ring_are_a_window(device, dtype):
    q, k, v = heads(11, dtype, device)
    ring = [torch.zeros(2, 4, KV_HEADS, HEAD_DIM, dtype=dtype, device=device) for _ in range(2)]
    slots = torch.tensor([1], device=device)
    ys = [OPS.causal_attention_step(q[i:i + 1], k[i:i + 1], v[i:i + 1], *ring, torch.tensor([i], device=device), slots, 0.25)
          for i in range(11)]
    assert_near(torch.cat(ys), attend(q, k, v, 4, 0.25), dtype)
    assert not ring[0][0].any()


@on_each_device
def test_pages_hold_all_keys_and_idle_slots_give_zero(device):
    q, k, v = heads(7, torch.float32, device)
    pages = [torch.zeros(4, 2, KV_HEADS, HEAD_DIM, device=device) for _ in range(2)]
    table = torch.tensor([[-1, -1, -1, -1], [3, 0, 2, 1]], device=device)
    for i in range(7):
        two = [torch.cat([t[i:i + 1], t[i:i + 1]]) for t in (q, k, v)]
        y = OPS.paged_attention_step(*two, *pages, table, torch.tensor([i, i], device=device), torch.tensor([0, 1], device=device), 0.25)
        assert not y[0].any()
        assert_near(y[1:], attend(q[i:i + 1], k[:i + 1], v[:i + 1], 0, 0.25))


@on_each_device
def test_rotation_and_its_inverse(device):
    x = random(5, 2 * HEAD_DIM, device=device)
    positions = torch.tensor([0, 1, 2, 1000, 100000], device=device)
    rotated = x.clone()
    OPS.rotary_(rotated, positions, 2, HEAD_DIM, 8, 10000.0, False, False)
    angle = positions.double()[:, None] * 10000.0 ** (-torch.arange(4, device=device, dtype=torch.float64) / 4)
    pairs = x.double().view(5, 2, HEAD_DIM)
    a, b, cos, sin = pairs[..., :4], pairs[..., 4:8], angle.cos()[:, None], angle.sin()[:, None]
    expected = torch.cat([a * cos - b * sin, a * sin + b * cos, pairs[..., 8:]], -1).flatten(1)
    assert_near(rotated, expected)
    OPS.rotary_(rotated, positions, 2, HEAD_DIM, 8, 10000.0, False, True)
    assert_near(rotated, x)


@on_each_device
def test_rotary_step_is_rotation_then_step(device):
    qkv = random(2, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=device)
    other = qkv.clone()
    rings = [[torch.zeros(2, 4, KV_HEADS, HEAD_DIM, device=device) for _ in range(2)] for _ in range(2)]
    positions, slots = torch.tensor([5, 3], device=device), torch.tensor([1, 0], device=device)
    y = OPS.rotary_attention_step(qkv, *rings[0], positions, slots, 0.25, HEAD_DIM, 10000.0)
    OPS.rotary_(other, positions, HEADS + KV_HEADS, HEAD_DIM, HEAD_DIM, 10000.0, False, False)
    q, k, v = other.view(2, -1, HEAD_DIM).split([HEADS, KV_HEADS, KV_HEADS], 1)
    assert_near(y, OPS.causal_attention_step(q, k, v, *rings[1], positions, slots, 0.25))
    assert_near(rings[0][0], rings[1][0])


def test_errors():
    q, k, v = heads(4, torch.float32, "cpu")
    with pytest.raises(RuntimeError, match="heads must be a multiple of kv_heads, got 3 and 2"):
        OPS.causal_attention_forward(q[:, :3], k, v, offsets(4), offsets(4), 0, 1.0)
    with pytest.raises(RuntimeError, match="a row must have at least as many keys as queries, got 2 and 4 in row 0"):
        OPS.causal_attention_forward(q, k[:2], v[:2], offsets(4), offsets(2), 0, 1.0)
    with pytest.raises(RuntimeError, match="window must be at least 0, got -1"):
        OPS.causal_attention_forward(q, k, v, offsets(4), offsets(4), -1, 1.0)
    with pytest.raises(RuntimeError, match="a page must hold a power of two of tokens, got 3"):
        pages = torch.zeros(1, 3, KV_HEADS, HEAD_DIM)
        OPS.paged_attention_step(q[:1], k[:1], v[:1], pages, pages.clone(), torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0]),
                                 torch.tensor([0]), 1.0)
