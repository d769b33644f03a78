"""The database of search results, and opts given by hand.

The database is a text file with one JSON object per line: a kernel, rendered for a target on a machine, took this time
with these opts. Of lines with the same key the fastest is used, in any order, so files of several machines are merged
by concatenation. ``with_opts`` runs one kernel of a program under a list of opts given by the user.
"""
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import begin, compile_kernel
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.render.gpu import GPURenderer
from tinsmith.core.cache_security import data_dir
from tinsmith.core.disk_cache import replace_file
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import settings
from tinsmith.core.suggestions import missing_attribute
from tinsmith.inspect.debug import READABLE, opts_text
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import value_of_size
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.ops.op import Array
from tinsmith.ir.structure import Axis, range_size
from tinsmith.ir.text.printer import uop_table
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import run
from tinsmith.runtime.lowering import lower, planned
from tinsmith.schedule.canonical import canonical

_PLAIN = vars(Opt(OptOps.NOLOCALS))  # default values of an opt's fields, which are not written


@dataclass(frozen=True)
class SearchResult:
    """One result of a search.

    Attributes:
        kernel: hash of the kernel's graph.
        target: hash of everything else that its source depends on.
        machine: the processor's name.
        name: display name of the kernel with these opts.
        opts: the fastest that was found.
        us, before_us: microseconds with these opts, and with the default opts.
        width: beam width.
    """

    kernel: str
    target: str
    machine: str
    name: str
    opts: tuple[Opt, ...]
    us: float
    before_us: float
    width: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kernel, self.target, self.machine

    def line(self) -> str:
        """Return the entry as a line of text.

        >>> e = SearchResult("k", "t", "m", "E_4", (Opt(OptOps.UPCAST, 0, 4),), 1.5, 2.0, 2)
        >>> '"opts": [{"amt": 4, "axis": 0, "op": "UPCAST"}]' in e.line(), parse(e.line()) == e
        (True, True)
        """
        opts = [{n: v for n, v in vars(o).items() if v != _PLAIN[n]} | {"op": o.op.name} for o in self.opts]
        fields = {**vars(self), "opts": opts}
        return json.dumps(fields, sort_keys=True)


def parse(line: str) -> SearchResult | None:
    """Return the entry in a line; None if it is not valid, such as a partly written last line."""
    try:
        fields: dict[str, Any] = json.loads(line)
        opts = tuple(map(_opt, fields.pop("opts")))
        entry = SearchResult(opts=opts, **fields)
        float(entry.us), float(entry.before_us)
        return entry
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _opt(fields: dict[str, Any]) -> Opt:
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items() if n != "op"}
    return Opt(OptOps[fields["op"]], **values)


def place() -> Path:
    """Return the path of the file: ``BEAM_FILE``, else ``beam.txt`` in the user's data directory."""
    return Path(settings.BEAM_FILE or data_dir() / "beam.txt")


def read(path: Path | None = None) -> dict[tuple[str, str, str], SearchResult]:
    """Return the best entry for each kernel, target and machine; empty if there is no file."""
    try:
        text = (path or place()).read_text("utf-8")
    except OSError:
        return {}
    return best(e for line in text.splitlines() if (e := parse(line)) is not None)


def best(entries: Iterable[SearchResult]) -> dict[tuple[str, str, str], SearchResult]:
    """Return the fastest entry for each key; ties go to the first by text, so the order of entries does not matter."""
    found: dict[tuple[str, str, str], SearchResult] = {}
    for e in entries:
        old = found.get(e.key)
        if old is None or (e.us, e.line()) < (old.us, old.line()):
            found[e.key] = e
    return found


def append(entry: SearchResult) -> None:
    """Append a line to the file in one write; do nothing if the file cannot be written."""
    with contextlib.suppress(OSError):
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (entry.line() + "\n").encode())
        finally:
            os.close(handle)


def merge(paths: Iterable[Path]) -> int:
    """Merge the entries of other files into ours, one line per key; return the number of lines.

    Raises:
        OSError: if a file cannot be read, or ours cannot be written.
    """
    entries = list(read().values())
    for path in paths:
        entries += [e for line in path.read_text("utf-8").splitlines() if (e := parse(line)) is not None]
    found = best(entries)
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(sorted(e.line() + "\n" for e in found.values())).encode())
    return len(found)


class Wanted(NamedTuple):
    """A tensor's value: the value itself, the node below its views, and the concrete node that a program computes."""

    value: UOp
    inner: UOp
    root: UOp


@dataclass(frozen=True, eq=False)
class Tuned:
    """A kernel under given opts. Printing it shows its axes before and after, its UOps and its source.

    Attributes:
        before, axes: the ranges that opts refer to, before the first opt and after the last.
        runs_on: the tensor's device.
        opts: the opts that were applied.
        source: text for the device's compiler.
        source_c: the same program as C, as printed by ``DEBUG=4``; the source itself if it is C already.
        schedule: the complete program with this kernel, not run: a list of items that print one line each.
        uops: the linear program.
        kernel: the full kernel program.
    """

    device: str
    before: tuple[Axis, ...]
    axes: tuple[Axis, ...]
    kernel: KernelProgram
    runs_on: str
    wanted: Wanted
    number: int

    @property
    def opts(self) -> tuple[Opt, ...]:
        return tuple(self.kernel.opts)

    @property
    def source(self) -> str:
        return self.kernel.source.replace(self.kernel.symbol, self.kernel.name)

    @property
    def source_c(self) -> str:
        if isinstance(Device.renderer_of(self.device), GPURenderer):
            return self.source
        return READABLE.render(self.kernel.name, self.kernel.uops)

    @property
    def schedule(self) -> CompiledSchedule:
        return self._lowered()[0]

    @property
    def uops(self) -> list[UOp]:
        return self.kernel.uops

    def run(self) -> Array:
        """Return the tensor's values, computed with this kernel; the rest of the program is unchanged.

        Raises:
            ArgumentError: if the kernel was written for another device than the tensor's.
        """
        compiled, buffers, values = self._lowered()
        (found,) = run(compiled, [b.arg for b in buffers], values)
        shape = tuple(map(value_of_size, self.wanted.inner.shape))
        inner = found.numpy()[: prod(shape)].reshape(shape)
        given = UOp(Ops.PARAM, self.wanted.inner.dtype, (), (0, shape))
        (out,) = evaluate([self.wanted.value.substitute({self.wanted.inner: given})], {given: inner})
        return np.array(out, order="C")

    def _lowered(self) -> tuple[CompiledSchedule, list[UOp], list[int]]:
        """Return the program with this kernel in it, its BUFFERs, and its bound values.

        Raises:
            ArgumentError: if the kernel was written for another device than the tensor's.
        """
        if self.device != self.runs_on:
            raise ArgumentError("with_opts", f"the source is for {self.device}, but the tensor is on {self.runs_on}",
                                f"with_opts(tensor, opts) without a device, or tensor.to({self.device!r})")
        graph, buffers, values = canonical([self.wanted.root])
        return lower(graph, self.device, {self.number: self.opts}), buffers, values

    if not TYPE_CHECKING:  # a type checker finds missing attributes itself
        def __getattr__(self, name):
            return missing_attribute(self, name)

    def __str__(self) -> str:
        lines = [f"{self.kernel.name} on {self.device}: {opts_text(list(self.opts))}"]
        for text, axes in (("axes before", self.before), ("axes after", self.axes)):
            lines.append(f"  {text}: {', '.join(f'{n}: {a!r}' for n, a in enumerate(axes)) or 'none'}")
        return "\n".join([*lines, uop_table(self.uops), self.source.rstrip()])


def with_opts(wanted: Wanted, device: str, opts: Sequence[Opt] | None, number: int, source_for: str | None) -> Tuned:
    """Return kernel ``number`` of the program that computes ``wanted``, under ``opts``; None: the model's choice."""
    graph, _, _ = canonical([wanted.root])
    schedule, layouts = planned(graph, device)
    if layouts:
        raise ArgumentError("with_opts", f"the tensor is spread over {device}", "a tensor on one device")
    kernels = [n for n, item in enumerate(schedule.items) if item.sink is not None]
    if not -len(kernels) <= number < len(kernels):
        raise ArgumentError("with_opts", f"there is no kernel {number}, the program has {len(kernels)}",
                            "a number below that; -1 is the last kernel")
    item = schedule.items[kernels[number]]
    assert item.sink is not None
    name = item.device if source_for is None else Device.canonicalize(source_for)
    renderer = Device.renderer_of(name)
    program = compile_kernel(item.sink, renderer, opts)
    return Tuned(name, _axes(begin(item.sink, renderer.target)), _axes(program.kernel), program, item.device, wanted,
                 kernels[number])


def _axes(kernel: Kernel) -> tuple[Axis, ...]:
    return tuple(Axis(range_size(r), r.arg[1]) for r in kernel.ranges)
