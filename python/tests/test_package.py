"""Importing the package, its compiled part, and the self test."""

import ctypes
import pathlib
import subprocess
import sys
import types

import pytest
import torch

import based_cpp
from based_cpp import selftest


def imported(torch_module):
    """The outcome of importing the package, in a new process, with `torch_module` (Python) in place of torch."""
    code = f"import sys\n{torch_module}\nimport based_cpp"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr


def test_a_missing_torch():
    assert "based-cpp needs torch 2.10 or newer, and no torch is installed" in imported("sys.modules['torch'] = None")


def test_an_old_torch():
    fake = "import types; m = types.ModuleType('torch'); m.__version__ = '2.9.1+cu128'; sys.modules['torch'] = m"
    assert "based-cpp needs torch 2.10 or newer, and torch 2.9.1+cu128 is installed" in imported(fake)


def test_the_compiled_part_names_no_cpp_function_of_torch():
    library = pathlib.Path(based_cpp._based_ops.__file__)
    names = set(library.read_bytes().split(b"\0"))
    assert any(name.startswith(b"aoti_torch_") for name in names)
    assert not [name for name in names if name.startswith((b"_ZN2at", b"_ZNK2at", b"_ZN3c10", b"_ZNK3c10", b"_ZN5torch8autograd"))]
    assert b"libtorch_cpu.so" in names and b"libgomp.so.1" not in names


def test_errors_are_runtime_errors_and_leave_no_exception_counted():
    uncaught_exceptions = ctypes.CDLL("libstdc++.so.6")._ZSt19uncaught_exceptionsv  # of the C++ runtime that torch uses
    for _ in range(3):
        with pytest.raises(RuntimeError, match="h must have shape"):
            torch.ops.based.swiglu(torch.zeros(2, 3, 4))
        assert uncaught_exceptions() == 0


def test_types_without_a_kernel_run_the_reference():
    before = torch.ops.based.reference_calls()
    y = torch.ops.based.swiglu(torch.ones(2, 4, dtype=torch.float64))
    assert torch.ops.based.reference_calls() == before + 1 and y.dtype == torch.float64
    torch.ops.based.swiglu(torch.ones(2, 4))
    assert torch.ops.based.reference_calls() == before + 1


def test_the_self_test_passes_and_notices_a_wrong_result(capsys, monkeypatch):
    assert selftest.run(["cpu"], "taylor_attention") == 0
    assert "all 6 passed" in capsys.readouterr().out
    right = torch.ops.based.taylor_attention_step

    def wrong(q, *arguments):
        y = right(q, *arguments)
        return y * 1.01 if q.dtype == torch.float32 else y

    monkeypatch.setattr(selftest.torch, "ops", types.SimpleNamespace(based=_Replaced(torch.ops.based, taylor_attention_step=wrong)))
    assert selftest.run(["cpu"], "taylor_attention_step") == 1
    assert "1 of 2 failed" in capsys.readouterr().out


class _Replaced:
    def __init__(self, operators, **others):
        self._operators, self._others = operators, others

    def __getattr__(self, name):
        return self._others.get(name) or getattr(self._operators, name)


def test_a_figure_that_is_not_a_number_fails():
    assert selftest._largest_difference([torch.tensor([float("nan")])], [torch.ones(1, dtype=torch.float64)]) == float("inf")


def test_no_operator_matches(capsys):
    assert selftest.run(["cpu"], "no such operator") == 1
    assert "no operator's name contains" in capsys.readouterr().out
