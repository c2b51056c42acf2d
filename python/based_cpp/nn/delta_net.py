"""DeltaNet (Schlag et al. 2021, Yang et al. 2024): the delta rule corrects the value stored under a key instead of adding to it."""

from __future__ import annotations

from torch import Tensor

from ._blocks import GatedHeads, projection


class DeltaNet(GatedHeads):
    """S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀk_t)ᵀ, with queries and keys of length 1.

    State: "kv" [batch, heads, key_dim, value_dim], and with short convolutions "q_conv", "k_conv", "v_conv".

    Args:
        d_model: width of x.
        heads: heads.
        expand_k, expand_v: width of all queries, all keys, and all values, in multiples of d_model.
        use_beta: a projection of the input sets β, the part of the error that is corrected; otherwise β is 1.
        allow_neg_eigval: β ranges up to 2 instead of 1.
        use_short_conv, conv_size, conv_bias: short convolutions with SiLU on queries, keys and values; their tokens; their biases.
        use_gate: multiplies the heads' outputs by SiLU of a projection of the input.
        norm_eps: added to the mean square in the norm of a head's output.
        rescale_output: initial output projection N(0, 0.02/√(2·layers)) instead of N(0, 0.02).
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, heads: int = 4, expand_k: float = 1, expand_v: float = 1, use_beta: bool = True,
                 allow_neg_eigval: bool = False, use_short_conv: bool = True, conv_size: int = 4, conv_bias: bool = False,
                 use_gate: bool = False, norm_eps: float = 1e-5, rescale_output: bool = True, *, layer: int = 0, layers: int = 1) -> None:
        super().__init__(d_model, int(expand_k * d_model), int(expand_v * d_model), heads, use_short_conv, conv_size, conv_bias, use_gate,
                         norm_eps, rescale_output, layers)
        self.max_beta = 2.0 if allow_neg_eigval else 1.0
        self.b_proj = projection(d_model, heads, False) if use_beta else None

    def _gates(self, x: Tensor, q: Tensor, k: Tensor):
        return self._delta_rule(q, k, None if self.b_proj is None else self.b_proj(x), self.max_beta)
