"""Model state: collecting tensors by name, loading values, safetensors files and checkpoints."""
from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, FileFormatError, ShapeError
from tinsmith.core.object_lifetime import WeakTable
from tinsmith.ir import Ops, UOp
from tinsmith.nn.io.archives import Source, TensorIO, as_bytes, numpy_load, numpy_save, tar_extract, zip_extract
from tinsmith.nn.io.ggml import gguf_load
from tinsmith.nn.io.torch_files import is_value, plain, restored, torch_load
from tinsmith.runtime.launch import seen_on_host
from tinsmith.tensor.arguments import shown
from tinsmith.tensor.base import device_name, leaf
from tinsmith.tensor.realize import realize_tensors, value_of
from tinsmith.tensor.tensor import Tensor

__all__ = ["TensorIO", "get_parameters", "get_state_dict", "gguf_load", "load", "load_state_dict", "numpy_load",
           "numpy_save", "safe_load", "safe_load_metadata", "safe_save", "save", "tar_extract", "torch_load",
           "zip_extract"]

Rename: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None] | None

_DTYPES: Final = {
    "BOOL": dtypes.bool, "I8": dtypes.int8, "U8": dtypes.uint8, "I16": dtypes.int16, "U16": dtypes.uint16,
    "I32": dtypes.int32, "U32": dtypes.uint32, "I64": dtypes.int64, "U64": dtypes.uint64, "F16": dtypes.float16,
    "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64, "F8_E4M3": dtypes.fp8e4m3,
    "F8_E5M2": dtypes.fp8e5m2, "F8_E4M3FNUZ": dtypes.fp8e4m3fnuz, "F8_E5M2FNUZ": dtypes.fp8e5m2fnuz}


def get_state_dict(obj: Any, prefix: str = "", tensor_type: Any = Tensor) -> dict[str, Any]:
    """All tensors in attributes, lists, tuples and dicts of ``obj``, named by their path.

    Args:
        prefix: put before each name, with a dot between.
        tensor_type: a class, or a tuple of classes, to collect instead.

    >>> from tinsmith import nn
    >>> sorted(get_state_dict({"head": nn.Linear(2, 3)}))
    ['head.bias', 'head.weight']
    """
    found: dict[str, Any] = {}
    _collect(obj, prefix.rstrip("."), found, set(), tensor_type)
    for name, tensor in found.items():
        if isinstance(tensor, Tensor):
            note_name(tensor, name)
    return found


_names: WeakTable[Tensor, str] = WeakTable()  # tensor → name in messages: the first path found


def note_name(tensor: Tensor, name: str) -> None:
    """Record ``name`` as the tensor's name in messages, unless it has one."""
    if name and tensor not in _names:
        _names[tensor] = name


def called(tensor: Tensor) -> str:
    """Return the tensor's name in messages: its path in the model's state, or "" before that was collected.

    >>> from tinsmith import nn
    >>> layer = nn.Linear(2, 3)
    >>> _ = get_parameters({"head": layer})
    >>> called(layer.weight)
    'head.weight'
    """
    return _names.get(tensor, "")


def _collect(obj: Any, name: str, found: dict[str, Any], path: set[int], kind: Any) -> None:
    if isinstance(obj, kind):
        found[name] = obj
        return
    if isinstance(obj, Mapping):
        children = [(str(k), v) for k, v in obj.items()]
    elif isinstance(obj, (list, tuple)):
        fields = getattr(obj, "_fields", None)
        children = list(zip(fields or map(str, range(len(obj))), obj))
    elif hasattr(obj, "__dict__") and not isinstance(obj, (type, ModuleType)):
        children = list(vars(obj).items())
    else:
        return
    if id(obj) in path:  # a reference cycle
        return
    path.add(id(obj))
    for key, value in children:
        _collect(value, f"{name}.{key}" if name else key, found, path, kind)
    path.discard(id(obj))


def get_parameters(obj: Any) -> list[Tensor]:
    """Return all tensors of ``obj``, without duplicates.

    >>> from tinsmith import nn
    >>> len(get_parameters([nn.Linear(2, 3), Tensor.relu, nn.Linear(3, 1, bias=False)]))
    3
    """
    return list({id(t): t for t in get_state_dict(obj).values()}.values())


def load_state_dict(model: Any, state_dict: Mapping[str, Any], strict: bool = True, verbose: bool = False,
                    consume: bool = False, realize: bool = True, rename: Rename = None) -> list[str]:
    """Load values into the model's tensors, converted to their dtypes and devices; on an error nothing changes.

    Args:
        state_dict: tensors or arrays by name.
        rename: maps names of ``state_dict`` to the model's: a dict of prefixes, ``{"encoder.": "", "head.": None}``, or
            a function of a name. None skips a value.
        strict: raise for missing and unexpected names.
        verbose: print each name with its shape and dtype.
        consume: remove loaded values from ``state_dict``, to free their memory.
        realize: copy the values now; otherwise on first use.

    Returns:
        The model's names that ``state_dict`` does not have.

    >>> from tinsmith import nn
    >>> layer = nn.Linear(1, 1)
    >>> load_state_dict(layer, {"weight": np.array([[2.]]), "bias": np.array([1.])})
    []
    >>> layer(Tensor([[3.]])).item()
    7.0

    Raises:
        ArgumentError: for missing or unexpected names.
        ShapeError: for values of another shape.
    """
    own, given = get_state_dict(model), state_dict
    names = _new_names(state_dict, rename)
    state_dict = {new: state_dict[old] for new, old in names.items()}
    labels = {name: _labelled(name, tensor) for name, tensor in own.items()}
    missing, unexpected = [k for k in own if k not in state_dict], [k for k in state_dict if k not in own]
    if strict and (missing or unexpected):
        both = (("missing", missing), ("unexpected", unexpected))
        parts = [f"{what} {_some([labels.get(n, n) for n in names])}" for what, names in both if names]
        raise ArgumentError("load_state_dict", "; ".join(parts), "the state of the same model, or strict=False")
    new: dict[str, Tensor] = {}
    wrong = []
    for name, tensor in own.items():
        if name not in state_dict:
            continue
        value = _as_tensor(state_dict[name], tensor)
        if value.shape != tensor.shape and value.numel() == tensor.numel() == 1:
            value = value.reshape(tensor.shape)
        if value.shape != tensor.shape:
            wrong.append(f"{labels[name]}: {value.shape} into {tensor.shape}")
        else:
            new[name] = value.shard_like(tensor).cast(tensor.dtype)
    if wrong:
        raise ShapeError("load_state_dict", _some(wrong), "the state of a model of the same sizes")
    for name, value in new.items():
        own[name].replace(value)
        if verbose:
            print(f"{name}: {value.shape} {value.dtype!r}")
        if consume and isinstance(given, MutableMapping):
            del given[names[name]]
    if realize:
        realize_tensors([own[name] for name in new])
    return missing


def _new_names(state_dict: Mapping[str, Any], rename: Rename) -> dict[str, str]:
    """Return {new name: old name} after renaming."""
    if rename is None:
        return {name: name for name in state_dict}
    found: dict[str, str] = {}
    for old in state_dict:
        if callable(rename):
            new = rename(old)
        else:
            begin = max((b for b in rename if old.startswith(b)), key=len, default=None)
            to = "" if begin is None else rename[begin]
            new = None if to is None else to + old.removeprefix(begin or "")
        if new in found:
            raise ArgumentError("load_state_dict", f"rename makes {new!r} of {found[new]!r} and of {old!r}",
                                "names of their own, or None to leave one out")
        if new is not None:
            found[new] = old
    return found


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return Tensor(array, device=None if like.shard_axis is not None else like.device, requires_grad=False)


def _labelled(name: str, tensor: Tensor) -> str:
    """Return the name of an optimizer's state tensor with its parameter's: ``m.0 (fc1.weight)``."""
    known = called(tensor)
    return name if known in ("", name) else f"{name} ({known})"


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def safe_save(tensors: Mapping[str, Tensor], fn: str | os.PathLike[str],
              metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file atomically: the file appears complete or not at all.

    >>> import tempfile, os.path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     safe_save({"x": Tensor([1., 2.])}, os.path.join(folder, "x.safetensors"))
    ...     safe_load(os.path.join(folder, "x.safetensors"))["x"].tolist()
    [1.0, 2.0]
    """
    if tensors:
        realize_tensors(list(tensors.values()))
    package = importlib.import_module("safetensors.numpy")  # lazy import: importing tinsmith stays fast
    values = {name: value_of(t) if 0 not in t.shape else None for name, t in tensors.items()}
    arrays = {name: np.require(tensors[name]._array() if uop is None else seen_on_host(uop), requirements="C")
              for name, uop in values.items()}  # written from where they lie: a copy of all would double the memory
    with _beside(os.path.abspath(fn)) as temporary:
        package.save_file(arrays, temporary, metadata)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, fn)


@contextlib.contextmanager
def _beside(path: str) -> Iterator[str]:
    """Yield a temporary path in a folder next to ``path``, for an atomic move; the folder is always removed. A killed
    process leaves its folder, which the next writer removes.

    Raises:
        OSError: if the folder of ``path`` does not exist, or ``path`` is a folder.
    """
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "no folder for the file", path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "a folder where a file is to be written", path)
    mark = f".{name}.{socket.gethostname()}."
    for left in os.listdir(folder):
        if left.startswith(mark) and left.endswith(".part") and not _running(left[len(mark) :].partition(".")[0]):
            shutil.rmtree(os.path.join(folder, left), ignore_errors=True)
    with tempfile.TemporaryDirectory(".part", f"{mark}{os.getpid()}.", folder) as inside:
        yield os.path.join(inside, name)


def _running(process: str) -> bool:
    """Return True if a process with this id exists."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def safe_load(fn: str | os.PathLike[str], device: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, by name. The file is mapped; a tensor, or the rows of it that are used,
    is copied on first use. Until then do not modify the file in place (``safe_save`` to its name is safe: it replaces
    the file).

    Raises:
        FileFormatError: if the file is not safetensors, is truncated, or has an unsupported dtype or size.
    """
    package = importlib.import_module("safetensors")
    if os.path.isdir(fn):
        raise FileFormatError("safe_load", f"{os.fspath(fn)!r} is a folder", "a file in it")
    try:
        file = package.safe_open(fn, "np")
    except package.SafetensorError as error:
        raise FileFormatError("safe_load", f"{os.fspath(fn)!r} is no safetensors file: {error}",
                              "a complete file") from None
    with file, open(fn, "rb") as opened:
        begin = 8 + int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(begin - 8))
        mapped = np.memmap(opened, np.uint8, "r")[begin:]
        target, out = device_name(device), {}
        for name in file.keys():  # noqa: SIM118 (it is no dictionary)
            code, shape = header[name]["dtype"], tuple(header[name]["shape"])
            if code not in _DTYPES:
                raise FileFormatError("safe_load", f"{os.fspath(fn)!r}: {name!r} is of dtype {code}",
                                      f"one of {', '.join(_DTYPES)}")
            try:
                out[name] = _mapped(mapped[slice(*header[name]["data_offsets"])], shape, _DTYPES[code], target)
            except (ValueError, OverflowError) as error:  # an axis of size 0 with another too large for an array
                raise FileFormatError("safe_load", f"{os.fspath(fn)!r}: {name!r} of shape {shape}: {error}",
                                      "a smaller shape") from None
    return out


def _mapped(block: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: DType, device: str) -> Tensor:
    """Return a tensor over a mapped block, which is copied on first use."""
    if not shape or 0 in shape:
        return Tensor(np.frombuffer(block.tobytes(), dtype.numpy).reshape(shape), device=device)
    stored = dtypes.uint8 if dtype.is_bool else dtype  # bool bytes other than 0 and 1 are true, too
    found = UOp(Ops.BUFFER, stored, (), Buffer("NPY", block.size // stored.itemsize, stored, opaque=block))
    uop = found.copy_to(device).reshape(shape)
    return Tensor(uop.ne(0) if dtype.is_bool else leaf(uop), device=device)


def safe_load_metadata(fn: Source) -> tuple[Tensor, int, dict[str, Any]]:
    """Return (the file as a uint8 tensor, byte offset of the tensor data, parsed header) of a safetensors file.

    Raises:
        FileFormatError: if the header is invalid.
    """
    t = as_bytes("safe_load_metadata", fn)
    size = int.from_bytes(t[:8].numpy().tobytes(), "little")
    try:
        header = json.loads(t[8 : 8 + size].numpy().tobytes()) if 8 + size <= len(t) else None
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise FileFormatError("safe_load_metadata", "no safetensors file", "a complete file")
    return t, 8 + size, header


def save(path: str | os.PathLike[str], **parts: Any) -> None:
    """Write a checkpoint of a training run to one safetensors file, atomically.

    Tensors of models, optimizers, schedulers and other objects are saved as ``part.name``; a shared tensor is written
    once. Random generators are saved by state: ``Tensor`` (the stream of ``Tensor.rand`` and ``dropout``), NumPy
    generators, ``random.Random``, or a list of them. Numbers, strings, and lists and dicts of them are saved as JSON.

    >>> import os.path, tempfile
    >>> from tinsmith import nn
    >>> model = nn.Linear(2, 2)
    >>> opt = nn.optim.Adam(nn.state.get_parameters(model))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "run.safetensors")
    ...     save(path, model=model, optimizer=opt, rng=Tensor, step=7)
    ...     found = load(path, model=model, optimizer=opt, rng=Tensor)
    >>> found["step"]
    7

    Raises:
        DTypeError: for a part of another kind.
    """
    values = {name: plain(part) for name, part in parts.items() if is_value(part)}
    held = get_state_dict({name: part for name, part in parts.items() if name not in values})
    empty = [name for name in parts if name not in values and not any(_part(n) == name for n in held)]
    if empty:
        raise DTypeError("save", f"{empty[0]}={shown(parts[empty[0]])} holds no tensors, and is no plain value",
                         "a model, an optimizer, a random generator, numbers and strings")
    if held:
        realize_tensors(list(held.values()))
    first: dict[UOp, str] = {}
    aliases = {name: known for name, t in held.items() if (known := first.setdefault(t.uop, name)) != name}
    safe_save({name: t for name, t in held.items() if name not in aliases}, path,
              {"tinsmith.values": json.dumps(values), "tinsmith.aliases": json.dumps(aliases)})


def load(path: str | os.PathLike[str], *, strict: bool = True, rename: Rename = None, **parts: Any) -> dict[str, Any]:
    """Load a checkpoint of ``save`` into the given parts; if a tensor does not fit, nothing changes.

    Parts are matched by name: ``load(path, model=model)`` loads only the model of a checkpoint. Plain values are
    returned.

    Args:
        strict: raise for missing and unexpected parts and tensors.
        rename: maps names of the file, as in ``load_state_dict``. Names begin with the part:
            ``{"model.encoder.": "model."}``.

    Returns:
        All parts by name: the given objects, plain values of the file, and tensors by name of parts not given.

    Raises:
        ArgumentError: for missing or unexpected parts and names.
        ShapeError: for values of another shape.
        FileFormatError: if the file is not a safetensors file.
    """
    stored: dict[str, Tensor] = safe_load(path)
    with importlib.import_module("safetensors").safe_open(path, "np") as file:
        notes: dict[str, str] = file.metadata() or {}
    values: dict[str, Any] = json.loads(notes.get("tinsmith.values", "{}"))
    aliases: dict[str, str] = json.loads(notes.get("tinsmith.aliases", "{}"))
    stored |= {alias: stored[name] for alias, name in aliases.items()}
    tensors = {new: stored[old] for new, old in _new_names(stored, rename).items()}
    there = {*map(_part, tensors), *values}
    missing = [name for name in parts if name not in there]
    if strict and missing:
        raise ArgumentError("load", f"{os.fspath(path)!r} has no {', '.join(missing)}, but {', '.join(sorted(there))}",
                            "a part of the file, rename=, or strict=False")
    asked = {name: part for name, part in parts.items() if name not in values and name not in missing}
    if asked:
        load_state_dict(asked, {n: t for n, t in tensors.items() if _part(n) in asked}, strict)
    found = {**values, **parts}
    for name, value in values.items():
        found[name] = restored(name, parts.get(name), value)
    for name, t in tensors.items():
        if _part(name) not in parts:
            found.setdefault(_part(name), {})[name.partition(".")[2]] = t
    return found


def _part(name: str) -> str:
    return name.partition(".")[0]
