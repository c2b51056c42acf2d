"""RWKV-5's time mix (Peng et al. 2024, Eagle): linear attention with a decay rate and a bonus per channel of the keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..ops._registration import sum_type
from ._blocks import INITIAL_STD, Call, Mixer, Scale, divided, output_std, projection, token_shift

_SHARES = ("k", "v", "r", "g")


class RWKV5(Mixer):
    """y_t = S_{t−1}ᵀr_t + (r_t · u⊙k_t) v_t, S_t = diag(exp(−exp(time_decay))) S_{t−1} + k_t v_tᵀ.

    State: "kv" [batch, heads, head_size, head_size] and "shift" [batch, d_model, 1], the previous token.

    Args:
        d_model: width of x.
        head_size: size of a head's keys and values.
        head_size_divisor: divisor of a head's output before its norm.
        rescale_output: initial output projection N(0, 0.02/√(2·layers)) instead of N(0, 0.02).
        layer, layers: index of the layer in the model, and number of layers; the initial parameters depend on both.
    """

    def __init__(self, d_model: int, head_size: int = 64, head_size_divisor: float = 8, rescale_output: bool = True, *, layer: int = 0,
                 layers: int = 1) -> None:
        super().__init__(d_model)
        self.heads = divided("RWKV5", "d_model", d_model, "head_size", head_size)
        self.norm_eps = 1e-5 * head_size_divisor**2  # replaces the division before the norm
        depth, shallow = layer / max(1, layers - 1), 1 - layer / layers
        channel = torch.arange(d_model, dtype=torch.float32)
        self.shift = nn.Module()
        for name, power, offset in (("k", shallow, 0), ("v", shallow, 0.3 * depth), ("r", shallow / 2, 0), ("g", shallow / 2, 0)):
            self.shift.register_parameter(f"time_mix_{name}", nn.Parameter((channel / d_model) ** power + offset))
        self.k_proj = projection(d_model, d_model, False)
        self.v_proj = projection(d_model, d_model, False)
        self.r_proj = projection(d_model, d_model, False)
        self.g_proj = projection(d_model, d_model, False)
        self.o_proj = projection(d_model, d_model, False, output_std(layers) if rescale_output else INITIAL_STD)
        along, zigzag = channel / max(1, d_model - 1), ((channel + 1).remainder(3) - 1) * 0.1
        self.time_decay = nn.Parameter((-6 + 5 * along ** (0.7 + 1.3 * depth)).view(self.heads, -1))
        self.bonus = nn.Parameter((depth * (1 - along) + zigzag).view(self.heads, -1))
        self.norm = Scale(d_model, bias=True)

    def _run(self, x: Tensor, call: Call) -> Tensor:
        before = token_shift(call, x)
        k, v, r, g = (before + (x - before) * getattr(self.shift, f"time_mix_{name}") for name in _SHARES)
        k, v, r = (layer(y).unflatten(1, (self.heads, -1)) for layer, y in ((self.k_proj, k), (self.v_proj, v), (self.r_proj, r)))
        log_decay = (-self.time_decay.to(sum_type(x)).exp()).expand(k.shape)
        y = call.gated_delta_rule("kv", r, k, v, log_decay, bonus=self.bonus)
        return self.o_proj(self._normed(y).flatten(1) * F.silu(self.g_proj(g)))

    def _normed(self, y: Tensor) -> Tensor:
        """GroupNorm with one group per head: mean 0 and deviation 1 of each head's values, then each channel's weight and bias."""
        one = torch.ones(y.shape[2], dtype=y.dtype, device=y.device)
        unit = ops.layer_norm(y, one, torch.zeros_like(one), self.norm_eps)
        return unit * self.norm.weight.view(self.heads, -1) + self.norm.bias.view(self.heads, -1)

    def _state_shapes(self):
        size = self.d_model // self.heads
        return {"kv": (self.heads, size, size), "shift": (self.d_model, 1)}, {}
