"""What this package adds to the operators `torch.ops.based.*` of the compiled library: references in torch operators, fake kernels for
torch.compile, and gradients.

The compiled kernels compute in fp32 and bf16. For other types, and on devices without a kernel, an operator runs its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("based", "FRAGMENT")


def sum_type(x: Tensor) -> torch.dtype:
    """The type of sums and states: fp32 for 16-bit types, otherwise the tensor's own type."""
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def define(schema: str) -> None:
    """Defines an operator that the compiled library does not define."""
    if not hasattr(torch.ops.based, schema.partition("(")[0]):
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def reference(name: str) -> Callable[[Callable], Callable]:
    """Registers the decorated function as the operator's implementation for devices and types without a kernel.

    A kernel calls the operator "NAME_reference" for arguments that it does not support.
    """

    def register(function: Callable) -> Callable:
        for operator in (name, f"{name}_reference"):
            if hasattr(torch.ops.based, operator):
                _library.impl(operator, function, "CompositeExplicitAutograd")
        return function

    return register


def fake(name: str) -> Callable[[Callable], Callable]:
    """Registers the decorated function, which returns empty outputs of the right shapes, types and strides."""
    return torch.library.register_fake(f"based::{name}", lib=_library)


def composite(name: str) -> Callable[[Callable], Callable]:
    """Registers the decorated function, which only calls other operators, so that autograd and the compiler see those."""

    def register(function: Callable) -> Callable:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"based::{name}", "CompositeImplicitAutograd"):
            _library.impl(name, function, "CompositeImplicitAutograd")
        return function

    return register


def with_gradient(name: str) -> Callable[[Callable], Callable]:
    """Registers the decorated function, which calls differentiable operators, for calls of `name` that need a gradient."""
    operator = getattr(torch.ops.based, name).default

    def register(function: Callable) -> Callable:
        def run(*args: Any) -> Any:
            if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args):
                return function(*args)
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*args)

        _library.impl(name, run, "Autograd")
        return function

    return register


def differentiable(forward: str, backward: str, *, outputs: str, gradients: str) -> Callable[[Callable], Callable]:
    """Registers the decorated function as the reference of the operator `forward`, and the operator `backward` as its gradient.

    `outputs` are the names of the outputs of `forward`, and `gradients` the names of its arguments whose gradients `backward` returns, in
    order. An argument of `backward` is the gradient of an output ("grad_y"), an argument of `forward` ("x") or one of its outputs ("y").
    The reference of `backward` differentiates the decorated function, which therefore must consist of differentiable operators.
    """
    output_names, gradient_names = outputs.split(), gradients.split()

    def register(function: Callable) -> Callable:
        reference(forward)(function)
        reference(backward)(_backward_reference(function, forward, backward, output_names, gradient_names))

        @fake(backward)
        def _(*args: Any) -> Any:
            values = _named(backward, args)
            return _one_or_tuple([None if values[name] is None else torch.empty_like(values[name], memory_format=torch.contiguous_format)
                                  for name in gradient_names])

        gradient_by_operator(forward, backward, outputs=outputs, gradients=gradients)
        return function

    return register


def gradient_by_operator(forward: str, backward: str, *, outputs: str, gradients: str) -> None:
    """Registers the operator `backward` as the gradient of `forward`; see differentiable()."""
    output_names, gradient_names = outputs.split(), gradients.split()
    forward_names, backward_names = _argument_names(forward), _argument_names(backward)
    saved_names = [name for name in backward_names if not name.startswith("grad_") or name in forward_names]
    extra = [i for i, name in enumerate(output_names) if f"grad_{name}" not in backward_names]
    call_backward = getattr(torch.ops.based, backward).default

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        results = (output,) if isinstance(output, Tensor) else tuple(output)
        values = _named(forward, inputs) | dict(zip(output_names, results))
        ctx.tensor_names = [name for name in saved_names if isinstance(values[name], Tensor)]
        ctx.constants = {name: values[name] for name in saved_names if not isinstance(values[name], Tensor)}
        ctx.save_for_backward(*(values[name] for name in ctx.tensor_names))
        ctx.like_first = results[0].shape, results[0].dtype, results[0].device
        ctx.mark_non_differentiable(*(results[i] for i in extra))
        ctx.set_materialize_grads(False)

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        values = ctx.constants | dict(zip(ctx.tensor_names, ctx.saved_tensors))
        values |= {f"grad_{name}": grad for name, grad in zip(output_names, grads)}
        first = backward_names.index(f"grad_{output_names[0]}") if f"grad_{output_names[0]}" in backward_names else -1
        arguments = [values[name] for name in backward_names]
        if first >= 0 and arguments[first] is None and not _is_optional(backward, first):
            shape, dtype, device = ctx.like_first
            arguments[first] = torch.zeros(shape, dtype=dtype, device=device)
        found = call_backward(*arguments)
        found = (found,) if isinstance(found, Tensor) else found
        by_name = dict(zip(gradient_names, found))
        return tuple(by_name.get(name) for name in forward_names[: len(ctx.needs_input_grad)])

    torch.library.register_autograd(f"based::{forward}", run_backward, setup_context=setup_context, lib=_library)


def gradients_by_autograd(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None],
                          grad_outputs: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The gradients of Σ outputs·grad_outputs with respect to `inputs`; None for an input that is None.

    It works inside an operator, where the dispatcher excludes autograd.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set() - _AUTOGRAD_KEYS
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
        pairs = [(y, g) for y, g in zip(function(*leaves), grad_outputs) if g is not None and y.requires_grad]
        wanted = [leaf for leaf in leaves if leaf is not None]
        found = iter(torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True) if pairs
                     else [None] * len(wanted))
        gradients = [None if x is None else next(found) for x in inputs]
    return [None if x is None else _contiguous_or_zeros(gradient, x) for x, gradient in zip(inputs, gradients)]


def _contiguous_or_zeros(gradient: Tensor | None, x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=x.dtype, device=x.device) if gradient is None else gradient.contiguous()


def _autograd_keys() -> torch._C.DispatchKeySet:
    before = torch._C._dispatch_tls_local_exclude_set()
    with torch._C._AutoDispatchBelowAutograd():
        keys = torch._C._dispatch_tls_local_exclude_set() - before
    return keys.add(torch._C.DispatchKey.ADInplaceOrView)


_AUTOGRAD_KEYS = _autograd_keys()


def _backward_reference(function: Callable, forward: str, backward: str, output_names: Sequence[str],
                        gradient_names: Sequence[str]) -> Callable:
    forward_names = _argument_names(forward)

    def run(*args: Any) -> Any:
        values = _named(backward, args)

        def outputs_of(*tensors: Tensor | None) -> Sequence[Tensor]:
            inputs = values | dict(zip(gradient_names, tensors))
            results = function(**{name: inputs[name] for name in forward_names if name in inputs})
            return (results,) if isinstance(results, Tensor) else results

        grads = [values.get(f"grad_{name}") for name in output_names]
        return _one_or_tuple(gradients_by_autograd(outputs_of, [values[name] for name in gradient_names], grads))

    return run


def _one_or_tuple(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _schema(name: str) -> torch._C.FunctionSchema:
    return getattr(torch.ops.based, name).default._schema


def _argument_names(name: str) -> list[str]:
    return [argument.name for argument in _schema(name).arguments]


def _is_optional(name: str, index: int) -> bool:
    return isinstance(_schema(name).arguments[index].type, torch.OptionalType)


def _named(name: str, args: Sequence[Any]) -> dict[str, Any]:
    """The arguments of an operator by name. The dispatcher leaves out trailing arguments that equal their defaults."""
    arguments = _schema(name).arguments
    values = {argument.name: argument.default_value for argument in arguments[len(args):]}
    return {argument.name: value for argument, value in zip(arguments, args)} | values
