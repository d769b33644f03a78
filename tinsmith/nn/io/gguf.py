"""GGUF files (metadata and weights of language models). The package ``gguf`` parses the header."""
from __future__ import annotations

import importlib
import math
import os
from pathlib import Path
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.nn.io.ggml import KINDS, matrix
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor

_PLAIN = {"F64": dtypes.float64, "F32": dtypes.float32, "F16": dtypes.float16, "BF16": dtypes.bfloat16,
          "I8": dtypes.int8, "I16": dtypes.int16, "I32": dtypes.int32, "I64": dtypes.int64}


def gguf_load(fn: str | os.PathLike[str] | Tensor,
              device: str | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (metadata, tensors by name) of a GGUF file.

    Unquantized tensors are mapped and copied when first used. Quantized blocks are copied to the device unchanged, and
    each kernel that reads such a tensor dequantizes them; ``realize`` would expand the tensor to float32.

    Raises:
        ArgumentError: if the package ``gguf`` is not installed.
        FileFormatError: if the file is not GGUF, is truncated, or has a type that Tinsmith does not support.
    """
    try:
        package = importlib.import_module("gguf")  # imported on first use: it is optional
    except ImportError:
        raise ArgumentError("gguf_load", "the package gguf is not installed", "pip install 'tinsmith[gguf]'") from None
    path = str(fn.device).partition(":")[2] if isinstance(fn, Tensor) else os.fspath(fn)
    if not path:
        raise ArgumentError("gguf_load", f"reads files, got a tensor on {fn.device!r}",  # type: ignore[union-attr]
                            "the file's path")
    try:
        reader = _reader(package, path)
        metadata = {name: f.contents() for name, f in reader.fields.items() if not name.startswith("GGUF.")}
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError) as error:
        raise FileFormatError("gguf_load", f"{path!r} is no GGUF file: {error!r:.200}", "a complete file") from None
    packed: list[Tensor] = []
    file = Tensor(Path(path))
    tensors = {t.name: _tensor(file, t, device, packed) for t in reader.tensors}
    realize_tensors(packed)
    return metadata, tensors


def _reader(package: Any, path: str) -> Any:
    class Reader(package.GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *more: Any, **options: Any) -> Any:
            """Read ``count`` values at an offset; raise if the file ends before, where the package returns fewer."""
            found = super()._get(offset, dtype, count, *more, **options)
            if len(found) < count:
                raise ValueError(f"{count} numbers at byte {offset} go beyond the file's end")
            return found

    return Reader(path)


def _tensor(file: Tensor, t: Any, device: str | None, packed: list[Tensor]) -> Tensor:
    """Return one tensor of the file; append the bytes of a quantized one to ``packed``."""
    shape, kind, start = tuple(int(n) for n in reversed(t.shape)), t.tensor_type.name, int(t.data_offset)
    plain = _PLAIN.get(kind)
    if plain is None and kind not in KINDS:
        raise FileFormatError("gguf_load", f"{t.name!r} is of type {kind}", f"one of {', '.join(KINDS)}")
    size, nbytes = (1, plain.itemsize) if plain else KINDS[kind][:2]
    count = math.prod(shape)
    if count % size or int(t.n_bytes) != count // size * nbytes:
        raise FileFormatError("gguf_load", f"{t.name!r} of shape {shape} has {t.n_bytes} bytes",
                              "a complete file")
    if not count:
        return Tensor.empty(*shape, dtype=plain or dtypes.float32, device=device, requires_grad=False)
    part = file[start : start + int(t.n_bytes)]
    if plain:
        return part.bitcast(plain).reshape(*shape).to(device)
    packed.append(part.to(device))
    return matrix(packed[-1], kind, shape)
