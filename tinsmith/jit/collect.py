"""The programs that a captured call ran."""
from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer, copied
from tinsmith.backend.shards import flattened
from tinsmith.core.errors import JitError, user_line
from tinsmith.core.terminal import cut, width
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import launch, recorders
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.realize import buffer_of


class Source(NamedTuple):
    """The source of a buffer at a replay: a guard's entry, an earlier program's output, or a fixed buffer."""

    group: int = -1
    program: int = -1
    output: int = 0
    held: Any = None

    @property
    def made(self) -> tuple[int, int]:
        """Return (index of the program, index of its output)."""
        return self.program, self.output


@dataclass(repr=False)
class JitItem:
    """One program that ran during capture: its schedule, the variables' names and values, and its buffers. Printing it
    gives one line; ``print(item.compiled)`` gives one for each kernel.

    ``inputs`` and ``outputs`` are emptied when the capture is finished; ``sources`` then describes the inputs.
    ``holders`` are tensors from before the recording that held inputs; the items returned by
    ``CacheCollector.finish()`` use them.
    """

    compiled: CompiledSchedule
    inputs: list[Buffer]
    values: list[int]
    names: list[str]
    outputs: list[Buffer]
    sources: list[Source] = field(default_factory=list)
    holders: dict[int, weakref.ref[TensorBase]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        if len(self.compiled) == 1:
            return repr(self.compiled[0])
        return cut(f"{len(self.compiled)} steps: {', '.join(f'{i.device} {i.name}' for i in self.compiled)}", width())

    @property
    def rawbufs(self) -> list[Buffer]:
        """The buffers that it runs on: inputs, then outputs. If a tensor was assigned meanwhile, its new buffer."""
        return [*(self._present(n, b) for n, b in enumerate(self.inputs)), *self.outputs]

    def _present(self, number: int, buffer: Buffer) -> Buffer:
        """Return the current buffer of input ``number``, which was ``buffer`` when the program was recorded."""
        holder = self.holders[number]() if number in self.holders else None
        found = None if holder is None else buffer_of(holder)
        alike = found is not None and (found.device, found.size, found.dtype) == (
            buffer.device, buffer.size, buffer.dtype) and found.layout == buffer.layout
        return found if found is not None and alike else buffer

    def prg(self, rawbufs: Sequence[Buffer], var_vals: Mapping[Any, int] | None = None, wait: bool = False,
            jit: bool = True) -> float | None:
        """Run the program again; the arguments follow the tutorials.

        Args:
            rawbufs: its buffers, or replacements of the same sizes.
            var_vals: values of variables, by variable; default: those of the first run.
            wait: wait until it has run, and return the seconds that it took.
            jit: ignored.

        Raises:
            JitError: for a wrong number of buffers, and for a program of a captured function, which keeps no buffers.
        """
        bound, count = self.compiled.bound, len(self.inputs)
        if not self.outputs or len(rawbufs) != len(self.rawbufs):
            raise JitError("JitItem.prg", f"got {len(rawbufs)} buffers, has {len(self.rawbufs)}; a captured function "
                           "takes its buffers from the arguments of each call", "ji.prg(ji.rawbufs) for what "
                           "CacheCollector.finish() gives; otherwise call the captured function")
        results = dict(zip(bound.results, flattened(rawbufs[count:])))
        outputs = [results[n] for n in range(len(bound.outputs))]
        given = {v.src[0].arg[0] if v.op is Ops.BIND else v.arg[0]: n for v, n in (var_vals or {}).items()}
        values = [given.get(name, value) for name, value in zip(self.names, self.values)]
        blocks = bound.new_blocks()
        start = time.perf_counter()
        inputs = [copied(b) if any(b is o for o in outputs) else b for b in flattened(rawbufs[:count])]
        launch(bound, inputs, outputs, values, blocks)
        if not wait:
            return None
        for device in {step.device for step in self.compiled.steps}:
            Device[device].synchronize()
        return time.perf_counter() - start


class CacheCollector:
    """Collects the programs that run between ``start`` and ``finish``; a capture is one of these.

    >>> CacheCollector.start()
    >>> _ = (Tensor([1.0]) + 1).realize()
    >>> len(CacheCollector.finish())
    1
    """

    _current: ClassVar[list[CacheCollector]] = []

    def __init__(self) -> None:
        self.items: list[JitItem] = []
        self.graphs: dict[UOp, None] = {}
        self.host_read: tuple[str, int] | None = None

    def wanted(self, graphs: Sequence[UOp]) -> None:
        self.graphs.update(dict.fromkeys(graphs))

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None:
        names = [n.src[0].arg[0] for n in bindings(toposort(roots))]
        self.items.append(JitItem(compiled, inputs, values, names, outputs))

    def read(self) -> None:
        self.host_read = self.host_read or user_line()

    def precedes(self, node: UOp) -> bool:
        return False  # the values differ at a replay

    @classmethod
    def start(cls, variables: Any = None) -> None:
        """Begin to collect; ``variables`` is accepted for the tutorials and ignored."""
        cls._current.append(_Followed())
        recorders.append(cls._current[-1])

    @classmethod
    def finish(cls) -> list[JitItem]:
        """Return the programs that ran since the latest ``start``."""
        collector = cls._current.pop()
        recorders.remove(collector)
        return collector.items


class _Followed(CacheCollector):
    """The collector of ``start`` and ``finish``; program inputs are held by tensors from before ``start``."""

    def __init__(self) -> None:
        super().__init__()
        self.before = set(toposort([t.uop for t in TensorBase.live]))
        self.tensors = [weakref.ref(t) for t in TensorBase.live]
        self.made: set[int] = set()

    def precedes(self, node: UOp) -> bool:
        return node in self.before

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None:
        super().ran(roots, compiled, inputs, values, outputs)
        holders = {id(buffer_of(t)): ref for ref in reversed(self.tensors) if (t := ref()) is not None}
        self.items[-1].holders = {n: holders[id(b)] for n, b in enumerate(inputs)
                                  if id(b) in holders and id(b) not in self.made}
        self.made.update(map(id, outputs))
