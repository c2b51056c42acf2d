"""Choosing the next token of each row from its logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import fake, reference

_CHUNK_LOGITS = 1 << 24  # the number of logits that are in memory at once


def most_likely(hidden: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
    """For each row the word below vocab_size with the largest logit of hidden · weightᵀ, int64 [rows]; −1 if it is not finite.

    hidden [rows, d], weight [words, d]. The logits of all rows are never in memory. Without a gradient.
    """
    return torch.ops.based.most_likely(hidden, weight, vocab_size)


def sample_(token: Tensor, logits: Tensor, position: Tensor, seed: Tensor, top_k: Tensor, temperature: Tensor, top_p: Tensor,
            min_p: Tensor, penalty: Tensor, seen: Tensor) -> Tensor:
    """Draws the next token of every row of logits [rows, vocab] (fp32 or bf16) into token, int64 [rows]; −1 if logits are not finite.

    All on the logits' device, with one entry for each row: position, seed and top_k int64; temperature, top_p, min_p and penalty (of
    repetition) fp32; seen int32 [rows, ⌈vocab / 32⌉], the bits of the penalised tokens, to which it adds the drawn token. A draw depends
    on the row's logits and options alone. Returns token.
    """
    torch.ops.based.sample_(token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen)
    return token


def adjusted_logits(logits: Tensor, presence: Tensor, frequency: Tensor, penalty: Tensor, seen: Tensor, bias: Tensor | None = None,
                    counts: Tensor | None = None) -> Tensor:
    """logits [rows, vocab] (fp32 or bf16) with biases and penalties, fp32 [rows, vocab].

    presence, frequency and penalty fp32 [rows]; seen int32 [rows, ⌈vocab / 32⌉]; bias fp32 [rows, vocab]; counts int32 [rows, vocab], the
    number of times that each token was generated, without which `presence` and `frequency` have no effect.
    """
    return torch.ops.based.adjusted_logits(logits, presence, frequency, penalty, seen, bias, counts)


@reference("most_likely")
def _most_likely(hidden, weight, vocab_size):
    words = hidden.new_empty(hidden.shape[:1], dtype=torch.int64)
    rows = max(64, _CHUNK_LOGITS // vocab_size)
    for begin in range(0, hidden.shape[0], rows):
        best, word = F.linear(hidden[begin : begin + rows], weight[:vocab_size]).max(1)
        words[begin : begin + rows] = word.masked_fill(~best.isfinite(), -1)
    return words


@fake("most_likely")
def _(hidden, weight, vocab_size):
    return hidden.new_empty(hidden.shape[:1], dtype=torch.int64)


@fake("sample_")
def _(token, logits, position, seed, top_k, temperature, top_p, min_p, penalty, seen):
    return None


@fake("adjusted_logits")
def _(logits, presence, frequency, penalty, seen, bias=None, counts=None):
    return logits.new_empty(logits.shape, dtype=torch.float32)
