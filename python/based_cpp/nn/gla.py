"""Gated linear attention (Yang et al. 2024): each channel of the keys decays at a rate that the token sets."""

from __future__ import annotations

from torch import Tensor

from ..ops.pointwise import gate
from ._blocks import GatedHeads, projection


class GLA(GatedHeads):
    """S_t = diag(α_t) S_{t−1} + k_t v_tᵀ, log α = log sigmoid(a low-rank projection) / gate_logit_normalizer.

    State: "kv" [batch, heads, key_dim, value_dim], and with short convolutions "q_conv", "k_conv", "v_conv".

    Args:
        d_model: width of x.
        heads: heads.
        expand_k, expand_v: width of all queries, all keys, and all values, in multiples of d_model.
        gate_low_rank_dim: rank of the decays' projection.
        gate_logit_normalizer: divisor of the decays' logarithms.
        use_short_conv, conv_size, conv_bias: short convolutions with SiLU on queries, keys and values; their tokens; their biases.
        use_gate: multiplies the heads' outputs by SiLU of a projection of the input.
        norm_eps: added to the mean square in the norm of a head's output.
        rescale_output: initial output projection N(0, 0.02/√(2·layers)) instead of N(0, 0.02).
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, heads: int = 4, expand_k: float = 0.5, expand_v: float = 1, gate_low_rank_dim: int = 16,
                 gate_logit_normalizer: float = 16, use_short_conv: bool = False, conv_size: int = 4, conv_bias: bool = False,
                 use_gate: bool = True, norm_eps: float = 1e-5, rescale_output: bool = True, *, layer: int = 0, layers: int = 1) -> None:
        key_width, value_width = int(expand_k * d_model), int(expand_v * d_model)
        super().__init__(d_model, key_width, value_width, heads, use_short_conv, conv_size, conv_bias, use_gate, norm_eps, rescale_output,
                         layers)
        self.normalizer = gate_logit_normalizer
        self.decay_down = projection(d_model, gate_low_rank_dim, False)
        self.decay_up = projection(gate_low_rank_dim, key_width, True)

    def _gates(self, x: Tensor, q: Tensor, k: Tensor):
        logits = self.decay_up(self.decay_down(x))
        return {"log_decay": gate(logits, "log_sigmoid", 1 / self.normalizer).view(k.shape)}
