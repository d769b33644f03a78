"""Parallel compilation: other threads compile kernels while the first generates sources, and it helps when it is
done."""
from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tinsmith import Context, Device, Tensor
from tinsmith.codegen.launch import KernelProgram
from tinsmith.core.errors import CompileError
from tinsmith.core.settings import settings
from tinsmith.runtime.lowering import Compilation

_sizes = itertools.count(1001)  # no two tests share a kernel


@pytest.fixture(autouse=True)
def a_program_per_size() -> Iterator[None]:
    with Context(DYNAMIC=0):
        yield


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[threading.Thread, int, float]]]:
    """Record each compilation: its thread, the CACHELEVEL it saw, and Python's thread switch interval."""
    seen: list[tuple[threading.Thread, int, float]] = []
    compiler, interval = Device["CPU"].compiler, sys.getswitchinterval()
    compile_: Callable[[str], bytes] = compiler.compile

    def noted(source: str) -> bytes:
        seen.append((threading.current_thread(), settings.CACHELEVEL, sys.getswitchinterval()))
        return compile_(source)

    monkeypatch.setattr(compiler, "compile", noted)
    yield seen
    assert sys.getswitchinterval() == interval
    assert not [t for t in threading.enumerate() if t.name == "tinsmith compiler"]


def _several() -> list[Tensor]:
    """Return tensors of one program with a kernel each."""
    return [Tensor([float(i) for i in range(next(_sizes))], requires_grad=False).realize() for _ in range(3)]


def _sum_up(inputs: list[Tensor]) -> None:
    """Compile a program of one kernel per tensor again and check its results."""
    with Context(CACHELEVEL=0):
        sums = [x.sum() for x in inputs]
        Tensor.realize(*sums)
    assert [s.item() for s in sums] == [n * (n - 1) / 2 for n in (x.shape[0] for x in inputs)]


def test_a_second_thread_compiles_under_the_settings_of_the_first(
        threads: list[tuple[threading.Thread, int, float]]) -> None:
    inputs = _several()
    threads.clear()
    _sum_up(inputs)
    assert len(threads) >= 3 and any(thread.name == "tinsmith compiler" for thread, _, _ in threads)
    assert {level for _, level, _ in threads} == {0}
    assert all(interval <= 0.0005 for *_, interval in threads)


def test_the_thread_that_wrote_the_sources_helps(
        monkeypatch: pytest.MonkeyPatch, threads: list[tuple[threading.Thread, int, float]]) -> None:
    helped, compile_ = threading.Event(), Device["CPU"].compiler.compile

    def patient(source: str) -> bytes:
        """Delay the other thread's first kernel until this thread has compiled one."""
        if threading.current_thread().name == "tinsmith compiler":
            assert helped.wait(60)
        binary = compile_(source)
        helped.set()
        return binary

    inputs = _several()
    threads.clear()
    monkeypatch.setattr(Device["CPU"].compiler, "compile", patient)
    _sum_up(inputs)
    assert len({thread for thread, *_ in threads}) == 2


def test_several_threads_compile_where_there_are_cores(
        monkeypatch: pytest.MonkeyPatch, threads: list[tuple[threading.Thread, int, float]]) -> None:
    monkeypatch.setattr(Device["CPU"].compiler, "threads", lambda: 3)
    inputs = [*_several(), *_several(), *_several()]
    meet, compile_ = threading.Barrier(3), Device["CPU"].compiler.compile

    def together(source: str) -> bytes:
        """Require three threads to compile at the same time."""
        if meet.n_waiting < 3 and not meet.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(20)
                meet.abort()  # once is enough
        return compile_(source)

    threads.clear()
    monkeypatch.setattr(Device["CPU"].compiler, "compile", together)
    _sum_up(inputs)
    assert len({thread for thread, *_ in threads}) >= 3


def test_one_kernel_needs_no_thread(threads: list[tuple[threading.Thread, int, float]]) -> None:
    x = _several()[0]
    threads.clear()
    with Context(CACHELEVEL=0):
        (x * 3 + 1).realize()
    assert [thread for thread, *_ in threads] == [threading.current_thread()]


def test_other_compilers_stay_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch,
                                                    threads: list[tuple[threading.Thread, int, float]]) -> None:
    monkeypatch.setattr(Device["CPU"].compiler, "threads", lambda: 0)
    inputs = _several()
    threads.clear()
    with Context(CACHELEVEL=0):
        Tensor.realize(*(x.sum() for x in inputs))
    assert len(threads) >= 3 and {thread for thread, *_ in threads} == {threading.current_thread()}


def test_what_a_compiler_refuses_is_raised_where_the_program_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = _several()
    compiler = Device["CPU"].compiler
    compile_: Callable[[str], bytes] = compiler.compile
    refused: list[str] = []

    def refuse(source: str) -> bytes:
        refused.append(source)
        raise CompileError("llvm", "refused")

    with Context(CACHELEVEL=0):
        sums = [x.sum() for x in inputs]
        monkeypatch.setattr(compiler, "compile", refuse)
        with pytest.raises(CompileError, match="refused"):
            Tensor.realize(*sums)
        monkeypatch.setattr(compiler, "compile", compile_)
        Tensor.realize(*sums)  # nothing half made was kept
    assert refused and sums[0].item() == inputs[0].shape[0] * (inputs[0].shape[0] - 1) / 2


def test_an_error_while_sources_are_written_ends_the_compiling(
        monkeypatch: pytest.MonkeyPatch, threads: list[tuple[threading.Thread, int, float]]) -> None:
    inputs = _several()
    threads.clear()
    added: list[str] = []
    add = Compilation.add

    def fail_at_last(self: Compilation, device: str, kernel: KernelProgram) -> None:
        add(self, device, kernel)
        added.append(kernel.symbol)
        if len(added) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Compilation, "add", fail_at_last)
    with Context(CACHELEVEL=0), pytest.raises(KeyboardInterrupt):
        Tensor.realize(*(x.sum() for x in inputs))
    assert len(added) == 3 and len(threads) <= 3


def test_an_interrupt_while_threads_end_is_raised_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    own, interrupts = threading.Thread.join, iter([True])

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "tinsmith compiler" and next(interrupts, False):
            raise KeyboardInterrupt
        own(thread, timeout)

    inputs = _several()
    with Context(CACHELEVEL=0):
        sums = [x.sum() for x in inputs]
        monkeypatch.setattr(threading.Thread, "join", join)
        # On a busy machine a thread may have ended before it is waited for.
        monkeypatch.setattr(threading.Thread, "is_alive", lambda thread: thread.ident is not None)
        with pytest.raises(KeyboardInterrupt):
            Tensor.realize(*sums)
    assert next(interrupts, None) is None, "no thread was waited for"
    Tensor.realize(*sums)
    assert sums[0].item() == inputs[0].shape[0] * (inputs[0].shape[0] - 1) / 2
