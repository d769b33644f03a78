"""GGUF files: metadata and weights of language models; the package ``gguf`` reads them and takes quantization back."""
from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.tensor.tensor import Tensor

_PLAIN = {"F64": dtypes.float64, "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
          "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64}


def gguf_load(fn: str | os.PathLike[str] | Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(metadata, tensors by name) of a GGUF file. Plain numbers stay in the file until they are used; quantized blocks
    become float32.

    Raises:
        ArgumentError: if the package ``gguf`` is not installed.
        FileFormatError: if the file is none.
    """
    try:
        package = importlib.import_module("gguf")  # at its first use: it is optional
    except ImportError:
        raise ArgumentError("gguf_load", "the package gguf is not installed", "pip install 'tinsmith[gguf]'") from None
    path = str(fn.device).partition(":")[2] if isinstance(fn, Tensor) else os.fspath(fn)
    if not path:
        raise ArgumentError("gguf_load", f"reads files, got a tensor on {fn.device!r}",  # type: ignore[union-attr]
                            "the file's path")
    try:
        reader = package.GGUFReader(path)
    except (ValueError, IndexError, KeyError) as error:
        raise FileFormatError("gguf_load", f"{path!r} is no GGUF file: {error}", "a complete file") from None
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return metadata, {t.name: _tensor(package, path, t) for t in reader.tensors}

def _tensor(package: Any, path: str, t: Any) -> Tensor:
    shape = tuple(int(n) for n in reversed(t.shape))
    dtype = _PLAIN.get(t.tensor_type.name)
    if dtype is None:
        values = package.quants.dequantize(t.data, t.tensor_type)
        return Tensor(np.ascontiguousarray(values, np.float32).reshape(shape))
    start = int(t.data_offset)
    part = Tensor(Path(path))[start : start + int(t.n_bytes)]
    return part.bitcast(dtype).reshape(*shape).to(None)
