"""RMSNorm and LayerNorm over the last dimension: alone, and of a sum that becomes the residual stream. Sums are fp32.

The result has the weight's type; x may be the fp32 residual stream of a bf16 model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import fake, gradient, gradient_by_operator, outputs_of, reference, sum_type


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · weight. x [..., width], weight [width]. Differentiable."""
    return torch.ops.based.rms_norm(x, weight, eps)


def rms_norm_add(residual: Tensor | None, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum residual + x and its rms_norm, all [..., width], weight [width]. Without a residual the sum is x, in fp32 if x is bf16.

    Differentiable.
    """
    return torch.ops.based.rms_norm_add(residual, x, weight, eps)


def rms_norm_add_(residual: Tensor, x: Tensor, weight: Tensor, eps: float, deferred: Tensor | None = None) -> Tensor:
    """residual += deferred (where given), += x in place, all [rows, width]; returns its rms_norm [rows, width]. Without a gradient."""
    return torch.ops.based.rms_norm_add_(residual, x, weight, eps, deferred)


def rms_norm_of_sum(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm of residual + x, all [rows, width], which is not stored; weight [width]. Without a gradient."""
    return torch.ops.based.rms_norm_of_sum(residual, x, weight, eps)


def rms_norm_gated(x: Tensor, weight: Tensor, eps: float, gate: Tensor) -> Tensor:
    """rms_norm(x) · SiLU(gate) in one pass, x and gate [rows, width]; gate has the weight's type. Without a gradient."""
    return torch.ops.based.rms_norm_gated(x, weight, eps, gate)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x − mean(x)) · rsqrt(variance(x) + eps) · weight + bias. x [..., width], weight and bias [width]. Differentiable."""
    return torch.ops.based.layer_norm(x, weight, bias, eps)


def layer_norm_add(residual: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum residual + x and its layer_norm, all [..., width], weight and bias [width]. Without a residual the sum is x, in fp32 if x
    is bf16. Differentiable.
    """
    return torch.ops.based.layer_norm_add(residual, x, weight, bias, eps)


def layer_norm_add_(residual: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """residual += x in place, both [rows, width]; returns its layer_norm [rows, width]. Without a gradient."""
    return torch.ops.based.layer_norm_add_(residual, x, weight, bias, eps)


def layer_norm_add_twice(residual: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor, next_weight: Tensor, next_bias: Tensor,
                         eps: float, keeps_sum: bool) -> tuple[Tensor, Tensor]:
    """With s = residual + x: sum = s + layer_norm(s; weight, bias), and y = layer_norm(sum; next_weight, next_bias). Differentiable.

    Without `keeps_sum` the returned sum is empty, [0].
    """
    return torch.ops.based.layer_norm_add_twice(residual, x, weight, bias, next_weight, next_bias, eps, keeps_sum)


def _sum(residual: Tensor | None, x: Tensor) -> Tensor:
    return x.to(sum_type(x), copy=True).contiguous() if residual is None else residual + x


def _empty_sum(residual: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=sum_type(x) if residual is None else residual.dtype)


@reference("rms_norm_forward")
def _rms_norm(x, weight, eps):
    wide = x.to(sum_type(x))
    inverse_rms = (wide.square().mean(-1) + eps).rsqrt()
    return (wide * inverse_rms.unsqueeze(-1) * weight.to(sum_type(weight))).to(weight.dtype).contiguous(), inverse_rms.contiguous()


@fake("rms_norm_forward")
def _(x, weight, eps):
    return x.new_empty(x.shape, dtype=weight.dtype), x.new_empty(x.shape[:-1], dtype=sum_type(x))


@reference("rms_norm_backward")
def _rms_norm_backward(grad_y, x, weight, inverse_rms):
    dtype = sum_type(x)
    unit, scaled = x.to(dtype) * inverse_rms.unsqueeze(-1), grad_y.to(dtype) * weight.to(dtype)
    grad_x = (scaled - unit * (scaled * unit).mean(-1, keepdim=True)) * inverse_rms.unsqueeze(-1)
    grad_weight = (grad_y.to(dtype) * unit).flatten(0, -2).sum(0) if x.dim() > 1 else grad_y.to(dtype) * unit
    return grad_x.to(x.dtype).contiguous(), grad_weight.to(weight.dtype)


@fake("rms_norm_backward")
def _(grad_y, x, weight, inverse_rms):
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


gradient_by_operator("rms_norm_forward", "rms_norm_backward", outputs="y inverse_rms", gradients="x weight")


outputs_of("rms_norm_forward", 0, "rms_norm")


@reference("rms_norm_add_forward")
def _rms_norm_add(residual, x, weight, eps):
    total = _sum(residual, x)
    return total, *_rms_norm(total, weight, eps)


@fake("rms_norm_add_forward")
def _(residual, x, weight, eps):
    total = _empty_sum(residual, x)
    return total, x.new_empty(x.shape, dtype=weight.dtype), x.new_empty(x.shape[:-1], dtype=sum_type(total))


@reference("rms_norm_add_backward")
def _rms_norm_add_backward(grad_sum, grad_y, sum, weight, inverse_rms):
    grad_x, grad_weight = _rms_norm_backward(grad_y, sum, weight, inverse_rms)
    return (grad_x if grad_sum is None else grad_x + grad_sum).to(weight.dtype), grad_weight


@fake("rms_norm_add_backward")
def _(grad_sum, grad_y, sum, weight, inverse_rms):
    return sum.new_empty(sum.shape, dtype=weight.dtype), weight.new_empty(weight.shape)


def _save_sum(ctx, inputs, output):
    """For operators (residual, x, parameters…, eps) -> (sum, y, statistics…)."""
    ctx.save_for_backward(output[0], *inputs[2:-1], *output[2:])
    ctx.residual_type = None if inputs[0] is None else inputs[0].dtype
    ctx.mark_non_differentiable(*output[2:])


def _sum_gradients(ctx, call, grad_sum, grad_y):
    """The gradients of residual, x and the parameters. The backward operators read and write gradients of the weights' type."""
    total, *saved = ctx.saved_tensors
    weight = saved[0]
    grad_y = torch.zeros(total.shape, dtype=weight.dtype, device=total.device) if grad_y is None else grad_y
    grad_x, *of_parameters = call(None if grad_sum is None else grad_sum.to(weight.dtype), grad_y, total, *saved)
    return (None if ctx.residual_type is None else grad_x.to(ctx.residual_type), grad_x, *of_parameters, None)


def _rms_norm_add_gradients(ctx, grad_sum, grad_y, _):
    return _sum_gradients(ctx, torch.ops.based.rms_norm_add_backward, grad_sum, grad_y)


gradient("rms_norm_add_forward", _save_sum, _rms_norm_add_gradients)


outputs_of("rms_norm_add_forward", slice(2), "rms_norm_add")


@reference("rms_norm_add_")
def _(residual, x, weight, eps, deferred=None):
    if deferred is not None:
        residual.add_(deferred)
    return _rms_norm(residual.add_(x), weight, eps)[0]


@fake("rms_norm_add_")
def _(residual, x, weight, eps, deferred=None):
    return residual.new_empty(residual.shape, dtype=weight.dtype)


@reference("rms_norm_of_sum")
def _(residual, x, weight, eps):
    return _rms_norm(residual + x, weight, eps)[0]


@fake("rms_norm_of_sum")
def _(residual, x, weight, eps):
    return residual.new_empty(residual.shape, dtype=weight.dtype)


@reference("rms_norm_gated")
def _(x, weight, eps, gate):
    dtype = sum_type(gate)
    return (_rms_norm(x, weight.to(dtype), eps)[0] * F.silu(gate.to(dtype))).to(gate.dtype).contiguous()


@fake("rms_norm_gated")
def _(x, weight, eps, gate):
    return gate.new_empty(gate.shape)


@reference("layer_norm_forward")
def _layer_norm(x, weight, bias, eps):
    dtype, wide = sum_type(weight), x.to(sum_type(weight))
    mean = wide.mean(-1)
    inverse_std = (wide.var(-1, correction=0) + eps).rsqrt()
    y = (wide - mean.unsqueeze(-1)) * inverse_std.unsqueeze(-1) * weight.to(dtype) + bias.to(dtype)
    return y.to(weight.dtype).contiguous(), mean.contiguous(), inverse_std.contiguous()


@fake("layer_norm_forward")
def _(x, weight, bias, eps):
    return (x.new_empty(x.shape, dtype=weight.dtype), *(x.new_empty(x.shape[:-1], dtype=sum_type(weight)) for _ in range(2)))


@reference("layer_norm_backward")
def _layer_norm_backward(grad_sum, grad_y, sum, weight, bias, mean, inverse_std):
    dtype = sum_type(weight)
    unit = (sum.to(dtype) - mean.unsqueeze(-1)) * inverse_std.unsqueeze(-1)
    grad, scaled = grad_y.to(dtype), grad_y.to(dtype) * weight.to(dtype)
    grad_x = (scaled - scaled.mean(-1, keepdim=True) - unit * (scaled * unit).mean(-1, keepdim=True)) * inverse_std.unsqueeze(-1)
    grad_x = grad_x if grad_sum is None else grad_x + grad_sum
    of_rows = tuple(range(sum.dim() - 1))
    grad_weight, grad_bias = ((grad * unit).sum(of_rows), grad.sum(of_rows)) if of_rows else (grad * unit, grad.clone())
    return grad_x.to(weight.dtype).contiguous(), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)


@fake("layer_norm_backward")
def _(grad_sum, grad_y, sum, weight, bias, mean, inverse_std):
    return sum.new_empty(sum.shape, dtype=weight.dtype), weight.new_empty(weight.shape), weight.new_empty(weight.shape)


def _save_norm(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3], *output[1:])
    ctx.mark_non_differentiable(*output[1:])


def _norm_gradients(ctx, grad_y, *_):
    x, *saved = ctx.saved_tensors
    if grad_y is None:
        return None, None, None, None
    grad_x, grad_weight, grad_bias = torch.ops.based.layer_norm_backward(None, grad_y, x, *saved)
    return grad_x.to(x.dtype), grad_weight, grad_bias, None


gradient("layer_norm_forward", _save_norm, _norm_gradients)


outputs_of("layer_norm_forward", 0, "layer_norm")


@reference("layer_norm_add_forward")
def _layer_norm_add(residual, x, weight, bias, eps):
    total = _sum(residual, x)
    return total, *_layer_norm(total, weight, bias, eps)


@fake("layer_norm_add_forward")
def _(residual, x, weight, bias, eps):
    statistics = [x.new_empty(x.shape[:-1], dtype=sum_type(weight)) for _ in range(2)]
    return _empty_sum(residual, x), x.new_empty(x.shape, dtype=weight.dtype), *statistics


def _layer_norm_add_gradients(ctx, grad_sum, grad_y, *_):
    return _sum_gradients(ctx, torch.ops.based.layer_norm_backward, grad_sum, grad_y)


gradient("layer_norm_add_forward", _save_sum, _layer_norm_add_gradients)


outputs_of("layer_norm_add_forward", slice(2), "layer_norm_add")


@reference("layer_norm_add_")
def _(residual, x, weight, bias, eps):
    return _layer_norm(residual.add_(x), weight, bias, eps)[0]


@fake("layer_norm_add_")
def _(residual, x, weight, bias, eps):
    return residual.new_empty(residual.shape, dtype=weight.dtype)


@reference("layer_norm_add_twice_forward")
def _twice(residual, x, weight, bias, next_weight, next_bias, eps, keeps_sum):
    first_sum, added, mean, inverse_std = _layer_norm_add(residual, x, weight, bias, eps)
    total, y, next_mean, next_inverse_std = _layer_norm_add(first_sum, added, next_weight, next_bias, eps)
    kept = total if keeps_sum else total.new_empty(0)
    return first_sum, kept, y, torch.stack((mean, next_mean)), torch.stack((inverse_std, next_inverse_std))


@fake("layer_norm_add_twice_forward")
def _(residual, x, weight, bias, next_weight, next_bias, eps, keeps_sum):
    first_sum = _empty_sum(residual, x)
    statistics = [x.new_empty((2, *x.shape[:-1]), dtype=sum_type(weight)) for _ in range(2)]
    return first_sum, first_sum.new_empty(x.shape if keeps_sum else (0,)), x.new_empty(x.shape, dtype=weight.dtype), *statistics


@reference("layer_norm_add_twice_backward")
def _twice_backward(grad_sum, grad_y, first_sum, weight, bias, next_weight, next_bias, mean, inverse_std):
    unit = (first_sum - mean[0].unsqueeze(-1)) * inverse_std[0].unsqueeze(-1)
    total = first_sum + (unit * weight + bias).to(weight.dtype)
    of_sum, *of_next = _layer_norm_backward(grad_sum, grad_y, total, next_weight, next_bias, mean[1], inverse_std[1])
    return *_layer_norm_backward(of_sum, of_sum, first_sum, weight, bias, mean[0], inverse_std[0]), *of_next


@fake("layer_norm_add_twice_backward")
def _(grad_sum, grad_y, first_sum, weight, bias, next_weight, next_bias, mean, inverse_std):
    return (first_sum.new_empty(first_sum.shape, dtype=weight.dtype), *(weight.new_empty(weight.shape) for _ in range(4)))


def _save_twice(ctx, inputs, output):
    ctx.save_for_backward(output[0], *inputs[2:6], *output[3:])
    ctx.residual_type = None if inputs[0] is None else inputs[0].dtype
    ctx.keeps_sum = inputs[7]
    ctx.mark_non_differentiable(output[0], *output[3:])


def _twice_gradients(ctx, _, grad_sum, grad_y, *__):
    found = _sum_gradients(ctx, torch.ops.based.layer_norm_add_twice_backward, grad_sum if ctx.keeps_sum else None, grad_y)
    return (*found, None)


gradient("layer_norm_add_twice_forward", _save_twice, _twice_gradients)


outputs_of("layer_norm_add_twice_forward", slice(1, 3), "layer_norm_add_twice")
