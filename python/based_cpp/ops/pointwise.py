"""Elementwise functions with factors of each column, and the gate of SwiGLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import define, differentiable, fake, sum_type

define("rowwise_activation_backward(Tensor grad_y, Tensor x, int function, float scale, Tensor? bias, Tensor? log_rate, bool in_sums) -> "
       "(Tensor grad_x, Tensor grad_bias, Tensor grad_log_rate)")

# The functions of rowwise_activation, in the order of their numbers.
ACTIVATIONS = ("silu", "sigmoid", "softplus", "exp", "log_sigmoid", "elu_plus_one")
_FUNCTIONS = (F.silu, torch.sigmoid, lambda x: F.softplus(x, threshold=40), torch.exp, F.logsigmoid,
              lambda x: torch.where(x > 0, x + 1, x.clamp_max(0).exp()))


def rowwise_activation(x: Tensor, function: int, scale: float = 1.0, bias: Tensor | None = None, log_rate: Tensor | None = None,
                       in_sums: bool = False) -> Tensor:
    """function(x + bias) · scale · exp(log_rate) of every number; x [rows, width], bias and log_rate [width]. Differentiable.

    `function` is an index of ACTIVATIONS. The result has x's type or, with `in_sums`, that of sums (fp32 for bf16).
    """
    return torch.ops.based.rowwise_activation(x, function, scale, bias, log_rate, in_sums)


def gate(x: Tensor, function: str, scale: float = 1.0, bias: Tensor | None = None, log_rate: Tensor | None = None) -> Tensor:
    """The gate of a recurrence, rowwise_activation in the type of sums; `function` is a name of ACTIVATIONS."""
    return rowwise_activation(x, ACTIVATIONS.index(function), scale, bias, log_rate, True)


def swiglu(h: Tensor) -> Tensor:
    """h = [y, gate] [..., 2·width] -> y ⊙ SiLU(gate) [..., width]. Differentiable."""
    return torch.ops.based.swiglu(h.flatten(0, -2)).view(*h.shape[:-1], -1)


@differentiable("rowwise_activation", "rowwise_activation_backward", outputs="y", gradients="x bias log_rate")
def _activation(x: Tensor, function: int, scale: float, bias: Tensor | None, log_rate: Tensor | None, in_sums: bool) -> Tensor:
    dtype = sum_type(x)
    wide = x.to(dtype) if bias is None else x.to(dtype) + bias.to(dtype)
    y = _FUNCTIONS[function](wide) * scale
    y = y if log_rate is None else y * log_rate.to(dtype).exp()
    return y.to(dtype if in_sums else x.dtype).contiguous()


@fake("rowwise_activation")
def _(x, function, scale, bias, log_rate, in_sums):
    return x.new_empty(x.shape, dtype=sum_type(x) if in_sums else x.dtype)


@differentiable("swiglu", "swiglu_backward", outputs="y", gradients="h")
def _swiglu(h: Tensor) -> Tensor:
    y, gate_values = h.to(sum_type(h)).chunk(2, -1)
    return (y * F.silu(gate_values)).to(h.dtype).contiguous()


@fake("swiglu")
def _(h):
    return h.new_empty((*h.shape[:-1], h.shape[-1] // 2))
