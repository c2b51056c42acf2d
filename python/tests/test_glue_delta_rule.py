"""The compiled operators of the gated delta rule against a loop in torch."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, offsets, on_each_device, random

OPS = torch.ops.based
ROWS, KEY_HEADS, HEADS, KEYS, VALUES = 2, 1, 2, 64, 64


def rule(q, k, v, log_decay, beta, bonus, delta, scale, state):
    """One token: the outputs and the next state."""
    q, k, v, state = q.double(), k.double(), v.double(), state.double()
    q, k = (t.repeat_interleave(v.shape[1] // q.shape[1], 1) for t in (q, k))
    decayed = state
    if log_decay is not None:
        decay = log_decay.double().exp()
        decayed = state * (decay[..., None, None] if decay.dim() == 2 else decay[..., None])
    u = v - torch.einsum("rhkv,rhk->rhv", decayed, k) if delta else v
    u = u * beta.double()[..., None] if beta is not None else u
    after = decayed + k[..., None] * u[..., None, :]
    if bonus is None:
        return scale * torch.einsum("rhkv,rhk->rhv", after, q), after
    return scale * (torch.einsum("rhkv,rhk->rhv", state, q) + (q * bonus.double() * k).sum(-1, keepdim=True) * v), after


def inputs(tokens, dtype, device, *, form):
    def made(*sizes, seed, scale=1.0):
        return random(*sizes, dtype=dtype, device=device, seed=seed, scale=scale)

    channels = (KEYS,) if form in ("gla", "rwkv") else ()
    k = torch.nn.functional.normalize(made(tokens, KEY_HEADS, KEYS, seed=2).float(), dim=-1).to(dtype)
    return [made(tokens, KEY_HEADS, KEYS, seed=1, scale=0.3), k, made(tokens, HEADS, VALUES, seed=3),
            -made(tokens, HEADS, *channels, seed=4).abs().float(), made(tokens, HEADS, seed=5).sigmoid() if form == "delta" else None,
            made(HEADS, KEYS, seed=6).float() if form == "rwkv" else None, form == "delta", 0.5]


@on_each_device
@of_each_type
@pytest.mark.parametrize("form", ["mamba2", "gla", "delta", "rwkv"])
def test_step(device, dtype, form):
    given, state = inputs(ROWS, dtype, device, form=form), random(3, HEADS, KEYS, VALUES, device=device, seed=7)
    slots, before = torch.tensor([2, 0], device=device), state.clone()
    y = OPS.gated_delta_rule_step(*given, state, slots)
    expected, after = rule(*given, before[slots])
    assert_near(y, expected, dtype)
    assert_near(state[slots], after, dtype)
    assert torch.equal(state[1], before[1])


@on_each_device
@pytest.mark.parametrize("form", ["mamba2", "gla", "delta", "rwkv"])
def test_whole_rows_equal_steps(device, form):
    tokens = 70
    given = inputs(2 * tokens, torch.float32, device, form=form)
    y, last = OPS.gated_delta_rule(*given, offsets(tokens, tokens, device=device), None)
    state, slots = torch.zeros(2, HEADS, KEYS, VALUES, device=device), torch.tensor([0, 1], device=device)
    for t in range(tokens):
        at = torch.tensor([t, tokens + t], device=device)
        one = [x[at] if isinstance(x, torch.Tensor) and i != 5 else x for i, x in enumerate(given)]
        assert_near(y[at], OPS.gated_delta_rule_step(*one, state, slots))
    assert_near(last, state)
    prefilled = torch.zeros(2, HEADS, KEYS, VALUES, device=device)
    assert_near(OPS.gated_delta_rule_prefill(*given, offsets(tokens, tokens, device=device), prefilled, slots), y)
    assert_near(prefilled, last)


@on_each_device
@pytest.mark.parametrize("form", ["mamba2", "gla", "delta"])
def test_backward(device, form):
    tokens = 40
    given, initial = inputs(tokens, torch.bfloat16, device, form=form), random(1, HEADS, KEYS, VALUES, device=device, seed=8)
    grad_y, grad_state = random(tokens, HEADS, VALUES, dtype=torch.bfloat16, device=device, seed=9), torch.ones_like(initial)
    found = OPS.gated_delta_rule_backward(grad_y, grad_state, *given, offsets(tokens, device=device), initial)
    leaves = [t.double().requires_grad_() if isinstance(t, torch.Tensor) else t for t in (*given, initial)]
    *tensors, delta, scale, state = leaves
    ys = []
    for t in range(tokens):
        y, state = rule(*(x if x is None else x[t:t + 1] for x in tensors), delta, scale, state)
        ys.append(y)
    wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    expected = torch.autograd.grad((torch.cat(ys) * grad_y.double()).sum() + state.sum(), wanted)
    for one, other in zip([t for t in found if t is not None], expected, strict=True):
        assert_near(one, other, torch.bfloat16)


def test_errors_name_the_argument():
    given, state = inputs(2, torch.float32, "cpu", form="delta"), torch.zeros(2, HEADS, KEYS, VALUES)
    given[5] = torch.zeros(HEADS, KEYS)
    with pytest.raises(RuntimeError, match="gated_delta_rule_step: a bonus goes without beta and delta"):
        OPS.gated_delta_rule_step(*given, state, torch.tensor([0, 1]))
    given[5], given[4] = None, given[4].double()
    with pytest.raises(RuntimeError, match="beta must be Float or Float, got Double"):
        OPS.gated_delta_rule_step(*given, state, torch.tensor([0, 1]))
