"""Laws of the mixers: forward, prefill and step compute one function; a state is a value."""

import pytest
import torch
from based_cpp import nn

D_MODEL = 64
OPTIONS = {
    "taylor_attention": [{"heads": 4, "feature_dim": 4}, {"heads": 4, "feature_dim": 8, "head_dim": 8, "decay": True},
                         {"heads": 4, "feature_dim": 4, "decay": True, "decay_form": "code", "decay_projection": True, "bias": True}],
    "sliding_window": [{"heads": 4, "window": 5, "kv_heads": 2}, {"heads": 4, "window": 1, "rotary_dim": 0},
                       {"heads": 4, "window": 64, "rotary_interleaved": True, "qkv_bias": True, "out_bias": True}],
    "gated_conv": [{}, {"taps": 1, "use_bias": False, "conv_bias": False}],
    "base_conv": [{}, {"use_act": True}, {"kernel_size": -1, "l_max": 6},
                  {"kernel_size": -1, "l_max": 32, "implicit": True, "use_act": True}],
    "mamba": [{}, {"d_state": 4, "d_conv": 1, "bias": True}],
    "mamba2": [{"headdim": 32, "d_state": 16}, {"headdim": 16, "d_state": 8, "ngroups": 2, "norm_before_gate": True}],
    "gla": [{}, {"use_short_conv": True, "conv_bias": True}],
    "delta_net": [{}, {"use_gate": True, "allow_neg_eigval": True, "use_short_conv": False}],
    "gated_delta_net": [{}],
    "rwkv5": [{"head_size": 16}],
    "h3": [{"d_state": 8}, {"d_state": 8, "head_dim": 4}],
    "hyena": [{"l_max": 64}, {"l_max": 6, "order": 3}],
}
CASES = [pytest.param(name, options, id=f"{name}-{i}") for name, all_options in OPTIONS.items() for i, options in enumerate(all_options)]
each_mixer = pytest.mark.parametrize("name, options", CASES)


def make(name, options, dtype=torch.float64):
    torch.manual_seed(1)
    mixer = nn.MIXERS[name](D_MODEL, **options, layer=1, layers=2)
    with torch.no_grad():
        for parameter in mixer.parameters():  # initial values of 0 would hide a parameter
            parameter += 0.05 * torch.randn_like(parameter)
    return mixer.to(dtype), torch.randn(2, 13, D_MODEL, dtype=torch.float64).to(dtype)


def assert_equal(found, expected, tolerance=1e-10):
    assert found.shape == expected.shape
    if expected.numel():
        assert (found - expected).abs().max() <= tolerance * expected.abs().max().clamp_min(1e-3)


def test_all_mixers_are_tested():
    assert OPTIONS.keys() == nn.MIXERS.keys()


@each_mixer
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 2e-5)], ids=["fp64", "fp32"])
def test_prefill_in_parts_and_steps_equal_forward(name, options, dtype, tolerance):
    mixer, x = make(name, options, dtype)
    with torch.no_grad():
        y = mixer(x)
        first, state = mixer.prefill(x[:, :4], mixer.make_state(2))
        second, state = mixer.prefill(x[:, 4:9], state)
        forked = state.clone()
        one = mixer.step(x[:, 9], state)
        several = mixer.step(x[:, 10:], state)
        singly = [mixer.step(x[:, t], forked) for t in range(9, 13)]
        whole, whole_state = mixer.prefill(x, mixer.make_state(2))
    assert_equal(torch.cat((first, second, one.unsqueeze(1), several), 1), y, tolerance)
    assert_equal(whole, y, tolerance)
    assert_equal(torch.stack(singly, 1), torch.cat((one.unsqueeze(1), several), 1), tolerance)
    assert state.tokens == forked.tokens == whole_state.tokens == 13
    for entry, expected in whole_state.tensors.items():
        assert_equal(state[entry], expected, tolerance)


@each_mixer
def test_each_sequence_is_independent_and_causal(name, options):
    mixer, x = make(name, options)
    changed = x.clone()
    changed[1, 8:] += 1
    with torch.no_grad():
        y, other = mixer(x), mixer(changed)
    assert_equal(other[0], y[0])
    assert_equal(other[1, :8], y[1, :8])
    assert (other[1, 8:] - y[1, 8:]).abs().max() > 1e-6


@each_mixer
def test_gradients_of_prefills_equal_those_of_forward(name, options):
    mixer, x = make(name, options)
    cotangent = torch.randn_like(x)

    def gradients(y):
        return torch.autograd.grad((y * cotangent).sum(), list(mixer.parameters()))

    first, state = mixer.prefill(x[:, :7], mixer.make_state(2))
    second, _ = mixer.prefill(x[:, 7:], state)
    for found, expected in zip(gradients(torch.cat((first, second), 1)), gradients(mixer(x))):
        assert_equal(found, expected, 1e-8)


@each_mixer
def test_bf16(name, options):
    mixer, x = make(name, options, torch.bfloat16)
    exact, _ = make(name, options)
    exact.load_state_dict(mixer.state_dict())
    state = mixer.make_state(2)
    with torch.no_grad():
        stepped = mixer.step(x, state)
    y = mixer(x)
    y.float().square().mean().backward()
    assert y.dtype == stepped.dtype == torch.bfloat16
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())
    for found in (y, stepped):
        assert_equal(found.double(), exact(x.double()), 0.05)


@each_mixer
def test_state_is_a_value(name, options):
    mixer, x = make(name, options)
    _, state = mixer.prefill(x[:, :6], mixer.make_state(2))
    before = state.clone()
    _, _ = mixer.prefill(x[:, 6:], state)
    restored = nn.State.from_bytes(state.to_bytes())
    swapped = state.select([1, 0, 1])
    y = mixer.step(x[:, 6], state)
    assert torch.equal(mixer.step(x[:, 6], before), y)  # so the prefill left the state unchanged
    assert torch.equal(mixer.step(x[:, 6], restored), y)
    assert_equal(mixer.step(x[[1, 0, 1], 6], swapped), y[[1, 0, 1]], 1e-12)
    assert before.nbytes == sum(t.numel() * t.element_size() for t in before.tensors.values())


def test_step_after_a_differentiable_prefill_keeps_its_gradient():
    mixer, x = make("taylor_attention", {"heads": 4, "feature_dim": 4})
    y, state = mixer.prefill(x[:, :6], mixer.make_state(2))
    more, later = mixer.prefill(x[:, 6:8], state)
    mixer.step(x[:, 8], state)
    (y.sum() + more.sum() + later["kv"].sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_wrong_shapes_are_named():
    mixer, x = make("gla", {})
    with pytest.raises(ValueError, match="x must be .batch, length, 64., got"):
        mixer(x[:, :, :5])
    with pytest.raises(ValueError, match="the state has 3 sequences, x has 2"):
        mixer.prefill(x, mixer.make_state(3))


@pytest.mark.parametrize("name", ["taylor_attention", "sliding_window", "gated_conv", "mamba", "gla", "h3"])
def test_compiles_without_graph_breaks(name):
    mixer, x = make(name, OPTIONS[name][0], torch.float32)
    torch._dynamo.reset()

    def compiled(function):
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    y = compiled(mixer)(x)
    y.square().sum().backward()
    found = [parameter.grad.clone() for parameter in mixer.parameters()]
    mixer.zero_grad()
    expected = mixer(x)
    expected.square().sum().backward()
    assert_equal(y, expected, 1e-5)
    for gradient, parameter in zip(found, mixer.parameters()):
        assert_equal(gradient, parameter.grad, 1e-4)
    with torch.no_grad():
        first, state = compiled(lambda x, state: mixer.prefill(x, state))(x[:, :11], mixer.make_state(2))
        step = compiled(lambda x, state: mixer.step(x, state))
        rest = [step(x[:, t], state) for t in (11, 12)]
    assert_equal(torch.cat((first, torch.stack(rest, 1)), 1), expected.detach(), 2e-5)
    assert state.tokens == 13


def test_weights_load_by_name(tmp_path):
    mixer, x = make("gla", {}, torch.float32)
    other = nn.GLA(D_MODEL)
    data = nn._safetensors.to_bytes({f"layers.3.mixer.{key}": value for key, value in mixer.state_dict().items()})
    (tmp_path / "model.safetensors").write_bytes(data)
    nn.load_safetensors(other, tmp_path / "model.safetensors", "layers.3.mixer.")
    assert torch.equal(other(x), mixer(x))
    with pytest.raises(ValueError, match="missing"):
        nn.load_safetensors(nn.DeltaNet(D_MODEL), tmp_path / "model.safetensors", "layers.3.mixer.")
    (tmp_path / "cut.safetensors").write_bytes(data[:100])
    with pytest.raises(ValueError, match="not a safetensors file"):
        nn.load_safetensors(other, tmp_path / "cut.safetensors")


@each_mixer
def test_autocast_computes_as_a_module_of_its_type(name, options):
    mixer, x = make(name, options, torch.float32)
    expected = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)
        first, state = mixer.prefill(x[:, :6], mixer.make_state(2))
        parts = [first, mixer.step(x[:, 6], state).unsqueeze(1), mixer.step(x[:, 7:], state)]
    assert y.dtype == torch.bfloat16
    for found in (y, torch.cat(parts, 1)):
        assert (found.float() - expected).norm() / expected.norm() < 0.05
    y.float().square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in mixer.parameters())


@each_mixer
def test_no_tokens_and_no_sequences(name, options):
    mixer, _ = make(name, options)
    for batch, length in ((2, 0), (0, 4)):
        x = torch.randn(batch, length, D_MODEL, dtype=torch.float64)
        assert mixer(x).shape == x.shape
        y, state = mixer.prefill(x, mixer.make_state(batch))
        assert y.shape == x.shape and state.tokens == length
        assert mixer.step(x, mixer.make_state(batch)).shape == x.shape


def test_another_mixers_state_is_named():
    mixer, x = make("taylor_attention", {"heads": 4, "feature_dim": 4})
    for state in (nn.State({}), make("mamba", {})[0].make_state(2)):
        with pytest.raises(ValueError, match="TaylorAttention: the state's tensors must be"):
            mixer.prefill(x, state)
    with pytest.raises(ValueError, match="at least 1 tap"):
        nn.GatedConv(16, taps=0)


def test_a_step_after_a_prefill_from_the_same_state_is_noticed():
    mixer, x = make("taylor_attention", {"heads": 4, "feature_dim": 4})
    with torch.no_grad():
        state = mixer.prefill(x, mixer.make_state(2))[1]
    y, _ = mixer.prefill(x, state)
    mixer.step(x[:, 0], state)  # changes what the gradient of y needs
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
