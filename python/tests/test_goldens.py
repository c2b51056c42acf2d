"""Outputs and gradients of the mixers equal stored results of other implementations. `based golden` compares the C++ mixers with the same.

So equal parameters under equal names give the same function in Python and in C++.
"""

import json
import pathlib
import struct

import pytest
import torch
from based_cpp import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = [path for folder in (ROOT / "tests" / "goldens", ROOT / ".." / "shared" / "goldens") if folder.is_dir()
         for part in ("based", "zoology", "decay", "linear_attention") for path in sorted((folder / part).glob("*.safetensors"))]


class File:
    def __init__(self, path):
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        self.mixer, self.config = metadata["mixer"], json.loads(metadata["config"])
        self.tensors = nn._safetensors.from_bytes(data)

    def has(self, name):
        return f"param.{name}" in self.tensors

    def size(self, name, dimension):
        return self.tensors[f"param.{name}"].shape[dimension]



def dotted(names):
    return {f"{theirs}.{part}": f"{ours}.{part}" for theirs, ours in names.items() for part in ("weight", "bias")}


def gated_heads(file, heads):
    options = {"heads": heads, "use_short_conv": file.has("q_conv1d.weight"), "conv_bias": file.has("q_conv1d.bias"),
               "use_gate": file.has("g_proj.weight"), "norm_eps": file.config.get("norm_eps", 1e-5)}
    if options["use_short_conv"]:
        options["conv_size"] = file.size("q_conv1d.weight", 2)
    names = dotted({f"{part}_conv1d": f"{part}_conv" for part in "qkv"} | {f"{part}_proj": f"{part}_proj" for part in "qkvgoba"})
    return options, names | {f"{norm}.weight": "norm.weight" for norm in ("o_norm", "g_norm_swish_gate", "g_norm")}


def expansion(file):
    width = file.size("q_proj.weight", 1)
    return {"expand_k": file.size("q_proj.weight", 0) / width, "expand_v": file.size("v_proj.weight", 0) / width}


def gla(file):
    options, names = gated_heads(file, file.config.get("num_heads", 4))
    options |= expansion(file) | {"gate_low_rank_dim": file.size("gk_proj.0.weight", 0)}
    return nn.GLA, options, names | dotted({"gk_proj.0": "decay_down", "gk_proj.1": "decay_up"})


def delta_net(file):
    options, names = gated_heads(file, file.config.get("num_heads", 4))
    options |= expansion(file) | {"allow_neg_eigval": file.config.get("allow_neg_eigval", False)}
    return nn.DeltaNet, options, names


def gated_delta_net(file):
    heads = file.size("A_log", 0)
    options, names = gated_heads(file, heads)
    keys, values = file.size("q_proj.weight", 0), file.size("v_proj.weight", 0)
    options |= {"head_dim": keys // heads, "expand_v": values / keys}
    return nn.GatedDeltaNet, options, names | {"A_log": "A_log", "dt_bias": "dt_bias", "D": None}


def mamba(file):
    options = {"d_state": file.size("A_log", 1), "d_conv": file.size("conv1d.weight", 2), "dt_rank": file.size("dt_proj.weight", 1)}
    names = dotted({name: name for name in ("in_proj", "x_proj", "dt_proj", "out_proj")} | {"conv1d": "conv"})
    return nn.Mamba, options, names | {"A_log": "A_log", "D": "D", "dt_proj.bias": "dt_bias"}


def mamba2(file):
    width, groups = file.size("out_proj.weight", 1), file.config.get("ngroups", 1)
    options = {"expand": width // file.size("in_proj.weight", 1), "headdim": width // file.size("D", 0), "ngroups": groups,
               "d_state": (file.size("conv1d.weight", 0) - width) // (2 * groups), "d_conv": file.size("conv1d.weight", 2)}
    names = dotted({"in_proj": "in_proj", "out_proj": "out_proj", "conv1d": "conv"})
    return nn.Mamba2, options, names | {name: name for name in ("A_log", "dt_bias", "D", "norm.weight")}


def rwkv5(file):
    names = dotted({"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "gate": "g_proj", "output": "o_proj", "ln_x": "norm"})
    names |= {f"time_mix_{part}": f"shift.time_mix_{part}" for part in "kvrg"} | {"time_decay": "time_decay", "time_faaaa": "bonus"}
    return nn.RWKV5, {"head_size": file.size("time_decay", 1)}, names


def h3(file):
    names = dotted({"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_linear": "o_proj"})
    names |= {"ssm_k_kernel.kernel.B": "shift.B", "ssm_k_kernel.kernel.C": "shift.C", "ssm_k_D": "shift.D", "D": "diagonal.D",
              "kernel.kernel.log_dt": "diagonal.log_dt", "kernel.kernel.inv_A_real": "diagonal.log_decay",
              "kernel.kernel.A_imag": "diagonal.frequency", "kernel.kernel.B": "diagonal.B", "kernel.kernel.C": "diagonal.C"}
    return nn.H3, {"d_state": file.size("ssm_k_kernel.kernel.B", 1), "head_dim": file.config["head_dim"]}, names


def hyena(file):
    inner, network = file.config.get("num_inner_mlps", 2), "filter_fn.implicit_filter."
    options = {"l_max": file.size("filter_fn.pos_emb.z", 1), "filter_order": file.size(f"{network}0.weight", 0),
               "emb_dim": file.size(f"{network}0.weight", 1), "num_inner_mlps": inner,
               "short_filter_order": file.size("short_filter.weight", 2)}
    names = dotted({"in_proj": "in_proj", "out_proj": "out_proj", "short_filter": "conv", f"{network}0": "filter.first"}
                   | {f"{network}{2 * (1 + i)}": f"filter.inner{i}" for i in range(inner)})
    names |= {f"{network}{2 * (1 + inner)}.weight": "filter.out.weight", f"{network}1.freq": "filter.frequency",
              "filter_fn.pos_emb.z": "filter.z", "filter_fn.bias": "filter.bias"}
    return nn.Hyena, options, names


def gated_conv(file):
    options = {"expansion": file.size("in_proj.weight", 0) // file.size("in_proj.weight", 1), "taps": file.size("conv.conv.weight", 2),
               "use_bias": file.has("in_proj.bias"), "conv_bias": file.has("conv.conv.bias")}
    return nn.GatedConv, options, dotted({"in_proj": "in_proj", "out_proj": "out_proj", "conv.conv": "conv"})


def base_conv(file):
    options, names = {"use_act": file.config.get("use_act", False)}, dotted({"projection": "projection"})
    if file.has("conv.conv.weight"):
        return nn.BaseConv, options | {"kernel_size": file.size("conv.conv.weight", 2)}, names | dotted({"conv.conv": "conv"})
    options["kernel_size"] = -1
    if file.has("conv.filter"):
        if file.size("conv.filter", 1) > file.tensors["x"].shape[1] + 1:
            pytest.skip("the reference wraps around: it is not causal")
        return nn.BaseConv, options | {"l_max": file.size("conv.filter", 1)}, names | {"conv.filter": "filter.taps"}
    options |= {"implicit": True, "l_max": file.size("conv.pos_emb.z", 1), "d_emb": file.size("conv.mlp.0.weight", 1),
                "d_hidden": file.size("conv.mlp.0.weight", 0)}
    return nn.BaseConv, options, names | dotted({"conv.mlp.0": "filter.hidden", "conv.mlp.2": "filter.out"}) | {"conv.pos_emb.z": None}


def taylor_attention(file):
    if not file.config.get("causal", True):
        pytest.skip("the reference is not causal")
    heads = file.config["num_heads"]
    options = {"heads": heads, "feature_dim": file.size("proj_q.weight", 0) // heads, "head_dim": file.size("proj_v.weight", 0) // heads}
    if "with fixed decay" in file.mixer:
        options |= {"decay": True, "decay_form": "code", "decay_const": file.config.get("decay_const", -5),
                    "decay_normalised": file.config.get("decay_denom", True), "decay_projection": file.has("decay_proj.weight"),
                    "decay_bias": file.has("decay_proj.bias")}
    names = dotted({f"proj_{part}": f"{part}_proj" for part in "qkvo"} | {"out_proj": "o_proj", "decay_proj": "head_scale"})
    return nn.TaylorAttention, options, names


def sliding_window(file):
    config = file.config
    heads, window = (1, config["block_size"] + 1) if "synthetic" in file.mixer else (config["num_heads"], config["window_size"] // 2 + 1)
    options = {"heads": heads, "window": window, "kv_heads": config.get("num_heads_kv", heads),
               "rotary_dim": config.get("rotary_emb_dim", 0), "rotary_interleaved": config.get("rotary_emb_interleaved", False),
               "qkv_bias": file.has("Wqkv.bias"), "out_bias": file.has("out_proj.bias")}
    return nn.SlidingWindow, options, dotted({"Wqkv": "qkv_proj", "out_proj": "out_proj"})


FAMILIES = {"gla": gla, "delta_net": delta_net, "gated_delta_net": gated_delta_net, "mamba": mamba, "mamba2": mamba2, "rwkv5": rwkv5,
            "h3": h3, "hyena": hyena, "gated_short_conv": gated_conv, "base_conv": base_conv,
            "linear_attention/taylor_exp": taylor_attention, "sliding_attention": sliding_window}


def family_of(mixer):
    first = mixer.replace(",", " ").split()[0]
    return FAMILIES.get(first)


@pytest.mark.skipif(not FILES, reason="tests/goldens of a checkout is needed")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path):
    file = File(path)
    if (family := family_of(file.mixer)) is None:
        pytest.skip(f"no module for '{file.mixer}'")
    make, options, names = family(file)
    x = file.tensors["x"].double().requires_grad_()
    mixer = make(x.shape[2], **options).double()
    parameters = dict(mixer.named_parameters())
    loaded = {}
    with torch.no_grad():
        for name, value in file.tensors.items():
            if name.startswith("param.") and (ours := names[name.removeprefix("param.")]) is not None:
                parameters[ours].copy_(value.reshape(parameters[ours].shape))
                loaded[name.removeprefix("param.")] = parameters[ours]
    assert len(loaded) == len(parameters)
    y = mixer(x)
    (y * file.tensors["g"]).sum().backward()
    assert_near(y, file.tensors["y"])
    assert_near(x.grad, file.tensors["grad.x"])
    for name, parameter in loaded.items():
        if f"grad.{name}" in file.tensors:
            assert_near(parameter.grad, file.tensors[f"grad.{name}"].reshape(parameter.shape))


def assert_near(found, expected):
    assert (found - expected).abs().max() <= 1e-9 * expected.abs().max().clamp_min(1e-12)
