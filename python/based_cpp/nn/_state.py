"""The state of a mixer: what it keeps of the tokens that it has read."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ._safetensors import from_bytes, to_bytes


@dataclass
class State:
    """Named tensors [batch, …] of a batch of sequences, all of which have had `tokens` tokens.

    A state is a value: prefill() returns a new one, and step() updates one in place. clone() forks the sequences.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    tokens: int = 0

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def batch(self) -> int:
        """The number of sequences."""
        if not self.tensors:
            raise ValueError("a state without tensors has no number of sequences")
        return next(iter(self.tensors.values())).shape[0]

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def clone(self) -> State:
        """An independent copy, without gradients: the fork of all sequences."""
        return State({name: tensor.detach().clone() for name, tensor in self.tensors.items()}, self.tokens)

    def select(self, sequences: Tensor | list[int]) -> State:
        """A copy of some of the sequences, in this order; a sequence may occur several times."""
        tensors = {}
        for name, tensor in self.tensors.items():
            index = torch.as_tensor(sequences, dtype=torch.int64, device=tensor.device)
            tensors[name] = tensor.detach().index_select(0, index)
        return State(tensors, self.tokens)

    def to(self, device: torch.device | str) -> State:
        """The state on another device."""
        return State({name: tensor.to(device) for name, tensor in self.tensors.items()}, self.tokens)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by name, and "tokens" as int64 []."""
        return {**{name: tensor.detach() for name, tensor in self.tensors.items()}, "tokens": torch.tensor(self.tokens)}

    @staticmethod
    def from_state_dict(tensors: dict[str, Tensor]) -> State:
        """The inverse of state_dict()."""
        return State({name: tensor for name, tensor in tensors.items() if name != "tokens"}, int(tensors["tokens"]))

    def to_bytes(self) -> bytes:
        """The state as the contents of a safetensors file."""
        return to_bytes(self.state_dict())

    @staticmethod
    def from_bytes(data: bytes) -> State:
        """The inverse of to_bytes(), on the CPU. Raises ValueError for bytes that are not a safetensors file."""
        return State.from_state_dict(from_bytes(data))
