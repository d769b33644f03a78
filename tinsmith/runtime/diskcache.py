"""Whole lowered programs on disk: a second process schedules, lowers and compiles nothing.

An entry is found by the content of the graph, everything that decides what the graph becomes (settings, targets,
compilers, our own sources), and nothing else: no ids, no lines, no bound values. It holds data: a JSON header with
slots, memory plan, launch data and steps, and the kernels' binaries. Whatever is odd about an entry, or about a node
that has no encoding, means that the program is made anew.
"""
from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import Layout
from tinsmith.codegen.launch import Launch
from tinsmith.core.cache import cache_get, cache_key, cache_put
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import TinsmithError
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.ir.uop import Origin, Window, toposort
from tinsmith.runtime.compiled import CompiledSchedule, is_loaded, load, loaded
from tinsmith.runtime.step import Step
from tinsmith.schedule.canonical import BufferName, part_names
from tinsmith.schedule.items import Schedule, Slot
from tinsmith.schedule.planner import Plan

_KIND = "program"
_IMPORTED = time.time()


class Unkeyable(Exception):
    """Something has no encoding that means the same in every process."""


# *** keys ***


def entry_key(graph: Sequence[UOp], device: str, spared: tuple[int, ...] = ()) -> str | None:
    """Where the program of a canonical graph lies on disk; None where it cannot be kept there.

    Args:
        graph: roots, as ``canonical`` gives them.
        device: where kernels without any buffer run.
        spared: numbers of inputs whose memory new versions may take, where that makes a difference.
    """
    sources = source_hash()
    if not settings.CACHELEVEL or not sources:
        return None
    try:
        text = encode(graph)
        devices = {device, *(n.device for n in toposort(graph) if n.op in (Ops.COPY, Ops.BUFFER, Ops.SHARD))}
        single = sorted({name for group in devices if group is not None for name in members(group)})
        targets = [f"{name}:{_device_key(name)}" for name in single]
        options = _value((device, settings.program_key, spared))
    except (Unkeyable, TinsmithError):
        return None
    versions = f"{sys.implementation.cache_tag} {sys.platform} {np.__version__}"
    return cache_key(text, options, versions, sources, *targets)


def _device_key(name: str) -> str:
    opened = Device[name]
    if not opened.has_programs:
        return ""
    compiler = opened.compiler.key()
    if compiler is None or opened.runs_on is not opened:
        raise Unkeyable(name)
    return f"{opened.renderer.key()} {compiler}"


@functools.cache
def source_hash() -> str:
    """A hash of this package's source files.

    Empty where there are none to read, or if one was changed since this process began: what it runs is another one.
    """
    top = Path(__file__).parents[1]
    files = sorted(top.rglob("*.py"))
    h = hashlib.sha256()
    try:
        for path in files:
            if path.stat().st_mtime > _IMPORTED - 1:
                return ""
            data = path.read_bytes()
            h.update(f"{path.relative_to(top).as_posix()} {len(data)}\n".encode())
            h.update(data)
    except OSError:
        return ""
    return h.hexdigest() if files else ""


def encode(graph: Sequence[UOp]) -> str:
    """A graph as text, a line per node, the same in every process and different for different graphs.

    >>> print(encode([UOp.const(dtypes.int32, 2) + 1]), end="")
    CONST int32 1 0;;i2
    CONST int32 1 0;;i1
    ADD int32 1 0;0,1;n
    roots 2

    Raises:
        Unkeyable: for an argument of a type that has no encoding.
    """
    numbers: dict[UOp, int] = {}
    lines: list[str] = []

    def number(node: UOp) -> int:
        """The node's number; nodes that only occur in arguments (symbolic sizes) are written when they come up."""
        if node not in numbers:
            for n in toposort(node, lambda x: x not in numbers):
                d, src = n.dtype, ",".join([str(numbers[s]) for s in n.src])
                text = f"{n.op.name} {d.name} {d.count} {d.pointer:d};{src};{_value(n.arg, number)}\n"
                numbers[n] = len(lines)
                lines.append(text)
        return numbers[node]

    roots = ",".join([str(number(r)) for r in graph])
    return "".join([*lines, f"roots {roots}\n"])


def _value(value: Any, number: Callable[[UOp], int] | None = None) -> str:
    """An argument: a letter for its type, then its content; what has no fixed length ends with a mark or names it."""
    kind = type(value)
    if value is None:
        return "n"
    if kind is bool:
        return "t" if value else "f"
    if kind is int:
        return f"i{value}"
    if kind is float:
        return f"r{value.hex()}"
    if kind is str:
        return f"s{len(value)}:{value}"
    if kind is tuple:
        return f"({','.join([_value(v, number) for v in value])})"
    if isinstance(value, UOp) and number is not None:
        return f"u{number(value)}"
    if kind is Op:
        return f"o{value.name}"
    if kind is DType:
        return f"d{value.name} {value.count} {value.pointer:d}"
    if kind is Window or kind is BufferName:
        return f"{kind.__name__}{_value(astuple(value))}"
    raise Unkeyable(f"{kind.__name__} in an argument")


# *** storing ***


Places = dict[Origin, tuple[int, int]]


def store(key: str, places: Places, compiled: CompiledSchedule) -> None:
    """Write a program that was just compiled. Its steps' origins are stored as ``places`` in the graph."""
    numbers: dict[tuple[str, str], int] = {}
    kernels: list[dict[str, Any]] = []
    binaries: list[bytes] = []
    steps: list[Any] = []
    for step in compiled.steps:
        origin = [places[o] for o in step.origin if o in places]
        if step.program is None or step.launch is None:
            steps.append([step.device, None, step.slots, [], origin, ""])
            continue
        place = step.device, step.launch.symbol
        if place not in numbers:
            numbers[place] = len(kernels)
            fields = {name: getattr(step.launch, name) for name in _LAUNCH}
            kernels.append({"device": step.device, "size": len(step.program.binary), **fields,
                            "written": sorted(step.launch.written)})
            binaries.append(step.program.binary)
        steps.append([step.device, numbers[place], step.slots, step.variables, origin, step.name])
    schedule, plan = compiled.schedule, compiled.plan
    header = json.dumps({
        "key": key,
        "slots": [[s.size, s.dtype.name, s.device, s.input, s.output, s.may_be_empty] for s in schedule.slots],
        "inputs": list(schedule.inputs.items()), "outputs": schedule.outputs,
        "in_place": list(compiled.in_place.items()),
        "offsets": list(plan.offsets.items()), "sizes": plan.sizes,
        "layouts": [None if x is None else astuple(x) for x in compiled.layouts],
        "kernels": kernels, "steps": steps}).encode()
    cache_put(_KIND, key, b"".join([len(header).to_bytes(8, "little"), header, *binaries]))


_LAUNCH = tuple(Launch.__dataclass_fields__)


def places_of(graph: Sequence[UOp]) -> Places:
    """Where each origin is found in a graph: another process looks its own lines up there.

    To be called before lowering, which gives origins to nodes that it shares with the graph.
    """
    return {o: (number, n) for number, node in reversed(list(enumerate(toposort(graph))))
            if node.op is not Ops.CONST for n, o in reversed(list(enumerate(node.origin)))}


# *** loading ***


def fetch(key: str, graph: Sequence[UOp]) -> CompiledSchedule | None:
    """The stored program, loaded; None if there is none or anything about it is odd."""
    data = cache_get(_KIND, key)
    if data is None:
        return None
    try:
        return _Reader(key, graph, data).compiled()
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration, TinsmithError):
        return None


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError("no entry of this version")


class _Reader:
    """Reads one entry, checking that every number in it means something."""

    def __init__(self, key: str, graph: Sequence[UOp], data: bytes) -> None:
        end = 8 + int.from_bytes(data[:8], "little")
        self.header: dict[str, Any] = json.loads(data[8:end])
        _require(self.header["key"] == key)
        self.nodes = toposort(graph)
        self.binaries = data[end:]

    def compiled(self) -> CompiledSchedule:
        schedule = self.schedule()
        launches = self.launches()
        steps = [self.step(row, schedule, launches) for row in self.header["steps"]]
        made = {s for step in steps for s in step.slots} | set(schedule.inputs.values())
        _require(made.issuperset(schedule.outputs))
        in_place = dict(_pairs(self.header["in_place"]))
        inputs = self.inputs()
        for slot, number in in_place.items():
            _require(schedule.slots[slot].output and number in inputs)
            _require(_same(schedule.slots[slot], inputs[number]))
        return CompiledSchedule(schedule, self.plan(schedule), steps, in_place, self.layouts(schedule))

    def inputs(self) -> dict[int, tuple[int, DType, str]]:
        """The size, dtype and device of each numbered buffer, those over several devices part by part."""
        return {part.number: (part.size, n.dtype, part.device)
                for n in self.nodes if n.op is Ops.BUFFER for part in part_names(n.arg)}

    def layouts(self, schedule: Schedule) -> list[Layout | None]:
        found: list[Layout | None] = []
        outputs = iter(schedule.slots[n] for n in schedule.outputs)
        for row in self.header["layouts"]:
            if row is None:
                next(outputs)
                found.append(None)
                continue
            devices, shape, axis, bounds = row
            layout = Layout(tuple(map(_text, devices)), tuple(map(_count, shape)),
                            None if axis is None else _count(axis, len(shape)), tuple(map(_count, bounds)))
            _require(axis is None or len(bounds) == len(devices) + 1)
            for n, device in enumerate(layout.devices):
                slot = next(outputs)
                _require((slot.size, slot.device) == (math.prod(layout.part_shape(n)), device))
            found.append(layout)
        _require(not found or next(outputs, None) is None)
        return found

    def schedule(self) -> Schedule:
        slots = [Slot(n, _count(size), getattr(dtypes, dtype), _text(device), bool(given), bool(output), bool(empty))
                 for n, (size, dtype, device, given, output, empty) in enumerate(self.header["slots"])]
        inputs = dict(_pairs(self.header["inputs"]))
        known = self.inputs()
        for number, slot in inputs.items():
            _require(slots[slot].input and _same(slots[slot], known[number]))
        _require(len(inputs) == sum(s.input for s in slots))
        outputs = [_count(n, len(slots)) for n in self.header["outputs"]]
        return Schedule([], slots, inputs, outputs, {})

    def plan(self, schedule: Schedule) -> Plan:
        sizes = {_text(d): _count(n) for d, n in self.header["sizes"].items()}
        plan = Plan(dict(_pairs(self.header["offsets"])), sizes)
        for number, offset in plan.offsets.items():
            slot = schedule.slots[number]
            _require(offset + slot.size * slot.dtype.itemsize <= plan.sizes[slot.device])
        return plan

    def launches(self) -> list[Launch]:
        """Launch data of the kernels, which are loaded now, one batch per device."""
        found: list[Launch] = []
        batches: dict[str, list[tuple[Launch, bytes]]] = {}
        at = 0
        for row in self.header["kernels"]:
            fields = {name: row[name] for name in _LAUNCH}
            launch = Launch(**fields | {"written": frozenset(_count(n) for n in row["written"])})
            _require(all(type(n) is int for n in (*launch.buffers, launch.ops, launch.bytes, launch.local_bytes)))
            _require(type(launch.serial) is bool and all(type(n) is int for n in (*launch.grid, *launch.block)))
            _require(all(type(n) is int for m in launch.maps for n in (*m[:2], *itertools.chain(*m[3:]))))
            _require(all(type(m[2]) is str for m in launch.maps))
            _require(type(launch.unit) is str)
            binary = self.binaries[at : at + _count(row["size"])]
            at += row["size"]
            if not is_loaded(row["device"], launch):
                batches.setdefault(row["device"], []).append((launch, binary))
            found.append(launch)
        _require(at == len(self.binaries))
        for device, kernels in batches.items():
            load(device, kernels)
        return found

    def step(self, row: Any, schedule: Schedule, launches: list[Launch]) -> Step:
        device, kernel, slots, variables, places, name = row
        slots = [_count(s, len(schedule.slots)) for s in slots]
        origin = [self.nodes[_count(n)].origin for n, _ in places]
        lines = list(dict.fromkeys(o[k] for o, (_, k) in zip(origin, places) if k < len(o)))
        if kernel is None:
            target, source = (schedule.slots[s] for s in slots)
            _require((target.size, target.dtype) == (source.size, source.dtype))
            return Step(_text(device), None, slots, [], lines)
        launch = launches[_count(kernel)]
        _require(len(slots) == len(launch.buffers) and len(variables) == len(launch.variables))
        values = [_count(v) for v in variables]
        return Step(_text(device), loaded(device, launch), slots, values, lines, _text(name), launch)


def _pairs(rows: Any) -> Iterator[tuple[int, int]]:
    return ((_count(a), _count(b)) for a, b in rows)


def _count(value: Any, end: int = 1 << 62) -> int:
    """A whole number in [0, end)."""
    if type(value) is int and 0 <= value < end:
        return value
    raise ValueError("no entry of this version")


def _text(value: Any) -> str:
    _require(type(value) is str)
    return str(value)


def _same(slot: Slot, buffer: tuple[int, DType, str]) -> bool:
    return (slot.size, slot.dtype, slot.device) == buffer
