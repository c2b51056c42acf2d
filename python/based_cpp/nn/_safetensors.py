"""Files of the safetensors format: 8 bytes with the little-endian length of a JSON header, the header, and the tensors' data."""

from __future__ import annotations

import ctypes
import json
import struct
from pathlib import Path

import torch
from torch import Tensor, nn

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
          "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def to_bytes(tensors: dict[str, Tensor]) -> bytes:
    """The tensors as the contents of a safetensors file."""
    header, pieces, at = {}, [], 0
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().contiguous()
        data = ctypes.string_at(values.data_ptr(), values.nbytes) if values.nbytes else b""
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        pieces.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(pieces)


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises ValueError for other contents."""
    header, begin = _header(data)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        dtype = _TYPES.get(entry["dtype"])
        if dtype is None or not 0 <= first <= last <= len(data) - begin:
            raise ValueError(f"safetensors: tensor '{name}' has a type or place that cannot be read: {entry}")
        raw = bytearray(data[begin + first : begin + last])
        tensors[name] = (torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)).reshape(entry["shape"])
    return tensors


def _header(data: bytes) -> tuple[dict, int]:
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else -1
    if not 0 < length <= len(data) - 8:
        raise ValueError("not a safetensors file, or the file is cut off")
    return json.loads(data[8 : 8 + length]), 8 + length


def load_safetensors(module: nn.Module, path: str | Path, prefix: str = "") -> None:
    """Loads a module's parameters from a safetensors file, such as model.safetensors of `based train`.

    The file's names are `prefix` followed by the module's own names: with prefix "layers.0.mixer." the first layer's mixer of a model.
    Values are converted to the parameters' types. Raises ValueError for names or shapes that differ.
    """
    found = {name[len(prefix):]: tensor for name, tensor in from_bytes(Path(path).read_bytes()).items() if name.startswith(prefix)}
    parameters = dict(module.named_parameters())
    if found.keys() != parameters.keys():
        missing, unknown = sorted(parameters.keys() - found.keys()), sorted(found.keys() - parameters.keys())
        raise ValueError(f"{path}: names that start with '{prefix}' do not fit the module: missing {missing}, unknown {unknown}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != found[name].shape:
                raise ValueError(f"{path}: '{prefix}{name}' has shape {list(found[name].shape)}, the module's {list(parameter.shape)}")
            parameter.copy_(found[name])
