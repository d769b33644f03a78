"""``python -m benchmarks.profile``: time of a program's first step by phase, cold or with a filled disk cache.

Times are processor time of the working thread, each phase without its nested phases. "Source" is a kernel's way
from its graph to its source text; compiling the text is another phase, mostly on a second thread.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cases import BY_NAME

PROGRAMS = {case.kind: case.sizes for case in (BY_NAME["mnist step"], BY_NAME["gpt step"])}

WATCHED = {  # function: phase
    "tensor.autograd.backward:gradients": "gradients",
    "tensor.realize:seen": "structure of the graph",
    "runtime.realize:canonical": "structure of the graph",
    "runtime.disk_programs:entry_key": "disk cache key",
    "runtime.disk_programs:store": "disk cache store",
    "runtime.disk_programs:fetch": "disk cache fetch",
    "schedule.scheduler:Scheduler.run": "fuse and schedule",
    "runtime.lowering:arrange": "merge and order kernels",
    "runtime.lowering:plan_memory": "memory plan",
    "runtime.lowering:choose_in_place": "choose in place",
    "codegen.compile_kernel:lower": "lower",
    "codegen.compile_kernel:normalize": "normalize",
    "codegen.compile_kernel:decompose": "decompose",
    "codegen.compile_kernel:work_of": "count operations",
    "codegen.compile_kernel:plan": "choose opts",
    "codegen.compile_kernel:linearize": "linearize",
    "backend.cpu.llvm:load": "link",
    "runtime.lowering:load": "load",
    "runtime.lowering:Compilation.load": "wait for binaries",
    "runtime.launch:launch": "run",
}


def owner_of(place: str) -> tuple[Any, str]:
    """Return the module or class that holds a function of ``WATCHED``, and the function's name."""
    module, _, path = place.partition(":")
    *classes, name = path.split(".")
    return functools.reduce(getattr, classes, importlib.import_module(f"tinsmith.{module}")), name


@dataclass
class Phases:
    """Exclusive processor time by phase: time in a nested phase counts only there.

    ``beside`` holds the time of other threads.
    """

    beside: dict[str, float] = field(default_factory=dict)
    thread: threading.Thread = field(default_factory=threading.current_thread)
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _since: float = 0.0

    def _switch(self) -> None:
        now = time.thread_time()
        if self._stack:
            self.seconds[self._stack[-1]] = self.seconds.get(self._stack[-1], 0.0) + now - self._since
        self._since = now

    def enter(self, name: str) -> None:
        self._switch()
        self._stack.append(name)
        self.calls[name] = self.calls.get(name, 0) + 1

    def leave(self) -> None:
        self._switch()
        self._stack.pop()

    def watch(self, owner: Any, attribute: str, name: str) -> None:
        """Count calls of ``owner.attribute`` as phase ``name``."""
        function: Callable[..., Any] = getattr(owner, attribute)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not self.thread:
                begin = time.thread_time()
                result = function(*args, **kwargs)
                self.beside[name] = self.beside.get(name, 0.0) + time.thread_time() - begin
                return result
            self.enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        setattr(owner, attribute, watched)


@dataclass
class KernelRow:
    """One kernel: nodes of its graph, operations of its program, seconds from graph to source, and to a binary."""

    name: str
    nodes: int
    uops: int
    source: float
    binary: float = 0.0


def measure(program: str) -> None:
    """Run and time the first step of ``program`` in this process; print the table."""
    started = time.perf_counter()
    phases = Phases()
    phases.enter("import")
    from benchmarks.peers import Lazy
    from tinsmith.backend.device import Device
    from tinsmith.codegen import compile_kernel as codegen
    from tinsmith.ir.uop import toposort
    renderer, compiler = Device["CPU"].renderer, Device["CPU"].compiler
    phases.leave()
    rows: list[KernelRow] = []
    make, compile_ = codegen._compile, compiler.compile

    def timed_make(sink: Any, *args: Any) -> Any:
        begin = time.thread_time()
        made = make(sink, *args)
        rows.append(KernelRow(made.name, len(toposort(sink)), len(made.uops), time.thread_time() - begin))
        return made

    def timed_compile(source: str) -> bytes:
        begin = time.thread_time()
        binary = compile_(source)
        for row in rows:
            if f"@{row.name}_" in source and not row.binary:
                row.binary = time.thread_time() - begin
                break
        return binary

    codegen._compile, compiler.compile = timed_make, timed_compile  # type: ignore[assignment,method-assign]
    for place, name in WATCHED.items():
        phases.watch(*owner_of(place), name)
    phases.watch(renderer, "render", "render")
    phases.watch(compiler, "compile", "compile (LLVM)")
    phases.enter("record, optimizer, everything else")
    lazy = Lazy("tinsmith")
    step = getattr(lazy, program)(**PROGRAMS[program])
    with lazy.training():
        step()
    phases.leave()
    show(phases, rows, time.perf_counter() - started)


def show(phases: Phases, rows: list[KernelRow], wall: float) -> None:
    """Print the phases, the longest first, and the kernels with the longest source generation."""
    total = sum(phases.seconds.values())
    print(f"first step {wall * 1e3:.0f} ms of wall time with imports, {total * 1e3:.0f} ms of this thread\n")
    for name, seconds in sorted(phases.seconds.items(), key=lambda item: -item[1]):
        print(f"{name:36}{seconds * 1e3:9.1f} ms {seconds / total:6.1%} {phases.calls[name]:6} calls")
    for name, seconds in phases.beside.items():
        print(f"{name + ', beside it':36}{seconds * 1e3:9.1f} ms")
    if rows:
        source, nodes = sum(r.source for r in rows), sum(r.nodes for r in rows)
        print(f"\n{len(rows)} kernels, source {source * 1e3 / len(rows):.2f} ms each, {source * 1e6 / nodes:.0f} us "
              f"per node, binary {sum(r.binary for r in rows) * 1e3 / len(rows):.2f} ms each")
        print(f"{'kernel':44}{'nodes':>7}{'uops':>7}{'source ms':>11}{'binary ms':>11}")
        for r in sorted(rows, key=lambda r: -r.source - r.binary)[:12]:
            print(f"{r.name[:43]:44}{r.nodes:7}{r.uops:7}{r.source * 1e3:11.2f}{r.binary * 1e3:11.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.split("\n")[0])
    parser.add_argument("program", nargs="?", choices=tuple(PROGRAMS), default="mnist")
    parser.add_argument("--warm", action="store_true", help="with the disk cache that a first process filled")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.program)
        return
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "benchmarks.profile", options.program, "--here"]
        env = os.environ | {"CACHE_DIR": cache}
        with contextlib.suppress(subprocess.CalledProcessError):
            if options.warm:
                subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
            subprocess.run(command, env=env, check=True)


if __name__ == "__main__":
    main()
