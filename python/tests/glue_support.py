"""Devices, tolerances and random tensors of the tests of compiled operators."""

import pytest
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TYPES = [torch.float32, torch.bfloat16]
on_each_device = pytest.mark.parametrize("device", DEVICES)
of_each_type = pytest.mark.parametrize("dtype", TYPES, ids=["fp32", "bf16"])


def random(*sizes, dtype=torch.float32, device="cpu", seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return (torch.randn(*sizes, generator=generator) * scale).to(device=device, dtype=dtype)


def assert_near(found, expected, dtype=torch.float32):
    """Within the rounding of `dtype`, relative to the largest expected number."""
    assert found.shape == expected.shape
    size = max(expected.abs().max().item(), 1e-3) if expected.numel() else 1
    error = (found.double() - expected.double()).abs().max().item() if expected.numel() else 0
    assert error <= size * (2e-4 if dtype == torch.float32 else 2e-2)


def offsets(*lengths, device="cpu"):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=device)
