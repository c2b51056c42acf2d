"""The compiled operators of linear layers and of elementwise functions against torch."""

import pytest
import torch
import torch.nn.functional as F

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, on_each_device, random

OPS = torch.ops.based


@on_each_device
@of_each_type
@pytest.mark.parametrize("rows", [1, 7, 150])
def test_linear(device, dtype, rows):
    x = random(rows, 2 * 32, dtype=dtype, device=device, seed=1)[:, :32]  # rows with a stride
    weight, bias = random(48, 32, dtype=dtype, device=device, seed=2), random(48, dtype=dtype, device=device, seed=3)
    expected = F.linear(x.double(), weight.double(), bias.double())
    assert_near(OPS.linear(x, weight, bias), expected, dtype)
    y, gate = expected.chunk(2, -1)
    assert_near(OPS.linear_swiglu(x, weight, bias), y * F.silu(gate), dtype)


def test_a_row_does_not_depend_on_the_others():
    x, weight = random(9, 40), random(30, 40)
    together = OPS.linear(x, weight)
    for row in range(9):
        assert torch.equal(OPS.linear(x[row:row + 1], weight)[0], together[row])


@on_each_device
@of_each_type
def test_swiglu(device, dtype):
    h, grad = random(5, 2 * 11, dtype=dtype, device=device), random(5, 11, dtype=dtype, device=device, seed=1)
    leaf = h.double().requires_grad_()
    expected = leaf[:, :11] * F.silu(leaf[:, 11:])
    assert_near(OPS.swiglu(h), expected, dtype)
    assert_near(OPS.swiglu_backward(grad, h), torch.autograd.grad(expected, leaf, grad.double())[0], dtype)


@on_each_device
@of_each_type
def test_rowwise_activation(device, dtype):
    x, bias = random(5, 2 * 11, dtype=dtype, device=device)[:, :11], random(11, dtype=dtype, device=device, seed=1)
    log_rate = random(11, device=device, seed=2)  # fp32 beside bf16
    functions = [F.silu, torch.sigmoid, F.softplus, torch.exp, F.logsigmoid, lambda t: F.elu(t) + 1]
    for index, function in enumerate(functions):
        y = OPS.rowwise_activation(x, index, 1.5, bias, log_rate, True)
        assert y.dtype == torch.float32
        assert_near(y, function(x.double() + bias.double()) * 1.5 * log_rate.double().exp(), dtype)
        assert_near(OPS.rowwise_activation(x, index, 1.0, None, None, False), function(x.double()), dtype)


def test_errors_name_the_argument():
    with pytest.raises(RuntimeError, match=r"linear: weight must have shape \[any, 4\], got \[2, 3\]"):
        OPS.linear(torch.zeros(1, 4), torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="swiglu: h must have an even number of columns, got 3"):
        OPS.swiglu(torch.zeros(1, 3))
    with pytest.raises(RuntimeError, match=r"rowwise_activation: function must be 0..5, got 6"):
        OPS.rowwise_activation(torch.zeros(1, 3), 6, 1.0, None, None, False)
