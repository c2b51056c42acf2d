"""H3 (Fu et al. 2022): two state space models, one that shifts and one with complex poles, and products between them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from ..ops._registration import sum_type
from ..ops.conv import discrete_poles, powers
from ._blocks import Call, Mixer, divided, projection, uniform

_PIECE = 1024  # tokens whose powers of the poles are in memory at once


class H3(Mixer):
    """y = o_proj(q ⊙ diagonal(shift(k) ⊙ v)); with head_dim > 1 the outer product of a head's k and v replaces k ⊙ v.

    State: "shift" [batch, d_model, d_state − 1], the latest keys, and "diagonal" [batch, 2, d_state / 2, d_model · head_dim], the real and
    imaginary parts of the poles' states.

    Args:
        d_model: width of x.
        d_state: taps of the shift model, and twice the poles of the diagonal model; even.
        head_dim: channels per head.
    """

    def __init__(self, d_model: int, d_state: int = 64, head_dim: int = 1, *, layer: int = 0, layers: int = 1) -> None:
        super().__init__(d_model)
        if d_state < 2 or d_state % 2 != 0:
            raise ValueError(f"H3: d_state must be even and at least 2, got {d_state}")
        self.d_state, self.head_dim = d_state, head_dim
        self.heads = divided("H3", "d_model", d_model, "head_dim", head_dim)
        self.q_proj = projection(d_model, d_model, True)
        self.k_proj = projection(d_model, d_model, True)
        self.v_proj = projection(d_model, d_model, True)
        self.shift = _ShiftModel(d_model, d_state)
        self.diagonal = _DiagonalModel(self.heads, d_state // 2)
        self.o_proj = projection(d_model, d_model, True)

    def _run(self, x: Tensor, call: Call) -> Tensor:
        q, k, v, taps = self.q_proj(x), self.k_proj(x), self.v_proj(x), self.shift.taps()
        if call.state is None:
            k = ops.gated_long_conv(k, taps, None, None, call.length)
            return self._output(ops.gated_long_conv(k, self.diagonal.filter(call.length), q, v, call.length).unflatten(1, (self.heads, -1)))
        k = call.short_conv("shift", k, taps.flip(1).to(x.dtype).contiguous(), None, None, False)
        dtype = sum_type(x)
        q, k, v = (t.to(dtype).unflatten(1, (self.heads, self.head_dim)) for t in (q, k, v))
        u = (k.unsqueeze(3) * v.unsqueeze(2)).flatten(2)  # [tokens, heads, head_dim²]
        h = torch.complex(*call.state["diagonal"].unflatten(3, (self.heads, -1)).unbind(1))  # [batch, poles, heads, head_dim²]
        y, h = self.diagonal.run(call.by_row(u), h)
        after = torch.stack((h.real, h.imag), 1).flatten(3)
        if call.step:
            call.state["diagonal"].copy_(after)
        else:
            call.keep("diagonal", after)
        read = (y.flatten(0, 1).unflatten(2, (self.head_dim, self.head_dim)) * q.unsqueeze(3)).sum(2)
        return self._output(read.to(x.dtype))

    def _output(self, y: Tensor) -> Tensor:
        """y [tokens, heads, head_dim]. As in the authors' code, o_proj's input channels are [head_dim, heads]."""
        return self.o_proj(y.transpose(1, 2).flatten(1))

    def _state_shapes(self):
        return {"shift": (self.d_model, self.d_state - 1), "diagonal": (2, self.d_state // 2, self.d_model * self.head_dim)}, {}


class _ShiftModel(nn.Module):
    """Its state holds the last inputs, so y_t = Σ_j (Σ_i B_i C_{i+j}) k_{t−j} + D k_t."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.B = nn.Parameter(F.pad(torch.ones(channels, 1), (0, taps - 1)))
        self.C = uniform(channels, taps, bound=1 / math.sqrt(taps))
        self.D = nn.Parameter(torch.randn(channels))

    def taps(self) -> Tensor:
        """[channels, taps], the current token's tap first, in fp32 (fp64 for fp64 models)."""
        dtype, taps = sum_type(self.B), self.B.shape[1]
        shifted = F.pad(self.C.to(dtype), (0, taps - 1)).unfold(1, taps, 1)  # [channels, i, j]: C_{i+j}
        return (self.B.to(dtype).unsqueeze(1) @ shifted).squeeze(1) + F.pad(self.D.to(dtype).unsqueeze(1), (0, taps - 1))


class _DiagonalModel(nn.Module):
    """h_t = a h_{t−1} + b u_t, y_t = Re Σ c h_t + D u_t for the poles of each group of channels; see ops.diagonal_filter.

    Its parameters stay in fp32 in a 16-bit model: a pole turns by about 200 radians while it decays.
    """

    keeps_fp32 = True

    def __init__(self, groups: int, poles: int) -> None:
        super().__init__()
        self.log_dt = nn.Parameter(torch.empty(groups).uniform_(math.log(0.001), math.log(0.1)))
        self.log_decay = nn.Parameter(torch.full((groups, poles), math.log(0.5)))
        self.frequency = nn.Parameter((torch.arange(poles) * math.pi).repeat(groups, 1))
        self.B = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(groups, poles, 1))
        self.C = nn.Parameter(torch.randn(groups, poles, 2) / math.sqrt(2))
        self.D = nn.Parameter(torch.randn(groups))

    def filter(self, taps: int) -> Tensor:
        return ops.diagonal_filter(self.log_dt, self.log_decay, self.frequency, self.B, self.C, self.D, max(1, taps))

    def run(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """u [batch, length, groups, copies], complex h [batch, poles, groups, copies] before -> y like u, and h after."""
        a, b, c = discrete_poles(self.log_dt, self.log_decay, self.frequency, self.B, self.C)
        outputs = []
        for part in u.split(_PIECE, 1):
            batch, length, groups, copies = part.shape
            power = powers(a, length + 1)
            read = (c.unsqueeze(-1) * power[..., 1:]).to(h.dtype)  # [groups, poles, length]
            write = (b.unsqueeze(-1) * power[..., :length]).flip(-1).to(h.dtype)
            flat = part.flatten(2)
            filter = self.filter(length).repeat_interleave(copies, 0).to(part.dtype)
            own = ops.long_conv(flat.flatten(0, 1), filter, torch.arange(batch + 1, device=u.device) * length)
            outputs.append(own.view(part.shape) + torch.einsum("gpt,bpgc->btgc", read, h).real)
            h = power[..., length].t().unsqueeze(-1).to(h.dtype) * h + torch.einsum("gpt,btgc->bpgc", write, part.to(h.dtype))
        return torch.cat(outputs, 1), h

    def _apply(self, fn, recurse: bool = True):
        def at_least_fp32(tensor: Tensor) -> Tensor:
            converted = fn(tensor)
            return converted if converted.dtype not in (torch.bfloat16, torch.float16) else tensor.to(converted.device, torch.float32)

        return super()._apply(at_least_fp32, recurse)
