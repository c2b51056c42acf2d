"""The C functions of based/c/based.h by ctypes: structs, the search for libbased.so, errors as exceptions.

The fields and their order are those of the header; _ABI_VERSION is the header's version.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pathlib
import threading
from typing import Any, Callable

_ABI_VERSION = 1
_MARK = b"based_torch_version="


class Error(RuntimeError):
    """A call failed: a file, the memory, the device or the model. The message names the cause and the remedy."""


class UsageError(Error, ValueError):
    """Arguments were wrong; no work had begun."""


Error.__module__ = UsageError.__module__ = "based_cpp.engine"  # their public name


class _LoadOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("device", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("invariant", ctypes.c_int32)]


class _ModelInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
        ("state_bytes", ctypes.c_int64),
        ("state_grows", ctypes.c_int32),
        ("end_of_text", ctypes.c_int64),
        ("max_tokens", ctypes.c_int64),
        ("hash", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
    ]


class _Prompt(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_void_p),
        ("text", ctypes.c_char_p),
        ("bytes", ctypes.c_size_t),
        ("ids", ctypes.POINTER(ctypes.c_int64)),
        ("count", ctypes.c_size_t),
    ]


class _GenerationOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("max_tokens", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("repetition_penalty", ctypes.c_double),
        ("presence_penalty", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("seed", ctypes.c_int64),
        ("stops", ctypes.POINTER(ctypes.c_char_p)),
        ("stop_count", ctypes.c_size_t),
        ("bias_ids", ctypes.POINTER(ctypes.c_int64)),
        ("bias_values", ctypes.POINTER(ctypes.c_double)),
        ("bias_count", ctypes.c_size_t),
        ("slots", ctypes.c_int64),
        ("cache_tokens", ctypes.c_int64),
        ("log_probabilities", ctypes.c_int32),
        ("keep_states", ctypes.c_int32),
    ]


class _Event(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("prompt", ctypes.c_size_t), ("text", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


_STEP, _TEXT, _END, _DONE = range(4)


class _Result(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("finish_reason", ctypes.c_char_p),
        ("prompt_tokens", ctypes.c_int64),
        ("text", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("ids", ctypes.POINTER(ctypes.c_int64)),
        ("log_probabilities", ctypes.POINTER(ctypes.c_float)),
        ("count", ctypes.c_size_t),
    ]


class _ScoreRequest(ctypes.Structure):
    _fields_ = [
        ("context", ctypes.POINTER(ctypes.c_int64)),
        ("context_count", ctypes.c_size_t),
        ("continuation", ctypes.POINTER(ctypes.c_int64)),
        ("continuation_count", ctypes.c_size_t),
        ("log_probabilities", ctypes.POINTER(ctypes.c_float)),
        ("log_likelihood", ctypes.c_double),
        ("greedy", ctypes.c_int32),
    ]


# based_progress, of which only the first argument is used: see _interruptible.
_PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_loading = threading.Lock()
_loaded: ctypes.CDLL | None = None


def _library_path() -> pathlib.Path:
    named = os.environ.get("BASED_LIBRARY")
    path = pathlib.Path(named) if named else pathlib.Path(__file__).parent / "lib" / "libbased.so"
    if not path.is_file():
        raise ImportError(f"{path}: the engine's library is not there; set BASED_LIBRARY to the libbased.so of `make install`")
    return path


def _require_torch(path: pathlib.Path) -> None:
    """Raises ImportError unless the installed torch is the one that the library was built with. Two versions in one process would crash."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin = content.find(_MARK) + len(_MARK)
        built = content[begin : content.find(b"\0", begin)].decode() if begin >= len(_MARK) else ""
    if not built:
        raise ImportError(f"{path}: is not a libbased.so with the C functions of based/c/based.h")
    import torch  # loads LibTorch, so that the library finds it

    if torch.__version__.split("+")[0] != built:
        raise ImportError(
            f"{path} was built with torch {built}, but torch {torch.__version__} is installed: the engine needs torch {built} "
            "(pip install torch==" + built + "). The other parts of based_cpp work with every torch from 2.10 on"
        )


def _library() -> ctypes.CDLL:
    global _loaded
    with _loading:
        if _loaded is None:
            path = _library_path()
            _require_torch(path)
            library = ctypes.CDLL(str(path))
            if library.based_abi_version() != _ABI_VERSION:
                raise ImportError(f"{path}: has version {library.based_abi_version()} of the C interface; this module needs {_ABI_VERSION}")
            _declare(library)
            _loaded = library
    return _loaded


def _declare(library: ctypes.CDLL) -> None:
    library.based_last_error.restype = ctypes.c_char_p
    handle, size, pointer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    functions = {
        "based_model_load": [ctypes.c_char_p, pointer, pointer],
        "based_model_describe": [handle, pointer],
        "based_encode": [handle, ctypes.c_char_p, size, pointer, pointer],
        "based_decode": [handle, pointer, size, pointer, pointer],
        "based_state_read": [handle, pointer, _PROGRESS, pointer, pointer],
        "based_state_fork": [handle, pointer],
        "based_state_save": [handle, ctypes.c_char_p],
        "based_state_load": [handle, ctypes.c_char_p, pointer],
        "based_state_bytes": [handle, pointer, pointer],
        "based_state_from_bytes": [handle, ctypes.c_char_p, size, pointer],
        "based_state_ids": [handle, pointer, pointer],
        "based_generation_start": [handle, pointer, size, pointer, pointer],
        "based_generation_next": [handle, pointer],
        "based_generation_stop": [handle, size],
        "based_generation_describe": [handle, size, pointer],
        "based_generation_state": [handle, size, pointer],
        "based_score": [handle, pointer, size, _PROGRESS, pointer],
    }
    for name, arguments in functions.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = ctypes.c_int
    for name in ("based_free", "based_model_free", "based_state_free", "based_generation_free", "based_generation_options_init"):
        getattr(library, name).argtypes = [pointer]
        getattr(library, name).restype = None


def _check(status: int) -> None:
    if status != 0:
        message = (_library().based_last_error() or b"").decode("utf-8", "replace")
        raise (UsageError if status == 2 else Error)(message)


def _interruptible(call: Callable[[Any], int]) -> None:
    """`call(callback)` with a progress callback, in which Python's signal handlers run, so that Ctrl-C stops the call."""
    raised: list[BaseException] = []

    def proceed() -> Any:
        result = 0
        while True:
            try:
                yield result  # a handler runs when the generator is resumed, which is within this `try`
            except GeneratorExit:
                raise
            except BaseException as error:
                raised.append(error)
                result = 1

    generator = proceed()
    next(generator)
    status = call(_PROGRESS(generator.send))
    if raised:
        raise raised[0]
    _check(status)
