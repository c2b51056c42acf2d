"""Softmax attention over the most recent tokens (paper, section 4.2), from a ring buffer of fixed size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import ops
from ._blocks import Call, Mixer, divided, output_std, projection


class SlidingWindow(Mixer):
    """Exact softmax attention with rotary positions over `window` keys.

    State: "k" and "v" [batch, window, kv_heads, head_dim], rings with step p at p mod window; keys are stored after rotation.

    Args:
        d_model: width of x.
        window: keys that a token attends to, itself included.
        heads: attention heads, each of size d_model / heads.
        kv_heads: heads of keys and values, a divisor of heads; 0 means heads.
        rotary_dim: dimensions of a head that carry rotary positions, even; −1 means all, 0 none.
        rotary_base: angle = position · base^(−2i / rotary_dim).
        rotary_interleaved: rotates neighbours (2i, 2i + 1) instead of the two halves.
        qkv_bias, out_bias: biases of the projections.
        layers: number of layers of the model.
    """

    def __init__(self, d_model: int, window: int = 64, heads: int = 16, kv_heads: int = 0, rotary_dim: int = -1, rotary_base: float = 10000,
                 rotary_interleaved: bool = False, qkv_bias: bool = False, out_bias: bool = False, *, layer: int = 0,
                 layers: int = 1) -> None:
        super().__init__(d_model)
        if window < 1:
            raise ValueError(f"SlidingWindow: window must be at least 1, got {window}")
        self.window, self.heads, self.kv_heads = window, heads, kv_heads or heads
        self.head_dim = divided("SlidingWindow", "d_model", d_model, "heads", heads)
        divided("SlidingWindow", "heads", heads, "kv_heads", self.kv_heads)
        self.rotary_dim = self.head_dim if rotary_dim == -1 else rotary_dim
        if self.rotary_dim % 2 != 0 or not 0 <= self.rotary_dim <= self.head_dim:
            raise ValueError(f"SlidingWindow: rotary_dim must be even and at most {self.head_dim}, got {self.rotary_dim}")
        self.rotary_base, self.rotary_interleaved = float(rotary_base), rotary_interleaved
        self.scale = 1 / math.sqrt(self.head_dim)
        self.qkv_proj = projection(d_model, (heads + 2 * self.kv_heads) * self.head_dim, qkv_bias)
        self.out_proj = projection(d_model, d_model, out_bias, output_std(layers))

    def _run(self, x: Tensor, call: Call) -> Tensor:
        qkv = self.qkv_proj(x)
        if self.rotary_dim > 0:
            qkv = ops.rotary(qkv, call.positions, self.heads + self.kv_heads, self.head_dim, self.rotary_dim, self.rotary_base,
                             self.rotary_interleaved)
        q, k, v = qkv.unflatten(1, (-1, self.head_dim)).split((self.heads, self.kv_heads, self.kv_heads), 1)
        if call.step:
            y = self._attend_step(q, k, v, call)
        else:
            cu_k = call.cu_seqlens
            if call.state is not None:
                earlier_k, earlier_v = call.extend("k", k, self.window - 1), call.extend("v", v, self.window - 1)
                k = torch.cat((earlier_k, call.by_row(k)), 1).flatten(0, 1)
                v = torch.cat((earlier_v, call.by_row(v)), 1).flatten(0, 1)
                cu_k = call.offsets(earlier_k.shape[1] + call.length)
            y = ops.causal_attention(q, k, v, call.cu_seqlens, cu_k, self.window, self.scale)
        return self.out_proj(y.flatten(1))

    def _attend_step(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        rings, position = (call.state["k"], call.state["v"]), call.seen

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            nonlocal position
            positions = torch.full((call.batch,), position, device=q.device)
            position += 1
            return ops.causal_attention_step(q, k, v, *rings, positions, call.slots, self.scale)

        return call.each_token(attend, q, k, v)

    def _state_shapes(self):
        return {}, {name: (self.window, self.kv_heads, self.head_dim) for name in ("k", "v")}
