"""What the mixers share: the base class, the three forms of a call, and the parts before and after a recurrence.

A mixer is one function, _run, over a call that is a forward, a prefill or a step. The recurrences choose the operator by the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..ops._registration import sum_type
from ..ops.pointwise import gate
from ._state import State

INITIAL_STD = 0.02


@dataclass
class Call:
    """One call of a mixer on tokens [batch · length, …]: a forward without a state, a prefill, or a step of one or several tokens."""

    batch: int
    length: int
    device: torch.device
    state: State | None = None
    step: bool = False

    @property
    def cu_seqlens(self) -> Tensor:
        """The offsets of the rows, int64 [batch + 1]."""
        return self.offsets(self.length)

    def offsets(self, length: int) -> Tensor:
        """The offsets of rows of another length."""
        return torch.arange(self.batch + 1, device=self.device) * length

    @property
    def slots(self) -> Tensor:
        return torch.arange(self.batch, device=self.device)

    @property
    def seen(self) -> int:
        """The number of tokens before this call."""
        return 0 if self.state is None else self.state.tokens

    @property
    def positions(self) -> Tensor:
        """Each token's position in its sequence, int64 [batch · length]."""
        return (torch.arange(self.length, device=self.device) + self.seen).repeat(self.batch)

    def by_row(self, x: Tensor) -> Tensor:
        """[batch · length, …] as [batch, length, …]."""
        return x.unflatten(0, (self.batch, self.length))

    def each_token(self, step: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """step(rows [batch, …]…) for one token after the other, in a step. Returns [batch · length, …]."""
        if self.length == 1:
            return step(*inputs)
        outputs = [step(*(None if x is None else self.by_row(x)[:, t].contiguous() for x in inputs)) for t in range(self.length)]
        return torch.stack(outputs, 1).flatten(0, 1)

    def short_conv(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Tensor | None, silu: bool) -> Tensor:
        """ops.short_conv with the state `name` [batch, channels, taps − 1]."""
        if self.step:
            state = self.state[name]
            return self.each_token(lambda x, gate: ops.short_conv_step(x, weight, bias, gate, silu, state, self.slots), x, gate)
        y, state = ops.short_conv(x, weight, bias, gate, silu, self.cu_seqlens, None if self.state is None else self.state[name])
        self.keep(name, state)
        return y

    def gated_delta_rule(self, name: str, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None, beta: Tensor | None = None,
                         bonus: Tensor | None = None, delta: bool = False, scale: float = 1.0) -> Tensor:
        """ops.gated_delta_rule with the state `name` [batch, heads, key_dim, value_dim]."""
        if self.step:
            state = self.state[name]

            def recur(*inputs: Tensor | None) -> Tensor:
                return ops.gated_delta_rule_step(*inputs, bonus, delta, scale, state, self.slots)

            return self.each_token(recur, q, k, v, log_decay, beta)
        y, state = ops.gated_delta_rule(q, k, v, log_decay, beta, bonus, delta, scale, self.cu_seqlens,
                                        None if self.state is None else self.state[name])
        self.keep(name, state)
        return y

    def keep(self, name: str, value: Tensor) -> None:
        if self.state is not None:
            self.state.tensors[name] = value

    def long_conv(self, name: str, x: Tensor, filter: Tensor) -> Tensor:
        """ops.long_conv with the state `name` [batch, taps, channels], a ring of the latest inputs. filter [channels, taps]."""
        taps = filter.shape[1]
        if self.state is None:
            return ops.long_conv(x, filter[:, : self.length].to(x.dtype), self.cu_seqlens)
        if not self.step:
            earlier = self.extend(name, x, most=taps - 1)
            if earlier.shape[1] == 0:
                return ops.long_conv(x, filter.to(x.dtype), self.cu_seqlens)
            return ops.long_conv(x, filter.to(x.dtype), self.cu_seqlens, earlier.flatten(0, 1).to(x.dtype), self.offsets(earlier.shape[1]))
        ring, position = self.state[name], self.seen

        def convolve(x: Tensor) -> Tensor:
            nonlocal position
            ring[:, position % taps] = x
            count = min(position + 1, taps)
            latest = (position - torch.arange(count, device=x.device)) % taps
            position += 1
            return (ring[:, latest].to(filter.dtype) * filter.t()[:count]).sum(1).to(x.dtype)

        return self.each_token(convolve, x)

    def extend(self, name: str, fresh: Tensor, most: int) -> Tensor:
        """Appends a prefill's steps [batch · length, …] to the ring `name` [batch, capacity, …].

        Returns up to `most` of the steps before them, oldest first: [batch, steps, …].
        """
        ring, fresh = self.state[name], self.by_row(fresh)
        capacity, count = ring.shape[1], min(self.seen, most)
        earlier = ring[:, torch.arange(self.seen - count, self.seen, device=self.device) % capacity]
        kept = fresh[:, -capacity:]
        end = self.seen + self.length
        places = torch.arange(end - kept.shape[1], end, device=self.device) % capacity
        self.keep(name, ring.index_copy(1, places, kept.to(ring.dtype)))
        return earlier


class Mixer(nn.Module):
    """A layer that mixes tokens of a sequence. x and y are [batch, length, d_model]; every sequence of a batch has the same length."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def forward(self, x: Tensor, *, _state: State | None = None, _step: bool = False) -> Tensor:
        """The mixer over whole sequences: x [batch, length, d_model] -> [batch, length, d_model]. Differentiable.

        `_state` and `_step` are for this class: torch.func.functional_call calls forward().
        """
        return self._call(x, _state, _step)

    def prefill(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The mixer over the next tokens of sequences: x [batch, length, d_model] -> y of the same shape, and the state after them.

        Leaves `state` unchanged. Differentiable in x, the parameters and the state's tensors.
        """
        state = State(dict(state.tensors), state.tokens)
        y = self._call(x, state, False)
        state.tokens += x.shape[1]
        return y, state

    @torch.no_grad()
    def step(self, x: Tensor, state: State) -> Tensor:
        """One token of each sequence, x [batch, d_model], or several, [batch, tokens, d_model]. Updates `state` in place. No gradient."""
        tokens = x.unsqueeze(1) if x.dim() == 2 else x
        for name, tensor in state.tensors.items():  # a backward may need the tensors of a differentiable prefill unchanged
            state.tensors[name] = tensor.detach().clone() if tensor.requires_grad else tensor
        y = self._call(tokens, state, True)
        state.tokens += tokens.shape[1]
        return y.view(x.shape)

    def make_state(self, batch: int) -> State:
        """The state of sequences without tokens."""
        parameter = next(self.parameters())
        sums, activations = self._state_shapes()
        shapes = [(name, shape, sum_type(parameter)) for name, shape in sums.items()]
        shapes += [(name, shape, parameter.dtype) for name, shape in activations.items()]
        return State({name: torch.zeros(batch, *shape, dtype=dtype, device=parameter.device) for name, shape, dtype in shapes})

    def _call(self, x: Tensor, state: State | None, step: bool) -> Tensor:
        if x.dim() != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"{type(self).__name__}: x must be [batch, length, {self.d_model}], got {list(x.shape)}")
        if state is not None:
            self._check_state(state, x.shape[0])
        if x.numel() == 0:
            return x.clone()
        if torch.is_autocast_enabled(x.device.type):
            return self._call_under_autocast(x, state, step)
        call = Call(x.shape[0], x.shape[1], x.device, state, step)
        return self._run(x.flatten(0, 1), call).view(x.shape)

    def _check_state(self, state: State, batch: int) -> None:
        sums, activations = self._state_shapes()
        wanted = {name: list(shape) for name, shape in (sums | activations).items()}
        given = {name: list(tensor.shape[1:]) for name, tensor in state.tensors.items()}
        if given != wanted:
            raise ValueError(f"{type(self).__name__}: the state's tensors must be {wanted} for each sequence, got {given}")
        if state.tensors and state.batch != batch:
            raise ValueError(f"{type(self).__name__}: the state has {state.batch} sequences, x has {batch}")

    def _call_under_autocast(self, x: Tensor, state: State | None, step: bool) -> Tensor:
        """The call in autocast's type, as a module of this type computes it. Sums of the state keep their own type."""
        dtype = torch.get_autocast_dtype(x.device.type)
        if state is not None:
            for name in self._state_shapes()[1]:
                state.tensors[name] = state.tensors[name].to(dtype)
        wide = {id(parameter) for module in self.modules() if getattr(module, "keeps_fp32", False) for parameter in module.parameters()}
        parameters = {name: parameter if id(parameter) in wide else parameter.to(dtype) for name, parameter in self.named_parameters()}
        with torch.autocast(x.device.type, enabled=False):
            return torch.func.functional_call(self, parameters, (x.to(dtype),), {"_state": state, "_step": step})

    def _run(self, x: Tensor, call: Call) -> Tensor:
        """x and the result [batch · length, d_model]."""
        raise NotImplementedError

    def _state_shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """The state's tensors without the batch: those in the type of sums, and those in the type of activations."""
        raise NotImplementedError


def divided(mixer: str, name: str, value: int, divisor_name: str, divisor: int) -> int:
    """value / divisor; raises ValueError if there is a remainder."""
    if divisor < 1 or value % divisor != 0:
        raise ValueError(f"{mixer}: {name} {value} is not a multiple of {divisor_name} {divisor}")
    return value // divisor


def projection(inputs: int, outputs: int, bias: bool, std: float = INITIAL_STD) -> nn.Linear:
    """A linear layer with weights from N(0, std) and a zero bias."""
    layer = nn.Linear(inputs, outputs, bias)
    nn.init.normal_(layer.weight, std=std)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def output_std(layers: int) -> float:
    """0.02/√(2·layers): with it the variance of the residual stream does not grow with depth."""
    return INITIAL_STD / math.sqrt(2 * layers)


def uniform_projection(inputs: int, outputs: int, bias: bool, layers: int = 1) -> nn.Linear:
    """A linear layer with weights uniform in ±1/√(inputs·layers) and a zero bias."""
    layer = nn.Linear(inputs, outputs, bias)
    bound = 1 / math.sqrt(inputs * layers)
    nn.init.uniform_(layer.weight, -bound, bound)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def uniform(*shape: int, bound: float) -> nn.Parameter:
    """A parameter uniform in ±bound."""
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def time_step_bias(n: int, low: float = 0.001, high: float = 0.1, floor: float = 1e-4) -> nn.Parameter:
    """Biases [n] whose softplus is log-uniform in [low, high], raised to at least `floor`."""
    step = torch.empty(n).uniform_(math.log(low), math.log(high)).exp().clamp_min(floor)
    return nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus


def rate_log(n: int, low: float, high: float) -> nn.Parameter:
    """Logarithms [n] of uniform draws from [low, high], finite for low = 0 too."""
    return nn.Parameter(torch.empty(n).uniform_(low, high).clamp_min(max(low, (high - low) * 2.0**-24)).log())


class ShortFilter(nn.Module):
    """The filter of a short convolution: weight [channels, taps], whose last tap weighs the current token, and bias [channels]."""

    def __init__(self, channels: int, taps: int, bias: bool) -> None:
        super().__init__()
        if taps < 1:
            raise ValueError(f"a short convolution needs at least 1 tap, got {taps}")
        self.weight = uniform(channels, taps, bound=1 / math.sqrt(taps))
        self.bias = uniform(channels, bound=1 / math.sqrt(taps)) if bias else None

    @property
    def state_shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1] - 1


class Scale(nn.Module):
    """The weight of a norm, and its bias where it has one."""

    def __init__(self, width: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None


class FixedTensor(nn.Module):
    """A constant that moves to the module's device and keeps its own type. It is not part of the state dict."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FixedTensor:
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)


def token_shift(call: Call, x: Tensor) -> Tensor:
    """The token before each token of x [batch · length, d_model]. State "shift" [batch, d_model, 1]."""
    taps = torch.tensor([1.0, 0.0], dtype=x.dtype, device=x.device).expand(x.shape[1], 2).contiguous()
    return call.short_conv("shift", x, taps, None, None, False)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / √(Σx² + eps) over the last dimension."""
    wide = x.to(sum_type(x))
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


class GatedHeads(Mixer):
    """Mixers around ops.gated_delta_rule: projections, short convolutions, gates, RMSNorm of each head's output, and an output gate.

    State: "kv" [batch, heads, key_dim, value_dim], and "q_conv", "k_conv", "v_conv" [batch, channels, conv_size − 1].
    """

    def __init__(self, d_model: int, key_width: int, value_width: int, heads: int, use_short_conv: bool, conv_size: int, conv_bias: bool,
                 use_gate: bool, norm_eps: float, rescale_output: bool, layers: int) -> None:
        super().__init__(d_model)
        name = type(self).__name__
        divided(name, "the width of keys", key_width, "heads", heads)
        self.heads, self.key_width, self.value_width, self.norm_eps = heads, key_width, value_width, norm_eps
        self.q_proj = projection(d_model, key_width, False)
        self.k_proj = projection(d_model, key_width, False)
        self.v_proj = projection(d_model, value_width, False)
        self.q_conv = ShortFilter(key_width, conv_size, conv_bias) if use_short_conv else None
        self.k_conv = ShortFilter(key_width, conv_size, conv_bias) if use_short_conv else None
        self.v_conv = ShortFilter(value_width, conv_size, conv_bias) if use_short_conv else None
        self.g_proj = projection(d_model, value_width, False) if use_gate else None
        self.norm = Scale(divided(name, "the width of values", value_width, "heads", heads))
        self.o_proj = projection(value_width, d_model, False, output_std(layers) if rescale_output else INITIAL_STD)

    def _gates(self, x: Tensor, q: Tensor, k: Tensor) -> dict[str, Tensor | bool | None]:
        """The arguments of gated_delta_rule besides v and the scale, for q and k [tokens, heads, key_dim]."""
        raise NotImplementedError

    def _run(self, x: Tensor, call: Call) -> Tensor:
        def by_head(name: str, values: Tensor, conv: ShortFilter | None) -> Tensor:
            if conv is not None:
                values = call.short_conv(name, values, conv.weight, conv.bias, None, True)
            return values.unflatten(1, (self.heads, -1))

        q, k = by_head("q_conv", self.q_proj(x), self.q_conv), by_head("k_conv", self.k_proj(x), self.k_conv)
        v = by_head("v_conv", self.v_proj(x), self.v_conv)
        arguments = {"q": q, "k": k} | self._gates(x, q, k)
        y = call.gated_delta_rule("kv", v=v, scale=math.sqrt(self.heads / self.key_width), **arguments)
        y = ops.rms_norm(y, self.norm.weight, self.norm_eps).flatten(1)
        return self.o_proj(y if self.g_proj is None else y * F.silu(self.g_proj(x)))

    def _state_shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        sums = {"kv": (self.heads, self.key_width // self.heads, self.value_width // self.heads)}
        for name in ("q_conv", "k_conv", "v_conv"):
            if (conv := getattr(self, name)) is not None:
                sums[name] = conv.state_shape
        return sums, {}

    @staticmethod
    def _delta_rule(q: Tensor, k: Tensor, logits: Tensor | None, max_beta: float = 1.0) -> dict[str, Tensor | bool | None]:
        """Queries and keys of length 1, and beta = max_beta · sigmoid(logits), logits [tokens, heads]; None means beta 1."""
        beta = None if logits is None else gate(logits, "sigmoid", max_beta)
        return {"q": l2_norm(q), "k": l2_norm(k), "beta": beta, "delta": True}
