"""The compiled operators of Taylor attention against the weights of all pairs of tokens."""

import pytest
import torch

import based_cpp  # noqa: F401
from glue_support import assert_near, of_each_type, offsets, on_each_device, random

OPS = torch.ops.based
HEADS, FEATURE_DIM, HEAD_DIM = 2, 8, 16
FEATURES = 1 + FEATURE_DIM + FEATURE_DIM * (FEATURE_DIM + 1) // 2


def inputs(tokens, dtype, device):
    sizes = {"q": FEATURE_DIM, "k": FEATURE_DIM, "v": HEAD_DIM}
    return {name: random(tokens, HEADS, size, dtype=dtype, device=device, seed=seed, scale=0.5)
            for seed, (name, size) in enumerate(sizes.items())}


def attention(q, k, v, lengths, decay=None):
    ys, begin = [], 0
    for length in lengths:
        qr, kr, vr = (t[begin:begin + length].double() for t in (q, k, v))
        score = torch.einsum("ihd,jhd->hij", qr, kr)
        weight = (1 + score + score**2 / 2).tril()
        if decay is not None:
            distance = torch.arange(length)[:, None] - torch.arange(length)
            weight = weight * (decay.double()[:, None, None] ** distance.clamp_min(0).to(decay.device))
        ys.append(torch.einsum("hij,jhd->ihd", weight / weight.sum(-1, keepdim=True), vr))
        begin += length
    return torch.cat(ys)


@on_each_device
@of_each_type
def test_rows_and_decay(device, dtype):
    lengths = (37, 0, 5)
    x = inputs(42, dtype, device)
    decay = torch.tensor([0.9, 0.99], device=device)
    y, kv, k, denominator = OPS.taylor_attention_forward(*x.values(), offsets(*lengths, device=device), None, None, decay)
    assert_near(y, attention(*x.values(), lengths, decay), dtype)
    assert kv.shape == (3, HEADS, FEATURES, HEAD_DIM) and k.shape == (3, HEADS, FEATURES) and denominator.shape == (42, HEADS)
    assert not kv[1].any()


@on_each_device
@of_each_type
def test_prefill_then_steps(device, dtype):
    x = inputs(9, dtype, device)
    kv = torch.zeros(3, HEADS, FEATURES, HEAD_DIM, device=device)
    k = torch.zeros(3, HEADS, FEATURES, device=device)
    slots = torch.tensor([2], device=device)
    ys = [OPS.taylor_attention_prefill(*(t[:6] for t in x.values()), offsets(6, device=device), kv, k, slots)]
    ys += [OPS.taylor_attention_step(*(t[i:i + 1] for t in x.values()), kv, k, slots) for i in range(6, 9)]
    assert_near(torch.cat(ys), attention(*x.values(), (9,)), dtype)
    assert not kv[:2].any() and not k[:2].any()


@on_each_device
def test_step_multiplies_by_scale(device):
    x = inputs(1, torch.float32, device)
    state = [torch.randn(1, HEADS, FEATURES, HEAD_DIM, device=device), torch.ones(1, HEADS, FEATURES, device=device)]
    other = [t.clone() for t in state]
    slots = torch.tensor([0], device=device)
    y = OPS.taylor_attention_step(x["q"], x["k"], x["v"], *state, slots, None, 0.5)
    assert_near(y, OPS.taylor_attention_step(x["q"] * 0.5, x["k"] * 0.5, x["v"], *other, slots))
    assert_near(state[0], other[0])


@on_each_device
def test_gradients(device):
    lengths, x = (11, 4), inputs(15, torch.float32, device)
    starts = offsets(*lengths, device=device)
    cotangent = random(15, HEADS, HEAD_DIM, device=device, seed=9)
    y, _, _, denominator = OPS.taylor_attention_forward(*x.values(), starts, None, None, None, False)
    found = OPS.taylor_attention_backward(cotangent, None, None, *x.values(), starts, None, None, None, False, True, y, denominator)
    leaves = [t.double().requires_grad_() for t in x.values()]
    attention(*leaves, lengths).backward(cotangent.double())
    for gradient, leaf in zip(found, leaves):
        assert_near(gradient, leaf.grad)
    assert found[3] is None and found[4] is None


@pytest.mark.parametrize("change, message", [
    (dict(k=torch.zeros(3, HEADS, FEATURE_DIM + 1)), r"k must have shape \[3, 2, 8\], got \[3, 2, 9\]"),
    (dict(v=torch.zeros(3, HEADS, HEAD_DIM, dtype=torch.bfloat16)), "v must be Float, got BFloat16"),
    (dict(starts=torch.tensor([0, 2])), "cu_seqlens must end at the number of tokens, 3, got 2"),
    (dict(starts=torch.tensor([0, 2, 1, 3])), "cu_seqlens must not decrease, got 2 then 1"),
    (dict(starts=torch.tensor([0, 3], dtype=torch.int32)), "cu_seqlens must be Long, got Int"),
    (dict(decay=torch.tensor([0.5, 1.5])), r"decay must be in \(0, 1\], got 1.5"),
    (dict(kv=torch.zeros(1, HEADS, FEATURES, HEAD_DIM)), "must be given together"),
])
def test_errors_name_the_argument(change, message):
    x = inputs(3, torch.float32, "cpu") | dict(starts=torch.tensor([0, 3]), kv=None, decay=None) | change
    with pytest.raises(RuntimeError, match="taylor_attention: .*" + message):
        OPS.taylor_attention_forward(x["q"], x["k"], x["v"], x["starts"], x["kv"], None, x["decay"])


@pytest.mark.parametrize("slots, message", [([0, 0], "slots must differ, got 0 twice"), ([0, 2], r"slots must be 0..1, got 2")])
def test_slots(slots, message):
    x = inputs(2, torch.float32, "cpu")
    with pytest.raises(RuntimeError, match=message):
        OPS.taylor_attention_step(*x.values(), torch.zeros(2, HEADS, FEATURES, HEAD_DIM), torch.zeros(2, HEADS, FEATURES),
                                  torch.tensor(slots))


def test_kernels_run_on_the_threads_of_torch():
    x, starts = inputs(4096, torch.float32, "cpu"), offsets(4096)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = OPS.taylor_attention_forward(*x.values(), starts)[0]
        torch.set_num_threads(3)
        three = OPS.taylor_attention_forward(*x.values(), starts)[0]
    finally:
        torch.set_num_threads(threads)
    assert_near(three, one)
