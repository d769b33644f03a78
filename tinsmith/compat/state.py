"""tinygrad's state and file functions that differ from Tinsmith's in arguments or return value."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.nn import datasets, state
from tinsmith.nn.io.archives import Source
from tinsmith.tensor.tensor import Tensor

T = TypeVar("T")
ConstType = PyConst = float | int | bool
DTypeLike = str | DType
_CODES = {"BOOL": dtypes.bool, "I8": dtypes.int8, "U8": dtypes.uint8, "I16": dtypes.int16, "U16": dtypes.uint16,
          "I32": dtypes.int32, "U32": dtypes.uint32, "I64": dtypes.int64, "U64": dtypes.uint64, "F16": dtypes.float16,
          "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64, "F8_E4M3": dtypes.fp8e4m3,
          "F8_E5M2": dtypes.fp8e5m2}


def load_state_dict(model: Any, state_dict: dict[str, Tensor], strict: bool = True, verbose: bool = True,
                    consume: bool = False, realize: bool = True) -> list[Tensor]:
    """Load a state dict and return the loaded tensors (Tinsmith's returns missing names). No progress is shown."""
    own = state.get_state_dict(model)
    loaded = [own[name] for name in own if name in state_dict]
    state.load_state_dict(model, state_dict, strict, False, consume, realize)
    return loaded


def safe_load(fn: Source) -> dict[str, Tensor]:
    """A file, or a tensor with its bytes, which ours does not take."""
    if not isinstance(fn, Tensor):
        return state.safe_load(fn)
    t, start, header = state.safe_load_metadata(fn)
    return {name: _part(t, start, entry) for name, entry in header.items() if name != "__metadata__"}


def _part(t: Tensor, start: int, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype: DType = _CODES[entry["dtype"]]
    if begin == end:
        return Tensor.empty(*entry["shape"], dtype=dtype)
    return t[start + begin : start + end].bitcast(dtype).reshape(*entry["shape"])


def safe_save(tensors: Mapping[str, Tensor], fn: str | os.PathLike[str],
              metadata: dict[str, Any] | None = None) -> None:
    """``nn.state.safe_save``, with the values of ``metadata`` converted to text."""
    state.safe_save(tensors, fn, None if metadata is None else {k: str(v) for k, v in metadata.items()})


def accept_filename(func: Callable[[Tensor], T]) -> Callable[[Source], T]:
    """A function of a tensor of bytes that takes a path too."""
    return lambda fn: func(fn if isinstance(fn, Tensor) else Tensor(Path(fn)))


def mnist(device: str | None = None, fashion: bool = False, *, data: str | os.PathLike[str] | None = None,
          holdout: int | None = None, offline: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(training images, labels, test images, labels), as ours."""
    return datasets.fashion_mnist(device, data) if fashion else datasets.mnist(device, data, holdout, offline)


def _from_np_dtype(npdtype: Any) -> DType:
    """The dtype of a NumPy type."""
    return to_dtype(np.dtype(npdtype).name)


def _to_np_dtype(dtype: DType) -> Any:
    """Return the NumPy scalar type of a dtype; None for types that NumPy does not have (bfloat16, fp8)."""
    return None if dtype.numpy.kind == "V" else np.dtype(dtype.numpy).type
