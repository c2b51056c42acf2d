"""The compiled operators of the selective scan against a loop in torch."""

import pytest
import torch
import torch.nn.functional as F

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, offsets, on_each_device, random

OPS = torch.ops.based
CHANNELS, GROUPS, STATES = 8, 2, 5


def inputs(tokens, dtype, device):
    def made(*sizes, seed):
        return random(*sizes, dtype=dtype, device=device, seed=seed)

    return dict(x=made(tokens, CHANNELS, seed=1), dt=made(tokens, CHANNELS, seed=2), A_log=made(CHANNELS, STATES, seed=3) * 0.5,
                B=made(tokens, GROUPS, STATES, seed=4), C=made(tokens, GROUPS, STATES, seed=5), D=made(CHANNELS, seed=6),
                z=made(tokens, CHANNELS, seed=7), dt_bias=made(CHANNELS, seed=8), softplus=True)


def scan(x, dt, A_log, B, C, D, z, dt_bias, softplus, starts, initial):
    x, dt, A_log, B, C, D, z, dt_bias = (t.double() for t in (x, dt, A_log, B, C, D, z, dt_bias))
    step, A = F.softplus(dt + dt_bias), -A_log.exp()
    B, C = (t.repeat_interleave(CHANNELS // GROUPS, 1) for t in (B, C))
    ys, states = [], []
    for row, (begin, end) in enumerate(zip(starts[:-1], starts[1:])):
        h = initial[row].double()
        for t in range(begin, end):
            h = (step[t, :, None] * A).exp() * h + (step[t] * x[t])[:, None] * B[t]
            ys.append(((h * C[t]).sum(-1) + D * x[t]) * F.silu(z[t]))
        states.append(h)
    return torch.stack(ys), torch.stack(states)


@on_each_device
@of_each_type
def test_whole_rows(device, dtype):
    cu = offsets(37, 0, 5, device=device)
    given, initial = inputs(42, dtype, device), random(3, CHANNELS, STATES, device=device, seed=9)
    y, state, chunk_states = OPS.selective_scan_forward(*given.values(), cu, initial)
    expected, expected_state = scan(*given.values(), cu.tolist(), initial)
    assert_near(y, expected, dtype)
    assert_near(state, expected_state, dtype)
    for found, same in zip(OPS.selective_scan(*given.values(), cu, initial), (y, state)):
        assert torch.equal(found, same)


@on_each_device
def test_backward(device):
    cu = offsets(37, 5, device=device)
    given, initial = inputs(42, torch.float32, device), random(2, CHANNELS, STATES, device=device, seed=9)
    leaves = {name: t.clone().double().requires_grad_() for name, t in given.items() if name != "softplus"} | {"softplus": True}
    first = initial.double().requires_grad_()
    y, state = scan(*leaves.values(), cu.tolist(), first)
    grad_y, grad_state = random(42, CHANNELS, device=device, seed=10), random(2, CHANNELS, STATES, device=device, seed=11)
    wanted = [leaves[name] for name in ("x", "dt", "A_log", "B", "C", "D", "z", "dt_bias")] + [first]
    expected = torch.autograd.grad((y * grad_y).sum() + (state * grad_state).sum(), wanted)
    chunk_states = OPS.selective_scan_forward(*given.values(), cu, initial)[2]
    found = OPS.selective_scan_backward(grad_y, grad_state, *given.values(), cu, initial, chunk_states)
    for one, other in zip(found, expected):
        assert_near(one, other)
    absent = given | {"D": None, "z": None, "dt_bias": None}
    chunk_states = OPS.selective_scan_forward(*absent.values(), cu, None)[2]
    found = OPS.selective_scan_backward(grad_y, None, *absent.values(), cu, None, chunk_states)
    assert [t is None for t in found] == [False] * 5 + [True] * 4


@on_each_device
@of_each_type
def test_steps_continue_a_prefill(device, dtype):
    given, state = inputs(14, dtype, device), torch.zeros(4, CHANNELS, STATES, device=device)
    slots = torch.tensor([2, 0], device=device)

    def part(chosen):
        return [t[chosen] if name in ("x", "dt", "z", "B", "C") else t for name, t in given.items()]

    first = [*range(0, 6), *range(7, 13)]
    OPS.selective_scan_prefill(*part(first), offsets(6, 6, device=device), state, slots)
    y = OPS.selective_scan_step(*part([6, 13]), state, slots)
    zero = torch.zeros(2, CHANNELS, STATES, device=device)
    expected, expected_state = scan(*given.values(), [0, 7, 14], zero)
    assert_near(y, expected[[6, 13]], dtype)
    assert_near(state[slots], expected_state, dtype)
    assert not state[[1, 3]].any()


def test_errors_name_the_argument():
    given, state = inputs(2, torch.float32, "cpu"), torch.zeros(2, CHANNELS, STATES)
    with pytest.raises(RuntimeError, match=r"selective_scan_step: slots must differ, got 1 twice"):
        OPS.selective_scan_step(*given.values(), state, torch.tensor([1, 1]))
    with pytest.raises(RuntimeError, match=r"selective_scan: dt must have shape \[2, 8\], got \[1, 8\]"):
        OPS.selective_scan(*(given | {"dt": given["dt"][:1]}).values(), offsets(2), None)
    with pytest.raises(RuntimeError, match=r"selective_scan: cu_seqlens must end at the number of tokens, 2, got 1"):
        OPS.selective_scan(*given.values(), offsets(1), None)
