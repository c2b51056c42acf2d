"""Filters as long as the sequence, which a small network computes from the positions of their taps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops._registration import sum_type


def position_features(taps: int, size: int) -> Tensor:
    """z_t = (t/(taps−1), cos(f_i w_t) …, −sin(f_i w_t) …) with w_t = 2π t/taps, [taps, size] in fp64; size is odd and at least 3.

    The (size − 1)/2 frequencies f_i are spaced evenly from 1e-4 to (size − 1)/2 − 1.
    """
    bands = (size - 1) // 2
    real = {"dtype": torch.float64, "device": "cpu"}  # whatever the default device is: constants have values on "meta" too
    t = torch.arange(taps, **real).unsqueeze(1)
    angle = t * (2 * math.pi / taps) * torch.linspace(1e-4, bands - 1, bands, **real)
    return torch.cat((t / max(1, taps - 1), angle.cos(), -angle.sin()), 1)


def widened(x: Tensor) -> Tensor:
    """x in fp32 (fp64 for fp64 models): bf16 cannot tell positions past 256 apart."""
    return x.to(sum_type(x))


def widened_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, widened(layer.weight), None if layer.bias is None else widened(layer.bias))
