"""Packed rows: tensors [tokens, …] with the offsets cu_seqlens, int64 [rows + 1], of each row's first token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Run(NamedTuple):
    """Consecutive rows of equal length. In the other packing, where given, the same rows have `other_length` tokens each."""

    first_row: int
    rows: int
    first_token: int
    length: int
    other_first_token: int = 0
    other_length: int = 0


def equal_runs(cu_seqlens: Tensor, tokens: int, other: Tensor | None = None) -> list[Run]:
    """The fewest runs that cover all rows in order. The host waits for offsets that are on a device."""
    starts = cu_seqlens.tolist()
    if not starts or starts[0] != 0 or starts[-1] != tokens or sorted(starts) != starts:
        raise ValueError(f"cu_seqlens must rise from 0 to the number of tokens, {tokens}, got {starts[:8]}")
    others = [0] * len(starts) if other is None else other.tolist()
    runs: list[Run] = []
    for row in range(len(starts) - 1):
        length, other_length = starts[row + 1] - starts[row], others[row + 1] - others[row]
        if runs and (runs[-1].length, runs[-1].other_length) == (length, other_length):
            runs[-1] = runs[-1]._replace(rows=runs[-1].rows + 1)
        else:
            runs.append(Run(row, 1, starts[row], length, others[row], other_length))
    return runs


def require_tokens(operator: str, tokens: int, **tensors: Tensor | None) -> None:
    """Raises ValueError, with the tensor's name, unless each tensor has this many tokens."""
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.dim() == 0 or tensor.shape[0] != tokens):
            raise ValueError(f"{operator}: {name} must have {tokens} tokens, as q has, got {list(tensor.shape)}")


def tokens_of(packed: Tensor, run: Run) -> Tensor:
    """The tokens of a run, [rows, length, …]."""
    return packed.narrow(0, run.first_token, run.rows * run.length).reshape(run.rows, run.length, *packed.shape[1:])


def other_tokens_of(packed: Tensor, run: Run) -> Tensor:
    """The run's tokens in the other packing, [rows, other_length, …]."""
    part = packed.narrow(0, run.other_first_token, run.rows * run.other_length)
    return part.reshape(run.rows, run.other_length, *packed.shape[1:])


def join(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    """The pieces concatenated along dimension 0, contiguous. Without pieces, zeros like `like`."""
    return torch.cat(list(pieces)).contiguous() if pieces else torch.zeros_like(like, memory_format=torch.contiguous_format)


def prefill_slots(slots: Tensor, cu_seqlens: Tensor, forward: Callable[..., Sequence[Tensor]], *states: Tensor) -> Tensor:
    """Runs forward(states of the slots…) -> (y, new states…), writes the new states to their slots, and returns y."""
    rows = cu_seqlens.shape[0] - 1
    if slots.shape != (rows,):
        raise ValueError(f"slots must be int64 [{rows}], one for each row, got {list(slots.shape)}")
    if slots.device.type == "cpu" and slots.unique().numel() != rows:
        raise ValueError(f"no slot may occur twice, got {slots.tolist()[:8]}")
    y, *results = forward(*(state.index_select(0, slots) for state in states))
    for state, result in zip(states, results):
        state.index_copy_(0, slots, result)
    return y
