"""Based models in transformers: the cache, padding, generation, and the folders of `based convert --hf`.

Tests with the program run where the variable BASED_PROGRAM names it or `based` is on the path.
"""

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from based_cpp.hf import BasedCache, BasedConfig, BasedForCausalLM  # noqa: E402

VOCABULARY = 30
# A mixer of each kind with small options.
MIXERS = {
    "taylor_attention": {"heads": 2, "feature_dim": 4},
    "taylor_decay": {"type": "taylor_attention", "heads": 2, "feature_dim": 4, "decay": True, "decay_form": "code"},
    "sliding_window": {"heads": 2, "window": 4},
    "gated_conv": {},
    "base_conv": {},
    "base_conv_long": {"type": "base_conv", "kernel_size": -1, "l_max": 32},
    "base_conv_implicit": {"type": "base_conv", "kernel_size": -1, "l_max": 32, "implicit": True},
    "hyena": {"l_max": 32},
    "h3": {"head_dim": 4, "d_state": 8},
    "gla": {"heads": 2},
    "delta_net": {"heads": 2},
    "gated_delta_net": {"heads": 2},
    "mamba": {},
    "mamba2": {"headdim": 8, "d_state": 8},
    "rwkv5": {"head_size": 8},
}


def make_model(layers, dtype=torch.float64, seed=0, **fields):
    torch.manual_seed(seed)
    mixers = {name: {"type": name} | MIXERS[name] for name in set(layers)}
    based = {"d_model": 16, "vocab_size": VOCABULARY, "layers": list(layers), "mixers": mixers, "mlp_width": 16} | fields
    model = BasedForCausalLM(BasedConfig(based=based, eos_token_id=VOCABULARY - 1, pad_token_id=VOCABULARY - 1)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # large enough that tokens depend on the ones before
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model


def random_ids(batch, columns, seed=1):
    return torch.randint(0, VOCABULARY - 1, (batch, columns), generator=torch.Generator().manual_seed(seed))


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def model():
    return make_model(["gated_conv", "taylor_attention", "sliding_window"], max_positions=64, norm="layer_norm")


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_several_tokens_on_a_filled_cache_equal_one_by_one(name):
    model, ids = make_model([name, "gated_conv"]), random_ids(3, 14)
    whole = model(ids, use_cache=False).logits
    assert (whole[:, 5:].std(1) > 1e-3).any()
    cache = BasedCache()
    assert_close(model(ids[:, :5], past_key_values=cache).logits, whole[:, :5])
    fork = copy.deepcopy(cache)
    assert_close(model(ids[:, 5:], past_key_values=cache).logits, whole[:, 5:])
    for column in range(5, 14):
        step = model(ids[:, column : column + 1], past_key_values=fork).logits
        assert_close(step, whole[:, column : column + 1])
    assert cache.get_seq_length() == fork.get_seq_length() == 14


@pytest.mark.parametrize("mlp", ["gelu", "identity", "none"])
@torch.no_grad()
def test_other_forms_of_the_block(mlp):
    model, ids = make_model(["gated_conv", "taylor_attention"], mlp=mlp, final_norm="layer_norm"), random_ids(2, 6)
    cache = model(ids[:, :3], use_cache=True)[1]
    assert isinstance(cache, BasedCache)
    assert_close(model(ids[:, 3:], past_key_values=cache).logits, model(ids).logits[:, 3:])


@pytest.mark.parametrize("place", ["left", "right", "between"])
@torch.no_grad()
def test_padding_is_not_read(model, place):
    rows = [random_ids(1, n, seed=n)[0] for n in (3, 7, 5)]
    ids, mask = torch.full((3, 7), 4), torch.zeros(3, 7, dtype=torch.int64)
    for i, row in enumerate(rows):
        chosen = torch.arange(len(row)) if place == "right" else torch.arange(7 - len(row), 7)
        if place == "between":
            chosen[0] = 0
        ids[i, chosen], mask[i, chosen] = row, 1
    output = model(ids, attention_mask=mask, use_cache=True)
    following = random_ids(3, 4, seed=9)
    grown = torch.cat([mask, torch.ones(3, 4, dtype=torch.int64)], 1)
    continued = model(following, attention_mask=grown, past_key_values=output[1]).logits
    for i, row in enumerate(rows):
        alone = model(torch.cat([row, following[i]])[None]).logits[0]
        assert_close(output.logits[i][mask[i] == 1], alone[: len(row)])
        assert_close(continued[i], alone[len(row) :])
        assert (output.logits[i][mask[i] == 0] == 0).all()


def test_labels_of_padding_do_not_count(model):
    row = random_ids(1, 5)
    ids = torch.cat([torch.zeros(1, 3, dtype=torch.int64), row], 1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    alone = model(row, labels=row, use_cache=False).loss
    torch.testing.assert_close(model(ids, attention_mask=mask, labels=ids, use_cache=False).loss, alone)
    log = model(row, use_cache=False).logits.log_softmax(-1)
    expected = -log[0, :-1].gather(1, row[0, 1:, None]).mean()
    torch.testing.assert_close(alone.double(), expected, rtol=1e-5, atol=1e-6)


def test_training_moves_every_parameter():
    model, ids = make_model(["gated_conv", "taylor_attention", "sliding_window"]).train(), random_ids(2, 9)
    model(ids, labels=ids).loss.backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_the_cache_equals_without(model, beams):
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "num_beams": beams, "num_return_sequences": beams}
    ids = random_ids(2, 6)
    cached = model.generate(ids, **options)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    assert len({tuple(row) for row in cached[:, 6:].tolist()}) > 1


def test_generation_of_a_padded_batch_equals_alone(model):
    rows = [random_ids(1, n, seed=n)[0] for n in (2, 6, 4)]
    ids, mask = torch.full((3, 6), VOCABULARY - 1), torch.zeros(3, 6, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, 6 - len(row) :], mask[i, 6 - len(row) :] = row, 1
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    batch = model.generate(ids, attention_mask=mask, **options)
    for i, row in enumerate(rows):
        alone = model.generate(row[None], attention_mask=torch.ones(1, len(row), dtype=torch.int64), **options)
        assert torch.equal(batch[i, 6:], alone[0, len(row) :])


@torch.no_grad()
def test_generation_continues_a_cache_and_reads_in_chunks(model):
    ids, options = random_ids(2, 9), {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, **options)
    cache = model(ids[:, :7], use_cache=True)[1]
    assert torch.equal(model.generate(ids, past_key_values=cache, **options), expected)
    assert torch.equal(model.generate(ids, prefill_chunk_size=4, **options), expected)


@torch.no_grad()
def test_constants_survive_the_loading(tmp_path):
    model = make_model(["taylor_decay", "base_conv_implicit", "hyena"])
    model.save_pretrained(tmp_path)
    loaded = BasedForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = random_ids(2, 6)
    assert torch.equal(loaded(ids).logits, model(ids).logits)


@torch.no_grad()
def test_beams_take_their_states_along(model):
    ids = random_ids(3, 8)
    cache = model(ids[:, :6], use_cache=True)[1]
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    assert_close(model(ids[order, 6:], past_key_values=cache).logits, model(ids[order]).logits[:, 6:])
    cache = model(ids[:2, :6], use_cache=True)[1]
    cache.batch_repeat_interleave(2)
    repeated = torch.tensor([0, 0, 1, 1])
    assert_close(model(ids[repeated, 6:], past_key_values=cache).logits, model(ids[repeated]).logits[:, 6:])


@torch.no_grad()
def test_the_last_logits_alone(model):
    ids = random_ids(2, 7)
    whole = model(ids).logits
    assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
    assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, whole)
    assert whole.shape == (2, 7, VOCABULARY)  # without the padding of the embedding's rows


@torch.no_grad()
def test_what_would_be_wrong_is_refused(model):
    ids = random_ids(2, 6)
    cache = model(ids, use_cache=True)[1]
    with pytest.raises(ValueError, match=r"the cache has 2 sequences, the input has 1"):
        model(ids[:1], past_key_values=cache)
    with pytest.raises(ValueError, match=r"attention_mask must be \[2, 6\] or \[2, 12\]"):
        model(ids, attention_mask=torch.ones(2, 5), past_key_values=cache)
    with pytest.raises(ValueError, match="attention_mask"):
        model(ids, attention_mask=torch.ones(2, 1, 6, 6))
    with pytest.raises(TypeError, match="BasedCache"):
        model(ids, past_key_values=transformers.DynamicCache())
    with pytest.raises(ValueError, match="70 tokens, the model has 64 positions"):
        model(random_ids(1, 70))
    with pytest.raises(NotImplementedError, match="forget"):
        cache.crop(3)
    with pytest.raises(NotImplementedError, match="vocabulary"):
        model.resize_token_embeddings(40)
    with pytest.raises(ValueError, match="attentions"):
        model(ids, output_attentions=True)
    with pytest.raises(ValueError, match="model.eval"):
        copy.deepcopy(model).train()(ids, past_key_values=cache)
    with pytest.raises(ValueError, match="unknown keys: heads"):
        BasedConfig(based={"heads": 3})
    with pytest.raises(ValueError, match="'vocab_size' of the config"):
        BasedConfig(based={"vocab_size": 30}, vocab_size=31)
    with pytest.raises(ValueError, match="mixer 'bigbird'"):
        BasedForCausalLM(BasedConfig(based={"layers": ["bigbird"]}))


def test_a_saved_model_loads_by_its_own_code(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True, dtype=torch.float64)
    ids = random_ids(2, 5)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    # Python starts without based_cpp.hf, so that the files of the folder are needed.
    code = (
        "import sys, torch, transformers; model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True);"
        "print(type(model).__module__, model.num_parameters())"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("transformers_modules.") and ran.stdout.split()[1] == str(model.num_parameters())


def test_weights_that_do_not_fit_are_an_error(model, tmp_path):
    model.save_pretrained(tmp_path)
    weights = safetensors.load_file(tmp_path / "model.safetensors")
    weights["stranger"] = weights.pop("norm.weight")
    safetensors.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="missing keys: norm.weight; unexpected keys: stranger"):
        BasedForCausalLM.from_pretrained(tmp_path)


def test_types_of_parameters(tmp_path):
    make_model(["h3", "gated_conv", "mamba", "rwkv5"], dtype=torch.float32).save_pretrained(tmp_path)
    loaded = BasedForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():  # the poles of H3 stay in fp32
        assert parameter.dtype == (torch.float32 if ".diagonal." in name else torch.bfloat16), name
    assert loaded(random_ids(2, 5)).logits.dtype == torch.bfloat16


# With the program.

PROGRAM = os.environ.get("BASED_PROGRAM") or shutil.which("based")
needs_program = pytest.mark.skipif(PROGRAM is None, reason="BASED_PROGRAM does not name the program, and `based` is not on the path")


def run(*arguments):
    ran = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, encoding="utf-8", errors="replace", check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model m that the program trained, and the folder hf that it converted."""
    folder = tmp_path_factory.mktemp("trained")
    text = "".join(f"the cat number {i * 37 % 101} sat on the mat\n" for i in range(300))
    (folder / "text.txt").write_text(text)
    (folder / "part.txt").write_text(text[:400])
    (folder / "run.toml").write_text(f"""
[model]
d_model = 32
mlp_width = 48
layers = ["gated_conv", "taylor", "window"]
[model.mixers]
taylor = {{type = "taylor_attention", heads = 2, feature_dim = 8}}
window = {{type = "sliding_window", heads = 2, window = 7}}
[train]
steps = 20
batch = 4
length = 64
[data]
train = "{folder}/text.txt"
tokenizer = "bytes"
""")
    run("train", folder / "run.toml", "--out", folder / "m")
    run("convert", folder / "m", "--hf", "--out", folder / "hf")
    return folder


@needs_program
@torch.no_grad()
def test_logits_are_the_program_s(trained):
    nats_file = trained / "nats.safetensors"
    run("perplexity", "--model", trained / "m", "--data", trained / "part.txt", "--dtype", "fp64", "--per-token", nats_file)
    expected = safetensors.load_file(nats_file)
    tokenizer = AutoTokenizer.from_pretrained(trained / "hf", trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(trained / "hf", trust_remote_code=True, dtype=torch.float64)
    ids = tokenizer((trained / "part.txt").read_text(), return_tensors="pt").input_ids
    assert torch.equal(ids[0, 1:], expected["id"].long())
    nats = -model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    torch.testing.assert_close(nats, expected["nats"].double(), rtol=1e-6, atol=1e-6)  # the file is fp32
    assert tokenizer.decode(ids[0]) == (trained / "part.txt").read_text()
    assert tokenizer.eos_token == "<|endoftext|>" and model.generation_config.eos_token_id == tokenizer.eos_token_id


@needs_program
def test_generation_is_the_program_s(trained):
    prompt = "the cat number 5"
    expected = run("generate", "--model", trained / "m", "--prompt", prompt, "--max-tokens", 24, "--temperature", 0)
    tokenizer = AutoTokenizer.from_pretrained(trained / "hf", trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(trained / "hf", trust_remote_code=True)
    out = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=24, do_sample=False)
    assert tokenizer.decode(out[0], skip_special_tokens=True).removeprefix(prompt).strip() == expected.removeprefix(prompt).strip()


@needs_program
def test_weights_go_both_ways(trained, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(trained / "hf", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(trained / "hf", trust_remote_code=True)
    model.save_pretrained(tmp_path / "same")
    tokenizer.save_pretrained(tmp_path / "same")
    run("convert", tmp_path / "same", "--out", tmp_path / "back")
    assert (tmp_path / "back/model.safetensors").read_bytes() == (trained / "m/model.safetensors").read_bytes()
    configs = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "back", trained / "m")]
    assert configs[0] == configs[1]
    run("generate", "--model", tmp_path / "back", "--prompt", "the", "--max-tokens", 2)  # the tokenizer's hash fits too
    with torch.no_grad():
        model.layers[0].mixer.in_proj.weight.mul_(1.5)
    model.save_pretrained(tmp_path / "changed")
    run("convert", tmp_path / "changed", "--out", tmp_path / "ours")
    before, after = (safetensors.load_file(path / "model.safetensors") for path in (trained / "m", tmp_path / "ours"))
    assert torch.equal(after["layers.0.mixer.in_proj.weight"], before["layers.0.mixer.in_proj.weight"] * 1.5)
    assert torch.equal(after["embedding"], before["embedding"])


@needs_program
@torch.no_grad()
def test_lm_eval_scores_and_generates(trained, tmp_path):
    lm_eval = pytest.importorskip("lm_eval")
    from lm_eval.tasks import TaskManager

    import based_cpp.lm_eval  # noqa: F401

    documents = [{"context": f"the cat number {i} sat on", "target": " the mat"} for i in range(5)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    common = {"dataset_path": "json", "dataset_kwargs": {"data_files": str(tmp_path / "data.jsonl")}, "test_split": "train",
              "doc_to_text": "{{context}}", "doc_to_target": "{{target}}"}
    tasks = [
        common | {"task": "mat", "output_type": "loglikelihood", "metric_list": [{"metric": "acc"}]},
        common | {"task": "mat_generated", "output_type": "generate_until", "metric_list": [{"metric": "exact_match"}],
                  "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}},
    ]
    for task in tasks:
        (tmp_path / f"{task['task']}.yaml").write_text(json.dumps(task))  # JSON is YAML
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(model="based-cpp", model_args={"pretrained": str(trained / "hf")}, tasks=["mat", "mat_generated"],
                                      task_manager=manager, batch_size=3, device="cpu", log_samples=True)
    tokenizer = AutoTokenizer.from_pretrained(trained / "hf", trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(trained / "hf", trust_remote_code=True)
    for sample in results["samples"]["mat"]:
        whole = tokenizer(sample["doc"]["context"] + sample["doc"]["target"], return_tensors="pt").input_ids[0]
        log = model(whole[None]).logits[0].float().log_softmax(-1)
        count = len(tokenizer(sample["doc"]["target"]).input_ids)
        expected = log[:-1].gather(1, whole[1:, None])[-count:].sum()
        assert float(sample["resps"][0][0][0]) == pytest.approx(expected.item(), abs=1e-3)
    for sample in results["samples"]["mat_generated"]:
        prompt = tokenizer(sample["doc"]["context"], return_tensors="pt")
        out = model.generate(**prompt, max_new_tokens=6, do_sample=False)[0, prompt.input_ids.shape[1] :]
        assert sample["resps"][0][0] == tokenizer.decode(out, skip_special_tokens=True).split("\n")[0]


def test_the_entry_point_of_lm_eval_names_the_model():
    tomllib = pytest.importorskip("tomllib")
    pytest.importorskip("lm_eval.models.huggingface")
    from importlib.metadata import EntryPoint

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    (name, value), = project["entry-points"]["lm_eval.models"].items()
    loaded = EntryPoint(name, value, "lm_eval.models").load()
    from lm_eval.api.registry import get_model

    assert get_model(name) is loaded and loaded.__name__ == "BasedLM"
