"""BaseConv as in the paper's language models (appendix "Convolution")."""

from __future__ import annotations

from torch import Tensor

from .. import ops
from ._blocks import Call, Mixer, ShortFilter, divided, output_std, projection


class GatedConv(Mixer):
    """y = out_proj(SiLU(conv(u1)) ⊙ u2) with [u1, u2] = in_proj(x).

    State: "conv" [batch, expansion · d_model / 2, taps − 1], the latest inputs of the convolution.

    Args:
        d_model: width of x.
        expansion: width of both branches together, in multiples of d_model.
        taps: tokens that the convolution covers, the current one included.
        use_bias: biases in the projections.
        conv_bias: bias of the convolution.
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, expansion: int = 4, taps: int = 3, use_bias: bool = True, conv_bias: bool = True, *, layer: int = 0,
                 layers: int = 1) -> None:
        super().__init__(d_model)
        width = divided("GatedConv", "expansion · d_model", expansion * d_model, "the number of branches", 2)
        self.in_proj = projection(d_model, 2 * width, use_bias)
        self.conv = ShortFilter(width, taps, conv_bias)
        self.out_proj = projection(width, d_model, use_bias, output_std(layers))

    def _run(self, x: Tensor, call: Call) -> Tensor:
        conv = self.conv
        if call.step:
            u, gate = self.in_proj(x).chunk(2, 1)
            return self.out_proj(call.short_conv("conv", u, conv.weight, conv.bias, gate, True))
        initial = None if call.state is None else call.state["conv"]
        y, state = ops.projected_conv(x, self.in_proj.weight, self.in_proj.bias, conv.weight, conv.bias, call.cu_seqlens, initial)
        call.keep("conv", state)
        return self.out_proj(y)

    def _state_shapes(self):
        return {"conv": self.conv.state_shape}, {}
