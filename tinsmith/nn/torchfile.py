"""PyTorch's files of weights: pickles of tensors and containers, read without running anything that they name."""
from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any, Final

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.archives import Source, zip_extract
from tinsmith.tensor.tensor import Tensor

_STORAGES: Final = {
    "DoubleStorage": dtypes.float64, "FloatStorage": dtypes.float32, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "BoolStorage": dtypes.bool,
    "UntypedStorage": dtypes.uint8}
_DTYPES: Final = {
    "float64": dtypes.float64, "float32": dtypes.float32, "float16": dtypes.float16, "bfloat16": dtypes.bfloat16,
    "int64": dtypes.int64, "int32": dtypes.int32, "int16": dtypes.int16, "int8": dtypes.int8, "uint8": dtypes.uint8,
    "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64, "bool": dtypes.bool,
    "float8_e4m3fn": dtypes.fp8e4m3, "float8_e5m2": dtypes.fp8e5m2, "float8_e4m3fnuz": dtypes.fp8e4m3fnuz,
    "float8_e5m2fnuz": dtypes.fp8e5m2fnuz}


def torch_load(fn: Source) -> Any:
    """What ``torch.save`` wrote: tensors in dicts, lists and tuples. A file is mapped; tensors are copied when used.

    Raises:
        FileFormatError: for a file of another kind, or one that holds other objects.
    """
    try:
        files = zip_extract(fn)
    except FileFormatError:
        raise FileFormatError("torch_load", "no file of torch.save since PyTorch 1.6",
                              "torch.save(torch.load(old, weights_only=True), new)") from None
    found = next((name for name in files if name.endswith("/data.pkl") or name == "data.pkl"), None)
    if found is None:
        raise FileFormatError("torch_load", "the zip archive has no data.pkl", "a file of torch.save")
    root = found.removesuffix("data.pkl")
    order = files.get(f"{root}byteorder")
    if order is not None and order.numpy().tobytes() != b"little":
        raise FileFormatError("torch_load", "the file was written by a big-endian machine", "a little-endian one's")
    try:
        return _Unpickler(files[found].numpy().tobytes(), files, root).load()
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError("torch_load", f"cannot read the pickle: {error!r:.200}", "a complete file") from None


class _Unpickler(pickle.Unpickler):
    """Makes tensors and containers; any other name in the file is refused."""

    def __init__(self, data: bytes, files: dict[str, Tensor], root: str) -> None:
        super().__init__(io.BytesIO(data))
        self.files, self.root = files, root

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None and module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if known is None and module in ("torch", "torch.storage") and name in _STORAGES:
            return _STORAGES[name]
        if known is None:
            raise FileFormatError("torch_load", f"the file holds a {module}.{name}, no tensor or container",
                                  "torch.save(model.state_dict(), ...)")
        return known

    def persistent_load(self, pid: Any) -> tuple[Tensor, DType]:
        """(bytes, element type) of a storage."""
        kind, dtype, key = pid[:3]
        if kind != "storage" or not isinstance(dtype, DType):
            raise FileFormatError("torch_load", f"unknown object {pid!r:.80}", "torch.save(model.state_dict(), ...)")
        return self.files[f"{self.root}data/{key}"], dtype


def _tensor(storage: tuple[Tensor, DType], offset: int, size: tuple[int, ...], stride: tuple[int, ...],
            *_: Any) -> Tensor:
    data, dtype = storage
    return _strided(data, dtype, offset, size, stride)


def _tensor_v3(storage: tuple[Tensor, DType], offset: int, size: tuple[int, ...], stride: tuple[int, ...],
               grad: Any, hooks: Any, dtype: DType, *_: Any) -> Tensor:
    return _strided(storage[0], dtype, offset, size, stride)


def _strided(data: Tensor, dtype: DType, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """A tensor over a part of a storage; where its elements lie one after the other it stays where it is."""
    count = int(np.prod(size, dtype=np.int64))
    reach = offset + sum((n - 1) * s for n, s in zip(size, stride)) + 1 if count else offset
    if min((offset, *size, *stride)) < 0 or reach * dtype.itemsize > len(data):
        raise FileFormatError("torch_load", f"a tensor of shape {size} and strides {stride} leaves its storage",
                              "a complete file")
    if not count:
        return Tensor.empty(*size, dtype=dtype, requires_grad=False)
    part = data[offset * dtype.itemsize : reach * dtype.itemsize]
    if reach - offset == count and _is_dense(size, stride):
        return part.bitcast(dtype).reshape(*size).to(None)
    flat = part.numpy().view(dtype.numpy)
    return Tensor(np.lib.stride_tricks.as_strided(flat, size, [s * dtype.itemsize for s in stride]), dtype=dtype)


def _is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    wanted = 1
    for n, s in zip(reversed(size), reversed(stride)):
        if n != 1 and s != wanted:
            return False
        wanted *= n
    return True


def _parameter(data: Tensor, requires_grad: bool, *_: Any) -> Tensor:
    return data


_KNOWN: Final[dict[tuple[str, str], Any]] = {
    ("collections", "OrderedDict"): OrderedDict, ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor, ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter, ("torch", "Size"): tuple,
    ("builtins", "set"): set, ("builtins", "list"): list, ("builtins", "dict"): dict, ("builtins", "tuple"): tuple}
