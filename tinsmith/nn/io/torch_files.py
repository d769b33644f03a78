"""PyTorch checkpoint files: pickles of tensors and containers, read without running code that they name."""
from __future__ import annotations

import functools
import io
import math
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import IO, Any, Final, NamedTuple, cast

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import FileFormatError
from tinsmith.nn.io.archives import Source, TensorIO, as_bytes, zip_extract
from tinsmith.nn.io.pickles import Name, unpickle
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


class TorchStorage(NamedTuple):
    """The bytes of a storage in the file, and its element type."""

    data: Tensor
    dtype: DType


def torch_load(fn: Source) -> Any:
    """Return the object written by ``torch.save`` (zip format or the older one): tensors in containers. The file
    is mapped; tensors are copied when used. No code that the file names is run.

    Raises:
        FileFormatError: for another kind of file, a damaged one, or one with other objects.
    """
    file = as_bytes("torch_load", fn)
    start = file[:2].numpy().tobytes()
    if start[:1] == b"\x80":
        try:
            return _legacy(file)
        except FileFormatError:
            raise
        except Exception as error:  # damaged sizes and names raise many exception types
            raise FileFormatError("torch_load", f"a damaged file: {error!r:.200}", "a complete file") from None
    if start != b"PK":
        raise FileFormatError("torch_load", "the file was not written by torch.save",
                              "torch.save(model.state_dict(), ...)")
    files = zip_extract(file)
    found = next((name for name in files if name.endswith("/data.pkl") or name == "data.pkl"), None)
    if found is None:
        raise FileFormatError("torch_load", "the zip archive has no data.pkl", "a file of torch.save")
    root = found.removesuffix("data.pkl")
    order = files.get(f"{root}byteorder")
    if order is not None and order.numpy().tobytes() != b"little":
        raise _big_endian()

    def stored(pid: Any) -> TorchStorage:
        kind, dtype, key, *_ = pid
        return _storage(kind, files[f"{root}data/{key}"], dtype)

    return unpickle("torch_load", io.BytesIO(files[found].numpy().tobytes()), _KNOWN, stored)


def _storage(kind: Any, data: Tensor, dtype: Any) -> TorchStorage:
    if kind != "storage" or not isinstance(dtype, DType):
        raise TypeError(f"an object of kind {kind!r}")
    return TorchStorage(data, dtype)


def _big_endian() -> FileFormatError:
    return FileFormatError("torch_load", "the file was written by a big-endian machine", "a little-endian one's")


def _legacy(file: Tensor) -> Any:
    """Read the legacy format: magic number, version, machine sizes, object, storage names, then the storages' bytes.

    The object precedes its storages, so it is parsed twice: first for the storage sizes, then for the tensors.
    """
    reader = cast(IO[bytes], TensorIO(file))
    read = functools.partial(unpickle, "torch_load", reader, {})
    if read() != 0x1950A86A20F9469CFC6C or read() != 1001:
        raise FileFormatError("torch_load", "the pickle was not written by torch.save",
                              "torch.save(model.state_dict(), ...)")
    if read().get("little_endian") is not True:
        raise _big_endian()
    begin, sizes = reader.tell(), dict[str, int]()

    def measured(pid: Any) -> TorchStorage:
        kind, dtype, key, _, count, *_ = pid
        if type(count) is not int or count < 0:
            raise TypeError("the size of a storage is no number")
        sizes[key] = count * dtype.itemsize
        return _storage(kind, Tensor.empty(0, dtype=dtypes.uint8, requires_grad=False), dtype)

    unpickle("torch_load", reader, _KNOWN | dict.fromkeys(_REBUILDERS, _nothing), measured)
    names, found = read(), dict[str, Tensor]()
    at = reader.tell()
    for name in names:
        count = int.from_bytes(file[at : at + 8].numpy().tobytes(), "little")
        if name not in sizes or at + 8 + sizes[name] > len(file):
            raise FileFormatError("torch_load", f"the storage {name!r:.40} of {count} elements exceeds the file",
                                  "a complete file")
        found[name] = file[at + 8 : at + 8 + sizes[name]]
        at += 8 + sizes[name]

    def stored(pid: Any) -> TorchStorage:
        kind, dtype, key, _, _, view = (*pid, None)[:6]
        data = found[key]
        if view is not None:  # a view of another storage; offset and size in elements
            _, offset, size = view
            data = data[offset * dtype.itemsize : (offset + size) * dtype.itemsize]
        return _storage(kind, data, dtype)

    reader.seek(begin)
    return unpickle("torch_load", reader, _KNOWN, stored)


def _tensor(storage: TorchStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    return _strided(storage.data, storage.dtype, offset, size, stride)


def _tensor_v3(storage: TorchStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...],
               grad: Any, hooks: Any, dtype: DType, *_: Any) -> Tensor:
    return _strided(storage.data, dtype, offset, size, stride)


def _strided(data: Tensor, dtype: DType, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Return a strided tensor over a storage; a contiguous one is a view of the file, others are copied."""
    whole = all(type(n) is int and 0 <= n < 1 << 63 for n in (offset, *size, *stride)) and len(size) == len(stride)
    if not whole or math.prod(n or 1 for n in size) >= 1 << 59:  # larger than any array
        raise FileFormatError("torch_load", f"a tensor of shape {size} and strides {stride}", "a complete file")
    if 0 in size:
        return Tensor.empty(*size, dtype=dtype, requires_grad=False)
    once = [n if s else 1 for n, s in zip(size, stride)]  # an axis of stride 0 is a broadcast
    count = math.prod(once)
    reach = offset + sum((n - 1) * s for n, s in zip(once, stride)) + 1
    if reach * dtype.itemsize > len(data):
        raise FileFormatError("torch_load", f"a tensor of shape {size} and strides {stride} exceeds its storage",
                              "a complete file")
    if count > reach - offset:
        raise FileFormatError("torch_load", f"the elements of a tensor of shape {size} and strides {stride} overlap",
                              "tensor.clone() before torch.save")
    part = data[offset * dtype.itemsize : reach * dtype.itemsize]
    if reach - offset == count and _is_dense(once, stride):
        return part.bitcast(dtype).reshape(tuple(once)).to(None).expand(size)
    flat = part.numpy().view(dtype.numpy)
    dense = np.lib.stride_tricks.as_strided(flat, once, [s * dtype.itemsize for s in stride])
    return Tensor(dense, dtype=dtype, requires_grad=False).expand(size)


def _is_dense(size: Sequence[int], stride: Sequence[int]) -> bool:
    wanted = 1
    for n, s in zip(reversed(size), reversed(stride)):
        if n != 1 and s != wanted:
            return False
        wanted *= n
    return True


def _parameter(data: Tensor, requires_grad: bool, *_: Any) -> Tensor:
    return data


def _nothing(*_: Any) -> None:
    """Return None instead of a tensor, in the first pass, which only collects storage sizes."""


def _encoded(text: str, encoding: str) -> bytes:
    """Return bytes from their latin-1 text, as pickle protocol 2 writes them."""
    if encoding != "latin1":
        raise ValueError(f"bytes in {encoding!r:.40}")
    return text.encode("latin1")


def _device(*named: Any) -> str:
    return ":".join(map(str, named))


_UTILS: Final = "torch._utils"
_REBUILDERS: Final[dict[Name, Any]] = {
    (_UTILS, "_rebuild_tensor"): _tensor, (_UTILS, "_rebuild_tensor_v2"): _tensor,
    (_UTILS, "_rebuild_tensor_v3"): _tensor_v3, (_UTILS, "_rebuild_parameter"): _parameter}
_KNOWN: Final[dict[Name, Any]] = {
    **_REBUILDERS, ("torch", "Size"): tuple, ("torch", "device"): _device, ("_codecs", "encode"): _encoded,
    ("collections", "OrderedDict"): OrderedDict, ("collections", "Counter"): Counter,
    **{("builtins", t.__name__): t for t in (set, frozenset, list, dict, tuple, complex)},
    **{("torch", name): dtype for name, dtype in _DTYPES.items()},
    **{(module, name): dtype for module in ("torch", "torch.storage") for name, dtype in _STORAGES.items()}}
