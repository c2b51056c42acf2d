"""Taylor linear attention and sliding windows (the Based architecture): kernels, modules, and an engine.

    based_cpp.ops     documented functions over the operators torch.ops.based.*
    based_cpp.nn      mixers as modules, with forward, prefill and step
    based_cpp.engine  models in folders of `based`: generation, scores, saved states

`python -m based_cpp selftest` checks the operators on this machine.
"""

from __future__ import annotations

import re

_OLDEST_TORCH = (2, 10)


def _import_torch() -> None:
    """Imports torch. Raises ImportError where it is missing or too old."""
    needed = "based-cpp needs torch %d.%d or newer" % _OLDEST_TORCH
    try:
        import torch
    except ImportError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{needed}, and no torch is installed; see https://pytorch.org/get-started/locally") from error
    version = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if version and tuple(map(int, version.groups())) < _OLDEST_TORCH:
        raise ImportError(f"{needed}, and torch {torch.__version__} is installed; run: pip install --upgrade torch")


_import_torch()

import torch  # noqa: E402

from . import _based_ops  # noqa: E402  (registers the operators that ops and nn use)
from . import nn, ops  # noqa: E402

__version__: str = _based_ops.version
cuda_version: str | None = _based_ops.cuda_version or None
"""The version of the CUDA runtime in this wheel; None where the wheel has only CPU kernels."""


def set_tf32(on: bool) -> None:
    """Whether products of fp32 matrices on a GPU may be rounded to TF32. Off at first, as torch.backends.cuda.matmul.allow_tf32 is."""
    torch.ops.based.set_tf32(on)


__all__ = ["__version__", "cuda_version", "nn", "ops", "set_tf32"]
