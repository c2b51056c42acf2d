"""Second-order Taylor linear attention (paper, section 4.1): all past tokens in a state of fixed size."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..ops._registration import sum_type
from ._blocks import INITIAL_STD, Call, FixedTensor, Mixer, divided, output_std, projection


class TaylorAttention(Mixer):
    """1 + s + s²/2 with s = q·k/√feature_dim replaces exp(s), so that the sums over past tokens are the state.

    State: "kv" [batch, heads, features, head_dim] and "k" [batch, heads, features] with 1 + d + d(d+1)/2 features for d = feature_dim.

    Args:
        d_model: width of x.
        heads: attention heads.
        feature_dim: size of a head's queries and keys, 1 to 64.
        head_dim: size of a head's values; 0 means d_model / heads.
        decay: a fixed decay rate per head, in one of the two forms of decay_form.
        decay_form: "paper": rates 1 − 2^−5 to 1 − 2^−9 for numerator and denominator, and a projection of the input scales the heads;
            "code", as in the authors' code: rates 1 − 2^(decay_const − h) for head h, for the numerator alone.
        decay_const: of the form "code", −60 to −1.
        decay_normalised: of "code": divides a token's weights by the square root of the sum of its decays.
        decay_projection, decay_bias: of "code": a projection of the input scales the heads; with a bias.
        bias: biases in the projections.
        rescale_output: initial output projection N(0, 0.02/√(2·layers)) instead of N(0, 0.02).
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, heads: int = 16, feature_dim: int = 16, head_dim: int = 0, decay: bool = False,
                 decay_form: str = "paper", decay_const: float = -5, decay_normalised: bool = True, decay_projection: bool = False,
                 decay_bias: bool = False, bias: bool = False, rescale_output: bool = True, *, layer: int = 0, layers: int = 1) -> None:
        super().__init__(d_model)
        if not 1 <= feature_dim <= 64:
            raise ValueError(f"TaylorAttention: feature_dim must be 1 to 64, got {feature_dim}")
        if decay_form not in ("paper", "code"):
            raise ValueError(f"TaylorAttention: decay_form must be 'paper' or 'code', got '{decay_form}'")
        self.heads, self.feature_dim = heads, feature_dim
        self.head_dim = head_dim or divided("TaylorAttention", "d_model", d_model, "heads", heads)
        self.scale = feature_dim**-0.25  # of q and of k, which makes their product q·k/√feature_dim
        self.code_form, self.normalised = decay_form == "code", decay and decay_form == "code" and decay_normalised
        self.q_proj = projection(d_model, heads * feature_dim, bias)
        self.k_proj = projection(d_model, heads * feature_dim, bias)
        self.v_proj = projection(d_model, heads * self.head_dim, bias)
        self.o_proj = projection(heads * self.head_dim, d_model, bias, output_std(layers) if rescale_output else INITIAL_STD)
        self.head_scale = projection(d_model, heads, decay_bias) if decay and (not self.code_form or decay_projection) else None
        if self.code_form:
            losses = torch.exp2(decay_const - torch.arange(heads, dtype=torch.float64)).clamp_min(2.0**-60)
        else:
            losses = torch.exp2(torch.linspace(-5, -9, heads, dtype=torch.float64))
        self.decay_losses = FixedTensor(losses) if decay else None  # 1 − g for the decay rate g of each head

    def _run(self, x: Tensor, call: Call) -> Tensor:
        q, k = self.q_proj(x).unflatten(1, (self.heads, -1)), self.k_proj(x).unflatten(1, (self.heads, -1))
        v = self.v_proj(x).unflatten(1, (self.heads, -1))
        rates = None if self.decay_losses is None else (1 - self.decay_losses.value).to(sum_type(x))
        if call.step:
            kv, sum_k = call.state["kv"], call.state["k"]
            y = call.each_token(lambda q, k, v: ops.taylor_attention_step(q, k, v, kv, sum_k, call.slots, rates, self.scale,
                                                                          not self.code_form), q, k, v)
        else:
            initial = (None, None) if call.state is None else (call.state["kv"], call.state["k"])
            y, kv, sum_k = ops.taylor_attention(q * self.scale, k * self.scale, v, call.cu_seqlens, *initial, rates,
                                                call.state is not None, not self.code_form)
            call.keep("kv", kv)
            call.keep("k", sum_k)
        if self.normalised:
            y = y * self._normaliser(call.positions).to(y.dtype).unsqueeze(-1)
        if self.head_scale is not None:
            y = y * self.head_scale(x).unsqueeze(-1)
        return self.o_proj(y.flatten(1))

    def _normaliser(self, positions: Tensor) -> Tensor:
        """1/√(Σ_{s≤t} g^(t−s)) = √((1 − g) / (1 − g^(t+1))) for tokens at positions t, [tokens, heads], in fp64."""
        losses = self.decay_losses.value
        return (losses / -torch.expm1((positions + 1).to(torch.float64).unsqueeze(-1) * torch.log1p(-losses))).sqrt()

    def _state_shapes(self):
        features = ops.packed_features(self.feature_dim)
        return {"kv": (self.heads, features, self.head_dim), "k": (self.heads, features)}, {}
