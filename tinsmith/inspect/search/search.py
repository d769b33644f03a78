"""BEAM search (``BEAM=n``): opts chosen by measured time instead of by the cost model.

The best lists of opts so far are extended by every legal opt; only the extensions that ``estimate`` ranks best are
measured. The search is independent of the device: ``measure`` returns the time of a kernel, or None if it failed, was
too slow or gave a wrong result.

Each candidate is compiled, checked and timed in a child process with a time limit. A crash or a hang costs only that
child and that candidate. Results are kept in a text file (``database.py``), so each kernel is searched once.
"""
from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.backend.device import Device
from tinsmith.backend.machine import machine, processor
from tinsmith.codegen.compile_kernel import begin, choose
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.codegen.planner.roofline import Machine, estimate
from tinsmith.core.disk_cache import cache_key
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import DECLARED, child_environment, settings
from tinsmith.core.terminal import show
from tinsmith.inspect.debug import opts_text
from tinsmith.inspect.search import database
from tinsmith.inspect.search.trial import TrialRequest
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role, count_of, range_size
from tinsmith.ir.uop import toposort
from tinsmith.runtime.disk_programs import Unkeyable, encode
from tinsmith.target.target import Target

ROUNDS = 10  # maximum number of opts added to a start
GAIN = 0.98  # a round must make the best kernel at least this much faster, or the search ends
COPIES = 256  # copies of one value beyond which a program is not worth compiling
AMOUNTS = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16)
TILES = (4, 16, 64, 256)

Measure = Callable[[Kernel], "float | None"]


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Attributes:
        opts: the best list of opts.
        seconds: its time.
        before: the time of the first start.
        tried: kernels measured.
        failed: kernels whose measurement failed.
    """

    opts: tuple[Opt, ...]
    seconds: float
    before: float
    tried: int
    failed: int


def beam_search(starts: Iterable[Kernel], width: int, target: Target, machine: Machine,
                measure: Measure) -> Found | None:
    """Return the fastest list of opts that a beam of ``width`` finds; None if no start could be measured.

    Args:
        starts: kernels with opts already applied, the default first.
        machine: the machine of the model that selects the kernels to measure.
        measure: returns the seconds of a kernel, or None.
    """
    search = _Search(width, target, machine, measure)
    beam = search.measured(starts)
    if not beam:
        return None
    before = next((t for k, t in search.first if t is not None), beam[0][1])
    for _ in range(ROUNDS):
        best = beam[0][1]
        candidates = [c for k, _ in beam for c in search.extended(k)]
        candidates.sort(key=lambda k: estimate(k, machine).seconds)
        beam = sorted([*beam, *search.measured(candidates[: 4 * width + 4])], key=lambda b: b[1])[:width]
        if beam[0][1] > best * GAIN:
            break
    kernel, seconds = beam[0]
    return Found(tuple(kernel.opts), seconds, before, search.tried, search.failed)


class _Search:
    """The kernels seen and measured so far."""

    def __init__(self, width: int, target: Target, machine: Machine, measure: Measure) -> None:
        self.width, self.target, self.machine, self.measure = width, target, machine, measure
        self.seen: set[tuple[UOp, tuple[UOp, ...]]] = set()
        self.first: list[tuple[Kernel, float | None]] = []
        self.tried = self.failed = 0

    def measured(self, kernels: Iterable[Kernel]) -> list[tuple[Kernel, float]]:
        """Return the kernels not seen before with their times, the fastest first; failed ones are left out."""
        out = []
        for k in kernels:
            if not self.new(k):
                continue
            self.tried += 1
            seconds = self.measure(k)
            self.first.append((k, seconds))
            if seconds is None:
                self.failed += 1
            else:
                out.append((k, seconds))
        return sorted(out, key=lambda b: b[1])

    def new(self, k: Kernel) -> bool:
        state = k.sink, tuple(k.order)
        if state in self.seen:
            return False
        self.seen.add(state)
        return True

    def extended(self, kernel: Kernel) -> Iterator[Kernel]:
        """Generate ``kernel`` with one more opt, for every legal one that does not unroll too much."""
        for opt in actions(kernel, self.target):
            more = kernel.copied()
            try:
                more.apply(opt)
            except (ArgumentError, AssertionError):
                continue
            if (more.sink, tuple(more.order)) not in self.seen and copies(more) <= COPIES:
                yield more


def copies(kernel: Kernel) -> int:
    """Return the greatest number of copies of one value that the linearizer writes."""
    expanded = (Role.UPCAST, Role.UNROLL)
    return max((count_of(r for r in n.ranges if r.arg[1] in expanded) for n in toposort(kernel.sink)), default=1)


def actions(kernel: Kernel, target: Target) -> Iterator[Opt]:
    """Generate opts worth trying next; some may be illegal.

    >>> from tinsmith.codegen.lower.lower import lower
    >>> from tinsmith.ir import Ops
    >>> x = UOp(Ops.PARAM, dtypes.float32, (), (1, (8, 64)))
    >>> k = Kernel(lower(UOp(Ops.SINK, None, (x.reduce("ADD", (1,)),))))
    >>> sorted({o.op.name for o in actions(k, Target("text", vector_bytes=32, threads=2))})
    ['HINT', 'STAGE', 'THREAD', 'TILE', 'UNROLL', 'UPCAST', 'VECTOR']
    """
    ranges = kernel.ranges
    lanes = sorted({max(target.vector_bytes // size, 1) for size in (8, 4)} - {1}) if target.vector_bytes else []
    for axis, r in enumerate(ranges):
        size = range_size(r)
        if not isinstance(size, int) or r.arg[1].expanded:
            continue
        fitting = [a for a in AMOUNTS if a <= size]
        threads = [a for a in fitting if a <= target.block_threads]
        if r.arg[1] is Role.REDUCE:
            yield from (Opt(OptOps.UNROLL, axis, a) for a in fitting)
            yield from (Opt(op, axis, a) for op in (OptOps.GROUP, OptOps.GROUPTOP) for a in threads if a >= 4)
        else:
            yield from (Opt(OptOps.UPCAST, axis, a) for a in fitting)
            yield from (Opt(OptOps.LOCAL, axis, a) for a in threads)
        yield from (Opt(OptOps.VECTOR, axis, a) for a in lanes if a < 2 * size)
        yield from (Opt(OptOps.TILE, axis, a) for a in TILES if a < size and size % a == 0)
        yield from (Opt(OptOps.SWAP, axis, other) for other in range(axis + 1, len(ranges))
                    if ranges[other].arg[1] is r.arg[1])
        if target.threads > 1 and axis == 0:
            yield Opt(OptOps.THREAD, axis)
    yield from _stages(kernel, lanes)
    yield Opt(OptOps.HINT)


def _stages(kernel: Kernel, lanes: list[int]) -> Iterator[Opt]:
    """Generate a STAGE of each load, inside the first few loops that it depends on."""
    parallel = kernel.parallel
    for number, load in enumerate(kernel.loads):
        own = [r for r in parallel if r in load.ranges]
        for depth in range(min(len(own), 3)):
            kept = tuple(kernel.ranges.index(r) for r in own[:depth])
            yield Opt(OptOps.STAGE, number, kept, lanes[-1] if lanes else 0)

START = 60.0  # seconds a child may take to start and to prepare a kernel, in addition to the limit of a candidate
_known: dict[tuple[Any, ...], tuple[Opt, ...] | None] = {}


class Child:
    """A child process that tries candidates of one kernel after another; restarted after a crash or a hang."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def ask(self, message: Any, limit: float) -> dict[str, Any]:
        """Return the answer to a message, or the state ``crash`` or ``hang``, after which the process has ended."""
        process = self.process or self.start()
        assert process.stdin is not None
        try:
            pickle.dump(message, process.stdin)
            process.stdin.flush()
            line = self.answers.get(timeout=limit)
        except queue.Empty:
            self.stop()
            return {"state": "hang"}
        except OSError:
            line = None
        except BaseException:  # Ctrl-C: otherwise the pending answer would be read as that to the next message
            self.stop()
            raise
        if line is None:
            self.stop()
            return {"state": "crash"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self) -> subprocess.Popen[bytes]:
        process = self.process = subprocess.Popen(
            [sys.executable, "-c", "from tinsmith.inspect.search.trial import main; main()"], start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=child_environment(BEAM=0, DEBUG=0, VERIFY=0))
        answers = self.answers = queue.SimpleQueue()

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                answers.put(line)
            answers.put(None)

        threading.Thread(target=listen, daemon=True).start()
        return process

    def stop(self) -> None:
        """End the process and its children, such as a compiler."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.wait(10)
            if process.stdin is not None:
                process.stdin.close()

_child = Child()
atexit.register(_child.stop)


def forget() -> None:
    """Clear the results that this process has found or read; the file stays."""
    _known.clear()


def opts_for(sink: UOp, device: str) -> Sequence[Opt] | None:
    """Return the opts that a search of width ``BEAM`` finds for a kernel; None for the default opts."""
    renderer = Device[device].renderer
    memo = sink, device, renderer.key(), settings.code_key
    if memo not in _known:
        _known[memo] = _opts_for(sink, device, renderer.key())
    return _known[memo]


def _opts_for(sink: UOp, device: str, renderer: str) -> tuple[Opt, ...] | None:
    options = [getattr(settings, s.name) for s in DECLARED if s.affects_code and s.name != "BEAM"]
    try:
        key = (cache_key(encode([sink]))[:24], cache_key(renderer, str(options))[:12],
               f"{processor()} {device}")
    except Unkeyable:
        return None
    found = database.read().get(key)
    if found is None or found.width < settings.BEAM:
        found = _search(sink, device, key) or found
    return None if found is None else _fitting(sink, device, found.opts)


def _fitting(sink: UOp, device: str, opts: tuple[Opt, ...]) -> tuple[Opt, ...] | None:
    """Return opts from a file; None if they are no longer legal."""
    kernel = _kernel(sink, device)
    try:
        for opt in opts:
            kernel.apply(opt)
    except (ArgumentError, AssertionError):
        return None
    return opts


def _kernel(sink: UOp, device: str) -> Kernel:
    return begin(sink, Device[device].renderer.target)


def why_not(sink: UOp, device: str) -> str | None:
    """Return the reason why a kernel is not searched; None if it can be."""
    kernel = _kernel(sink, device)
    if any(not isinstance(range_size(r), int) for r in kernel.order):
        return "it has symbolic sizes"
    if any(n.op is Ops.SCATTER_STORE for n in toposort(kernel.sink)):
        return "it contains a sequential scatter"
    module = Device.made_by(device)
    return "its device is registered in __main__, which the child cannot import" if module == "__main__" else None


def _search(sink: UOp, device: str, key: tuple[str, str, str]) -> database.SearchResult | None:
    """Search a kernel's opts and store the result; at DEBUG >= 1 print why a kernel is not searched."""
    reason = why_not(sink, device)
    if reason is None:
        module = Device.made_by(device)
        request = TrialRequest(device, sink, (module,) if module else (), limit=settings.BEAM_SECONDS)
        trial = Trial(request)
        answer = trial.prepare()
        if answer["state"] == "ready":
            return _beam(sink, device, key, trial)
        reason = answer.get("message") or f"the child process ended with a {answer['state']}"
    if settings.DEBUG >= 1:
        show(f"beam: {_kernel(sink, device).name()} keeps the default opts: {reason}")
    return None


class Trial:
    """A callable that measures candidates of one kernel in the child process."""

    def __init__(self, request: TrialRequest) -> None:
        self.request = request
        self.states: dict[str, int] = {}

    def prepare(self) -> dict[str, Any]:
        return _child.ask(self.request, START + self.request.limit)

    def __call__(self, kernel: Kernel) -> float | None:
        if _child.process is None and self.prepare()["state"] != "ready":
            return None
        answer = _child.ask(tuple(kernel.opts), self.request.limit)
        state = answer["state"]
        self.states[state] = self.states.get(state, 0) + 1
        if settings.DEBUG >= 3:
            text = f"{answer['seconds'] * 1e6:.2f} us" if state == "ok" else answer.get("message", state)
            show(f"beam: {text}: {opts_text(list(kernel.opts))}")
        return answer["seconds"] if state == "ok" else None


def _beam(sink: UOp, device: str, key: tuple[str, str, str], trial: Trial) -> database.SearchResult | None:
    target = Device[device].renderer.target
    plain = _kernel(sink, device)
    chosen = plain.copied()
    choose(chosen, target)
    found = beam_search((chosen, plain), settings.BEAM, target, machine(device), trial)
    if found is None:
        return None
    best = plain.copied()
    for opt in found.opts:
        best.apply(opt)
    entry = database.SearchResult(*key, best.name(), found.opts, round(found.seconds * 1e6, 3),
                                  round(found.before * 1e6, 3),
                         settings.BEAM)
    database.append(entry)
    if settings.DEBUG >= 1:
        states = ", ".join(f"{n} {s}" for s, n in sorted(trial.states.items()))
        show(f"beam: {chosen.name()} {entry.before_us} us -> {entry.name} {entry.us} us, of {found.tried} candidates "
              f"({states}): {opts_text(list(found.opts))}")
    return entry
