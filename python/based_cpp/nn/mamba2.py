"""Mamba-2 (Dao and Gu 2024): a state space model with one decay rate per head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..ops.pointwise import gate
from ._blocks import Call, Mixer, Scale, ShortFilter, divided, rate_log, time_step_bias, uniform_projection


class Mamba2(Mixer):
    """S_t = exp(−dt_t exp(A_log)) S_{t−1} + dt_t B_t x_tᵀ, y_t = S_tᵀC_t + D x_t; the output is multiplied by a gate, then normalised.

    State: "ssm" [batch, heads, d_state, headdim] and "conv" [batch, channels, d_conv − 1].

    Args:
        d_model: width of x.
        headdim: size of a head's values.
        d_state: size of a head's state for each of its values.
        d_conv: tokens that the convolution covers, the current one included.
        expand: width of the heads together, in multiples of d_model.
        ngroups: groups of heads; the heads of a group share B, C and the norm.
        bias, conv_bias: biases of the projections and of the convolution.
        norm_before_gate: the norm comes before the gate instead of after it.
        norm_eps: added to the mean square in the norm.
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, headdim: int = 64, d_state: int = 128, d_conv: int = 4, expand: int = 2, ngroups: int = 1,
                 bias: bool = False, conv_bias: bool = True, norm_before_gate: bool = False, norm_eps: float = 1e-5, *, layer: int = 0,
                 layers: int = 1) -> None:
        super().__init__(d_model)
        self.width, self.headdim, self.d_state, self.ngroups = expand * d_model, headdim, d_state, ngroups
        self.heads = divided("Mamba2", "expand · d_model", self.width, "headdim", headdim)
        divided("Mamba2", "heads", self.heads, "ngroups", ngroups)
        self.norm_before_gate, self.norm_eps = norm_before_gate, norm_eps
        convolved = self.width + 2 * ngroups * d_state
        self.in_proj = uniform_projection(d_model, self.width + convolved + self.heads, bias)
        self.conv = ShortFilter(convolved, d_conv, conv_bias)
        self.out_proj = uniform_projection(self.width, d_model, bias, layers)
        self.dt_bias = time_step_bias(self.heads)
        self.A_log = rate_log(self.heads, 1, 16)
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = Scale(self.width)

    def _run(self, x: Tensor, call: Call) -> Tensor:
        group_width = self.ngroups * self.d_state
        z, xBC, dt = self.in_proj(x).split((self.width, self.width + 2 * group_width, self.heads), 1)
        xBC = call.short_conv("conv", xBC, self.conv.weight, self.conv.bias, None, True)
        v, B, C = xBC.split((self.width, group_width, group_width), 1)
        v, B, C = v.unflatten(1, (self.heads, -1)), B.unflatten(1, (self.ngroups, -1)), C.unflatten(1, (self.ngroups, -1))
        beta, log_decay = gate(dt, "softplus", 1, self.dt_bias), gate(dt, "softplus", -1, self.dt_bias, self.A_log)
        y = (call.gated_delta_rule("ssm", C, B, v, log_decay, beta) + v * self.D.unsqueeze(-1)).flatten(1)
        z = F.silu(z)
        return self.out_proj(self._normed(y) * z if self.norm_before_gate else self._normed(y * z))

    def _normed(self, y: Tensor) -> Tensor:
        """RMSNorm of each group's columns."""
        groups = y.unflatten(1, (self.ngroups, -1))
        one = torch.ones(groups.shape[-1], dtype=y.dtype, device=y.device)
        return ops.rms_norm(groups, one, self.norm_eps).flatten(1) * self.norm.weight

    def _state_shapes(self):
        return {"ssm": (self.heads, self.d_state, self.headdim), "conv": self.conv.state_shape}, {}
