"""Hyena (Poli et al. 2023): gates and long convolutions whose filters a network computes from positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ._blocks import Call, FixedTensor, Mixer, ShortFilter, output_std, projection
from ._long_filter import position_features, widened, widened_linear


class Hyena(Mixer):
    """(x_1, …, x_N, v) = short_conv(in_proj(x)); w = v ⊙ x_1; w = conv_i(w) ⊙ x_{i+1} for i < N; y = out_proj(w).

    State: "conv" [batch, (order + 1) · d_model, short_filter_order − 1], and for each of the order − 1 long convolutions "input1" …
    [batch, l_max, d_model], a ring of its latest inputs.

    Args:
        d_model: width of x.
        order: number of gates, at least 2, with a long convolution between each two.
        l_max: taps of the long filters.
        filter_order: width of the network that computes the filters.
        emb_dim: features of a tap's position, an odd number.
        num_inner_mlps: layers of the network between its first and its last.
        w: initial frequency of the network's sines.
        short_filter_order: tokens that the short convolution covers, the current one included.
        fast_decay, slow_decay: share of l_max after which the filter of the last and of the first channel is damped to 1 %.
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, order: int = 2, l_max: int = 1024, filter_order: int = 64, emb_dim: int = 3, num_inner_mlps: int = 2,
                 w: float = 1, short_filter_order: int = 3, fast_decay: float = 0.3, slow_decay: float = 1.5, *, layer: int = 0,
                 layers: int = 1) -> None:
        super().__init__(d_model)
        if order < 2 or emb_dim < 3 or emb_dim % 2 == 0:
            raise ValueError(f"Hyena: order must be at least 2 and emb_dim odd and at least 3, got {order} and {emb_dim}")
        self.order, self.l_max = order, l_max
        self.in_proj = projection(d_model, (order + 1) * d_model, True)
        self.conv = ShortFilter((order + 1) * d_model, short_filter_order, True)
        self.filter = _SineFilter((order - 1) * d_model, l_max, filter_order, emb_dim, num_inner_mlps, w, fast_decay, slow_decay)
        self.out_proj = projection(d_model, d_model, True, output_std(layers))

    def _run(self, x: Tensor, call: Call) -> Tensor:
        u = call.short_conv("conv", self.in_proj(x), self.conv.weight, self.conv.bias, None, False)
        *gates, v = u.split(self.d_model, 1)
        if call.state is None:
            filters, w = self.filter(min(max(call.length, 1), self.l_max)), gates[0]
            for i in range(1, self.order):
                w = ops.gated_long_conv(w, filters[(i - 1) * self.d_model : i * self.d_model], gates[i], v if i == 1 else None, call.length)
            return self.out_proj(w)
        filters, w = self.filter(self.l_max), v * gates[0]
        for i in range(1, self.order):
            w = call.long_conv(f"input{i}", w, filters[(i - 1) * self.d_model : i * self.d_model]) * gates[i]
        return self.out_proj(w)

    def _state_shapes(self):
        return {"conv": self.conv.state_shape}, {f"input{i}": (self.l_max, self.d_model) for i in range(1, self.order)}


class _SineFilter(nn.Module):
    """Tap t is out(sin(f ⊙ inner(… sin(f ⊙ first(z_t))))) ⊙ exp(−|δ| t/(taps−1)); `bias` is added to tap 0, and all sines share f."""

    def __init__(self, channels: int, taps: int, width: int, emb_dim: int, inner: int, w: float, fast: float, slow: float) -> None:
        super().__init__()
        self.z = nn.Parameter(position_features(taps, emb_dim).to(torch.float32))
        self.frequency = nn.Parameter(torch.full((width,), float(w)))
        self.first = projection(emb_dim, width, True)
        self.inner = inner
        for i in range(inner):
            self.add_module(f"inner{i}", projection(width, width, True))
        self.out = projection(width, channels, False)
        self.bias = nn.Parameter(torch.randn(channels))
        self.positions = FixedTensor(torch.linspace(0, 1, taps, dtype=torch.float64))
        self.decay = FixedTensor(torch.linspace(math.log(0.01) / slow, math.log(0.01) / fast, channels, dtype=torch.float64))

    def forward(self, count: int) -> Tensor:
        """The first `count` taps, [channels, count], the current token's first, in fp32 (fp64 for fp64 models)."""
        h, f = widened(self.z)[:count], widened(self.frequency)
        for layer in (self.first, *(getattr(self, f"inner{i}") for i in range(self.inner))):
            h = torch.sin(f * widened_linear(layer, h))
        damping = torch.exp(torch.outer(self.positions.value[:count], self.decay.value))
        taps = widened_linear(self.out, h) * damping.to(h.dtype)
        return (taps + F.pad(widened(self.bias).unsqueeze(0), (0, 0, 0, count - 1))).t().contiguous()
