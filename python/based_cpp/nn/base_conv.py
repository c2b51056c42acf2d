"""BaseConv as the recall experiments use it: a gated convolution with a short filter, or with one as long as the sequence."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ._blocks import Call, FixedTensor, Mixer, ShortFilter, projection, uniform
from ._long_filter import position_features, widened, widened_linear


class BaseConv(Mixer):
    """y = u + conv(u) ⊙ (W u + b); with a long filter h, conv(u) = u + h ∗ u.

    State: "conv" [batch, d_model, kernel_size − 1], or with a long filter "input" [batch, l_max, d_model], a ring of the latest inputs.

    Args:
        d_model: width of x.
        kernel_size: tokens that the convolution covers, the current one included; −1 means l_max of them.
        l_max: taps of the long filter.
        implicit: a small network computes the long filter from its taps' positions; otherwise the filter is a parameter.
        d_emb: position features of an implicit filter, an odd number.
        d_hidden: hidden width of an implicit filter's network.
        use_act: SiLU on both factors.
    """

    def __init__(self, d_model: int, kernel_size: int = 3, l_max: int = 1024, implicit: bool = False, d_emb: int = 3, d_hidden: int = 16,
                 use_act: bool = False, *, layer: int = 0, layers: int = 1) -> None:
        super().__init__(d_model)
        self.use_act, self.l_max = use_act, l_max
        self.projection = projection(d_model, d_model, True)
        self.conv = None if kernel_size == -1 else ShortFilter(d_model, kernel_size, True)
        self.filter: nn.Module | None = None
        if kernel_size == -1:
            self.filter = _NetworkFilter(d_model, l_max, d_emb, d_hidden) if implicit else _LearnedFilter(d_model, l_max)

    def _run(self, x: Tensor, call: Call) -> Tensor:
        gate = self._act(self.projection(x))
        if self.conv is None:
            return x + self._act(x + call.long_conv("input", x, self.filter())) * gate
        weight, bias = self.conv.weight, self.conv.bias
        if call.state is None:
            return ops.short_conv(x, weight, bias, gate, self.use_act, call.cu_seqlens, None, True)[0]
        return x + call.short_conv("conv", x, weight, bias, gate, self.use_act)

    def _act(self, x: Tensor) -> Tensor:
        return F.silu(x) if self.use_act else x

    def _state_shapes(self):
        return ({"conv": self.conv.state_shape}, {}) if self.conv is not None else ({}, {"input": (self.l_max, self.d_model)})


class _LearnedFilter(nn.Module):
    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.taps = uniform(channels, taps, bound=1 / math.sqrt(taps))

    def forward(self) -> Tensor:
        """[channels, taps], the current token's tap first."""
        return widened(self.taps)


class _NetworkFilter(nn.Module):
    """Linear(ReLU(Linear(z_t))) of a tap's position features z_t."""

    def __init__(self, channels: int, taps: int, d_emb: int, d_hidden: int) -> None:
        super().__init__()
        if d_emb < 3 or d_emb % 2 == 0:
            raise ValueError(f"BaseConv: d_emb must be odd and at least 3, got {d_emb}")
        self.hidden = projection(d_emb, d_hidden, True)
        self.out = projection(d_hidden, channels, True)
        self.positions = FixedTensor(position_features(taps, d_emb))

    def forward(self) -> Tensor:
        """[channels, taps], the current token's tap first."""
        z = self.positions.value.to(widened(self.hidden.weight).dtype)
        return widened_linear(self.out, torch.relu(widened_linear(self.hidden, z))).t()
