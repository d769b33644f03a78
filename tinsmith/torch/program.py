"""One compiled program for a part of an FX graph, which runs on addresses of PyTorch's memory."""
from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from tinsmith.backend.memory import Buffer, borrowed
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.settings import current
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import substitute, toposort
from tinsmith.runtime.compiled_schedule import Bound
from tinsmith.runtime.launch import copy_from_host, is_host_copy, launch
from tinsmith.runtime.realize import compile_graph
from tinsmith.schedule.canonical import canonical
from tinsmith.schedule.passes.dynamic_sizes import MOST_ELEMENTS, Refused, checked_size
from tinsmith.schedule.values import SOURCES
from tinsmith.tensor.create import random
from tinsmith.tensor.realize import root_of
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.devices import TorchDevice
from tinsmith.torch.layouts import Meta, is_dense, memory_order, strided
from tinsmith.torch.sizes import NAME, SizeValues, may_be_negative


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
            return torch.empty_strided(*self.copied, dtype=self.dtype, device=memory.device).copy_(memory)
        return memory if self.view is None else memory.as_strided(*self.view)

    def at(self, values: SizeValues) -> ProgramOutput:
        """Return the memory for values of its symbolic sizes."""
        return ProgramOutput(*map(values, (self.shape, self.strides, self.dtype, self.view, self.copied)))


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


def _below_round_trip(value: UOp) -> UOp:
    """Return the value below two permutations that cancel out: a result computed in the order of its memory, which is
    stored without a copy. Other values are returned as they are."""
    inner = value.src[0] if value.op is Ops.PERMUTE else value
    while inner.op in FOR_GRADIENTS:
        inner = inner.src[0]
    cancels = value.op is inner.op is Ops.PERMUTE and inner is not value and all(
        inner.arg[a] == n for n, a in enumerate(value.arg))
    return inner.src[0] if cancels else value


class NewVersion(NamedTuple):
    """The new value of an input.

    Attributes:
        target: the number of the input.
        value: the new value, over the axes of the input.
        meta: the layout of the input, which is dense.
    """

    target: int
    value: UOp
    meta: Meta


def _assigned(roots: Sequence[UOp], written: Sequence[tuple[int, NewVersion, Buffer]]) -> list[UOp]:
    """Return the roots with the values ``written``, at these numbers and in the order of memory, as new versions of
    buffers. What reads such a value reads the new version, which is in memory."""
    found, versions = list(roots), dict[UOp, UOp]()
    place = {n: k for k, n in enumerate(toposort([w.value for _, w, _ in written]))}
    for n, w, memory in sorted(written, key=lambda item: place[item[1].value]):  # a value before what reads it
        old = UOp(Ops.BUFFER, w.value.dtype, (), memory).reshape(roots[n].shape)
        found[n] = new = UOp(Ops.ASSIGN, None, (old, substitute([roots[n]], versions)[0]))
        order = memory_order(w.meta.shape, w.meta.strides)
        if w.value.base.op not in SOURCES:
            versions[w.value] = new if new.shape == w.value.shape and order == list(range(w.value.ndim)) else strided(
                Tensor._wrap(new.reshape((memory.size,)), memory.device), w.meta.shape, w.meta.strides).uop
    numbers, values = {n for n, _, _ in written}, {w.value for _, w, _ in written}
    return [r if n in numbers or r in values else substitute([r], versions)[0] for n, r in enumerate(found)]


class TorchProgram:
    """A compiled program.

    Args:
        device: the device of its inputs and outputs.
        inputs: placeholders of the inputs, in the order of the addresses.
        outputs: the values to compute, in the order of memory.
        results: the memory of the outputs.
        written: for the last outputs, the inputs whose new values they are.

    Attributes:
        inside: (output, input) of new values that the kernels write to the memory of the old ones; all others are
            copied there.
        kernels: the number of kernels; names: their names.
    """

    def __init__(self, device: TorchDevice, inputs: Sequence[Buffer], outputs: Sequence[Tensor],
                 results: Sequence[ProgramOutput], written: Sequence[NewVersion] = ()) -> None:
        self.device = device
        self.count = len(results) - len(written)  # of outputs that a call returns
        self.written = [(n, w.target) for n, w in enumerate(written, self.count)]
        self.sizes = [(b.size, b.dtype) for b in inputs]
        roots = [root_of(_below_round_trip(t.uop)) for t in outputs]
        roots = _assigned(roots, [(n, w, inputs[w.target]) for n, w in enumerate(written, self.count)])
        data = {n: UOp(Ops.BUFFER, n.dtype, (), copy_from_host(n)) for n in toposort(roots) if is_host_copy(n)}
        roots = substitute(roots, data)
        distinct = list(dict.fromkeys(roots))
        graph, buffers, self.fixed_values = canonical(distinct)
        self.variables = bindings(toposort(distinct))
        self.draws = [n.src[0].arg[0] for n in self.variables]
        self.random = any(not name.startswith(NAME) for name in self.draws)
        symbolic = any(name.startswith(NAME) for name in self.draws)
        if symbolic:
            for n in toposort(graph):
                checked_size(n, may_be_negative)
        self.compiled = compile_graph(graph, device.name)
        largest = max((s.size for s in self.compiled.schedule.slots), default=0)
        if symbolic and largest >= MOST_ELEMENTS:
            raise Refused(f"a value could have {largest} elements")
        bound = self.compiled.bound
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
        self.versions = {k: number[id(b.arg)] for k, b in enumerate(buffers) if id(b.arg) in number}
        # an output's slot → the first result that lies there; results of one value are copied from it
        places = [bound.results[distinct.index(root)] for root in roots]
        self.first = {place: n for n, place in reversed(list(enumerate(places)))}
        self.same = [(n, self.first[place]) for n, place in enumerate(places) if self.first[place] != n]
        self.order = [self.first[n] for n in range(len(bound.outputs))]
        self.in_order = sources == list(range(len(inputs))) and self.order == list(range(len(results)))
        self.names = [step.name for step in self.compiled.steps]
        self.kernels = len(self.names)
        self._prepare(bound, results)
        if self.held:
            device.wait()  # the constants are there before another stream reads them

    def _prepare(self, bound: Bound, results: Sequence[ProgramOutput]) -> None:
        """Provide what a call needs for fixed sizes."""
        self.bound, self.results = bound, list(results)
        self.inside = self._in_place(bound)
        mine = {n for n, _ in self.inside}
        self.allocations = [(r.shape, r.strides, r.dtype) for n, r in enumerate(results) if n not in mine]
        self.plain = not any(r.view or r.copied for r in results)
        self.temporaries = self.device.temporaries(bound)
        slots = [bound.slots[n] for n in self.compiled.schedule.inputs.values()]
        self.parts = bound.parts_in_place if self.inside and bound.carried else bound.parts
        self.run = self.device.runner(
            bound, self.parts, [*(s.nbytes for s in (*slots, *bound.outputs)), *(n for _, n in bound.blocks)])

    def _in_place(self, bound: Bound) -> list[tuple[int, int]]:
        """Return (output, input) for each new value that the kernels may write over the old one: all of those that they
        write in parts, or none."""
        chosen = {slot: (self.order[slot], self.versions.get(number, -1)) for slot, number in bound.in_place}
        chosen = {slot: pair for slot, pair in chosen.items() if pair in self.written}
        inside = {bound.outputs[slot].number for slot in chosen}
        return sorted(chosen.values()) if all(new in inside for _, new in bound.carried) else []

    def at(self, values: SizeValues) -> TorchProgram:
        """Return the program for values of its symbolic sizes."""
        found = copy.copy(self)
        found.fixed_values = [values(n) if name.startswith(NAME) else fixed for n, name, fixed in zip(
            self.variables, self.draws, self.fixed_values)]
        found._prepare(self.compiled.bound_for(found.fixed_values), [r.at(values) for r in self.results])
        return found

    def _drawn(self) -> list[int]:
        """Return the values of the program's variables: a seed from PyTorch's generator, and the draws' numbers."""
        seed = self.device.seed()
        return [random.rebound(name, value, 0, seed, 0) for name, value in zip(self.draws, self.fixed_values)]

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results for PyTorch tensors of the layouts that the program was made for."""
        if self.device.is_current():
            return self._run(inputs)
        with self.device.current():
            return self._run(inputs)

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        values, given = self._drawn() if self.random else self.fixed_values, inputs
        made = self._allocated(inputs)
        if self.run is None or current().one_by_one:
            self._launch(inputs, made, values)
        else:
            addresses = self._addresses(inputs, made)
            alignment = self.device.alignment
            if alignment > 1 and functools.reduce(operator.or_, addresses) % alignment:
                inputs = [t if t.data_ptr() % alignment == 0 else _copied(t) for t in inputs]
                made = self._allocated(inputs) if self.inside else made
                addresses = self._addresses(inputs, made)
            if self.bound.blocks:
                owner, more = self.temporaries()
                self.run(addresses + more, values)
                del owner
            else:
                self.run(addresses, values)
            part: Any = self.parts[0]  # the launches
            GlobalCounters.kernel_count += self.kernels
            GlobalCounters.global_ops += part.ops
            GlobalCounters.global_mem += part.bytes
        for n, first in self.same:
            made[n].copy_(made[first])
        if self.written:
            for n, number in self.written:
                if given[number] is not made[n]:
                    given[number].copy_(made[n])
            del made[self.count :]
        return made if self.plain else [r.seen(t) if r.view or r.copied else t for r, t in zip(self.results, made)]

    def _allocated(self, inputs: Sequence[Any]) -> list[Any]:
        """Return memory for the outputs; that of an input for its new value, if that may be written there."""
        made = self.device.allocate(self.allocations)
        for n, number in self.inside:  # by ascending number of the output
            made.insert(n, inputs[number])
        return made

    def _addresses(self, inputs: Sequence[Any], made: Sequence[Any]) -> list[int]:
        """Return the addresses of the inputs and outputs, in the order of the bases."""
        if self.in_order:
            return [_address(t) for t in (*inputs, *made)]
        held = self.held
        found = [_address(inputs[n]) if n >= 0 else held[-1 - n].opaque.address for n in self.sources]
        return found + [_address(made[n]) for n in self.order]

    def _launch(self, inputs: Sequence[Any], made: Sequence[Any], values: Sequence[int]) -> None:
        """Run step by step, on our own stream: for timing and checks."""
        given = [self._buffer(inputs[n], *self.sizes[n]) if n >= 0 else self.held[-1 - n] for n in self.sources]
        slots = self.bound.outputs
        found: dict[int, Buffer] = dict(zip(self.bound.inputs, given))
        memory = {id(inputs[n]): b for n, b in zip(self.sources, given) if n >= 0}  # new values may be written there
        outputs = [memory.get(id(made[n])) or self._buffer(made[n], slots[k].size, slots[k].dtype)
                   for k, n in enumerate(self.order)]
        self.device.wait()
        launch(self.bound, [found.get(n, outputs[0]) for n in range(max(found, default=-1) + 1)], outputs,
               values, self.bound.new_blocks())
        self.device.wait()

    def _buffer(self, t: Any, size: int, dtype: Any) -> Buffer:
        return borrowed(self.device.name, size, dtype, t.data_ptr(), t)


_address: Final[Callable[[Any], int]] = torch.Tensor.data_ptr  # a third faster than the method of each tensor


def _copied(t: Any) -> Any:
    """Return a copy with the same strides, in memory of its own."""
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    flat = t.as_strided((span,), (1,)).clone()
    return flat.as_strided(t.shape, t.stride(), 0)
