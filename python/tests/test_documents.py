"""The documents' Python runs as it is printed, and the example's commands with few steps."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("BASED_PROGRAM") or shutil.which("based")
needs_program = pytest.mark.skipif(PROGRAM is None, reason="BASED_PROGRAM does not name the program, and `based` is not on the path")


def blocks(page, language):
    found = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    assert found, f"{page} has no {language}"
    return found


def run(block):
    exec(compile(block, "block", "exec"), {"__name__": "__main__"})  # noqa: S102


def based(*arguments):
    ran = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("number", range(len(blocks("docs/python.md", "python"))))
def test_blocks_of_the_package_run(number):
    run(blocks("docs/python.md", "python")[number])


def test_the_example_trains_and_continues_from_saved_states(tmp_path):
    commands = [line for block in blocks("docs/python.md", "sh") for line in block.splitlines() if "examples/train_based.py" in line]
    assert [shlex.split(command)[2] for command in commands] == ["train", "continue"]
    (tmp_path / "input.txt").write_bytes((ROOT / "docs/python.md").read_bytes())
    for command, shorter in zip(commands, (["--steps", "3"], ["--tokens", "5"])):
        script, *arguments = shlex.split(command)[1:]
        ran = subprocess.run([sys.executable, ROOT / script, *arguments, *shorter], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert len(list((tmp_path / "out/bytes").glob("state-*.safetensors"))) == 4
    assert ran.stdout


@needs_program
def test_blocks_of_the_engine_run(tmp_path, monkeypatch):
    engine = pytest.importorskip("based_cpp.engine")
    try:
        engine._library()
    except ImportError as error:
        pytest.skip(f"no engine: {error}")
    monkeypatch.chdir(tmp_path)
    based("presets", "based-tiny", "--out", "out/demo", "--tokenizer", "bytes")
    for block in blocks("docs/guides/c.md", "python"):
        run(block)


@needs_program
def test_blocks_of_transformers_run(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    based("presets", "based-tiny", "--out", "out/model", "--tokenizer", "bytes")
    based("convert", "out/model", "--hf", "--out", "out/model-hf")
    for block in blocks("docs/huggingface.md", "python"):
        run(block)
