"""An FX graph, compiled for fixed sizes: programs, ops of PyTorch and views, run in order on registers."""
from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tinsmith.core.settings import Context
from tinsmith.torch.devices import TorchDevice, torch_device
from tinsmith.torch.layouts import contiguous, is_readable, tensors_in
from tinsmith.torch.lowering import (
    GraphPart,
    NoRule,
    build,
    device_of,
    is_getitem,
    is_view,
    partition,
    reason_against,
)
from tinsmith.torch.mutation import CopyStep, Mutation, in_place, mutations
from tinsmith.torch.program import TorchProgram
from tinsmith.torch.report import REPORT, Fallback, GraphRecord
from tinsmith.torch.sizes import FixedSizes, SizeValues, VariableSizes


@dataclass(frozen=True)
class Options:
    """Options of the backend.

    Attributes:
        strict: a rule that does not cover its arguments raises its error, instead of leaving the op to PyTorch.
        exact_random: PyTorch draws all random numbers: the same bits as without compilation, at the price of a program
            that ends there.
        exact_rounding: 16-bit floats are rounded after every operation, as PyTorch does without compilation, not only
            where they are stored (the setting ``EXCESS_PRECISION``).
    """

    strict: bool = False
    exact_random: bool = False
    exact_rounding: bool = False


DEFAULT: Final = Options()
META: Final = torch.device("meta")


@dataclass
class ProgramStep:
    """Run a program: input registers, output registers, registers to free.

    Inputs in ``copied`` are copied to dense memory, numbers in ``moved`` to the program's device.
    """

    program: TorchProgram
    inputs: list[int]
    outputs: list[int]
    copied: list[int]
    moved: list[int]
    freed: list[int]

    def __call__(self, env: list[Any]) -> None:
        given = [env[n] for n in self.inputs]
        for n in self.copied:
            given[n] = given[n].contiguous()
        for n in self.moved:
            given[n] = given[n].to(self.program.device.device, non_blocking=True)
        for n, t in zip(self.outputs, self.program(given)):
            env[n] = t
        for n in self.freed:
            env[n] = None

    def at(self, values: SizeValues, known: dict[Any, Any]) -> ProgramStep:
        return replace(self, program=self.program.at(values))


@dataclass
class TorchStep:
    """Run an op by PyTorch."""

    node: Any
    registers: dict[Any, int]
    constants: dict[Any, Any]
    output: int
    freed: list[int]
    entry: Fallback | None = None

    def __call__(self, env: list[Any]) -> None:
        find = lambda n: env[self.registers[n]] if n in self.registers else self.constants[n]  # noqa: E731
        args = torch.fx.node.map_arg(tuple(self.node.args), find)
        kwargs = torch.fx.node.map_arg(dict(self.node.kwargs), find)
        begin = _now()
        env[self.output] = self.node.target(*args, **kwargs)
        if self.entry is not None:
            self.entry.calls += 1
            self.entry.seconds += _now() - begin
        for n in self.freed:
            env[n] = None

    def at(self, values: SizeValues, known: dict[Any, Any]) -> TorchStep:
        return replace(self, constants=known)


def _now() -> float:
    """Return the time; after the GPU's work so far, if the report asks for that."""
    if REPORT.waits and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass
class ViewStep:
    """A result that is a view of another: shape, strides, and offset from the other's first element."""

    source: int
    output: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def __call__(self, env: list[Any]) -> None:
        source = env[self.source]
        env[self.output] = source.as_strided(self.shape, self.strides, source.storage_offset() + self.offset)

    def at(self, values: SizeValues, known: dict[Any, Any]) -> ViewStep:
        return replace(self, shape=values(self.shape), strides=values(self.strides), offset=values(self.offset))


class Executable:
    """A graph compiled for fixed sizes, or for sizes that depend on variables (``at``).

    Args:
        module: the FX graph module.
        values: node → fake tensor, tuple of them, or number, for the current sizes.
        record: the graph's entry of the report.
        options: the options of the backend.
        devices: from PyTorch's device to ours.
        sizes: the sizes as expressions of variables; None: those in ``values``.
        refused: nodes that PyTorch must run, with the reasons.
        free: nodes whose tensors may lie in another order than PyTorch's: only another graph of ours reads them.

    Attributes:
        strides: those of ``free`` that do, with their strides.
    """

    def __init__(self, module: Any, values: Mapping[Any, Any], record: GraphRecord, options: Options = DEFAULT,
                 devices: Callable[[Any], TorchDevice] = torch_device, sizes: VariableSizes | None = None,
                 refused: Mapping[Any, str] | None = None, free: Collection[Any] = ()) -> None:
        self.free, self.strides = free, dict[Any, tuple[int, ...]]()
        self.values, self.record, self.options, self.devices = values, record, options, devices
        self.sizes = FixedSizes(values) if sizes is None else sizes
        nodes = list(module.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.result = next(n for n in nodes if n.op == "output").args[0]
        self.constants = {n: _attribute(module, n.target) for n in nodes if n.op == "get_attr"}
        self.written = written = mutations(nodes, values)
        computed = [n for n in nodes if n.op == "call_function" and n not in written and not isinstance(
            values[n], (int, float, bool, torch.SymInt))]
        tensors = {*computed, *written}
        self.numbers = {n: values[n] for n in nodes if n.op == "call_function" and n not in tensors}
        self.reasons = {n: None if is_getitem(n) else reason_against(n, values, options.exact_random, devices)
                        for n in computed}
        self.reasons |= refused or {}
        self.known = {**self.constants, **self.numbers}
        self.registers: dict[Any, int] = {n: k for k, n in enumerate((*self.placeholders, *(
            n for n, v in self.constants.items() if isinstance(v, torch.Tensor))))}
        self.held = [self.constants[n] for n in self.registers if n in self.constants]
        self.steps: list[Any] = []
        self._build(computed)
        self.size = len(self.registers)
        self.outputs = [self.registers.get(n, -1) for n in self._returned()]
        self.fixed = [None if n in self.registers else self.numbers.get(n, n) for n in self._returned()]
        if self.steps and isinstance(self.steps[-1], _FreeStep):
            self.steps.pop()  # the registers die with the call
        step = self.steps[0] if len(self.steps) == 1 else None
        self.direct = isinstance(step, ProgramStep) and not (step.copied or step.moved or self.held) and (
            step.inputs == list(range(len(self.placeholders))) and step.outputs == self.outputs)

    def _returned(self) -> list[Any]:
        """Return the nodes of the results; an argument with its new value is that argument."""
        found = self.result if isinstance(self.result, (tuple, list)) else [self.result]
        return [self.written[n].target if n in self.written else n for n in found]

    def _ours(self, node: Any) -> bool:
        return self.reasons[node.args[0] if is_getitem(node) and node.args[0] in self.reasons else node] is None

    def _build(self, computed: Sequence[Any]) -> None:
        """Make the steps; an op whose rule turns out not to cover its arguments is left to PyTorch."""
        registers = dict(self.registers)
        while True:
            parts = partition(computed, self._ours, lambda n: device_of(n, self.values))
            try:
                self._build_parts(parts)
            except NoRule as error:
                if self.options.strict or self.sizes.symbolic:
                    raise
                self.reasons[error.node] = error.reason
                self.registers, self.steps, self.strides = dict(registers), [], {}
                continue
            break
        for step in self.steps:
            if isinstance(step, TorchStep) and not is_getitem(step.node):
                step.entry = REPORT.fallback(str(step.node.target), self.reasons[step.node] or "")
        ops = [n for n in computed if not is_getitem(n)]
        programs = [s.program for s in self.steps if isinstance(s, ProgramStep)]
        self.record.ops, self.record.ours = len(ops), sum(self.reasons[n] is None for n in ops)
        self.record.programs, self.record.kernels = len(programs), sum(p.kernels for p in programs)
        self.record.names = [name for p in programs for name in p.names]

    def _build_parts(self, parts: Sequence[GraphPart]) -> None:
        last = self._last_uses(parts)
        written = in_place(self.written, parts, self.values, self.sizes)
        copied = [m for m in self.written.values() if not any(m in found for found in written.values())]
        last |= {m.target: max(number, last.get(m.target, 0)) for number, found in written.items() for m in found}
        last |= {n: len(parts) for m in copied for n in m}
        for number, part in enumerate(parts):
            if part.ours:
                self._add_program(part, number, last, written.get(number, []))
                continue
            for n in part.nodes:
                self.steps.append(TorchStep(n, self.registers, self.known, self._register(n), []))
            self.steps[-1].freed += self._freed(number, last)
        self.steps += [CopyStep(self.registers[m.target], self.registers[m.source]) for m in copied]

    def _register(self, node: Any) -> int:
        return self.registers.setdefault(node, len(self.registers))

    def _last_uses(self, parts: Sequence[GraphPart]) -> dict[Any, int]:
        """Return node → number of the last part that reads it; the number of parts for results."""
        last: dict[Any, int] = {}
        for number, part in enumerate(parts):
            for n in part.nodes:
                for i in n.all_input_nodes:
                    last[i] = number
        for n in self._returned():
            last[n] = len(parts)
        return last

    def _freed(self, number: int, last: Mapping[Any, int]) -> list[int]:
        return [r for n, r in self.registers.items() if last.get(n, -1) == number and n not in self.constants]

    def _add_program(self, part: GraphPart, number: int, last: Mapping[Any, int], written: Sequence[Mutation]) -> None:
        mine = set(part.nodes)
        wanted = [n for n in part.nodes if last.get(n, -1) > number and tensors_in(self.values[n])
                  and not isinstance(self.values[n], (tuple, list))]
        wanted, views = self._views(wanted, set(part.nodes))
        made = [n for n in wanted if n not in views]
        metas = {n: self.sizes.meta(n) for n in made}
        empty = [n for n in made if metas[n].size == 0]
        outputs = [n for n in made if n not in empty]
        if outputs or written:
            nodes = _needed(part.nodes, [*outputs, *(m.source for m in written)])
            read = [*(i for n in nodes for i in n.all_input_nodes if i not in mine), *(m.target for m in written)]
            inputs = {i: self.sizes.meta(i) for i in read if tensors_in(self.values[i])}
            copied = []
            for k, (n, meta) in enumerate(inputs.items()):
                if not is_readable(meta):
                    inputs[n] = contiguous(meta)
                    copied.append(k)
            moved = [k for k, n in enumerate(inputs) if self.values[n].device not in (part.device, META)]
            with Context(EXCESS_PRECISION=int(not self.options.exact_rounding)):
                program = build(nodes, inputs, outputs, self.values, self.sizes, self.devices(part.device),
                                self._free_outputs(outputs, mine, set(views.values())), written)
            self.strides |= {n: r.strides for n, r in zip(outputs, program.results)
                             if n in self.free and r.strides != metas[n].strides}
            self.steps.append(ProgramStep(program, [self.registers[n] for n in inputs],
                                          [self._register(n) for n in outputs], copied, moved, []))
        for n in empty:
            self.steps.append(_EmptyStep(self._register(n), metas[n].shape, metas[n].strides, self.values[n].dtype,
                                         part.device))
        for n, source in views.items():
            view = self.sizes.meta(n)
            self.steps.append(ViewStep(self.registers[source], self._register(n), view.shape, view.strides,
                                       self.sizes.offset(n) - self.sizes.offset(source)))
        freed = self._freed(number, last)
        if freed:
            self.steps.append(_FreeStep(freed))

    def _free_outputs(self, outputs: Sequence[Any], mine: set[Any], viewed: set[Any]) -> set[Any]:
        """Return the outputs of a part that may be stored in any order: no view or op outside reads them."""
        return set() if self.sizes.symbolic else {n for n in outputs if n in self.free and n not in viewed and all(
            u in mine or u.op == "output" for u in n.users)}

    def _views(self, wanted: Sequence[Any], mine: set[Any]) -> tuple[list[Any], dict[Any, Any]]:
        """Return the nodes that need memory, and (view → the node whose memory it shares) among them.

        A value inside the part is stored itself if needed views cover it completely, so that no kernel copies it into
        the order of a view; unless the only view may be stored in any order.
        """
        found = {n: self._source(n, mine) for n in wanted}
        count = Counter(found.values())
        found |= {n: n for n, s in found.items() if n in self.free and s in mine and s not in found and count[s] == 1}
        seen: dict[Any, int] = {}
        for n, source in found.items():
            if source is not n and isinstance(self.values[source], torch.Tensor):
                seen[source] = seen.get(source, 0) + self.values[n].numel()
        extra = [s for s, count in seen.items() if s in mine and s not in found and count >= self.values[s].numel()]
        views = {n: source for n, source in found.items() if source in seen and source is not n and (
            source not in mine or source in found or source in extra) and self._same_storage(n, source)}
        return [*wanted, *extra], views

    def _source(self, node: Any, mine: set[Any]) -> Any:
        """Return the node below a chain of views in a part; it may be an input of the part."""
        while node in mine:
            inner = node.args[0] if is_getitem(node) else node
            if not is_view(inner):
                break
            node = inner.args[0]
        return node

    def _same_storage(self, node: Any, source: Any) -> bool:
        """Return True if a view and the node below it are strided and of one dtype, so that offsets are comparable."""
        a, b = self.values[node], self.values[source]
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and b.layout is torch.strided

    def at(self, given: Sequence[int]) -> Executable:
        """Return the executable for values of the symbols of its sizes."""
        assert isinstance(self.sizes, VariableSizes)
        values, symbolic = self.sizes.at(given), self.sizes.values
        found = copy.copy(self)
        found.numbers = {n: values.number(symbolic[n]) for n in self.numbers}
        found.known = {**self.constants, **found.numbers}
        found.steps = [step.at(values, found.known) for step in self.steps]
        found.fixed = [found.numbers.get(n, old) for n, old in zip(self._returned(), self.fixed)]
        return found

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Return the results for the tensors and numbers ``args``."""
        if self.direct:
            given = list(args)
            if isinstance(args, list):
                args.clear()
            made: list[Any] = self.steps[0].program(given)
            return made
        env = [*args, *self.held, *([None] * (self.size - len(args) - len(self.held)))]
        if isinstance(args, list):
            args.clear()  # boxed: activations die as soon as they are used
        for step in self.steps:
            step(env)
        return [env[r] if r >= 0 else fixed for r, fixed in zip(self.outputs, self.fixed)]


@dataclass
class _EmptyStep:
    """A result without elements."""

    output: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any

    def __call__(self, env: list[Any]) -> None:
        env[self.output] = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)

    def at(self, values: SizeValues, known: dict[Any, Any]) -> _EmptyStep:
        return replace(self, shape=values(self.shape), strides=values(self.strides))


class _FreeStep:
    """A step that frees registers after their last use."""

    def __init__(self, freed: list[int]) -> None:
        self.freed = freed

    def __call__(self, env: list[Any]) -> None:
        for n in self.freed:
            env[n] = None

    def at(self, values: SizeValues, known: dict[Any, Any]) -> _FreeStep:
        return self


def _needed(nodes: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """Return the nodes that the outputs depend on, in order."""
    needed = set(outputs)
    for n in reversed(nodes):
        if n in needed:
            needed.update(n.all_input_nodes)
    return [n for n in nodes if n in needed]


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
