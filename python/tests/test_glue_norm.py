"""The compiled operators of the norms against formulas in torch."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, on_each_device, random

OPS = torch.ops.based
WIDTH, EPS = 24, 1e-5


def rms_norm(x, weight):
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight


def layer_norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (WIDTH,), weight, bias, EPS)


def tensors(dtype, device):
    x, more, grad = (random(3, 5, WIDTH, dtype=dtype, device=device, seed=seed) for seed in range(3))
    weight, bias = (random(WIDTH, dtype=dtype, device=device, seed=seed) for seed in (3, 4))
    return x, more, grad, weight, bias


def gradients(function, inputs, cotangents):
    leaves = [t.double().requires_grad_() for t in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return outputs, torch.autograd.grad(outputs, leaves, [g.double() for g in cotangents])


@on_each_device
@of_each_type
def test_rms_norm(device, dtype):
    x, _, grad, weight, _ = tensors(dtype, device)
    (expected,), expected_grads = gradients(rms_norm, (x, weight), (grad,))
    y, inverse_rms = OPS.rms_norm_forward(x, weight, EPS)
    assert y.dtype == dtype and inverse_rms.dtype == torch.float32
    assert_near(y, expected, dtype)
    for one, other in zip(OPS.rms_norm_backward(grad, x, weight, inverse_rms), expected_grads):
        assert_near(one, other, dtype)
    gate = random(3, 5, WIDTH, dtype=dtype, device=device, seed=6)
    assert_near(OPS.rms_norm_gated(x, weight, EPS, gate), expected * torch.nn.functional.silu(gate.double()), dtype)


@on_each_device
@of_each_type
def test_rms_norm_of_sums(device, dtype):
    x, more, grad, weight, _ = tensors(dtype, device)
    residual = random(3, 5, WIDTH, device=device, seed=7)  # fp32, beside weights of any type

    def added(residual, weight):
        return residual + x.double(), rms_norm(residual + x.double(), weight)

    (expected_sum, expected), (grad_x, grad_weight) = gradients(added, (residual, weight), (more, grad))
    total, y, inverse_rms = OPS.rms_norm_add_forward(residual, x, weight, EPS)
    assert_near(total, expected_sum)
    assert_near(y, expected, dtype)
    found = OPS.rms_norm_add_backward(more, grad, total, weight, inverse_rms)
    assert_near(found[0], grad_x, dtype)
    assert_near(found[1], grad_weight, dtype)
    assert_near(OPS.rms_norm_of_sum(residual, x, weight, EPS), expected, dtype)
    stream = residual.clone()
    y = OPS.rms_norm_add_(stream, x, weight, EPS, more)
    assert_near(stream, expected_sum + more.double())
    assert_near(y, rms_norm(expected_sum + more.double(), weight.double()), dtype)
    assert OPS.rms_norm_add_forward(None, x, weight, EPS)[0].dtype == torch.float32


@on_each_device
@of_each_type
def test_layer_norm_of_sums(device, dtype):
    x, more, grad, weight, bias = tensors(dtype, device)
    residual = random(3, 5, WIDTH, device=device, seed=7)

    def added(residual, weight, bias):
        return residual + x.double(), layer_norm(residual + x.double(), weight, bias)

    (expected_sum, expected), expected_grads = gradients(added, (residual, weight, bias), (more, grad))
    total, y, mean, inverse_std = OPS.layer_norm_add_forward(residual, x, weight, bias, EPS)
    assert_near(total, expected_sum)
    assert_near(y, expected, dtype)
    for one, other in zip(OPS.layer_norm_backward(more, grad, total, weight, bias, mean, inverse_std), expected_grads):
        assert_near(one, other, dtype)
    assert_near(OPS.layer_norm_forward(total, weight, bias, EPS)[0], expected, dtype)
    stream = residual.clone()
    assert_near(OPS.layer_norm_add_(stream, x, weight, bias, EPS), expected, dtype)
    assert_near(stream, expected_sum)


@on_each_device
def test_layer_norm_twice(device):
    x, more, grad, weight, bias = tensors(torch.float32, device)
    residual, next_weight, next_bias = random(3, 5, WIDTH, device=device, seed=7), weight.flip(0), bias.flip(0)

    def twice(residual, weight, bias, next_weight, next_bias):
        first = residual + x.double()
        total = first + layer_norm(first, weight, bias)
        return total, layer_norm(total, next_weight, next_bias)

    (expected_sum, expected), expected_grads = gradients(twice, (residual, weight, bias, next_weight, next_bias), (more, grad))
    parameters = weight, bias, next_weight, next_bias
    first, total, y, mean, inverse_std = OPS.layer_norm_add_twice_forward(residual, x, *parameters, EPS, True)
    assert_near(total, expected_sum)
    assert_near(y, expected)
    for one, other in zip(OPS.layer_norm_add_twice_backward(more, grad, first, *parameters, mean, inverse_std), expected_grads):
        assert_near(one, other)
    assert OPS.layer_norm_add_twice_forward(residual, x, *parameters, EPS, False)[1].shape == (0,)


def test_errors_name_the_argument():
    x, more, _, weight, _ = tensors(torch.float32, "cpu")
    with pytest.raises(RuntimeError, match=r"rms_norm: weight must have shape \[24\], got \[23\]"):
        OPS.rms_norm_forward(x, weight[1:], EPS)
    with pytest.raises(RuntimeError, match="rms_norm_add_: residual must be contiguous"):
        OPS.rms_norm_add_(x.transpose(0, 1), more.transpose(0, 1), weight, EPS)
