"""Linear layers, with or without SwiGLU after them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import composite, define, differentiable, fake

define("linear_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bias=None) -> "
       "(Tensor grad_x, Tensor grad_weight, Tensor grad_bias)")
define("linear_swiglu_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bias=None) -> "
       "(Tensor grad_x, Tensor grad_weight, Tensor grad_bias)")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [rows, in] · weight [out, in]ᵀ + bias [out]. Differentiable.

    On the CPU a kernel computes few rows so that a row's result does not depend on the other rows, bit for bit.
    """
    return torch.ops.based.linear(x, weight, bias)


def linear_swiglu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """swiglu(linear(x, weight, bias)), weight [2·width, in] -> [rows, width]. Differentiable."""
    return torch.ops.based.linear_swiglu(x, weight, bias)


def gated_mlp(x: Tensor, weight_in: Tensor, weight_out: Tensor) -> Tensor:
    """linear(swiglu(linear(x, weight_in)), weight_out): x [rows, in], weight_in [2·width, in], weight_out [out, width]. Differentiable."""
    return torch.ops.based.gated_mlp(x, weight_in, weight_out)


@differentiable("linear", "linear_backward", outputs="y", gradients="x weight bias")
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


@fake("linear")
def _(x, weight, bias=None):
    return x.new_empty((x.shape[0], weight.shape[0]))


@differentiable("linear_swiglu", "linear_swiglu_backward", outputs="y", gradients="x weight bias")
def _linear_swiglu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y, gate = F.linear(x, weight, bias).chunk(2, -1)
    return (y * F.silu(gate)).contiguous()


@fake("linear_swiglu")
def _(x, weight, bias=None):
    return x.new_empty((x.shape[0], weight.shape[0] // 2))


@composite("gated_mlp")
def _(x, weight_in, weight_out):
    return F.linear(torch.ops.based.swiglu(F.linear(x, weight_in)), weight_out)
