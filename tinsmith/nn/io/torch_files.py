"""PyTorch checkpoint files: pickles of tensors and containers, read without running code that they name.

``pickle.Unpickler`` lets a file set attributes of any object that it may name, and allocate memory of any size. The
safe unpickler here is a stack machine over the opcodes of ``pickletools``. It only builds containers, numbers and
strings, and calls functions of an allow-list.

The parts of a checkpoint that are not tensors (plain values, states of random generators) have a JSON form.
"""
from __future__ import annotations

import functools
import io
import math
import pickletools
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, cast

import numpy as np

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, FileFormatError
from tinsmith.nn.io.archives import Source, TensorIO, as_bytes, zip_extract
from tinsmith.tensor.arguments import shown
from tinsmith.tensor.create import random as streams
from tinsmith.tensor.tensor import Tensor


def is_value(part: Any) -> bool:
    """Return True if ``part`` is saved as JSON: a plain value or a random generator (or a list or dict of these)."""
    if isinstance(part, (list, tuple)):
        return all(map(is_value, part))
    if isinstance(part, Mapping):
        return all(isinstance(k, str) for k in part) and all(map(is_value, part.values()))
    return part is None or isinstance(part, (bool, int, float, str, np.generic)) or part is Tensor or isinstance(
        part, (np.random.Generator, np.random.RandomState, random.Random))


def plain(part: Any) -> Any:
    """Return a plain value, or a random generator's state, as JSON-compatible data."""
    if isinstance(part, (list, tuple)):
        return [plain(p) for p in part]
    if isinstance(part, Mapping):
        return {k: plain(p) for k, p in part.items()}
    if isinstance(part, np.generic):
        return part.item()
    if part is Tensor:
        return dict(zip(("seed", "calls"), streams.state()))
    if isinstance(part, np.random.Generator):
        return _listed(part.bit_generator.state)
    if isinstance(part, np.random.RandomState):
        return _listed(part.get_state(legacy=False))
    return part.getstate() if isinstance(part, random.Random) else part


def _listed(state: Any) -> Any:
    """Return the state of a NumPy generator with arrays converted to lists."""
    if isinstance(state, Mapping):
        return {k: _listed(v) for k, v in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


def restored(name: str, part: Any, value: Any) -> Any:
    """Set a random generator (or those in a list or dict) to the saved state; return a plain value from the file."""
    if isinstance(part, (list, tuple)) and isinstance(value, list) and len(part) == len(value):
        return [restored(name, p, v) for p, v in zip(part, value)]
    if isinstance(part, Mapping) and isinstance(value, dict) and part.keys() == value.keys():
        return {k: restored(name, part[k], v) for k, v in value.items()}
    try:
        if part is Tensor:
            streams.restore((value["seed"], value["calls"]))
        elif isinstance(part, np.random.Generator):
            part.bit_generator.state = _with_array(value)
        elif isinstance(part, np.random.RandomState):
            part.set_state(_with_array(value))
        elif isinstance(part, random.Random):
            part.setstate((value[0], tuple(value[1]), value[2]))
        else:
            return value
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ArgumentError("load", f"the file's {name} is not a state of {shown(part)}: {error}",
                            "the stream that was saved") from None
    return part


def _with_array(state: Any) -> Any:
    """Return a saved NumPy generator state in the form NumPy accepts: the key of a Mersenne twister as an array."""
    inner = state.get("state")
    if not isinstance(inner, dict) or not isinstance(inner.get("key"), list):
        return state
    return {**state, "state": {**inner, "key": np.array(inner["key"], np.uint32)}}

Name = tuple[str, str]


class Mark:
    """A stack entry that marks the start of the next container's items."""


class KnownName:
    """A stack entry for a name of the allow-list; only a call can use it."""

    def __init__(self, value: Any) -> None:
        self.value = value

_VALUES: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_CONTAINERS: Final[dict[str, Callable[[], Any]]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
_LITERALS: Final = frozenset((
    "INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8"))
_NOTHING: Final = frozenset(("PROTO", "FRAME"))


def unpickle(op: str, file: IO[bytes], known: Mapping[Name, Any], stored: Callable[[Any], Any] | None = None) -> Any:
    """Return the object of the next pickle in a file.

    Args:
        op: name of the reading function, for error messages.
        known: the allow-list, (module, name) → value. Functions are called with the file's arguments; other values are
            used directly.
        stored: maps a persistent id to its object.

    Raises:
        FileFormatError: if the data is not a pickle, or names a value outside ``known``.
    """
    try:
        return _Machine(op, known, stored).run(file)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged pickle can pass any argument to any function
        raise FileFormatError(op, f"cannot read the pickle: {error!r:.200}", "a complete file") from None


class _Machine:
    """The stack machine: stack, memo, and the opcodes of plain data."""

    def __init__(self, op: str, known: Mapping[Name, Any], stored: Callable[[Any], Any] | None) -> None:
        self.op, self.known, self.stored = op, known, stored
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: IO[bytes]) -> Any:
        for opcode, argument, _ in pickletools.genops(file):
            name = opcode.name
            if name == "STOP":
                return self.plain(self.stack.pop())
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _VALUES:
                self.stack.append(_VALUES[name])
            elif name in _CONTAINERS:
                self.stack.append(_CONTAINERS[name]())
            elif name not in _NOTHING:
                step = getattr(self, f"on_{name.lower()}", None)
                if step is None:
                    raise FileFormatError(self.op, f"the pickle has the opcode {name}, which plain data does not need",
                                          "torch.save(model.state_dict(), ...)")
                step(argument)
        raise EOFError("the pickle has no end")

    def plain(self, value: Any) -> Any:
        """Return ``value`` as data for containers and results; reject marks and functions."""
        if isinstance(value, KnownName):
            if callable(value.value):
                raise TypeError("a function name is used as a value")
            return value.value
        if isinstance(value, Mark):
            raise TypeError("a mark is used as a value")
        return value

    def pop(self) -> Any:
        return self.plain(self.stack.pop())

    def pop_items(self) -> list[Any]:
        """Pop the last mark and the items above it; return the items."""
        items = []
        while not isinstance(self.stack[-1], Mark):
            items.append(self.pop())
        self.stack.pop()
        return items[::-1]

    def on_mark(self, _: Any) -> None:
        self.stack.append(Mark())

    def on_pop(self, _: Any) -> None:
        self.stack.pop()

    def on_pop_mark(self, _: Any) -> None:
        self.pop_items()

    def on_dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def on_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.pop_items()))

    def on_tuple1(self, _: Any, count: int = 1) -> None:
        self.stack.append(tuple([self.pop() for _ in range(count)][::-1]))

    def on_tuple2(self, _: Any) -> None:
        self.on_tuple1(_, 2)

    def on_tuple3(self, _: Any) -> None:
        self.on_tuple1(_, 3)

    def on_list(self, _: Any) -> None:
        self.stack.append(self.pop_items())

    def on_dict(self, _: Any) -> None:
        self.stack.append({})
        self.put(self.pop_items_below())

    def pop_items_below(self) -> list[Any]:
        """Pop the last mark and the items between it and the top entry, which stays; return the items."""
        top = self.stack.pop()
        items = self.pop_items()
        self.stack.append(top)
        return items

    def put(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise ValueError("a key without a value")
        for key, value in zip(items[::2], items[1::2]):
            target[key] = value

    def top(self, kind: type) -> Any:
        target = self.stack[-1]
        if not isinstance(target, kind):
            raise TypeError(f"a {type(target).__name__} is filled like a {kind.__name__}")
        return target

    def on_append(self, _: Any) -> None:
        item = self.pop()
        self.top(list).append(item)

    def on_appends(self, _: Any) -> None:
        items = self.pop_items()
        self.top(list).extend(items)

    def on_setitem(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self.put([key, value])

    def on_setitems(self, _: Any) -> None:
        self.put(self.pop_items())

    def on_additems(self, _: Any) -> None:
        items = self.pop_items()
        self.top(set).update(items)

    def on_frozenset(self, _: Any) -> None:
        self.stack.append(frozenset(self.pop_items()))

    def on_binput(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    on_long_binput = on_binput

    def on_put(self, number: str) -> None:
        self.on_binput(int(number))

    def on_memoize(self, _: Any) -> None:
        self.on_binput(len(self.memo))

    def on_binget(self, number: int) -> None:
        self.stack.append(self.memo[number])

    on_long_binget = on_binget

    def on_get(self, number: str) -> None:
        self.on_binget(int(number))

    def on_global(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.name(module, name)

    def on_stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def name(self, module: str, name: str) -> None:
        module = "builtins" if module == "__builtin__" else module
        if (module, name) not in self.known:
            raise FileFormatError(self.op, f"the file holds a {module}.{name}, no tensor or container",
                                  "torch.save(model.state_dict(), ...)")
        self.stack.append(KnownName(self.known[module, name]))

    def on_reduce(self, _: Any) -> None:
        arguments, function = self.pop(), self.stack.pop()
        if not isinstance(function, KnownName) or not isinstance(arguments, tuple):
            raise TypeError("a call of what is no function")
        self.stack.append(function.value(*arguments))

    def on_build(self, _: Any) -> None:
        self.pop()  # ignore attributes of a dict: ``_metadata`` of a state_dict
        self.top(OrderedDict)

    def on_binpersid(self, _: Any) -> None:
        pid = self.pop()
        if self.stored is None:
            raise TypeError("a persistent id")
        self.stack.append(self.stored(pid))

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
