"""The compiled operators of linear attention against a square of weights in torch."""

import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, offsets, on_each_device, random

OPS = torch.ops.based
HEADS, FEATURES, HEAD_DIM, EPS = 2, 6, 5, 0.5


def inputs(tokens, dtype=torch.float32, device="cpu"):
    q, k = (random(tokens, HEADS, FEATURES, dtype=dtype, device=device, seed=seed).abs() for seed in (1, 2))
    return q, k, random(tokens, HEADS, HEAD_DIM, dtype=dtype, device=device, seed=3)


def attention(q, k, v):
    weights = torch.einsum("thf,shf->hts", q.double(), k.double()).tril()
    return torch.einsum("hts,shd->thd", weights, v.double()) / (weights.sum(-1).t() + EPS)[..., None]


@on_each_device
@of_each_type
def test_steps(device, dtype):
    q, k, v = inputs(9, dtype, device)
    kv, sum_k = torch.zeros(3, HEADS, FEATURES, HEAD_DIM, device=device), torch.zeros(3, HEADS, FEATURES, device=device)
    slot = torch.tensor([1], device=device)
    y = torch.cat([OPS.linear_attention_step(q[t:t + 1], k[t:t + 1], v[t:t + 1], kv, sum_k, slot, EPS) for t in range(9)])
    assert_near(y, attention(q, k, v), dtype)
    assert_near(sum_k[1], k.float().sum(0), dtype)
    assert not kv[[0, 2]].any()


@on_each_device
def test_pairs(device):
    q, k, v = inputs(30, device=device)
    cu = offsets(17, 13, device=device)
    y, denominator = OPS.linear_attention_pairs_forward(q, k, v, cu, EPS)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    expected = torch.cat([attention(*(t[:17] for t in leaves)), attention(*(t[17:] for t in leaves))])
    assert_near(y, expected)
    grad_y = random(30, HEADS, HEAD_DIM, device=device, seed=4)
    found = OPS.linear_attention_pairs_backward(grad_y, q, k, v, cu, EPS, y, denominator)
    for one, other in zip(found, torch.autograd.grad(expected, leaves, grad_y.double())):
        assert_near(one, other)
