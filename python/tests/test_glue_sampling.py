"""The compiled operators of sampling."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, on_each_device, random

OPS = torch.ops.based
ROWS, VOCAB = 3, 70
WORDS = (VOCAB + 31) // 32


def options(device, **changed):
    def filled(value, dtype):
        return torch.full((ROWS,), value, dtype=dtype, device=device)

    made = dict(position=filled(4, torch.int64), seed=filled(1, torch.int64), top_k=filled(0, torch.int64),
                temperature=filled(1.0, torch.float32), top_p=filled(1.0, torch.float32), min_p=filled(0.0, torch.float32),
                penalty=filled(1.0, torch.float32), seen=torch.zeros(ROWS, WORDS, dtype=torch.int32, device=device))
    return made | changed


def draw(logits, given):
    token = torch.full((ROWS,), -5, dtype=torch.int64, device=logits.device)
    OPS.sample_(token, logits, *given.values())
    return token


@on_each_device
def test_the_most_likely_token_is_drawn_and_seen(device):
    logits = random(ROWS, 2 * VOCAB, device=device)[:, :VOCAB]
    given = options(device, temperature=torch.zeros(ROWS, device=device))
    token = draw(logits, given)
    assert torch.equal(token, logits.argmax(-1))
    bits = given["seen"].long().bitwise_and(0xFFFFFFFF)
    for row, word in enumerate(token.tolist()):
        assert bits[row].tolist() == [1 << word % 32 if at == word // 32 else 0 for at in range(WORDS)]


@on_each_device
def test_draws_depend_on_seed_and_follow_the_softmax(device):
    logits, given = random(1, VOCAB, device=device).expand(ROWS, VOCAB).contiguous(), options(device)
    given["top_k"][:] = 3
    first = draw(logits, given | {"seen": given["seen"].clone()})
    assert torch.equal(first, draw(logits, given | {"seen": given["seen"].clone()}))
    drawn = set()
    for seed in range(40):
        given["seed"][:] = seed
        drawn |= set(draw(logits, given).tolist())
    assert drawn == set(logits[0].topk(3).indices.tolist())


@on_each_device
def test_adjusted_logits(device):
    logits, bias = random(ROWS, VOCAB, device=device), random(ROWS, VOCAB, device=device, seed=1)
    counts = torch.arange(ROWS * VOCAB, device=device, dtype=torch.int32).view(ROWS, VOCAB) % 3
    seen = torch.full((ROWS, WORDS), 0b101, dtype=torch.int32, device=device)
    presence, frequency, penalty = (torch.tensor(values, device=device) for values in ([0.5, 0.0, 1.0], [0.1, 0.2, 0.0], [1.0, 2.0, 1.5]))
    x = logits.double() + bias.double()
    is_seen = torch.tensor([at % 32 in (0, 2) for at in range(VOCAB)], device=device)
    x = torch.where(is_seen, torch.where(x > 0, x / penalty[:, None], x * penalty[:, None]), x)
    x = x - frequency[:, None] * counts - presence[:, None] * (counts > 0)
    assert_near(OPS.adjusted_logits(logits, presence, frequency, penalty, seen, bias, counts), x)


def test_errors_name_the_argument():
    given = options("cpu", top_p=torch.ones(ROWS, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="sample_: top_p must be Float, got Double"):
        draw(torch.zeros(ROWS, VOCAB), given)
