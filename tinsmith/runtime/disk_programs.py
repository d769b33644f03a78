"""Disk cache of lowered programs: a second process schedules, lowers and compiles nothing.

The cache key hashes the content of the graph and everything that determines the program (settings, targets, compilers,
our own sources), and nothing else: no ids, no source lines, no bound values. An entry is data: a JSON header with
slots, memory plan, launch data and steps, and the kernels' binaries. A hash over key and header (the seal) proves that
``store`` of these sources wrote the entry for this graph, so its content needs no other check. If the seal does not
match, or a node has no encoding, the program is compiled again.
"""
from __future__ import annotations

import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import ShardLayout
from tinsmith.codegen.launch import Launch
from tinsmith.core.disk_cache import cache_get, cache_key, cache_put
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import TinsmithError
from tinsmith.core.settings import settings
from tinsmith.core.timeline import COMPILING, phase
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.ir.uop import Origin, Window, toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule, is_loaded, load, loaded
from tinsmith.runtime.step import Step
from tinsmith.schedule.canonical import BufferName
from tinsmith.schedule.memory.memory_plan import MemoryPlan
from tinsmith.schedule.schedule_item import Schedule, Slot

_KIND = "program"
_LAUNCH = tuple(Launch.__dataclass_fields__)
_IMPORTED = time.time()
# types whose repr is unambiguous and the same in every process
_WRITTEN = (type(None), bool, int, float, str, Op, DType, Window, BufferName)


class Unkeyable(Exception):
    """A value has no encoding that is the same in every process."""


# *** keys ***


def entry_key(graph: Sequence[UOp], device: str, spared: tuple[int, ...] = ()) -> str | None:
    """Return the cache key of the program of a canonical graph; None if it cannot be cached.

    Args:
        graph: the roots of a canonical graph (``canonical``).
        device: the device of kernels without buffers.
        spared: numbers of inputs whose memory new versions may overwrite; () unless there is a memory budget.
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
    """Return a hash of this package's source files.

    Empty if they cannot be read, or if one changed after this process started, since it then runs other code.
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
    """Return a graph as text, one line per node: the same in every process, and different for different graphs.

    >>> print(encode([UOp.const(dtypes.int32, 2) + 1]), end="")
    CONST dtypes.int;;2
    CONST dtypes.int;;1
    ADD dtypes.int;0,1;None
    roots 2

    Raises:
        Unkeyable: for an argument of a type that has no encoding.
    """
    numbers: dict[UOp, int] = {}
    lines: list[str] = []

    def number(node: UOp) -> int:
        """Return the node's number; nodes that occur only in arguments (symbolic sizes) are
        written at their first use."""
        if node not in numbers:
            for n in toposort(node, lambda x: x not in numbers):
                src = ",".join([str(numbers[s]) for s in n.src])
                text = f"{n.op.name} {n.dtype!r};{src};{_value(n.arg, number)}\n"
                numbers[n] = len(lines)
                lines.append(text)
        return numbers[node]

    roots = ",".join([str(number(r)) for r in graph])
    return "".join([*lines, f"roots {roots}\n"])


def _value(value: Any, number: Callable[[UOp], int] | None = None) -> str:
    """Return the text of an argument: a node as its number, a tuple recursively, other values as their repr."""
    kind = type(value)
    if kind is tuple:
        return f"({','.join([_value(v, number) for v in value])})"
    if isinstance(value, UOp) and number is not None:
        return f"u{number(value)}"
    if kind in _WRITTEN:
        return repr(value)
    raise Unkeyable(f"{kind.__name__} in an argument")


# *** storing ***


Places = dict[Origin, tuple[int, int]]


def places_of(graph: Sequence[UOp]) -> Places:
    """Return origin → (node number, index) in a graph. Another process looks up its own source lines at these
    positions.

    Call this before lowering, which adds origins to nodes of the graph.
    """
    return {o: (number, n) for number, node in reversed(list(enumerate(toposort(graph))))
            if node.op is not Ops.CONST for n, o in reversed(list(enumerate(node.origin)))}


def store(key: str, places: Places, compiled: CompiledSchedule) -> None:
    """Write a newly compiled program to the cache; the origins of its steps are stored as ``places`` in the graph."""
    numbers: dict[tuple[str, str], int] = {}
    kernels: list[Any] = []
    binaries: list[bytes] = []
    steps: list[Any] = []
    for step in compiled.steps:
        number, kernel = None, step.launch
        if step.program is not None and kernel is not None:
            number = numbers.setdefault((step.device, kernel.symbol), len(kernels))
            if number == len(kernels):
                fields = {name: getattr(kernel, name) for name in _LAUNCH} | {"written": sorted(kernel.written)}
                kernels.append({"device": step.device, "size": len(step.program.binary), **fields})
                binaries.append(step.program.binary)
        origin = [places[o] for o in step.origin if o in places]
        steps.append([step.device, number, step.slots, step.variables, origin, step.name, step.carries])
    schedule, plan = compiled.schedule, compiled.plan
    header = json.dumps({
        "slots": [[s.size, s.dtype.name, s.device, s.input, s.output, s.may_be_empty, s.in_parts, s.terms]
                  for s in schedule.slots],
        "inputs": list(schedule.inputs.items()), "outputs": schedule.outputs,
        "in_place": list(compiled.in_place.items()), "offsets": list(plan.offsets.items()), "sizes": plan.sizes,
        "layouts": [None if x is None else astuple(x) for x in compiled.layouts],
        "kernels": kernels, "steps": steps}).encode()
    cache_put(_KIND, key, b"".join([len(header).to_bytes(8, "little"), header, _seal(key, header), *binaries]))


def _seal(key: str, header: bytes) -> bytes:
    return hashlib.sha256(key.encode() + header).digest()


# *** loading ***


def fetch(key: str, graph: Sequence[UOp]) -> CompiledSchedule | None:
    """Return the cached program, loaded; None if there is no valid entry, or if a program cannot be loaded."""
    data = cache_get(_KIND, key)
    if data is None:
        return None
    end = 8 + int.from_bytes(data[:8], "little")
    if data[end : end + 32] != _seal(key, data[8:end]):
        return None
    header = json.loads(data[8:end])
    try:
        with phase(COMPILING):
            kernels = _loaded(header["kernels"], data[end + 32 :])
    except TinsmithError:
        return None
    slots = [Slot(n, size, getattr(dtypes, dtype), *rest) for n, (size, dtype, *rest) in enumerate(header["slots"])]
    schedule = Schedule([], slots, dict(header["inputs"]), header["outputs"], {})
    nodes = toposort(graph)
    steps = []
    for device, number, of, variables, places, name, carries in header["steps"]:
        origin = list(dict.fromkeys(o[k] for n, k in places if k < len(o := nodes[n].origin)))
        kernel = None if number is None else kernels[number]
        steps.append(Step(device, kernel and loaded(device, kernel), of, variables, origin, name, kernel,
                          carries=carries))
    layouts = [row and ShardLayout(tuple(row[0]), tuple(row[1]), row[2], tuple(row[3])) for row in header["layouts"]]
    return CompiledSchedule(schedule, MemoryPlan(dict(header["offsets"]), header["sizes"]), steps,
                            dict(header["in_place"]), layouts, places=[row[4] for row in header["steps"]])


def _loaded(rows: Sequence[Any], binaries: bytes) -> list[Launch]:
    """Return launch data of the kernels after loading their programs, one batch per device."""
    found: list[Launch] = []
    batches: dict[str, list[tuple[Launch, bytes]]] = {}
    at = 0
    for row in rows:
        device, size = row.pop("device"), row.pop("size")
        launch = Launch(**row | {"written": frozenset(row["written"])})
        if not is_loaded(device, launch):
            batches.setdefault(device, []).append((launch, binaries[at : at + size]))
        at += size
        found.append(launch)
    for device, kernels in batches.items():
        load(device, kernels)
    return found
