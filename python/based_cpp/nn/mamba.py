"""Mamba (Gu and Dao 2023): a gated selective state space model after a short convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import ops
from ._blocks import Call, Mixer, ShortFilter, time_step_bias, uniform_projection


class Mamba(Mixer):
    """y = out_proj(scan(SiLU(conv(u))) ⊙ SiLU(z)) with [u, z] = in_proj(x); the scan's dt, B and C are projections of its input.

    State: "ssm" [batch, expand · d_model, d_state] and "conv" [batch, expand · d_model, d_conv − 1].

    Args:
        d_model: width of x.
        d_state: size of a channel's state, 1 to 256.
        d_conv: tokens that the convolution covers, the current one included.
        expand: channels, in multiples of d_model.
        dt_rank: rank of the projection to the time steps; 0 means d_model / 16, rounded up.
        dt_min, dt_max, dt_init_floor: range of the initial time steps, log-uniform, and their floor.
        conv_bias, bias: biases of the convolution, and of the input and output projections.
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: int = 2, dt_rank: int = 0, dt_min: float = 0.001,
                 dt_max: float = 0.1, dt_init_floor: float = 1e-4, conv_bias: bool = True, bias: bool = False, *, layer: int = 0,
                 layers: int = 1) -> None:
        super().__init__(d_model)
        self.width, self.d_state, self.rank = expand * d_model, d_state, dt_rank or -(-d_model // 16)
        self.in_proj = uniform_projection(d_model, 2 * self.width, bias)
        self.conv = ShortFilter(self.width, d_conv, conv_bias)
        self.x_proj = uniform_projection(self.width, self.rank + 2 * d_state, False)
        self.dt_proj = uniform_projection(self.rank, self.width, False)
        self.out_proj = uniform_projection(self.width, d_model, bias, layers)
        self.dt_bias = time_step_bias(self.width, dt_min, dt_max, dt_init_floor)
        self.A_log = nn.Parameter(torch.arange(1, d_state + 1, dtype=torch.float32).log().repeat(self.width, 1))
        self.D = nn.Parameter(torch.ones(self.width))

    def _run(self, x: Tensor, call: Call) -> Tensor:
        u, z = self.in_proj(x).chunk(2, 1)
        inputs = call.short_conv("conv", u, self.conv.weight, self.conv.bias, None, True)
        dt, B, C = self.x_proj(inputs).split((self.rank, self.d_state, self.d_state), 1)
        dt, B, C = self.dt_proj(dt), B.unsqueeze(1), C.unsqueeze(1)
        if call.step:
            state = call.state["ssm"]
            return self.out_proj(call.each_token(
                lambda u, dt, B, C, z: ops.selective_scan_step(u, dt, self.A_log, B, C, self.D, z, self.dt_bias, True, state, call.slots),
                inputs, dt, B, C, z))
        initial = None if call.state is None else call.state["ssm"]
        y, state = ops.selective_scan(inputs, dt, self.A_log, B, C, self.D, z, self.dt_bias, True, call.cu_seqlens, initial)
        call.keep("ssm", state)
        return self.out_proj(y)

    def _state_shapes(self):
        return {"ssm": (self.width, self.d_state), "conv": self.conv.state_shape}, {}
