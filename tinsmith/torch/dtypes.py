"""The correspondence between PyTorch's dtypes and Tinsmith's."""
from __future__ import annotations

from typing import Any, Final

import torch

from tinsmith.core.dtypes import DType, dtypes

_NAMES: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "bfloat16", "float32", "float64")
DTYPES: Final[dict[Any, DType]] = {getattr(torch, name): getattr(dtypes, name) for name in _NAMES}


def dtype_of(dtype: Any) -> DType:
    """Return the Tinsmith dtype of a PyTorch dtype.

    Raises:
        KeyError: if there is none (complex numbers, quantized types).
    """
    return DTYPES[dtype]
