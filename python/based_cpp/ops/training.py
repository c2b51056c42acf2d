"""The loss of a language model, scores of tokens, and dropout whose draws depend on (seed, step, place, element) alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ._registration import composite, define, fake, gradient, reference, sum_type

IGNORED_LABEL = -100
_CHUNK_LOGITS = 1 << 21  # the number of logits that are in memory at once
_CHUNK_ROWS = 64  # the least rows of a chunk
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)  # as signed integers, whose products wrap around

define("cross_entropy(Tensor hidden, Tensor weight, Tensor labels) -> Tensor")
define("cross_entropy_and_gradients(Tensor hidden, Tensor weight, Tensor labels, bool grad_hidden, bool grad_weight) -> "
       "(Tensor loss, Tensor grad_hidden, Tensor grad_weight)")
define("token_log_probabilities(Tensor hidden, Tensor weight, Tensor targets, int vocab_size) -> Tensor")
define("dropout(Tensor x, float p, int seed, Tensor step, int place, int first_token=0) -> Tensor")


def cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean cross entropy of the logits hidden · weightᵀ, over labels other than −100; 0 if there are none.

    hidden [tokens, d], weight [vocab, d], labels int64 [tokens]. The logits of all tokens are never in memory: the forward computes the
    gradients chunk by chunk, together with the value. Returns a number in fp32 (fp64 for fp64 inputs). Differentiable in hidden, weight.
    """
    return torch.ops.based.cross_entropy(hidden, weight, labels)


def token_log_probabilities(hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """The log-probability of each row's target under softmax(hidden · weightᵀ), fp32 [tokens] (fp64 for fp64 inputs). No gradient.

    targets int64 [tokens]. Rows of weight from vocab_size on are padding, which the softmax excludes.
    """
    return torch.ops.based.token_log_probabilities(hidden, weight, targets, vocab_size)


def dropout(x: Tensor, p: float, seed: int, step: Tensor, place: int, first_token: int = 0) -> Tensor:
    """x·keep/(1 − p), x [tokens, …], p in [0, 1). Differentiable in x.

    step int64 [] is on x's device; `place` distinguishes the uses within one step. Elements are numbered in their order, from the first
    element of token `first_token` on.
    """
    return torch.ops.based.dropout(x, p, seed, step, place, first_token)


def _mixed_bits(x: Tensor) -> Tensor:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x


def is_dropped(element: Tensor, p: float, seed: int, step: Tensor, place: int) -> Tensor:
    """Whether dropout drops the elements of these numbers, int64. The generator of the compiled kernels, by counters."""
    seed_bits = _mixed_bits(torch.tensor(seed, device=element.device) + _GOLDEN_GAMMA)
    key = _mixed_bits(_mixed_bits(step + seed_bits) + place)
    return ((_mixed_bits(element * _GOLDEN_GAMMA + key) >> 32) & 0xFFFFFFFF) < int(p * 4294967296.0)


@reference("dropout")
def _dropout(x, p, seed, step, place, first_token=0):
    if not 0 <= p < 1:
        raise ValueError(f"dropout: p must be at least 0 and below 1, got {p}")
    first = first_token * (x[0].numel() if x.shape[0] else 0)
    element = torch.arange(first, first + x.numel(), device=x.device).view(x.shape)
    kept = (x.to(sum_type(x)) * (1 / (1 - p))).masked_fill(is_dropped(element, p, seed, step, place), 0)
    return kept.to(x.dtype).contiguous()


@fake("dropout")
def _(x, p, seed, step, place, first_token=0):
    return x.new_empty(x.shape)


def _save_draws(ctx, inputs, output):
    ctx.p, ctx.seed, ctx.place, ctx.first_token = inputs[1], inputs[2], inputs[4], inputs[5]
    ctx.save_for_backward(inputs[3])


def _drop_gradient(ctx, grad):
    (step,) = ctx.saved_tensors
    return torch.ops.based.dropout(grad, ctx.p, ctx.seed, step, ctx.place, ctx.first_token), None, None, None, None, None


gradient("dropout", _save_draws, _drop_gradient, differentiable=True)


def _chunk_rows(weight: Tensor) -> int:
    return max(_CHUNK_ROWS, _CHUNK_LOGITS // weight.shape[0])


@reference("cross_entropy_and_gradients")
def _cross_entropy(hidden, weight, labels, grad_hidden, grad_weight):
    if labels.shape != hidden.shape[:1]:
        raise ValueError(f"cross_entropy: labels must be int64 [{hidden.shape[0]}], one for each row of hidden, got {list(labels.shape)}")
    dtype = sum_type(hidden)
    count = (labels != IGNORED_LABEL).sum().clamp_min(1)
    loss = torch.zeros((), dtype=dtype, device=hidden.device)
    of_hidden = torch.empty_like(hidden) if grad_hidden else hidden.new_empty(0)
    of_weight = torch.zeros(weight.shape if grad_weight else 0, dtype=dtype, device=weight.device)
    rows = _chunk_rows(weight)
    for begin in range(0, hidden.shape[0], rows):
        part, targets = hidden[begin : begin + rows], labels[begin : begin + rows]
        log_probability = F.linear(part, weight).to(dtype).log_softmax(1)
        labelled = targets != IGNORED_LABEL
        target = targets.masked_fill(~labelled, 0).unsqueeze(1)
        loss -= (log_probability.gather(1, target).squeeze(1) * labelled).sum()
        if grad_hidden or grad_weight:
            of_logits = log_probability.exp_().scatter_add_(1, target, torch.full_like(target, -1, dtype=dtype))
            of_logits = (of_logits * (labelled / count).to(dtype).unsqueeze(1)).to(hidden.dtype)
            if grad_hidden:
                of_hidden[begin : begin + rows] = of_logits @ weight
            if grad_weight:
                of_weight += of_logits.t() @ part
    return loss / count, of_hidden, of_weight.to(weight.dtype)


@fake("cross_entropy_and_gradients")
def _(hidden, weight, labels, grad_hidden, grad_weight):
    loss = hidden.new_empty((), dtype=sum_type(hidden))
    return loss, hidden.new_empty(hidden.shape if grad_hidden else (0,)), weight.new_empty(weight.shape if grad_weight else (0,))


def _save_gradients(ctx, inputs, output):
    ctx.save_for_backward(*output[1:])
    ctx.gradients = inputs[3:]
    ctx.mark_non_differentiable(*output[1:])


def _scale_gradients(ctx, grad, *_):
    return (*(saved * grad.to(saved.dtype) if kept else None for saved, kept in zip(ctx.saved_tensors, ctx.gradients)), None, None, None)


gradient("cross_entropy_and_gradients", _save_gradients, _scale_gradients)


@composite("cross_entropy")
def _loss(hidden, weight, labels):
    wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in (hidden, weight)]
    return torch.ops.based.cross_entropy_and_gradients(hidden, weight, labels, *wanted)[0]


@reference("token_log_probabilities")
def _scores(hidden, weight, targets, vocab_size):
    scores = hidden.new_empty(targets.shape, dtype=sum_type(hidden))
    rows = _chunk_rows(weight)
    for begin in range(0, hidden.shape[0], rows):
        logits = F.linear(hidden[begin : begin + rows], weight[:vocab_size]).to(scores.dtype)
        scores[begin : begin + rows] = logits.log_softmax(1).gather(1, targets[begin : begin + rows, None]).squeeze(1)
    return scores


@fake("token_log_probabilities")
def _(hidden, weight, targets, vocab_size):
    return hidden.new_empty(targets.shape, dtype=sum_type(hidden))
