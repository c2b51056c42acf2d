"""The engine in Python, compared with the program `based`.

Needs libbased.so (BASED_LIBRARY or in the wheel), the torch that it was built with, and the program (BASED_PROGRAM or in PATH), which trains a
tiny model.
"""

import json
import os
import shutil
import signal
import subprocess
import threading

import pytest

PROGRAM = os.environ.get("BASED_PROGRAM") or shutil.which("based")
try:
    from based_cpp import _c_interface, engine

    engine._library()
except ImportError as error:
    pytest.skip(f"no engine: {error}", allow_module_level=True)
if PROGRAM is None:
    pytest.skip("no program `based`: set BASED_PROGRAM", allow_module_level=True)

CONFIG = """
[model]
preset = "based-tiny"
[data]
train = "text.txt"
tokenizer = "bytes"
[train]
steps = 60
batch = 4
length = 64
"""


def based(*arguments, cwd=None):
    return subprocess.run([PROGRAM, *map(str, arguments)], check=True, capture_output=True, text=True, cwd=cwd).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("engine")
    (path / "text.txt").write_text("Once upon a time there was a small model, and it read this text again. " * 200)
    (path / "run.toml").write_text(CONFIG)
    based("train", "run.toml", "--out", "m", cwd=path)
    return path


@pytest.fixture(scope="module")
def model(folder):
    return engine.Model.load(folder / "m")


def test_describes_the_model(model):
    assert model.info.vocab_size == 257 and model.info.end_of_text == 256
    assert (model.info.device, model.info.state_grows, model.info.max_tokens) == ("cpu", False, 0)
    assert model.info.state_bytes > 0 and model.info.parameters > 10000 and len(model.info.hash) == 32


def test_text_and_ids(model):
    assert model.encode("naïve\0") == list("naïve\0".encode())
    assert model.decode(model.encode("naïve\0")) == "naïve\0"
    with pytest.raises(engine.Error, match="257"):
        model.decode([257])


def test_generates_as_the_program_does(folder, model):
    said = json.loads(
        based("generate", "--model", folder / "m", "--prompt", "Once upon", "--max-tokens", 30, "--temperature", 0, "--json", "--logprobs")
    )
    generation = model.generate("Once upon", max_tokens=30, temperature=0, log_probabilities=True)
    assert generation.finish_reason is None
    assert "".join(generation) == generation.text == said["text"]
    assert generation.ids == said["ids"]
    assert generation.log_probabilities == pytest.approx(said["log_probabilities"], abs=1e-6)
    assert (generation.prompt_tokens, generation.finish_reason) == (9, said["finish_reason"])


def test_seed_and_penalties_reach_the_engine(folder, model):
    flags = ["--temperature", 1.3, "--top-k", 30, "--top-p", 0.95, "--min-p", 0.001, "--seed", 5, "--repetition-penalty", 1.2]
    flags += ["--presence-penalty", 0.5, "--frequency-penalty", 0.25, "--logit-bias", "101:2", "--max-tokens", 25]
    said = json.loads(based("generate", "--model", folder / "m", "--prompt", "Once", "--json", *flags))
    generation = model.generate(
        "Once",
        max_tokens=25,
        temperature=1.3,
        top_k=30,
        top_p=0.95,
        min_p=0.001,
        seed=5,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={101: 2},
    )
    list(generation)
    assert generation.ids == said["ids"]


def test_a_stop_string_ends_the_text(model):
    whole = "".join(model.generate("Once upon a", max_tokens=40, temperature=0))
    stop = whole[5:8]
    generation = model.generate("Once upon a", max_tokens=40, temperature=0, stop=stop)
    assert "".join(generation) == whole[: whole.index(stop)]
    assert generation.finish_reason == "stop"


def test_a_state_is_the_file_of_the_program(folder, model):
    based("state", "save", folder / "program.state", "--model", folder / "m", "--prompt", "Once upon a time")
    state = model.read("Once upon a time")
    assert state.bytes() == (folder / "program.state").read_bytes()
    state.save(folder / "python.state")
    assert (folder / "python.state").read_bytes() == state.bytes()
    wanted = "".join(model.generate(state=state, max_tokens=20, temperature=0))
    for same in (model.load_state(folder / "program.state"), model.state_from_bytes(state.bytes()), state.fork()):
        assert same.text == "Once upon a time" and len(same) == 16
        assert "".join(model.generate(state=same, max_tokens=20, temperature=0)) == wanted
    damaged = bytearray(state.bytes())
    damaged[100] ^= 1
    with pytest.raises(engine.Error, match="checksum"):
        model.state_from_bytes(damaged)


def test_forks_are_independent(model):
    state = model.read("Once upon")
    before, fork = state.bytes(), state.fork()
    fork.append(" a time")
    assert state.bytes() == before and fork.text == "Once upon a time"
    assert "".join(model.generate(" a time", state=state, max_tokens=9, temperature=0)) == "".join(
        model.generate(state=fork, max_tokens=9, temperature=0)
    )


def test_the_state_of_a_generation_continues_it(model):
    whole = model.generate("Once", max_tokens=20, temperature=0)
    list(whole)
    first = model.generate("Once", max_tokens=12, temperature=0)
    list(first)
    rest = model.generate(state=first.state(), max_tokens=8, temperature=0)
    list(rest)
    assert first.ids + rest.ids == whole.ids


def test_scores(model):
    context, continuation = "Once upon a time", " there was"
    both, first, rest = model.score(context + continuation), model.score(context), model.score(continuation, context)
    assert rest.ids == model.encode(continuation) and len(both.log_probabilities) == len(context + continuation) - 1
    assert first.log_probabilities + rest.log_probabilities == pytest.approx(both.log_probabilities, abs=1e-4)
    assert rest.log_likelihood == pytest.approx(sum(rest.log_probabilities))
    generation = model.generate(context, max_tokens=8, temperature=0, log_probabilities=True)
    list(generation)
    scored = model.score(generation.ids, context)
    assert scored.greedy and scored.log_probabilities == pytest.approx(generation.log_probabilities, abs=1e-4)
    assert model.score_many([]) == []
    with pytest.raises(engine.UsageError, match="continuation"):
        model.score("a")


def test_a_batch_has_the_texts_of_its_prompts(folder):
    model = engine.Model.load(folder / "m", invariant=True)
    prompts = ["Once", "upon a", "time there"]
    alone = ["".join(model.generate(prompt, max_tokens=15, seed=4 + i)) for i, prompt in enumerate(prompts)]
    assert model.generate_batch(prompts, max_tokens=15, seed=4, slots=2) == alone
    assert model.generate_batch([]) == []


def test_wrong_arguments_are_named(folder, model):
    with pytest.raises(engine.UsageError, match="temperature"):
        model.generate("a", temperature=-1)
    with pytest.raises(ValueError, match="at least one"):
        model.generate("")
    with pytest.raises(engine.UsageError, match="tpu"):
        engine.Model.load(folder / "m", device="tpu")
    with pytest.raises(engine.Error, match="absent"):
        engine.Model.load(folder / "absent")
    for call in (
        lambda: model.generate([300]),
        lambda: model.generate("a", logit_bias={300: 1.0}),
        lambda: model.score([300], [97]),
        lambda: model.score([97], [300]),
        lambda: model.read([300]),
    ):
        with pytest.raises(engine.UsageError, match="300"):
            call()
    for call in (lambda: engine.Model.load(f"{folder}/m\0x"), lambda: model.read("a").save(f"{folder}/s\0x")):
        with pytest.raises(engine.UsageError, match="NUL"):
            call()
    other = engine.Model.load(folder / "m")
    with pytest.raises(engine.UsageError, match="another model handle"):
        other.generate("a", state=model.read("b"))


def test_a_generation_is_stopped(model):
    generation = model.generate("Once", max_tokens=10**9, temperature=0)
    next(generation)
    stopper = threading.Thread(target=generation.stop)
    stopper.start()
    stopper.join()
    assert all(isinstance(piece, str) for piece in generation)
    assert generation.finish_reason == "interrupted"


def test_a_signal_stops_a_long_call(model):
    """The handler raises within the call's progress callback, and the model can be used afterwards."""

    def raise_interrupt(_number, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            model.read(list(b"Once upon a time ") * 100000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(model.read("Once")) == 4


def test_a_library_without_the_interface_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_c_interface, "_loaded", None)
    monkeypatch.setenv("BASED_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(ImportError, match="BASED_LIBRARY"):
        engine._library()
    (tmp_path / "other.so").write_bytes(b"\x7fELF based_torch_version=1.0.0\0")
    monkeypatch.setenv("BASED_LIBRARY", str(tmp_path / "other.so"))
    with pytest.raises(ImportError, match="built with torch 1.0.0"):
        engine._library()
