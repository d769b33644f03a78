"""One compiled program for a part of an FX graph, which runs on addresses of PyTorch's memory.

This file also maps PyTorch's dtypes to Tinsmith's, and makes Tinsmith tensors over memory with the shapes and strides
of PyTorch's tensors.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tinsmith.backend.cpu.device import CPUGraph
from tinsmith.backend.memory import Buffer, borrowed
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.settings import current
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings
from tinsmith.ir.uop import substitute, toposort
from tinsmith.runtime.launch import copy_from_host, is_host_copy, launch
from tinsmith.runtime.realize import compile_graph
from tinsmith.schedule.canonical import canonical
from tinsmith.tensor.create import random
from tinsmith.tensor.realize import root_of
from tinsmith.tensor.tensor import Tensor

_NAMES: Final = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "bfloat16", "float32", "float64")
DTYPES: Final[dict[Any, DType]] = {getattr(torch, name): getattr(dtypes, name) for name in _NAMES}


def dtype_of(dtype: Any) -> DType:
    """Return the Tinsmith dtype of a PyTorch dtype.

    Raises:
        KeyError: if there is none (complex numbers, quantized types).
    """
    return DTYPES[dtype]


@dataclass(frozen=True)
class Meta:
    """Shape, strides (in elements) and dtype of a tensor, without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def meta_of(value: Any) -> Any:
    """Return the ``Meta`` of a PyTorch tensor; of a tuple or list a tuple of them; other values as None."""
    if isinstance(value, (tuple, list)):
        return tuple(map(meta_of, value))
    if not hasattr(value, "stride") or value.dtype not in DTYPES:
        return None
    return Meta(tuple(map(int, value.shape)), tuple(map(int, value.stride())), DTYPES[value.dtype])


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the axes by descending stride; axes of one element come where they are."""
    return sorted(range(len(shape)), key=lambda n: (-strides[n] if shape[n] != 1 else -math.inf, n))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if the elements fill their memory without gaps and overlaps, in any order of axes."""
    expected = 1
    for n in reversed(memory_order(shape, strides)):
        if shape[n] != 1:
            if strides[n] != expected:
                return False
            expected *= shape[n]
    return True


def is_readable(meta: Meta) -> bool:
    """Return True if ``placeholder`` can describe the memory: rows may have gaps and be repeated, but not overlap."""
    below = 1
    for n in reversed(memory_order(meta.shape, meta.strides)):
        if meta.shape[n] != 1 and meta.strides[n] != 0:
            if meta.strides[n] < below:
                return False
            below = meta.strides[n] * meta.shape[n]
    return True


def placeholder(meta: Meta, device: str) -> tuple[Tensor, Buffer]:
    """Return a tensor that reads memory of this layout from its first element on, and its buffer without memory.

    The buffer ends with the gap after the last row: no kernel reads that.
    """
    axes = [n for n in memory_order(meta.shape, meta.strides) if meta.shape[n] != 1 and meta.strides[n] != 0]
    size = meta.shape[axes[0]] * meta.strides[axes[0]] if axes else 1
    buffer = Buffer(device, size, meta.dtype)
    t = Tensor._wrap(UOp(Ops.BUFFER, meta.dtype, (), buffer), device)
    done: list[int] = []
    for n, after in zip(axes, [*axes[1:], None]):
        rest = meta.strides[n]
        t = t.reshape(*done, meta.shape[n], rest)
        done.append(meta.shape[n])
        inner = 1 if after is None else meta.shape[after] * meta.strides[after]
        if inner != rest:
            t = t.shrink([*((0, s) for s in done), (0, inner)])
    t = t.reshape(done or (1,))
    order = sorted(range(len(axes)), key=axes.__getitem__)
    if order != list(range(len(order))):
        t = t.permute(order)
    kept = set(axes)
    t = t.reshape([s if n in kept else 1 for n, s in enumerate(meta.shape)])
    return t.expand(meta.shape) if t.shape != meta.shape else t, buffer

try:  # the allocation of compiled code: half the time of the documented function's
    from torch._C._dynamo.guards import (  # type: ignore[attr-defined, unused-ignore]
        _empty_strided_cpu as empty_strided,
    )
except ImportError:
    def empty_strided(shape: Any, strides: Any, dtype: Any) -> Any:
        """Return memory of these strides."""
        return torch.empty_strided(shape, strides, dtype=dtype)

KEPT: Final = 1 << 20  # bytes of temporaries that a program keeps between calls


@dataclass(frozen=True)
class ProgramOutput:
    """The memory of an output: dense, allocated at each call.

    Attributes:
        shape, strides: shape and strides of the memory that the program writes.
        view: shape and strides that the result is seen with, if they differ (repeated rows).
        copied: shape and strides of memory that it is copied to (rows with gaps).
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    view: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    copied: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def seen(self, memory: Any) -> Any:
        """Return the result that ``memory`` is shown as."""
        if self.copied is not None:
            return torch.empty_strided(*self.copied, dtype=self.dtype).copy_(memory)
        return memory if self.view is None else memory.as_strided(*self.view)


def result_of(value: Tensor, meta: Meta, dtype: Any) -> tuple[Tensor, ProgramOutput]:
    """Return the tensor to compute, in the order of memory, for a result of layout ``meta``, and its memory."""
    repeated = [n for n in range(value.ndim) if meta.strides[n] == 0 and meta.shape[n] > 1]
    shape, strides = meta.shape, list(meta.strides)
    if repeated:
        value = value.shrink([(0, 1 if n in repeated else s) for n, s in enumerate(shape)])
        shape = value.shape
    view = (meta.shape, meta.strides) if repeated else None
    copied = None
    if not is_dense(shape, strides):
        copied, view = (meta.shape, meta.strides), None
        strides = [0] * len(shape)
    order = memory_order(shape, strides) if copied is None else list(range(len(shape)))
    step = 1
    for n in reversed(order):
        strides[n] = step
        step *= max(shape[n], 1)
    if copied is None and not repeated:
        strides = list(meta.strides)  # also of axes of one element
    if order != list(range(len(order))):
        value = value.permute(order)
    return value, ProgramOutput(shape, tuple(strides), dtype, view, copied)


class TorchProgram:
    """A compiled program.

    Args:
        inputs: placeholders of the inputs, in the order of the addresses.
        outputs: the values to compute, in the order of memory.
        results: the memory of the outputs.

    Attributes:
        kernels: the number of kernels; names: their names.
    """

    def __init__(self, device: str, inputs: Sequence[Buffer], outputs: Sequence[Tensor],
                 results: Sequence[ProgramOutput]) -> None:
        self.device, self.results = device, list(results)
        self.allocations = [(r.shape, r.strides, r.dtype) for r in results]
        self.plain = not any(r.view or r.copied for r in results)
        self.sizes = [(b.size, b.dtype) for b in inputs]
        roots = [root_of(t.uop) for t in outputs]
        data = {n: UOp(Ops.BUFFER, n.dtype, (), copy_from_host(n)) for n in toposort(roots) if is_host_copy(n)}
        roots = substitute(roots, data)
        distinct = list(dict.fromkeys(roots))
        graph, buffers, self.fixed_values = canonical(distinct)
        names = [n.src[0].arg[0] for n in bindings(toposort(distinct))]
        self.draws = names
        self.compiled = compile_graph(graph, device)
        self.bound = bound = self.compiled.bound
        number = {id(b): n for n, b in enumerate(inputs)}
        self.held: list[Buffer] = []  # constants of the program
        sources: list[int] = []
        for node in (buffers[n] for n in bound.inputs):
            if id(node.arg) in number:
                sources.append(number[id(node.arg)])
            else:
                sources.append(-1 - len(self.held))
                self.held.append(node.arg)
        self.sources = sources
        # an output's slot → the first result that lies there; results of one value are copied from it
        places = [bound.results[distinct.index(root)] for root in roots]
        self.first = {place: n for n, place in reversed(list(enumerate(places)))}
        self.same = [(n, self.first[place]) for n, place in enumerate(places) if self.first[place] != n]
        self.order = [self.first[n] for n in range(len(bound.outputs))]
        self.in_order = sources == list(range(len(inputs))) and self.order == list(range(len(results)))
        self.names = [step.name for step in self.compiled.steps]
        self.kernels = len(self.names)
        self.small = sum(size for _, size in bound.blocks) <= KEPT
        self.blocks: list[list[Buffer]] = []
        self.fast = self._fast()

    def _fast(self) -> CPUGraph | None:
        """Return the graph to run on addresses, if the program is one table of commands of the CPU."""
        parts = self.bound.parts
        graph = parts[0].graph if len(parts) == 1 else None
        return graph if isinstance(graph, CPUGraph) and self.bound.queue is None else None

    def _drawn(self) -> list[int]:
        """Return the values of the program's variables: a seed from PyTorch's generator, and the draws' numbers."""
        seed = int(torch.randint(1 << 62, ()).item())
        return [random.rebound(name, value, 0, seed, 0) for name, value in zip(self.draws, self.fixed_values)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results for PyTorch tensors of the layouts that the program was made for."""
        values = self._drawn() if self.draws else ()
        made = [empty_strided(*a) for a in self.allocations]
        if self.fast is None or current().one_by_one:
            self._launch(inputs, made, values)
        else:
            if self.in_order:
                addresses = [t.data_ptr() for t in (*inputs, *made)]
            else:
                held = self.held
                addresses = [inputs[n].data_ptr() if n >= 0 else held[-1 - n].opaque.address for n in self.sources]
                addresses += [made[n].data_ptr() for n in self.order]
            if self.bound.blocks:
                try:
                    blocks = self.blocks.pop()
                except IndexError:  # the first call, or another thread is using them
                    blocks = self.bound.new_blocks()
                addresses += [b.opaque.address + b.offset for b in blocks]
                self.fast.run(addresses, values)
                if self.small:
                    self.blocks.append(blocks)
            else:
                self.fast.run(addresses, values)
            part = self.bound.parts[0]
            GlobalCounters.kernel_count += self.kernels
            GlobalCounters.global_ops += part.ops  # type: ignore[union-attr]
            GlobalCounters.global_mem += part.bytes  # type: ignore[union-attr]
        for n, first in self.same:
            made[n].copy_(made[first])
        return made if self.plain else [r.seen(t) if r.view or r.copied else t for r, t in zip(self.results, made)]

    def _launch(self, inputs: Sequence[Any], made: Sequence[Any], values: Sequence[int]) -> None:
        given = [self._buffer(inputs[n], *self.sizes[n]) if n >= 0 else self.held[-1 - n] for n in self.sources]
        slots = self.bound.outputs
        outputs = [self._buffer(made[n], slots[k].size, slots[k].dtype) for k, n in enumerate(self.order)]
        found: dict[int, Buffer] = dict(zip(self.bound.inputs, given))
        launch(self.bound, [found.get(n, outputs[0]) for n in range(max(found, default=-1) + 1)], outputs,
               values, self.bound.new_blocks())

    def _buffer(self, t: Any, size: int, dtype: Any) -> Buffer:
        return borrowed(self.device, size, dtype, t.data_ptr(), t)
