"""Gated DeltaNet (Yang et al. 2024): the delta rule on a state that decays, as in Mamba-2."""

from __future__ import annotations

from torch import Tensor

from ..ops.pointwise import gate
from ._blocks import GatedHeads, divided, projection, rate_log, time_step_bias


class GatedDeltaNet(GatedHeads):
    """S_t = D + β_t k_t (v_t − Dᵀk_t)ᵀ with D = α_t S_{t−1}, log α = −exp(A_log) · softplus(a_proj(x) + dt_bias).

    State: "kv" [batch, heads, key_dim, value_dim], and with short convolutions "q_conv", "k_conv", "v_conv".

    Args:
        d_model: width of x.
        heads: heads.
        head_dim: size of a head's queries and keys; 0 means d_model / heads.
        expand_v: width of all values in multiples of that of all keys.
        use_short_conv, conv_size, conv_bias: short convolutions with SiLU on queries, keys and values; their tokens; their biases.
        use_gate: multiplies the heads' outputs by SiLU of a projection of the input.
        norm_eps: added to the mean square in the norm of a head's output.
        rescale_output: initial output projection N(0, 0.02/√(2·layers)) instead of N(0, 0.02).
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, heads: int = 4, head_dim: int = 0, expand_v: float = 2, use_short_conv: bool = True,
                 conv_size: int = 4, conv_bias: bool = False, use_gate: bool = True, norm_eps: float = 1e-5, rescale_output: bool = True, *,
                 layer: int = 0, layers: int = 1) -> None:
        key_width = heads * (head_dim or divided("GatedDeltaNet", "d_model", d_model, "heads", heads))
        super().__init__(d_model, key_width, int(expand_v * key_width), heads, use_short_conv, conv_size, conv_bias, use_gate, norm_eps,
                         rescale_output, layers)
        self.a_proj = projection(d_model, heads, False)
        self.b_proj = projection(d_model, heads, False)
        self.A_log = rate_log(heads, 0, 16)
        self.dt_bias = time_step_bias(heads)

    def _gates(self, x: Tensor, q: Tensor, k: Tensor):
        log_decay = gate(self.a_proj(x), "softplus", -1, self.dt_bias, self.A_log)
        return self._delta_rule(q, k, self.b_proj(x)) | {"log_decay": log_decay}
