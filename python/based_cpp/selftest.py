"""Compares the operators with their references in double precision, on the CPU and on a GPU.

An operator and its gradients are computed in fp32 and bf16 by the kernels, and for the same inputs in fp64 by plain torch operators. The
figure is the largest difference, as a share of the largest number of the reference.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import __version__, cuda_version
from .ops.pointwise import ACTIVATIONS

_LIMITS = {torch.float32: 2e-4, torch.bfloat16: 3e-2}
_LENGTHS = (37, 20)  # tokens of the rows


class _Inputs:
    """Random arguments of an operator, of one type and on one device."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.device = dtype, device
        self._generator = torch.Generator().manual_seed(1)
        self.tokens, self.rows = sum(_LENGTHS), len(_LENGTHS)
        self.offsets = self.integers(0, *torch.tensor(_LENGTHS).cumsum(0).tolist())
        self.slots = self.integers(2, 0)

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale).to(self.device, self.dtype)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        values = torch.rand(shape, generator=self._generator, dtype=torch.float64) * (high - low) + low
        return values.to(self.device, self.dtype)

    def unit(self, *shape: int) -> Tensor:
        return torch.nn.functional.normalize(self.normal(*shape).double(), dim=-1).to(self.dtype)

    def zeros(self, *shape: int) -> Tensor:
        """A state: fp32 for bf16."""
        return torch.zeros(shape, dtype=torch.float32 if self.dtype == torch.bfloat16 else self.dtype, device=self.device)

    def integers(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


def _taylor(x: _Inputs, tokens: int) -> list[Tensor]:
    return [x.normal(tokens, 2, 16, scale=0.5), x.normal(tokens, 2, 16, scale=0.5), x.normal(tokens, 2, 64)]


def _heads(x: _Inputs, tokens: int) -> list[Tensor]:
    return [x.normal(tokens, 4, 32), x.normal(tokens, 2, 32), x.normal(tokens, 2, 32)]


def _conv(x: _Inputs, tokens: int) -> list[Any]:
    return [x.normal(tokens, 32), x.normal(32, 3), x.normal(32), x.normal(tokens, 32), True]


def _scan(x: _Inputs, tokens: int) -> list[Any]:
    return [x.normal(tokens, 16), x.normal(tokens, 16), x.uniform(16, 8), x.normal(tokens, 1, 8), x.normal(tokens, 1, 8), x.normal(16),
            x.normal(tokens, 16), x.normal(16), True]


def _delta(x: _Inputs, tokens: int) -> list[Any]:
    return [x.unit(tokens, 2, 16), x.unit(tokens, 2, 16), x.normal(tokens, 2, 16), x.uniform(tokens, 2, low=-0.5), x.uniform(tokens, 2),
            None, True, 1.0]


def _positive(x: _Inputs, tokens: int) -> list[Tensor]:
    return [x.uniform(tokens, 2, 16, low=0.1), x.uniform(tokens, 2, 16, low=0.1), x.normal(tokens, 2, 32)]


def _filter(x: _Inputs) -> list[Any]:
    return [x.uniform(4, low=-4.0, high=-2.0), x.uniform(4, 8), x.uniform(4, 8, high=4.0), x.normal(4, 8, 2), x.normal(4, 8, 2),
            x.normal(4), 48]


# Operator -> its arguments.
_DIFFERENTIABLE: dict[str, Callable[[_Inputs], Sequence[Any]]] = {
    "taylor_attention": lambda x: [*_taylor(x, x.tokens), x.offsets],
    "causal_attention": lambda x: [*_heads(x, x.tokens), x.offsets, x.offsets, 16, 32**-0.5],
    "short_conv": lambda x: [*_conv(x, x.tokens), x.offsets],
    "projected_conv": lambda x: [x.normal(x.tokens, 24), x.normal(64, 24, scale=0.3), x.normal(64), x.normal(32, 3), x.normal(32),
                                 x.offsets],
    "selective_scan": lambda x: [*_scan(x, x.tokens), x.offsets],
    "gated_delta_rule": lambda x: [*_delta(x, x.tokens), x.offsets],
    "linear_attention": lambda x: [*_positive(x, x.tokens), x.offsets, None, None, 1e-6],
    "long_conv": lambda x: [x.normal(x.tokens, 8), x.normal(8, 40, scale=0.2), x.offsets],
    "gated_long_conv": lambda x: [x.normal(64, 8), x.normal(8, 32, scale=0.2).to(x.zeros().dtype), x.normal(64, 8), x.normal(64, 8), 32],
    "diagonal_filter": _filter,
    "linear": lambda x: [x.normal(x.tokens, 48), x.normal(32, 48, scale=0.2), x.normal(32)],
    "gated_mlp": lambda x: [x.normal(x.tokens, 48), x.normal(64, 48, scale=0.2), x.normal(40, 32, scale=0.2)],
    "layer_norm": lambda x: [x.normal(x.tokens, 64), x.normal(64), x.normal(64), 1e-5],
    "rms_norm": lambda x: [x.normal(x.tokens, 64), x.normal(64), 1e-5],
    "swiglu": lambda x: [x.normal(x.tokens, 64)],
    "linear_swiglu": lambda x: [x.normal(x.tokens, 48), x.normal(64, 48, scale=0.2), x.normal(64)],
    "linear_attention_pairs": lambda x: [*_positive(x, x.tokens), x.offsets, 1e-6],
    "taylor_features": lambda x: [x.normal(x.tokens, 2, 16)],
    "rotary": lambda x: [x.normal(x.tokens, 128), torch.arange(x.tokens, device=x.device), 4, 32, 32, 10000.0, False, False],
    "rowwise_activation": lambda x: [x.normal(x.tokens, 32), ACTIVATIONS.index("sigmoid"), 2.0, x.normal(32), x.normal(32), True],
    "rms_norm_add": lambda x: [x.normal(x.tokens, 64), x.normal(x.tokens, 64), x.normal(64), 1e-5],
    "layer_norm_add": lambda x: [x.normal(x.tokens, 64), x.normal(x.tokens, 64), x.normal(64), x.normal(64), 1e-5],
    "layer_norm_add_twice": lambda x: [x.normal(x.tokens, 64), x.normal(x.tokens, 64), *(x.normal(64) for _ in range(4)), 1e-5, True],
    "cross_entropy": lambda x: [x.normal(x.tokens, 48), x.normal(64, 48, scale=0.2), torch.arange(x.tokens, device=x.device) % 64],
}
# Without gradients; most change some of their arguments.
_IN_PLACE: dict[str, Callable[[_Inputs], Sequence[Any]]] = {
    "taylor_attention_prefill": lambda x: [*_taylor(x, x.tokens), x.offsets, x.zeros(3, 2, 153, 64), x.zeros(3, 2, 153), x.slots],
    "taylor_attention_step": lambda x: [*_taylor(x, x.rows), x.zeros(3, 2, 153, 64), x.zeros(3, 2, 153), x.slots],
    "causal_attention_step": lambda x: [*_heads(x, x.rows), x.normal(3, 8, 2, 32), x.normal(3, 8, 2, 32), x.integers(3, 12), x.slots,
                                        32**-0.5],
    "paged_attention_step": lambda x: [*_heads(x, x.rows), x.normal(6, 4, 2, 32), x.normal(6, 4, 2, 32),
                                       x.integers(0, 1, 2, 3, 4, 5).view(3, 2), x.integers(3, 5), x.slots, 32**-0.5],
    "rotary_": lambda x: [x.normal(x.tokens, 128), torch.arange(x.tokens, device=x.device), 4, 32, 32, 10000.0, False, False],
    "short_conv_prefill": lambda x: [*_conv(x, x.tokens), x.offsets, x.zeros(3, 32, 2), x.slots],
    "short_conv_step": lambda x: [*_conv(x, x.rows), x.zeros(3, 32, 2), x.slots],
    "selective_scan_prefill": lambda x: [*_scan(x, x.tokens), x.offsets, x.zeros(3, 16, 8), x.slots],
    "selective_scan_step": lambda x: [*_scan(x, x.rows), x.zeros(3, 16, 8), x.slots],
    "gated_delta_rule_prefill": lambda x: [*_delta(x, x.tokens), x.offsets, x.zeros(3, 2, 16, 16), x.slots],
    "gated_delta_rule_step": lambda x: [*_delta(x, x.rows), x.zeros(3, 2, 16, 16), x.slots],
    "linear_attention_step": lambda x: [*_positive(x, x.rows), x.zeros(3, 2, 16, 32), x.zeros(3, 2, 16), x.slots, 1e-6],
    "linear_attention_prefill": lambda x: [*_positive(x, x.tokens), x.offsets, x.zeros(3, 2, 16, 32), x.zeros(3, 2, 16), x.slots, 1e-6],
    "projected_conv_prefill": lambda x: [x.normal(x.tokens, 24), x.normal(64, 24, scale=0.3), x.normal(64), x.normal(32, 3), x.normal(32),
                                         x.offsets, x.zeros(3, 32, 2), x.slots],
    "rotary_attention_step": lambda x: [x.normal(x.rows, 256), x.normal(3, 8, 2, 32), x.normal(3, 8, 2, 32), x.integers(3, 12), x.slots,
                                        32**-0.5, 32, 10000.0],
    "rms_norm_add_": lambda x: [x.zeros(x.tokens, 64), x.normal(x.tokens, 64), x.normal(64), 1e-5],
    "layer_norm_add_": lambda x: [x.normal(x.tokens, 64), x.normal(x.tokens, 64), x.normal(64), x.normal(64), 1e-5],
    "rms_norm_of_sum": lambda x: [x.zeros(x.tokens, 64), x.normal(x.tokens, 64), x.normal(64), 1e-5],
    "rms_norm_gated": lambda x: [x.normal(x.tokens, 64), x.normal(64), 1e-5, x.normal(x.tokens, 64)],
    "token_log_probabilities": lambda x: [x.normal(x.tokens, 48), x.normal(64, 48, scale=0.2),
                                          torch.arange(x.tokens, device=x.device) % 60, 60],
}


def _tensors(values: Any) -> list[Tensor]:
    values = values if isinstance(values, (tuple, list)) else [values]
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def _results(name: str, arguments: Sequence[Any], gradients: bool) -> list[Tensor]:
    """The operator's outputs, then its floating arguments afterwards or their gradients."""
    operator = getattr(torch.ops.based, name)
    inputs = _tensors(arguments)
    if not gradients:
        with torch.no_grad():
            return _tensors(operator(*arguments)) + inputs
    for tensor in inputs:
        tensor.requires_grad_()
    outputs = _tensors(operator(*arguments))
    generator = torch.Generator().manual_seed(2)
    cotangents = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device, torch.bfloat16).to(y.dtype) for y in outputs]
    found = torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True)
    return outputs + [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found)]


def _in_double(argument: Any) -> Any:
    return argument.double() if isinstance(argument, Tensor) and argument.is_floating_point() else argument


def _path(name: str, device: str, reference_ran: bool) -> str:
    """"kernel"; "reference" for torch operators; "composed" for an operator that calls others of this package."""
    def has(operator: str, key: str) -> bool:
        return hasattr(torch.ops.based, operator) and torch._C._dispatch_has_kernel_for_dispatch_key(f"based::{operator}", key)

    operators = (name, f"{name}_forward")
    if any(has(operator, device.upper()) for operator in operators):
        return "reference" if reference_ran else "kernel"
    return "reference" if any(has(operator, "CompositeExplicitAutograd") for operator in operators) else "composed"


def _largest_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        if b.numel() == 0:
            continue
        difference = (a.detach().double() - b.detach()).abs().max() / b.detach().abs().max().clamp_min(1e-30)
        worst = max(worst, float(difference) if bool(difference.isfinite()) else float("inf"))
    return worst


def _cases(only: str) -> Iterator[tuple[str, Callable[[_Inputs], Sequence[Any]], bool]]:
    for table, gradients in ((_DIFFERENTIABLE, True), (_IN_PLACE, False)):
        for name, arguments in table.items():
            if only in name:
                yield name, arguments, gradients


def _device_name(device: str) -> str:
    if device == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"


def run(devices: Sequence[str] | None = None, only: str = "") -> int:
    """Prints a line for each operator, type and device. Returns 0 if all differences are within their limits, else 1."""
    devices = devices or ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    if any(torch.device(device).type == "cuda" for device in devices) and not torch.cuda.is_available():
        print("selftest: torch finds no CUDA device: run it with --device cpu")
        return 1
    kernels = f"CPU and CUDA {cuda_version}" if cuda_version else "CPU only"
    print(f"based-cpp {__version__} ({kernels}), torch {importlib.metadata.version('torch')}")
    failures = cases = 0
    for device in devices:
        print(f"{device}: {_device_name(device)}")
        for name, arguments, gradients in _cases(only):
            for dtype, limit in _LIMITS.items():
                case = arguments(_Inputs(dtype, device))
                doubled = [_in_double(argument) for argument in case]
                calls = torch.ops.based.reference_calls()
                found = _results(name, case, gradients)
                path = _path(name, device, torch.ops.based.reference_calls() > calls)
                difference = _largest_difference(found, _results(name, doubled, gradients))
                failed = not difference <= limit
                failures, cases = failures + failed, cases + 1
                what = name + (" and gradients" if gradients else "")
                print(f"  {what:42} {str(dtype).removeprefix('torch.'):9} {path:10} {difference:.1e}" + ("  FAILED" if failed else ""))
    if cases == 0:
        print(f"no operator's name contains '{only}'")
        return 1
    print(f"{failures} of {cases} failed" if failures else f"all {cases} passed")
    return 1 if failures else 0
