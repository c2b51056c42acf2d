"""The compiled operators of the gated short convolution against a loop over taps."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, offsets, on_each_device, random

OPS = torch.ops.based
CHANNELS, TAPS = 12, 4


def layer(tokens, dtype, device):
    sizes = ((tokens, CHANNELS), (CHANNELS, TAPS), (CHANNELS,), (tokens, CHANNELS))
    return [random(*size, dtype=dtype, device=device, seed=seed) for seed, size in enumerate(sizes)]


def convolved(x, weight, bias, gate, starts, initial):
    """y and the last inputs of each row."""
    ys, states = [], []
    for row, (begin, end) in enumerate(zip(starts[:-1], starts[1:])):
        padded = torch.cat([initial[row].double().T, x[begin:end].double()])
        y = sum(padded[tap:tap + end - begin] * weight.double()[:, tap] for tap in range(TAPS)) + bias.double()
        ys.append(torch.nn.functional.silu(y) * gate[begin:end].double())
        states.append(padded[end - begin:].T)
    return torch.cat(ys), torch.stack(states)


@on_each_device
@of_each_type
def test_rows_from_a_state(device, dtype):
    x, weight, bias, gate = layer(9, dtype, device)
    initial = random(3, CHANNELS, TAPS - 1, device=device, seed=7)
    y, state = OPS.short_conv(x, weight, bias, gate, True, offsets(7, 0, 2, device=device), initial)
    expected, last = convolved(x, weight, bias, gate, [0, 7, 7, 9], initial)
    assert_near(y, expected, dtype)
    assert_near(state, last, dtype)


@on_each_device
def test_input_is_added(device):
    x, weight, bias, gate = layer(5, torch.float32, device)
    starts = offsets(5, device=device)
    y = OPS.short_conv(x, weight, bias, gate, True, starts)[0]
    assert_near(OPS.short_conv(x, weight, bias, gate, True, starts, None, True)[0], y.double() + x.double())


@on_each_device
@of_each_type
def test_prefill_then_steps(device, dtype):
    x, weight, bias, gate = layer(8, dtype, device)
    state = torch.zeros(3, CHANNELS, TAPS - 1, device=device)
    slots = torch.tensor([2], device=device)
    ys = [OPS.short_conv_prefill(x[:5], weight, bias, gate[:5], True, offsets(5, device=device), state, slots)]
    ys += [OPS.short_conv_step(x[i:i + 1], weight, bias, gate[i:i + 1], True, state, slots) for i in range(5, 8)]
    expected, last = convolved(x, weight, bias, gate, [0, 8], torch.zeros(1, CHANNELS, TAPS - 1, device=device))
    assert_near(torch.cat(ys), expected, dtype)
    assert_near(state[2:], last, dtype)
    assert not state[:2].any()


@on_each_device
@pytest.mark.parametrize("adds_input", [False, True])
def test_gradients_of_column_slices(device, adds_input):
    _, weight, bias, _ = layer(6, torch.float32, device)
    x, gate = random(6, 2 * CHANNELS, device=device, seed=3).split(CHANNELS, 1)
    initial = random(1, CHANNELS, TAPS - 1, device=device, seed=4)
    cotangents = random(6, CHANNELS, device=device, seed=5), random(1, CHANNELS, TAPS - 1, device=device, seed=6)
    found = OPS.short_conv_backward(*cotangents, x, weight, bias, gate, True, offsets(6, device=device), initial, adds_input)
    leaves = [t.double().requires_grad_() for t in (x, weight, bias, gate, initial)]
    y, state = convolved(leaves[0], leaves[1], leaves[2], leaves[3], [0, 6], leaves[4])
    y = y + leaves[0] if adds_input else y
    torch.autograd.backward([y, state], [t.double() for t in cotangents])
    for gradient, leaf in zip(found, leaves):
        assert_near(gradient, leaf.grad)


def test_absent_bias_and_gate():
    x, weight, _, _ = layer(4, torch.float32, "cpu")
    ones, zeros = torch.ones(4, CHANNELS), torch.zeros(CHANNELS)
    y = OPS.short_conv(x, weight, None, None, True, offsets(4))[0]
    assert_near(y, OPS.short_conv(x, weight, zeros, ones, True, offsets(4))[0])
    found = OPS.short_conv_backward(ones, None, x, weight, None, None, True, offsets(4))
    assert found[2] is None and found[3] is None and found[4] is None


def test_errors():
    x, weight, bias, gate = layer(4, torch.float32, "cpu")
    with pytest.raises(RuntimeError, match="short_conv: taps must be 1..128, got 129"):
        OPS.short_conv(x, torch.zeros(CHANNELS, 129), bias, gate, True, offsets(4))
    with pytest.raises(RuntimeError, match=r"short_conv_step: state must have shape \[any, 12, 3\], got \[1, 12, 4\]"):
        OPS.short_conv_step(x[:1], weight, bias, gate[:1], True, torch.zeros(1, CHANNELS, 4), torch.tensor([0]))
