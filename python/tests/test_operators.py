"""Fake kernels and gradients of the operators: torch's opcheck and gradcheck, and torch.compile."""

import pytest
import torch
import torch.utils.checkpoint
from based_cpp import ops, selftest

CASES = selftest._DIFFERENTIABLE | selftest._IN_PLACE
COMPILED = ("taylor_attention", "causal_attention", "short_conv", "selective_scan", "gated_delta_rule", "linear_attention", "long_conv",
            "rms_norm", "layer_norm", "swiglu")


def arguments_of(name, dtype=torch.float32, gradients=False):
    arguments = CASES[name](selftest._Inputs(dtype, "cpu"))
    for argument in arguments:
        if gradients and isinstance(argument, torch.Tensor) and argument.is_floating_point():
            argument.requires_grad_()
    return tuple(arguments)


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name):
    arguments = arguments_of(name, gradients=name in selftest._DIFFERENTIABLE)
    torch.library.opcheck(getattr(torch.ops.based, name).default, arguments,
                          test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_forward_and_backward_for_any_size(name):
    operator = getattr(torch.ops.based, name).default
    torch.library.opcheck(operator, arguments_of(name, gradients=True), test_utils="test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", selftest._DIFFERENTIABLE)
def test_gradcheck(name):
    def outputs(*arguments):
        found = getattr(torch.ops.based, name)(*arguments)
        return tuple(y for y in (found if isinstance(found, tuple) else (found,)) if y.is_floating_point() and y.requires_grad)

    assert torch.autograd.gradcheck(outputs, arguments_of(name, torch.float64, gradients=True), fast_mode=True, atol=1e-4)


def test_initial_states_have_gradients():
    torch.manual_seed(0)
    cu_seqlens = torch.tensor([0, 3, 7])
    q, k, v = (torch.randn(7, 2, size, dtype=torch.float64, requires_grad=True) for size in (4, 4, 3))
    kv = torch.randn(2, 2, 15, 3, dtype=torch.float64, requires_grad=True)
    sum_k = (5 + torch.rand(2, 2, 15, dtype=torch.float64)).requires_grad_()
    decay = torch.tensor([0.9, 0.99], dtype=torch.float64)
    for of_denominator in (True, False):
        assert torch.autograd.gradcheck(lambda *x: ops.taylor_attention(*x[:3], cu_seqlens, *x[3:], decay, True, of_denominator),
                                        (q, k, v, kv, sum_k), fast_mode=True)
    x, weight = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: ops.short_conv(x[0], x[1], None, None, True, cu_seqlens, x[2]), (x, weight, state))
    state = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    bonus = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    log_decay = (-torch.rand(7, 2, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k, v, g, u, s: ops.gated_delta_rule(q, k, v, g, None, u, False, 0.5, cu_seqlens, s),
                                    (q, k, v, log_decay, bonus, state), fast_mode=True)


def test_a_bonus_follows_the_formula():
    torch.manual_seed(0)
    cu_seqlens = torch.tensor([0, 0, 3, 7, 7])
    q, k = (torch.randn(7, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    v = torch.randn(7, 2, 3, dtype=torch.float64, requires_grad=True)
    log_decay = (-torch.rand(7, 2, 4, dtype=torch.float64)).requires_grad_()
    bonus = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    state = torch.randn(4, 2, 4, 3, dtype=torch.float64, requires_grad=True)

    def rule(q, k, v, g, u, s):
        return ops.gated_delta_rule(q, k, v, g, None, u, False, 0.5, cu_seqlens, s)

    expected = []
    for row, (begin, end) in enumerate([(0, 0), (0, 3), (3, 7), (7, 7)]):
        before = state[row]
        for t in range(begin, end):
            read = torch.einsum("hkv,hk->hv", before, q[t].expand(2, 4)) + (q[t] * bonus * k[t]).sum(-1, keepdim=True) * v[t]
            expected.append(0.5 * read)
            before = log_decay[t].exp().unsqueeze(-1) * before + k[t].expand(2, 4).unsqueeze(-1) * v[t].unsqueeze(-2)
    inputs = (q, k, v, log_decay, bonus, state)
    torch.testing.assert_close(rule(*inputs)[0], torch.stack(expected))
    assert torch.autograd.gradcheck(rule, inputs, fast_mode=True)


def test_norms_with_a_residual_have_gradients():
    torch.manual_seed(0)
    residual, x = (torch.randn(3, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weight, bias, next_weight, next_bias = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(4))
    assert torch.autograd.gradcheck(lambda *t: ops.rms_norm_add(*t, 1e-5), (residual, x, weight))
    assert torch.autograd.gradcheck(lambda *t: ops.layer_norm_add(None, *t, 1e-5), (x, weight, bias))
    for keeps_sum in (True, False):
        assert torch.autograd.gradcheck(lambda *t: ops.layer_norm_add_twice(*t, 1e-5, keeps_sum)[0 if keeps_sum else 1],
                                        (residual, x, weight, bias, next_weight, next_bias))
    total, y = ops.layer_norm_add(residual, x, weight, bias, 1e-5)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(residual + x, (6,), weight, bias))
    once = residual + x + y
    expected = torch.nn.functional.layer_norm(once, (6,), next_weight, next_bias)
    torch.testing.assert_close(ops.layer_norm_add_twice(residual, x, weight, bias, next_weight, next_bias, 1e-5, True), (once, expected))


def test_residual_stream_of_a_bf16_model():
    torch.manual_seed(0)
    residual, x, weight = torch.randn(3, 64), torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16()
    tensors = [tensor.requires_grad_() for tensor in (residual, x, weight)]
    total, y = ops.rms_norm_add(*tensors, 1e-5)
    assert (total.dtype, y.dtype) == (torch.float32, torch.bfloat16)
    (total.sum() + y.float().square().sum()).backward()
    assert [tensor.grad.dtype for tensor in tensors] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert torch.equal(residual.grad.bfloat16(), x.grad)


def test_attention_drops_the_same_weights_in_every_type():
    torch.manual_seed(0)
    q, k, v = (torch.randn(40, 2, 16) for _ in range(3))
    arguments = (torch.tensor([0, 15, 40]),) * 2 + (0, 0.25, 0.3, 7, torch.tensor(3), 1)
    y = ops.causal_attention(q, k, v, *arguments)
    torch.testing.assert_close(y.double(), ops.causal_attention(q.double(), k.double(), v.double(), *arguments), rtol=1e-4, atol=1e-5)
    assert (y - ops.causal_attention(q, k, v, *arguments[:4])).abs().max() > 0.1


def test_activations_equal_their_definitions():
    x = torch.linspace(-60, 60, 41, dtype=torch.float64).view(41, 1).requires_grad_()
    bias, log_rate = (torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (0.3, -0.5))
    definitions = {"silu": lambda x: x / (1 + torch.exp(-x)), "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
                   "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)), "exp": torch.exp,
                   "log_sigmoid": lambda x: -torch.logaddexp(-x, torch.zeros_like(x)),
                   "elu_plus_one": lambda x: torch.nn.functional.elu(x) + 1}
    assert tuple(definitions) == ops.pointwise.ACTIVATIONS
    for function, define in definitions.items():
        y = ops.pointwise.gate(x, function, 2.0, bias, log_rate)
        torch.testing.assert_close(y, define(x + 0.3) * 2 * torch.exp(log_rate))
        near = x[15:26].detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda *t: ops.pointwise.gate(t[0], function, 2.0, *t[1:]), (near, bias, log_rate))


def test_quadratic_form_equals_the_chunks():
    torch.manual_seed(0)
    cu_seqlens = torch.tensor([0, 150, 150, 170])
    q, k, v = (torch.randn(170, 2, 8, dtype=torch.float64) for _ in range(3))
    decay = torch.tensor([0.9, 0.99], dtype=torch.float64)
    y = ops.taylor_attention(q, k, v, cu_seqlens, decay=decay)[0]
    torch.testing.assert_close(y, ops.taylor_attention_quadratic(q, k, v, cu_seqlens, decay), rtol=1e-10, atol=1e-12)
    s = ops.taylor_features(q[:, 0]) @ ops.taylor_features(k[:, 0]).T
    torch.testing.assert_close(s, 1 + q[:, 0] @ k[:, 0].T + (q[:, 0] @ k[:, 0].T) ** 2 / 2)


def test_rotary_is_differentiable_and_inverted_by_its_inverse():
    torch.manual_seed(0)
    x, positions = torch.randn(5, 40, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 7, 100000, 3])
    for interleaved in (False, True):
        arguments = (positions, 4, 8, 6, 10000.0, interleaved)
        assert torch.autograd.gradcheck(lambda x: ops.rotary(x, *arguments, False), x)
        y = ops.rotary(x, *arguments)
        torch.testing.assert_close(ops.rotary(y, *arguments, inverse=True), x)
        assert torch.equal(y[:, 32:], x[:, 32:]) and torch.equal(y[0], x[0])


def test_cross_entropy_equals_torch():
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 16, dtype=torch.float64, requires_grad=True) for n in (200, 50))
    labels = torch.randint(50, (200,))
    labels[::3] = -100
    arguments = (hidden, weight, labels)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.T, labels)
    torch.testing.assert_close(ops.cross_entropy(*arguments), expected)
    found = torch.autograd.grad(2 * ops.cross_entropy(*arguments), (hidden, weight))
    torch.testing.assert_close(found, torch.autograd.grad(2 * expected, (hidden, weight)))
    assert ops.cross_entropy(hidden, weight, torch.full((200,), -100)) == 0
    scores = ops.token_log_probabilities(hidden.detach(), weight.detach(), labels.clamp_min(0) % 40, 40)
    expected = (hidden @ weight[:40].T).log_softmax(1).gather(1, (labels.clamp_min(0) % 40)[:, None]).squeeze(1)
    torch.testing.assert_close(scores, expected.detach())
    floats = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    torch.library.opcheck(torch.ops.based.cross_entropy_and_gradients.default, (*floats, labels, True, True))


def test_dropout_repeats_its_draws():
    x, step = torch.ones(1000, 8, requires_grad=True), torch.tensor(3)
    y = ops.dropout(x, 0.25, 1, step, 2)
    y.sum().backward()
    assert torch.equal(x.grad, y) and y.unique().tolist() == pytest.approx([0, 4 / 3])
    assert 0.2 < (y == 0).float().mean() < 0.3
    assert torch.equal(ops.dropout(x[400:], 0.25, 1, step, 2, first_token=400), y[400:])
    for other in ((2, step, 2), (1, torch.tensor(4), 2), (1, step, 3)):
        assert not torch.equal(ops.dropout(x, 0.25, *other), y)
    assert torch.equal(ops.dropout(x, 0.0, 1, step, 2), x)


def test_wrong_offsets_are_refused():
    x = torch.randn(5, 3, dtype=torch.float64)
    for offsets in ([0, 4], [1, 5], [0, 4, 3, 5]):
        with pytest.raises((ValueError, RuntimeError), match="cu_seqlens"):
            ops.short_conv(x, torch.ones(3, 2, dtype=torch.float64), None, None, False, torch.tensor(offsets))


def test_only_linear_operators_have_second_derivatives():
    x = torch.randn(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.swiglu(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="gradient of based::swiglu cannot be differentiated"):
        grad.sum().backward()
    arguments = (0.25, 1, torch.tensor(3), 2)
    y = torch.ones(3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.dropout(x, *arguments), x, y, create_graph=True)
    assert torch.equal(torch.autograd.grad(grad, y, x.detach())[0], ops.dropout(x, *arguments))


def test_results_are_the_same_in_every_mode():
    torch.manual_seed(0)
    q, k, v = (torch.randn(7, 2, 8, requires_grad=True) for _ in range(3))
    arguments = (q, k, v, torch.tensor([0, 3, 7]))
    outputs = ops.taylor_attention(*arguments)
    first = torch.autograd.grad(outputs[0].sum(), (q, k, v), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(outputs[0].sum(), (q, k, v))))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = ops.taylor_attention(*arguments)
        assert all(map(torch.equal, found, outputs)) and not any(y.requires_grad for y in found)
    checkpointed = torch.utils.checkpoint.checkpoint(lambda *x: ops.taylor_attention(*x)[0], *arguments, use_reentrant=False)
    assert all(map(torch.equal, first, torch.autograd.grad(checkpointed.sum(), (q, k, v))))


def test_a_state_alone_has_gradients():
    q, k, v = (torch.randn(7, 2, 8, requires_grad=True) for _ in range(3))
    kv_state = ops.taylor_attention(q, k, v, torch.tensor([0, 3, 7]))[1]
    grad_q, grad_k, grad_v = torch.autograd.grad(kv_state.sum(), (q, k, v))
    assert not grad_q.any() and grad_k.all() and grad_v.all()


def test_every_operator_is_a_function():
    for name in ops.__all__:
        assert callable(getattr(ops, name)), name
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    torch.testing.assert_close(ops.linear(x, weight), x @ weight.t())


@pytest.mark.parametrize("name", list(selftest._DIFFERENTIABLE))
def test_forward_mode_is_refused(name):
    arguments = arguments_of(name, torch.float64)
    first = next(i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor) and value.is_floating_point())

    def of_first(x):
        found = getattr(torch.ops.based, name)(*arguments[:first], x, *arguments[first + 1:])
        return found if isinstance(found, torch.Tensor) else found[0]

    try:
        _, tangent = torch.func.jvp(of_first, (arguments[first],), (torch.ones_like(arguments[first]),))
    except NotImplementedError as error:
        assert "no forward-mode derivative" in str(error)
    else:  # composed of torch's operators, which have one
        assert tangent.abs().sum() > 0


@pytest.mark.parametrize("name", list(selftest._IN_PLACE))
def test_a_missing_gradient_is_an_error(name):
    arguments = list(arguments_of(name))
    written = [i for i, argument in enumerate(getattr(torch.ops.based, name).default._schema.arguments)
               if argument.alias_info is not None and argument.alias_info.is_write]
    floating = [i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor) and value.is_floating_point()]
    first = next((i for i in floating if i not in written), None)
    if first is not None:
        arguments[first] = arguments[first].requires_grad_()
    versions = [arguments[i]._version for i in written]
    found = getattr(torch.ops.based, name)(*arguments)
    assert all(arguments[i]._version > version for i, version in zip(written, versions))
    y = found[0] if isinstance(found, tuple) else found
    if y is not None and y.requires_grad:
        with pytest.raises(RuntimeError, match="no gradient"):
            y.sum().backward()
    for i in written:
        changed = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments]
        if changed[i].is_floating_point():
            changed[i] = changed[i].detach().requires_grad_()
            with pytest.raises(RuntimeError, match="changes a tensor that requires one"):
                getattr(torch.ops.based, name)(*changed)


def test_wrong_slots_labels_and_probabilities_are_refused():
    arguments = arguments_of("gated_delta_rule_prefill")
    for slots in ([2], [0, 0], []):
        with pytest.raises((ValueError, RuntimeError), match="slot"):
            torch.ops.based.gated_delta_rule_prefill(*arguments[:-1], torch.tensor(slots, dtype=torch.int64))
    rule = arguments_of("gated_delta_rule")
    for i, name in ((1, "k"), (2, "v"), (4, "beta")):
        with pytest.raises((ValueError, RuntimeError), match=f"{name} must have"):
            torch.ops.based.gated_delta_rule(*rule[:i], torch.cat((rule[i], rule[i][:1])), *rule[i + 1:])
    with pytest.raises((ValueError, RuntimeError), match="labels"):
        ops.cross_entropy(torch.randn(6, 4), torch.randn(5, 4), torch.zeros(5, dtype=torch.int64))
    with pytest.raises((ValueError, RuntimeError), match="p must be"):
        ops.dropout(torch.randn(4), 1.5, 0, torch.tensor(0), 0)
