"""``DataLoader``: batches of arrays, mapped files and sequences, loaded by workers while the device computes."""
from __future__ import annotations

import importlib
import itertools
import multiprocessing
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.device import Device, DeviceName
from tinsmith.backend.memory import Buffer, borrowed
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.core.settings import in_context
from tinsmith.ir import Ops, UOp
from tinsmith.jit.guards.signature import rebuilt
from tinsmith.tensor.arguments import integer, shown
from tinsmith.tensor.base import device_name
from tinsmith.tensor.create import random
from tinsmith.tensor.interop import dlpack, files
from tinsmith.tensor.tensor import Tensor

__all__ = ["DataLoader", "Windows", "collate"]

Array = np.ndarray[Any, Any]
Load = Callable[[Sequence[int]], Any]


def collate(samples: Sequence[Any]) -> Any:
    """Combine samples to a batch: arrays and numbers are stacked along a new first axis, also inside tuples, lists and
    dicts; other values become a list.

    >>> collate([(1, "a"), (2, "b")])
    (array([1, 2], dtype=int32), ['a', 'b'])

    Raises:
        ShapeError: if arrays of samples have different shapes.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: collate([s[key] for s in samples]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(collate, zip(*samples)))
    if isinstance(first, (tuple, list)):
        lengths = {len(s) for s in samples}
        if len(lengths) > 1:
            raise ShapeError("collate", f"samples of {min(lengths)} to {max(lengths)} parts", "collate_fn= to join")
        return type(first)(map(collate, zip(*samples)))
    if isinstance(first, Tensor):
        return Tensor.stack(list(samples))
    if not hasattr(first, "__array__") and not isinstance(first, (bool, int, float)):
        return list(samples)
    arrays = [np.asarray(s) for s in samples]
    shapes = sorted({a.shape for a in arrays})
    if len(shapes) > 1:
        raise ShapeError("collate", f"samples have shapes {shapes[0]} and {shapes[-1]}", "collate_fn= to pad or cut")
    stacked: Array = np.stack(arrays)
    if isinstance(first, (bool, int, float)):
        kind = {"i": dtypes.default_int, "f": dtypes.default_float}.get(stacked.dtype.kind, dtypes.bool)
        return stacked.astype(kind.numpy)
    return stacked


class Windows(Sequence[Any]):
    """Windows of ``length`` consecutive elements of a 1-D array, each with its targets: the window shifted by one.

    >>> w = Windows(np.arange(6), 2)
    >>> len(w), w[1]
    (4, (array([1, 2]), array([2, 3])))

    Args:
        data: a 1-D array of tokens, possibly mapped (``np.memmap``, ``np.load(path, mmap_mode="r")``), or
            ``Tensor(path)``.
        stride: elements between the starts of consecutive windows.

    Raises:
        ShapeError: if ``data`` is not 1-D, or shorter than a window and its target.
    """

    def __init__(self, data: Any, length: int, stride: int = 1) -> None:
        found = data if isinstance(data, np.ndarray) else _Columns(data).leaves[0]
        self.data = found._array() if isinstance(found, Tensor) else found
        self.length = integer("Windows", "length", length, least=1)
        self.stride = integer("Windows", "stride", stride, least=1)
        if self.data.ndim != 1 or len(self.data) <= length:
            raise ShapeError("Windows", f"windows of {length} and one more in shape {self.data.shape}", "a longer one")

    def __len__(self) -> int:
        return (len(self.data) - self.length - 1) // self.stride + 1

    def __getitem__(self, index: Any) -> Any:
        begin = range(len(self))[index] * self.stride
        return self.data[begin : begin + self.length], self.data[begin + 1 : begin + self.length + 1]


class _Rows:
    """Rows of a tensor, gathered later on the tensor's device."""

    def __init__(self, column: Tensor, indices: Array) -> None:
        self.column, self.indices = column, indices


class _Columns:
    """A data set of arrays with one row per sample; a batch is one gather per array."""

    def __init__(self, tree: Any) -> None:
        self.leaves: list[Any] = []
        self.tree = rebuilt(tree, self._column)
        lengths = {len(c) for c in self.leaves}
        if len(lengths) != 1:
            raise ShapeError("DataLoader", f"columns of {min(lengths)} to {max(lengths)} rows",
                             "the same number of rows in each array")

    def _column(self, data: Any) -> Any:
        found = data
        if isinstance(data, Tensor) and files.on_disk(data._device):
            found = files.values(data.uop)
        elif not isinstance(data, (Tensor, np.ndarray)):
            found = dlpack.on_host(data)
        self.leaves.append(found)
        return found

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitems__(self, indices: Sequence[int]) -> Any:
        picked = np.asarray(indices, np.int64)
        return rebuilt(self.tree, lambda c: _Rows(c, picked) if isinstance(c, Tensor) else c[picked])


def _is_column(data: Any) -> bool:
    return isinstance(data, (Tensor, np.ndarray)) or hasattr(data, "__dlpack__")


def _are_columns(data: Any) -> bool:
    """Return True if ``data`` is an array, or a tuple or dict of arrays. (A list is a list of samples.)"""
    if isinstance(data, dict):
        return bool(data) and all(map(_is_column, data.values()))
    return _is_column(data) or (isinstance(data, tuple) and bool(data) and all(map(_is_column, data)))


class _Task(NamedTuple):
    """A picklable function that loads the batch of given sample indices, in any thread or process."""

    dataset: Any
    collate: Callable[[Sequence[Any]], Any] | None

    def __call__(self, indices: Sequence[int]) -> Any:
        if hasattr(self.dataset, "__getitems__"):
            batch = self.dataset.__getitems__(indices)
            return batch if isinstance(self.dataset, _Columns) and self.collate is None else self._joined(batch)
        samples = []
        for index in indices:
            try:
                samples.append(self.dataset[index])
            except Exception as error:
                error.add_note(f"DataLoader: while loading sample {index}")
                raise
        return self._joined(samples)

    def _joined(self, samples: Any) -> Any:
        if self.collate is None:
            return collate(samples)
        made = self.collate(samples)  # copied: ``collate_fn`` may reuse its arrays for the next batch
        return rebuilt(made, lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf)


class _Threads(Executor):
    """An executor of daemon threads: a sample that hangs does not block the interpreter's exit."""

    def __init__(self, count: int) -> None:
        self.tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self.count = count
        for n in range(count):
            threading.Thread(target=self._work, name=f"DataLoader-{n}", daemon=True).start()

    def _work(self) -> None:
        while (task := self.tasks.get()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            del task, future, function

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.tasks.put((future, lambda: function(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self.count):
            self.tasks.put(None)


_here: list[_Task] = []  # in a worker process: its task


def _start(task: _Task) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes; only the parent reports it
    _here[:] = [task]


def _load_here(indices: Sequence[int]) -> Any:
    return _here[0](indices)


class _Placed:
    """A batch array in device memory."""

    def __init__(self, buffer: Buffer, shape: tuple[int, ...]) -> None:
        self.buffer, self.shape = buffer, shape

    def tensor(self, device: str) -> Tensor:
        node = UOp(Ops.BUFFER, self.buffer.dtype, (), self.buffer).reshape(self.shape)
        return Tensor._wrap(node, device, requires_grad=False)


_NUMERIC: Final = {d.numpy for d in (*dtypes.all, *dtypes.fp8s)}


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.newbyteorder("=") in _NUMERIC


def _place(array: Array, device: str) -> Any:
    """Place an array in device memory, on the worker's thread. On a host device the array's memory is used without a
    copy, since only the batch refers to it; for other devices it is copied without building a graph."""
    opened = None if "," in device else Device[device]
    if array.size == 0 or array.ndim == 0 or array.dtype.kind == "b" or opened is None or not opened.has_programs:
        return array
    dense = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    dtype = dtypes.from_numpy(dense.dtype)
    if opened.dlpack == dlpack.HOST and dense.ctypes.data % dtype.itemsize == 0:
        return _Placed(borrowed(device, dense.size, dtype, dense.ctypes.data, dense), array.shape)
    return _Placed(Buffer(device, dense.size, dtype).copyin(dense.reshape(-1).view(np.uint8).data), array.shape)


def _shard(shard: Any, batch_size: int) -> tuple[int, int]:
    """Return (rank, size) of ``shard=``; of one process for None.

    Raises:
        ArgumentError: if it is no such pair, or the batch cannot be divided.
    """
    if shard is None:
        return 0, 1
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise ArgumentError("DataLoader", f"shard={shown(shard)} is no pair", "shard=(dist.rank(), dist.world_size())")
    size = integer("DataLoader", "shard[1]", shard[1], least=1)
    rank = integer("DataLoader", "shard[0]", shard[0], least=0, most=size - 1)
    if batch_size % size:
        raise ArgumentError("DataLoader", f"a batch of {batch_size} for {size} processes",
                            f"batch_size={batch_size + size - batch_size % size}; it is that of all processes together")
    return rank, size


@dataclass
class _Position:
    """A place in an epoch: its number, batches given out, and the random stream at its begin."""

    epoch: int = 0
    batch: int = 0
    stream: tuple[int, int] = (0, 0)


class DataLoader:
    """An iterable over the batches of a data set, as tensors on a device.

    >>> from tinsmith import nn
    >>> x, y = np.arange(10).reshape(5, 2), np.arange(5)
    >>> [(a.shape, b.tolist()) for a, b in nn.DataLoader((x, y), batch_size=2)]
    [((2, 2), [0, 1]), ((2, 2), [2, 3]), ((1, 2), [4])]

    Args:
        dataset: an array, or a tuple or dict of arrays, with one row per sample: NumPy arrays (also mapped files),
            tensors (also ``Tensor(path)``), DLPack objects. Or a sequence of samples with ``len`` and ``dataset[i]``
            (and optionally ``__getitems__(indices)`` for several at once).
        batch_size: samples per batch; the last batch may be smaller.
        shuffle: use a new random order per epoch, drawn from ``Tensor.manual_seed``'s stream when the epoch begins.
        drop_last: skip an incomplete last batch.
        collate_fn: list of samples → batch (default ``nn.loader.collate``); its arrays become tensors.
        num_workers: threads or processes that prefetch batches; 0: load each batch when it is requested.
        prefetch_factor: batches that each worker may load ahead.
        processes: use processes, for samples that are computed in Python; data set and samples are pickled.
        device: device of the batches; None: the default. Rows of a tensor stay on the tensor's device.
        seed: shuffle by this seed and ``epoch`` only.
        progress: True, or a label, to show a progress bar (``tqdm``).
        shard: ``(rank, size)`` of a process: it reads its part of every batch of ``batch_size``, which ``size`` must
            divide. Orders agree if the random streams or ``seed`` do (``tinsmith.distributed`` sees to it), so training
            goes on with another number of processes as it would have with this one. An incomplete last batch is cut to
            a multiple of ``size``.

    Attributes:
        epoch: number of epochs begun. With ``seed``, set it to resume a run at the begin of an epoch; ``state_dict``
            resumes anywhere.

    Raises:
        ArgumentError: for an invalid data set or size.
        ShapeError: if the arrays differ in length.
    """

    def __init__(self, dataset: Any, batch_size: int = 1, shuffle: bool = False, *, drop_last: bool = False,
                 collate_fn: Callable[[Sequence[Any]], Any] | None = None, num_workers: int = 0,
                 prefetch_factor: int = 2, processes: bool = False, device: DeviceName | None = None,
                 seed: int | None = None, progress: bool | str = False, shard: tuple[int, int] | None = None) -> None:
        if _are_columns(dataset):
            dataset = _Columns(dataset)
        elif not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ArgumentError("DataLoader", f"a {type(dataset).__name__} has no length or no items by number",
                                "a list of it, or a class with __len__ and __getitem__")
        self.dataset, self.shuffle, self.drop_last, self.device, self.seed = dataset, shuffle, drop_last, device, seed
        self.batch_size = integer("DataLoader", "batch_size", batch_size, least=1)
        self.num_workers = integer("DataLoader", "num_workers", num_workers, least=0)
        self.prefetch_factor = integer("DataLoader", "prefetch_factor", prefetch_factor, least=1)
        self.shard = _shard(shard, self.batch_size)
        if processes and not num_workers:
            raise ArgumentError("DataLoader", "processes=True without workers", "num_workers=2")
        if processes and isinstance(dataset, _Columns):
            raise ArgumentError("DataLoader", "processes=True would pickle the arrays", "processes=False")
        self.processes, self.progress, self.epoch = processes, progress, 0
        self._position = _Position()
        self._resumed: _Position | None = None
        self.task = _Task(dataset, collate_fn)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        whole, rest = divmod(len(self.dataset), self.batch_size)
        return whole + (not self.drop_last and rest >= self.shard[1])

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        order = self._order() if resumed is None else self._order_of(resumed)
        batches = self._batches(order, device_name(self.device), self._position)
        if not self.progress:
            return batches
        bar = importlib.import_module("tqdm.auto").tqdm  # at its first use: importing tinsmith stays fast
        shown = bar(batches, desc=self.progress if isinstance(self.progress, str) else None, total=len(self))
        return iter(shown)

    def _order(self) -> Array:
        """Return the sample indices of the next epoch, in order, and advance ``epoch``."""
        found = self._order_of(_Position(self.epoch, 0, random.state()))
        if self.shuffle and self.seed is None:
            random.advance(1)
        self.epoch += 1
        return found

    def _order_of(self, at: _Position) -> Array:
        """Return the sample indices of the epoch of a position, and go there."""
        self._position = at
        count = len(self.dataset)
        if not self.shuffle:
            return np.arange(count)
        key = at.stream if self.seed is None else (self.seed, at.epoch)
        order: Array = np.random.default_rng(key).permutation(count)
        return order

    def state_dict(self) -> dict[str, Any]:
        """Return the position as JSON-compatible data; ``load_state_dict`` resumes after the last batch that was
        returned.

        The position does not depend on ``shard``.

        >>> loader = DataLoader(np.arange(6), batch_size=2)
        >>> for batch in loader:
        ...     break
        >>> other = DataLoader(np.arange(6), batch_size=2)
        >>> other.load_state_dict(loader.state_dict())
        >>> [batch.tolist() for batch in other]
        [[2, 3], [4, 5]]
        """
        at = self._resumed or self._position
        return {"begun": self.epoch, "epoch": at.epoch, "batch": at.batch, "stream": list(at.stream)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a ``state_dict``: the next iteration is the rest of that epoch.

        Raises:
            ArgumentError: if ``state`` is none.
        """
        try:
            begun, (seed, calls) = int(state["begun"]), state["stream"]
            at = _Position(int(state["epoch"]), int(state["batch"]), (int(seed), int(calls)))
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError("DataLoader.load_state_dict", f"{shown(state)} is no position: {error!r}",
                                "what state_dict() returned") from None
        self.epoch, self._resumed = begun, at if begun and at.batch < len(self) else None

    def _batches(self, order: Array, device: str, here: _Position) -> Iterator[Any]:
        parts = (self._part(order[n * self.batch_size : (n + 1) * self.batch_size]).tolist()
                 for n in range(here.batch, len(self)))
        if not self.num_workers:
            for part in parts:
                here.batch += 1
                yield self._as_tensors(self._placed(self.task(part), device), device)
            return
        workers = self._workers()
        ahead: deque[Future[Any]] = deque()
        try:
            for part in itertools.islice(parts, self.num_workers * self.prefetch_factor):
                ahead.append(self._submitted(workers, part, device))
            while ahead:
                batch = ahead.popleft().result()
                for part in itertools.islice(parts, 1):
                    ahead.append(self._submitted(workers, part, device))
                here.batch += 1
                yield self._as_tensors(self._placed(batch, device), device)
        finally:  # also after an error, Ctrl-C, or a ``break`` in the caller's loop
            for future in ahead:
                future.cancel()
            workers.shutdown(wait=False, cancel_futures=True)

    def _part(self, batch: Array) -> Array:
        """Return this process's part of a batch's indices."""
        rank, size = self.shard
        each = len(batch) // size
        return batch[rank * each : (rank + 1) * each]

    def _workers(self) -> Executor:
        if not self.processes:
            return _Threads(self.num_workers)
        return ProcessPoolExecutor(self.num_workers, multiprocessing.get_context("spawn"), _start, (self.task,))

    def _submitted(self, workers: Executor, part: Sequence[int], device: str) -> Future[Any]:
        if self.processes:
            return workers.submit(_load_here, part)
        return workers.submit(in_context(lambda: self._placed(self.task(part), device)))

    def _placed(self, batch: Any, device: str) -> Any:
        return rebuilt(batch, lambda leaf: _place(leaf, device) if _is_numeric(leaf) else leaf)

    def _as_tensors(self, batch: Any, device: str) -> Any:
        def tensor(leaf: Any) -> Any:
            if isinstance(leaf, _Placed):
                return leaf.tensor(device)
            if isinstance(leaf, _Rows):
                return leaf.column[Tensor(leaf.indices, device=leaf.column.device)]
            return Tensor(leaf, device=device, requires_grad=False) if _is_numeric(leaf) else leaf

        return rebuilt(batch, tensor)
