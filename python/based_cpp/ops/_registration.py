"""What this package adds to the operators `torch.ops.based.*` of the compiled library: references in torch operators, fake kernels for
torch.compile, and gradients.

The compiled kernels compute in fp32 and bf16. For other types, and on devices without a kernel, an operator runs its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor

_library = torch.library.Library("based", "FRAGMENT")
_autograd_kernels: dict[str, Callable] = {}  # by operator


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


def outputs_of(forward: str, part: int | slice, name: str) -> None:
    """Defines that the operator `name` returns the outputs `part` of `forward`, which has the same arguments, and has its gradient.

    Without a gradient, a kernel of its own computes the operator where there is one.
    """
    operator, forward_operator, run_forward = _operator(name), _operator(forward), _autograd_kernels[forward]
    defaults, has_kernel = _defaults(name), torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")

    def run(*args: Any) -> Any:
        _refuse_forward_mode(name, args)
        if not has_kernel or _needs_gradient(args):
            return run_forward(*args, *defaults[len(args):])[part]
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    if not has_kernel:
        composite(name)(lambda *args: forward_operator(*args, *defaults[len(args):])[part])
    _library.impl(name, run, "Autograd")


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
    tensor_names = [name for name in saved_names if name in output_names or _is_tensor(forward, name)]
    constant_names = [name for name in saved_names if name not in tensor_names]
    grad_names = [f"grad_{name}" for name in output_names]
    extra = _picker(range(len(output_names)), [i for i, name in enumerate(grad_names) if name not in backward_names])
    tensors_of, constants_of = (_picker(forward_names + output_names, names) for names in (tensor_names, constant_names))
    arguments_of = _picker(grad_names + tensor_names + constant_names, backward_names)
    gradients_of = _picker([*gradient_names, None], [name if name in gradient_names else None for name in forward_names])
    # The first output's gradient is None where only other outputs are used. Unless `backward` accepts that, it is zero.
    first = backward_names.index(grad_names[0]) if grad_names[0] in backward_names else -1
    needs_first = first >= 0 and not _is_optional(backward, first) and sum(name in backward_names for name in grad_names) > 1
    call_backward, has_extra = _operator(backward), any(name not in backward_names for name in grad_names)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = (output,) if isinstance(output, Tensor) else output
        values = (*inputs, *results)
        ctx.save_for_backward(*tensors_of(values))
        ctx.constants = constants_of(values)
        if needs_first:
            ctx.like_first = results[0].shape, results[0].dtype, results[0].device
        if has_extra:
            ctx.mark_non_differentiable(*extra(results))

    def run_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments = arguments_of((*grads, *ctx.saved_tensors, *ctx.constants))
        if needs_first and arguments[first] is None:
            shape, dtype, device = ctx.like_first
            arguments = (*arguments[:first], torch.zeros(shape, dtype=dtype, device=device), *arguments[first + 1:])
        found = call_backward(*arguments)
        return gradients_of((found, None) if isinstance(found, Tensor) else (*found, None))

    gradient(forward, save, run_backward)


def gradient(name: str, save: Callable, backward: Callable, *, differentiable: bool = False) -> None:
    """Registers `backward` as the gradient of the operator `name`.

    save(ctx, inputs, output) stores in ctx the tensors and constants that backward(ctx, *grad_outputs) needs; `inputs` has every argument
    of the schema. A gradient of an output is None where that output is not used. `backward` returns a gradient or None for every argument.
    It is `differentiable` if it consists of differentiable operators; otherwise a second derivative raises an error.

    torch.library.register_autograd registers the same, but a forward and backward call takes twice the CPU time.
    """
    operator, defaults = _operator(name), _defaults(name)

    def forward(ctx: Any, *inputs: Any) -> Any:
        ctx.set_materialize_grads(False)
        with torch._C._AutoDispatchBelowAutograd():
            output = operator(*inputs)
        save(ctx, inputs, output)
        return output

    def run_backward(ctx: Any, *grads: Tensor | None) -> Any:
        if grads[0] is None and all(grad is None for grad in grads):
            return (None,) * len(defaults)
        if differentiable or not torch.is_grad_enabled():
            return backward(ctx, *grads)
        with torch.no_grad():
            found = backward(ctx, *grads)
        return _without_second_derivative(name, found, (*grads, *ctx.saved_tensors))

    function = type(name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(run_backward)})

    def run(*args: Any) -> Any:
        _refuse_forward_mode(name, args)
        if _needs_gradient(args):
            return function.apply(*args, *defaults[len(args):])
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    _autograd_kernels[name] = run
    _library.impl(name, run, "Autograd")


def finish() -> None:
    """Registers, for every operator without a gradient, that differentiating it is an error, and that its arguments which it changes
    have changed: autograd then notices if a backward pass needs their earlier values. Call it when all operators are defined."""
    for full_name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full_name.partition("::")
        if namespace != "based" or "." in name or name.endswith("_reference"):
            continue
        if any(torch._C._dispatch_has_kernel_for_dispatch_key(full_name, key) for key in ("Autograd", "CompositeImplicitAutograd")):
            continue
        _without_gradient(name)


def _without_gradient(name: str) -> None:
    operator = _operator(name)
    written = [i for i, argument in enumerate(operator._schema.arguments) if argument.alias_info is not None and argument.alias_info.is_write]

    def run(*args: Any) -> Any:
        _refuse_forward_mode(name, args)
        changed = [args[i] for i in written if i < len(args) and isinstance(args[i], Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in changed):
            raise RuntimeError(f"based::{name} has no gradient, and changes a tensor that requires one: call it under torch.no_grad()")
        with torch._C._AutoDispatchBelowAutograd():
            found = operator(*args)
        for tensor in changed:
            torch.autograd.graph.increment_version(tensor)
        if not _needs_gradient(args):
            return found
        results = [found] if isinstance(found, Tensor) else list(found or ())
        new = [i for i, result in enumerate(results) if result is not None and result.is_floating_point()]
        marked = _WithoutDerivative.apply(f"based::{name} has no gradient", len(new), *(results[i] for i in new), *_tensors(args))
        for i, result in zip(new, marked):
            results[i] = result
        return results[0] if isinstance(found, Tensor) else type(found)(results) if found is not None else None

    _library.impl(name, run, "Autograd")


def _tensors(args: Sequence[Any]) -> list[Tensor]:
    return [arg for arg in args if isinstance(arg, Tensor)]


def _refuse_forward_mode(name: str, args: Sequence[Any]) -> None:
    """Raises an error for tangents of forward-mode differentiation, which would be lost."""
    if fwAD._current_level < 0:
        return
    if any(fwAD.unpack_dual(arg).tangent is not None for arg in _tensors(args)):
        raise NotImplementedError(f"based::{name} has no forward-mode derivative; torch.func.vjp and backward() have its gradient")


class _WithoutDerivative(torch.autograd.Function):
    """The first `count` tensors, as functions of all tensors that raise an error if they are differentiated."""

    @staticmethod
    def forward(ctx: Any, message: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.message = message
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(ctx.message)


def _without_second_derivative(name: str, gradients: Sequence[Tensor | None], sources: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients, computed from `sources` without autograd."""
    present, reasons = ([x for x in tensors if x is not None] for tensors in (gradients, sources))
    message = f"the gradient of based::{name} cannot be differentiated"
    marked = iter(_WithoutDerivative.apply(message, len(present), *present, *reasons))
    return tuple(None if x is None else next(marked) for x in gradients)


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


def _needs_gradient(args: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*args)


def _operator(name: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.based, name).default


def _argument_names(name: str) -> list[str]:
    return [argument.name for argument in _operator(name)._schema.arguments]


def _defaults(name: str) -> tuple[Any, ...]:
    """Every argument's default value, None where it has none. The dispatcher leaves out trailing arguments that equal their defaults."""
    return tuple(argument.default_value for argument in _operator(name)._schema.arguments)


def _is_optional(name: str, index: int) -> bool:
    return isinstance(_operator(name)._schema.arguments[index].type, torch.OptionalType)


def _is_tensor(name: str, argument: str) -> bool:
    types = {each.name: each.type for each in _operator(name)._schema.arguments}
    return str(types[argument]) in ("Tensor", "Optional[Tensor]")


def _picker(names: Sequence[Any], wanted: Sequence[Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """A function from the values of `names`, in order, to those of `wanted`."""
    indices = [names.index(name) for name in wanted]
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple(values[i] for i in indices)


def _named(name: str, args: Sequence[Any]) -> dict[str, Any]:
    """The arguments of an operator by name."""
    return dict(zip(_argument_names(name), (*args, *_defaults(name)[len(args):])))
