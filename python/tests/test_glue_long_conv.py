"""The compiled operators of long convolutions against sums in torch. The CPU runs the references."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import DEVICES, assert_near, on_each_device, random

OPS = torch.ops.based


def gated_conv(k, filters, q, v, length):
    heads, head_dim = filters.shape[0], k.shape[1] // filters.shape[0]
    k, q, v = (t.double().view(-1, length, heads, head_dim) for t in (k, q, v))
    taps = torch.nn.functional.pad(filters.double(), (0, max(0, length - filters.shape[1])))[:, :length]
    shift = torch.arange(length, device=k.device)[:, None] - torch.arange(length, device=k.device)
    toeplitz = taps[:, shift.clamp(min=0)] * (shift >= 0)
    z = torch.einsum("hts,rshi,rshj->rthij", toeplitz, k, v)
    return torch.einsum("rthi,rthij->rthj", q, z).reshape(-1, heads * head_dim)


@on_each_device
@pytest.mark.parametrize("head_dim", [1, 2])
def test_gated_long_conv_and_its_gradient(device, head_dim):
    length, channels = 24, 16
    k, q, v, grad_y = (random(2 * length, channels, device=device, seed=seed) for seed in range(4))
    filters = random(channels // head_dim, 20, device=device, seed=5)
    leaves = [t.double().requires_grad_() for t in (k, filters, q, v)]
    expected = gated_conv(*leaves, length)
    assert_near(OPS.gated_long_conv(k, filters, q, v, length), expected)
    found = OPS.gated_long_conv_backward(grad_y, k, filters, q, v, length)
    for one, other in zip(found, torch.autograd.grad(expected, leaves, grad_y.double())):
        assert_near(one, other)


@on_each_device
def test_diagonal_filter_and_its_gradient(device):
    groups, poles, taps = 3, 4, 19
    given = [random(*sizes, device=device, seed=seed, scale=0.5)
             for seed, sizes in enumerate([(groups,), (groups, poles), (groups, poles), (groups, poles, 2), (groups, poles, 2), (groups,)])]
    leaves = [t.double().requires_grad_() for t in given]
    log_dt, log_decay, frequency, B, C, D = leaves
    dt = log_dt.exp()[:, None]
    half = torch.complex(-log_decay.exp(), frequency) * dt / 2
    a, b = (1 + half) / (1 - half), torch.view_as_complex(B) * dt / (1 - half)
    times = torch.arange(taps, device=device)
    expected = (2 * torch.view_as_complex(C) * b)[..., None] * a[..., None] ** times
    expected = expected.real.sum(1) + D[:, None] * (times == 0)
    assert_near(OPS.diagonal_filter(*given, taps), expected)
    grad = random(groups, taps, device=device, seed=9)
    for one, other in zip(OPS.diagonal_filter_backward(grad, *given, taps), torch.autograd.grad(expected, leaves, grad.double())):
        assert_near(one, other)


@pytest.mark.skipif("cuda" not in DEVICES, reason="the checks are those of the kernels, which need a GPU")
def test_errors_name_the_argument():
    k, filters = random(6, 4, device="cuda"), random(2, 3, device="cuda")
    with pytest.raises(RuntimeError, match="gated_long_conv: q may be absent only where each channel has a filter, got 2 of 4"):
        OPS.gated_long_conv(k, filters, None, k, 6)
