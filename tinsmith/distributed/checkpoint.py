"""Checkpoints that many processes write together, and any number of processes reads.

A folder holds ``index.json`` and a folder of values: a safetensors file of each process. The index says, for each
tensor, its whole shape and which region of it lies in which file. It is replaced last, in one step: until then a reader
finds the checkpoint before. Processes agree through the folder alone, which all must reach, so that files can be
written by threads while the program continues.
"""
from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, CommunicationError, DTypeError, FileFormatError
from tinsmith.distributed.data_parallel import ZeroOptimizer
from tinsmith.distributed.world import ProcessGroup, divided, placement, stage_of, world
from tinsmith.nn.data.loader import DataLoader
from tinsmith.nn.io.torch_files import is_value, plain, restored
from tinsmith.nn.optim import Optimizer
from tinsmith.nn.state import get_state_dict, load_state_dict
from tinsmith.tensor.arguments import shown
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]

INDEX: Final = "index.json"
_VERSION: Final = 1
_SMALL: Final = 1 << 16  # bytes of a whole tensor that rank 0 writes: statistics may differ between processes
_POLL: Final = 0.02  # seconds between two looks for the other processes' files, at first


class Region(NamedTuple):
    """The part of a tensor that a process has: where it begins, its shape, and the whole tensor's.

    Attributes:
        owner: False where another process, which has the same region, writes it.
        everywhere: False for a tensor of a stage of a pipeline, which processes of other stages do not know.
    """

    begin: tuple[int, ...]
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    owner: bool = True
    everywhere: bool = True

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole


class Saving:
    """A checkpoint that is being written. ``done`` is true at its end."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None

    @property
    def done(self) -> bool:
        """True once all processes' files are written, or writing has failed."""
        return self.thread is None or not self.thread.is_alive()

    def wait(self) -> None:
        """Wait until the checkpoint is complete.

        Raises:
            CommunicationError: if a process could not write its part.
        """
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            error, self.error = self.error, None
            raise error


_last: list[Saving] = []


def save_checkpoint(folder: str | os.PathLike[str], *, asynchronous: bool = False, **parts: Any) -> Saving:
    """Write a checkpoint of all processes to a folder, replacing the previous one. All processes must call it.

    Parts are those of ``nn.state.save``: models, optimizers, plain values, random generators (``Tensor`` for Tinsmith's
    stream), and loaders, whose position is saved. Each process writes its shard of sharded parameters and of their
    optimizer state; replicated tensors are distributed among the processes. Plain values and generators are saved by
    rank 0. If the program ends meanwhile, the folder still holds the previous checkpoint.

    >>> import tempfile
    >>> from tinsmith import nn
    >>> layer = nn.Linear(2, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_checkpoint(folder, model=layer, step=7)
    ...     load_checkpoint(folder, model=layer)["step"]
    7

    Args:
        folder: one that all processes reach; it is made if it is not there.
        asynchronous: copy the values, and write them in a thread. The next call waits for it.

    Raises:
        DTypeError: for a part of another kind.
        ArgumentError: for state of a divided parameter that has another shape.
        CommunicationError: if a process could not write its part; of an asynchronous one raised by ``wait``, or by the
            next call.
    """
    if _last:
        _last.pop().wait()
    here = world().group
    path = Path(folder)
    values, local = _split("dist.save_checkpoint", parts)
    realize_tensors(list(local.values()))
    numbered = _numbered("dist.save_checkpoint", parts)
    held = {numbered.get(name, name): t for name, t in local.items()}
    regions = _regions(parts, held)
    own, aliases = _own(held, regions, here.rank, here.size)
    arrays: dict[str, Array] = {}
    codes: dict[str, str] = {}
    for name in own:
        region, t = regions[name], held[name]
        codes[name] = t.dtype.name
        found = np.asarray(t._array().reshape(t.shape)[tuple(slice(0, n) for n in region.shape)], order="C")
        found = found.view(np.uint8) if t.dtype in dtypes.fp8s else found  # which NumPy does not know
        arrays[name] = found.copy() if asynchronous else found
    number = _begin(path, here)
    notes = {"values": values, "processes": here.size}
    note = {"tinsmith.regions": json.dumps({n: [codes[n], regions[n].begin, regions[n].whole] for n in own}),
            "tinsmith.aliases": json.dumps(aliases)}
    saving = Saving()
    arguments = (saving, path, number, here.rank, here.size, arrays, note, notes)
    # no daemon: the interpreter waits for it
    saving.thread = threading.Thread(target=_write, args=arguments, name="tinsmith-checkpoint")
    saving.thread.start()
    if asynchronous:
        _last.append(saving)
    else:
        saving.wait()
    return saving


def load_checkpoint(folder: str | os.PathLike[str], *, strict: bool = True, **parts: Any) -> dict[str, Any]:
    """Load a checkpoint into the given parts: in any number of processes, on any mesh.

    Each process reads the parts of tensors that it has. Generators and loaders are set to their saved positions; plain
    values are returned. If a tensor does not fit, nothing changes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = save_checkpoint(folder, best={"weight": Tensor([1.0, 2.0])})
    ...     load_checkpoint(folder)["best"]["weight"].tolist()
    [1.0, 2.0]

    Args:
        strict: raise for missing and unexpected parts and tensors.

    Returns:
        All parts by name: the given objects, plain values, and tensors by name, whole, of parts not given.

    Raises:
        ArgumentError: for missing or unexpected parts and names.
        ShapeError: for values of another shape.
        FileFormatError: if there is no checkpoint, or a file of it is damaged.
    """
    path = Path(folder)
    if _last:
        _last.pop().wait()
    index = _index(path)
    if index is None:
        raise FileFormatError("dist.load_checkpoint", f"no {INDEX} in {os.fspath(path)!r}",
                              "a folder of dist.save_checkpoint")
    stored, values = index["tensors"], index["values"]
    stored |= {alias: stored[name] for alias, name in index["aliases"].items()}
    there = {*map(_part, stored), *values}
    missing = [name for name in parts if name not in there]
    if strict and missing:
        raise ArgumentError("dist.load_checkpoint", f"{os.fspath(path)!r} has no {', '.join(missing)}, but "
                            f"{', '.join(sorted(there))}", "a part of the checkpoint, or strict=False")
    asked = {name: part for name, part in parts.items() if name not in values and name not in missing}
    local = get_state_dict(asked)
    numbered = _numbered("dist.load_checkpoint", asked)
    held = {numbered.get(name, name): t for name, t in local.items()}
    regions = _regions(asked, held)
    staged = {_part(name) for name, region in regions.items() if not region.everywhere}  # of which this has a stage
    names = {new: name for name, new in numbered.items()}
    with _Files(path / index["folder"]) as files:
        new = {names.get(n, n): files.tensor(n, stored[n], regions.get(n), held.get(n)) for n in stored
               if _part(n) in asked and (n in held or _part(n) not in staged)}
        rest = {n: files.tensor(n, stored[n], None, None) for n in stored if _part(n) not in parts}
    if asked:
        load_state_dict(asked, new, strict)
    found = {**values, **parts}
    for name, value in values.items():
        found[name] = _restored(name, parts.get(name), value)
    for name, t in rest.items():
        found.setdefault(_part(name), {})[name.partition(".")[2]] = t
    return found


# *** which part of which tensor this process has ***


def _split(op: str, parts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the plain values of parts, and their tensors by name."""
    values = {name: part.state_dict() if isinstance(part, DataLoader) else plain(part)
              for name, part in parts.items() if isinstance(part, DataLoader) or is_value(part)}
    held: dict[str, Tensor] = get_state_dict({name: part for name, part in parts.items() if name not in values})
    empty = [name for name in parts if name not in values and not any(_part(n) == name for n in held)]
    if empty:
        raise DTypeError(op, f"{empty[0]}={shown(parts[empty[0]])} holds no tensors, and is no plain value",
                         "a model, an optimizer, a loader, a random generator, numbers and strings")
    return values, held


def _part(name: str) -> str:
    return name.partition(".")[0]


def _restored(name: str, part: Any, value: Any) -> Any:
    if not isinstance(part, DataLoader):
        return restored(name, part, value)
    part.load_state_dict(value)
    return part


def _regions(parts: Mapping[str, Any], held: Mapping[str, Tensor]) -> dict[str, Region]:
    """Return the region of each tensor that this process has.

    Raises:
        ArgumentError: for a sharded tensor whose regions are unknown.
    """
    found: dict[int, Region] = {}
    for t in held.values():
        if divided(t) or stage_of(t):
            found[id(t)] = _placed(t, t)
    for optimizer in _objects(parts, Optimizer):
        for part in optimizer.parts():
            found |= {id(s): _placed(p, s) for p, s in _state(part) if divided(p) or stage_of(p)}
    for zero in _objects(parts, ZeroOptimizer):
        if any(divided(p) for p in zero.params):
            raise ArgumentError("dist.save_checkpoint", "a ZeroOptimizer of parameters that dist.shard divided",
                                'rules along "data" (ZeRO 3), whose optimizer has parts by itself')
        counts = {id(own): sum(p.numel() for p in line) for own, line in zip(zero.own, zero.lines)}
        for part in zero.inner.parts():
            found |= {id(s): _row(s, counts[id(p)], zero.group) for p, s in _state(part)}
    return {name: found.get(id(t)) or Region((0,) * t.ndim, tuple(t.shape), tuple(t.shape)) for name, t in held.items()}


def _objects(parts: Any, kind: Any) -> list[Any]:
    return list({id(o): o for o in get_state_dict(parts, tensor_type=kind).values()}.values())


def _state(optimizer: Optimizer) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of each parameter with itself, and with each tensor that holds state of its elements.

    Raises:
        ArgumentError: for state of a sharded parameter with another shape, whose regions are unknown.
    """
    found = []
    for name, value in vars(optimizer).items():
        if isinstance(value, list) and len(value) == len(optimizer.params):
            for p, t in zip(optimizer.params, value):
                if isinstance(t, Tensor) and (t.shape == p.shape or (stage_of(p) and not divided(p))):
                    found.append((p, t))
                elif isinstance(t, Tensor) and t.numel() > 1 and divided(p):
                    raise ArgumentError(
                        "dist.save_checkpoint", f"{type(optimizer).__name__}.{name} of shape {t.shape} for this "
                        f"process's part {p.shape} of a parameter", "an optimizer with state of the parameter's shape")
    return found


def _placed(p: Tensor, t: Tensor) -> Region:
    """Return the region of ``t``, a parameter or state of it, of which a process has a part or that is in a stage."""
    mesh, rule = placement(p) or (None, ())
    staged = stage_of(p)
    if mesh is None and staged is not None:
        mesh = staged[0]
    assert mesh is not None
    axes = (*rule, *(None,) * (t.ndim - len(rule)))
    begin = tuple(0 if a is None else mesh.place[a] * s for a, s in zip(axes, t.shape))
    whole = tuple(s if a is None else mesh.size(a) * s for a, s in zip(axes, t.shape))
    used = {*rule, staged[1]} if staged is not None else {*rule}
    owner = all(n == 0 for a, n in mesh.place.items() if a not in used)
    return Region(begin, tuple(t.shape), whole, owner, staged is None)


def _numbered(op: str, parts: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the state of stages' optimizers: here → in the checkpoint.

    The names have the numbers of parameters, which are counted over all stages there.

    Raises:
        ArgumentError: for an optimizer with groups.
    """
    found: dict[str, str] = {}
    for prefix, optimizer in get_state_dict(dict(parts), tensor_type=Optimizer).items():
        numbers = [stage_of(p) for p in optimizer.params]
        if any(numbers) and optimizer.parts() != [optimizer]:
            raise ArgumentError(op, f"{prefix}: an optimizer with groups of parameters of a dist.pipeline",
                                "an optimizer without groups")
        for name, value in vars(optimizer).items():
            like = optimizer.buffers if name == "buffers" else optimizer.params
            if isinstance(value, list) and len(value) == len(like):
                for n, p in enumerate(like):
                    if (staged := stage_of(p)) is not None:
                        found[f"{prefix}.{name}.{n}"] = f"{prefix}.{name}.{staged[2]}"
    return found


def _row(t: Tensor, count: int, group: ProcessGroup) -> Region:
    """Return the region of a row of ``ZeroOptimizer``: a part of a line of ``count`` elements, without its padding."""
    begin = min(group.rank * t.numel(), count)
    return Region((begin,), (min(t.numel(), count - begin),), (count,), 0 in group.ranks)


def _own(held: Mapping[str, Tensor], regions: Mapping[str, Region], rank: int, size: int
         ) -> tuple[list[str], dict[str, str]]:
    """Return the names of the tensors that this process writes, and {name: name under which the tensor is written}."""
    first: dict[Any, str] = {}
    aliases = {name: known for name, t in held.items()
               if (known := first.setdefault((t.uop, regions[name].whole, regions[name].begin), name)) != name}
    own, load = [], [0] * size
    for name, t in sorted(((n, t) for n, t in held.items() if n not in aliases), key=lambda item: -item[1].nbytes()):
        region = regions[name]
        if region.is_whole and region.everywhere and size > 1:
            writer = 0 if t.nbytes() < _SMALL else load.index(min(load))
            load[writer] += t.nbytes()
            if writer == rank:
                own.append(name)
        elif region.owner and (0 not in region.shape or 0 in region.whole):
            own.append(name)
    return own, aliases


# *** files ***


def _index(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((path / INDEX).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FileFormatError("dist.load_checkpoint", f"{os.fspath(path / INDEX)!r}: {error}",
                              "a complete file") from None
    if found.get("version") != _VERSION:
        raise FileFormatError("dist.load_checkpoint", f"{os.fspath(path / INDEX)!r} has version {found.get('version')}",
                              f"version {_VERSION}")
    return found


def _begin(path: Path, here: ProcessGroup) -> int:
    """Make the folder of a new checkpoint and return its number, the same in all processes."""
    number = np.zeros(1, np.int64)
    error = ""
    if here.rank == 0:
        try:
            path.mkdir(parents=True, exist_ok=True)
            number[0] = (_index(path) or {"number": 0})["number"] + 1
            _clean(path, f"values-{number[0] - 1}")
            (path / f"values-{number[0]}").mkdir()
        except (OSError, FileFormatError) as found:
            error, number[0] = str(found), 0
    if here.size > 1:
        with world().turn:
            here.checks.Bcast(number, 0)
    if not number[0]:
        raise CommunicationError("dist.save_checkpoint", f"rank 0 cannot write to {os.fspath(path)!r} {error}".rstrip(),
                                 "a folder that all processes may write")
    return int(number[0])


def _clean(path: Path, keep: str) -> None:
    """Remove the values of other checkpoints: older ones, and those that were never completed."""
    for folder in path.glob("values-*"):
        if folder.name != keep:
            shutil.rmtree(folder, ignore_errors=True)


def _write(saving: Saving, path: Path, number: int, rank: int, size: int, arrays: dict[str, Array],
           note: dict[str, str], notes: dict[str, Any]) -> None:
    """Write this process's file; rank 0 writes the index once all files are there, and the others wait for it."""
    folder = path / f"values-{number}"
    try:
        file = folder / f"{rank}.safetensors"
        _put(file, arrays, note)
        arrays.clear()  # a copy of an asynchronous one
        if rank:
            _until(folder, lambda: not folder.exists() or ((_index(path) or {"number": 0})["number"] >= number))
            return
        files = [folder / f"{n}.safetensors" for n in range(size)]
        _until(folder, lambda: all(f.exists() for f in files))
        index = {"version": _VERSION, "number": number, "folder": folder.name, **notes, **_contents(files)}
        temporary = path / f"{INDEX}.part"
        with temporary.open("w") as out:
            json.dump(index, out)
            out.flush()
            os.fsync(out.fileno())
        _sync(folder)
        os.replace(temporary, path / INDEX)
        _sync(path)
        _clean(path, folder.name)
    except CommunicationError as error:  # another rank has failed, which all others read from its own file
        saving.error = error
    except BaseException as error:
        _tell_failure(folder, rank, error)
        saving.error = CommunicationError(
            "dist.save_checkpoint", f"rank {rank} cannot write to {os.fspath(folder)!r}: {error}",
            "one folder for all processes, with space, that all may write")


def _tell_failure(folder: Path, rank: int, error: BaseException) -> None:
    """Name an error in a file for the other processes, which see it complete; empty if the disk has no space for it."""
    temporary = folder / f"{rank}.failing"
    with contextlib.suppress(OSError):
        try:
            temporary.write_text(f"{type(error).__name__}: {error}")
        finally:
            os.replace(temporary, folder / f"{rank}.failed")


def _put(file: Path, arrays: dict[str, Array], notes: dict[str, str]) -> None:
    temporary = file.with_suffix(".part")
    importlib.import_module("safetensors.numpy").save_file(arrays, temporary, notes)
    with temporary.open("rb+") as out:
        os.fsync(out.fileno())
    os.replace(temporary, file)


def _sync(folder: Path) -> None:
    """Let a folder's new names reach the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _until(folder: Path, ready: Any) -> None:
    """Wait until the other processes are ready.

    Raises:
        CommunicationError: if one has failed.
    """
    pause = _POLL
    while not ready():
        for failed in folder.glob("*.failed"):
            raise CommunicationError("dist.save_checkpoint", f"rank {failed.stem} cannot write to "
                                     f"{os.fspath(folder)!r}: {failed.read_text()}",
                                     "one folder for all processes, with space, that all may write")
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


def _contents(files: list[Path]) -> dict[str, Any]:
    """Return, for each tensor, its dtype, shape and regions: file, name in it, begin, shape; and the other names of
    tensors, of which processes of a pipeline have different ones."""
    found: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for file in files:
        with importlib.import_module("safetensors").safe_open(file, "np") as opened:
            regions = json.loads(opened.metadata()["tinsmith.regions"])
            aliases |= json.loads(opened.metadata()["tinsmith.aliases"])
            for name in opened.keys():  # noqa: SIM118  it is no dictionary
                code, begin, whole = regions[name]
                entry = found.setdefault(name, {"dtype": code, "shape": whole, "regions": []})
                entry["regions"].append([file.name, name, begin, opened.get_slice(name).get_shape()])
    return {"tensors": found, "aliases": aliases}


class _Files:
    """The files of a checkpoint, opened once each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, contextlib.ExitStack()
        self.opened: dict[str, Any] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def file(self, name: str) -> Any:
        package = importlib.import_module("safetensors")
        if name not in self.opened:
            try:
                self.opened[name] = self.stack.enter_context(package.safe_open(self.folder / name, "np"))
            except (OSError, package.SafetensorError) as error:
                raise FileFormatError("dist.load_checkpoint", f"{os.fspath(self.folder / name)!r}: {error}",
                                      "all files of the checkpoint, complete") from None
        return self.opened[name]

    def tensor(self, name: str, entry: Mapping[str, Any], region: Region | None, like: Tensor | None) -> Tensor:
        """Return the region of a stored tensor for ``like``; the full tensor without ``region``."""
        dtype, whole = getattr(dtypes, entry["dtype"]), tuple(entry["shape"])
        if region is None or region.whole != whole:  # of another shape: load_state_dict says so
            region = Region((0,) * len(whole), whole, whole)
        shape = region.shape if like is None or region.is_whole else tuple(like.shape)  # with the padding of a row
        out: Array = np.zeros(shape, np.uint8 if dtype in dtypes.fp8s else dtype.numpy)
        filled = 0
        for file, known, begin, size in entry["regions"]:
            low = [max(a, b) for a, b in zip(begin, region.begin)]
            high = [min(a + n, b + m) for a, n, b, m in zip(begin, size, region.begin, region.shape)]
            if all(a < b for a, b in zip(low, high)):
                part = self.file(file).get_slice(known)
                source = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begin))
                out[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, region.begin))] = (
                    part[source] if source else self.file(file).get_tensor(known))
                filled += int(np.prod([b - a for a, b in zip(low, high)]))
        if filled < int(np.prod(region.shape)):
            raise FileFormatError("dist.load_checkpoint", f"{os.fspath(self.folder)!r} lacks parts of {name}",
                                  "the files of all processes")
        array = out.view(dtype.numpy) if dtype in dtypes.fp8s else out
        device = like.device if like is not None and isinstance(like.device, str) else None
        return Tensor(array, dtype=dtype, device=device, requires_grad=False)
