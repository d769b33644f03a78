"""The worker pool of the CPU: it runs tables of kernels over all cores, with one native call per table.

Kernels have the signature ``void(ptr args, i64 tid, i64 threads)`` and split their work by thread number. On Linux the
pool is native code (``pool_program.py``): workers spin, then sleep, and synchronize by barriers that take a fraction
of a microsecond. Elsewhere Python threads do the same through ctypes, more slowly.

There is one pool per process, started at its first run. Kernels that all workers share are serialized between threads
of the user's program; a table of serial commands runs on the submitting thread while another thread uses the pool. A
kernel must not submit to the pool that runs it.

Host functions (NumPy and LAPACK) are commands, too: the thread that runs the command table calls back into Python.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.cpu import os_calls, pool_program
from tinsmith.backend.cpu.llvm import Loaded, ObjectCompiler, load
from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings
from tinsmith.ir.ops import scans

_SLICE_NS: Final = 100_000_000  # 100 ms: maximum delay of Ctrl-C by a table, in addition to the running kernel
_CROWDED_SPIN: Final = 100
_STOP: Final = getattr(signal, "SIGURG", 0)  # interrupts a thread's kernel; without a handler it is ignored
_FEW: Final = 4  # maximum number of serial commands that run without the pool's lock and deadline
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Table:
    """A command table for ``run``; keep the object for as long as its address is in use."""

    __slots__ = ("_words", "address", "count")

    def __init__(self, entries: Sequence[tuple[int, int, bool]]) -> None:
        self._words = (ctypes.c_int64 * (3 * len(entries)))(
            *(word for function, args, serial in entries for word in (function, args, pool_program.SERIAL * serial))
        )
        self.address = ctypes.addressof(self._words)
        self.count = len(entries)


def build_table(entries: Sequence[tuple[int, int, bool]]) -> Table:
    """Build a table of (function address, argument address, serial) commands.

    A serial command runs on the calling thread only, as thread 0 of 1. Each command sees the effects of all earlier
    ones.
    """
    return Table(entries)


class Commands:
    """A table whose arguments are filled in by native code from a short list of values right before each run.

    Args:
        kernels: (function address, serial) of every command.
        arguments: for every command, (index of a value, offset to add) of each word of its argument table.
        values: number of values.
        long: True if a single command may take long (see ``LONG_WORK`` in ``device.py``).

    ``words`` is the memory of the values, to be written before every run. Only one run at a time. ``alone``: the table
    has only a few serial commands, which the calling thread runs without the pool.
    """

    def __init__(self, kernels: Sequence[tuple[int, bool]], arguments: Sequence[Sequence[tuple[int, int]]],
                 values: int, long: bool = False) -> None:
        self.long = long
        self.words = (ctypes.c_int64 * max(values, 1))()
        self._arguments = (ctypes.c_int64 * max(sum(map(len, arguments)), 1))()
        at = ctypes.addressof(self._arguments)
        entries: list[int] = []
        targets: list[int] = []
        for row in arguments:
            targets.append(at)
            for value, plus in row:
                entries += (at, 8 * value, plus)
                at += 8
        self.table = Table([(function, args, serial) for (function, serial), args in zip(kernels, targets)])
        self._entries = (ctypes.c_int64 * max(len(entries), 1))(*entries)
        self.serial = all(serial for _, serial in kernels)
        self.alone = len(kernels) <= _FEW and self.serial
        self._filled, self.count = len(entries) // 3, self.table.count
        self._record = (ctypes.c_int64 * 5)(self.table.address, self.table.count, ctypes.addressof(self._entries),
                                            self._filled, ctypes.addressof(self.words))
        self.address = ctypes.addressof(self._record)

    def fill(self) -> None:
        """Fill in every argument from its value, as native code does first."""
        for n in range(self._filled):
            target, offset, plus = self._entries[3 * n : 3 * n + 3]
            ctypes.c_int64.from_address(target).value = self.words[offset // 8] + plus


def _crowded_by_environment(cpus: list[int]) -> bool:
    """Return True if sibling processes of the same launcher compete for ``cpus``.

    MPI ranks that are bound to some of the CPUs have these for themselves.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return True
    ranks = [os.environ.get(name, "1") for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")]
    return any(text.isdigit() and int(text) > 1 for text in ranks) and len(cpus) == os.cpu_count()


class NativePool:
    """Workers and barriers in machine code. ``threads`` includes the caller."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._control = 0
        self._claim: os_calls.CoreClaim | None = None
        self._workers: list[ctypes.c_void_p] = []
        self.spare = False
        self._native = _native_code()

    def start(self) -> None:
        """Start the workers unless they are running."""
        with self._lock:
            if not self._control:
                self._start()

    def run(self, table_address: int, count: int, long: bool = False, serial: bool = False) -> None:
        """Run the ``count`` commands at ``table_address``; return when all are done. ``serial``: all are serial.

        Ctrl-C takes effect between two commands: for this the native call returns every 100 ms. If commands may be
        ``long``, it interrupts them anywhere.
        """
        pool = self._free_one(serial)
        try:
            if not pool._control:
                pool._start()
            if long and _can_stop() and threading.current_thread() is threading.main_thread():
                pool._run_stoppable(table_address, count)
                return
            done: int = pool._native.submit(pool._control, table_address, count)
            if done < count:
                pool._finish(table_address, count, done)
        finally:
            pool._leave()

    def _free_one(self, serial: bool) -> NativePool:
        """Acquire a pool, to be released by ``_leave``: this one, or for serial commands a spare pool of one thread if
        another thread uses this one."""
        alone = serial or self.threads == 1
        if self._lock.acquire(blocking=not alone):
            return self
        try:
            pool = _spare.pop()
        except IndexError:
            pool = NativePool(1)
            pool.spare = True
        pool._lock.acquire()
        return pool

    def _leave(self) -> None:
        self._lock.release()
        if self.spare:
            _spare.append(self)

    def replay(self, commands: Commands) -> None:
        """Run a table on the values in its ``words``; return when all commands are done."""
        if commands.long:
            commands.fill()
            self.run(commands.table.address, commands.count, True, commands.serial)
            return
        if commands.alone:
            self._native.replay_alone(commands.address)
            return
        pool = self._free_one(commands.serial)
        try:
            if not pool._control:
                pool._start()
            done: int = pool._native.replay(pool._control, commands.address)
            if done < commands.count:
                pool._finish(commands.table.address, commands.count, done)
        finally:
            pool._leave()

    def _finish(self, table_address: int, count: int, done: int) -> None:
        while done < count:
            rest = table_address + pool_program.COMMAND_BYTES * done
            done += self._native.submit(self._control, rest, count - done)

    def _run_stoppable(self, table_address: int, count: int) -> None:
        """Run a table on a separate thread, while the main thread, which receives signals, waits and can end it."""
        run = _StoppableRun(self._native, self._control, self._records()[self.threads - 1], table_address, count)
        run.start()
        try:
            run.finished.wait()
        except BaseException:
            stopper = threading.Thread(target=self._stop, args=(run,))
            stopper.start()
            while stopper.is_alive():  # memory must not be freed while kernels write to it
                with contextlib.suppress(KeyboardInterrupt):
                    stopper.join()
            raise
        finally:
            run.leave.set()

    def _stop(self, run: _StoppableRun) -> None:
        """Interrupt the kernels of all threads. The workers end; the next run starts new ones."""
        run.stopping = True
        ctypes.c_int32.from_address(self._control + pool_program.QUIT).value = 1
        send = os_calls.libc().pthread_sigqueue
        with os_calls.handled(_STOP, self._native.stopped):
            for handle, record in zip(self._workers, self._records()):
                send(handle, _STOP, ctypes.c_void_p(record))
            while not run.finished.is_set():  # it may be entering the next part of the table
                send(ctypes.c_void_p(run.ident), _STOP, ctypes.c_void_p(run.record))
                run.finished.wait(0.01)
            self._end()

    def _records(self) -> list[int]:
        """Return the addresses of the workers' records, then of the record of a temporary leading thread
        (``_StoppableRun``)."""
        return [self._control + pool_program.CONTROL_BYTES + pool_program.WORKER_BYTES * n for n in range(self.threads)]

    def _start(self) -> None:
        size = pool_program.CONTROL_BYTES + pool_program.WORKER_BYTES * self.threads
        control, self._release = os_calls.alloc(size)
        ctypes.memset(control, 0, size)
        rounds_per_us, ticks_per_ns = self._speed(control)
        crowded = self._is_crowded()
        spin = _CROWDED_SPIN if crowded else int(settings.SPIN_US * rounds_per_us)
        ctypes.c_int64.from_address(control + pool_program.SLICE).value = int(_SLICE_NS * ticks_per_ns)
        ctypes.c_int32.from_address(control + pool_program.SPIN).value = min(max(spin, 1), (1 << 31) - 1)
        self._control = control
        self._start_workers(control, pinned=not crowded)

    def _speed(self, control: int) -> tuple[float, float]:
        """Return spin rounds per microsecond and clock ticks per nanosecond: the best of a few short trials."""
        rounds, best = 1000, (0.0, 0.0)
        for _ in range(3):
            start = time.perf_counter_ns()
            ticks = self._native.calibrate(control, rounds)
            ns = max(time.perf_counter_ns() - start, 1)
            best = max(best, (rounds * 1000 / ns, ticks / ns))
        return best

    def _is_crowded(self) -> bool:
        """Return True if other pools are likely to use the same cores: then spinning and pinning would slow down both.
        """
        if self.threads == 1:
            return False
        cpus = os_calls.usable_cpus()
        self._claim = os_calls.CoreClaim(cpus)
        return not self._claim.alone or self.threads > len(cpus) or _crowded_by_environment(cpus)

    def _start_workers(self, control: int, pinned: bool) -> None:
        start, worker = os_calls.libc().pthread_create, ctypes.c_void_p(self._native.worker)
        records = self._records()[:-1]
        # Signals are for Python's threads, except those that a faulting kernel raises in its own thread.
        faults = {_STOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - faults)
        try:
            for number, record in enumerate(records, 1):
                ctypes.c_int64.from_address(record).value = control
                ctypes.c_int64.from_address(record + 8).value = number
                handle = ctypes.c_void_p()
                if start(ctypes.byref(handle), None, worker, ctypes.c_void_p(record)):
                    break
                self._workers.append(handle)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            # If the system allows fewer threads, the pool consists of those that started.
            self.threads = len(self._workers) + 1
            ctypes.c_int64.from_address(control + pool_program.THREADS).value = self.threads
        if pinned:
            self._pin(records[: len(self._workers)])

    def _pin(self, records: list[int]) -> None:
        """Pin each worker to its own CPU; the caller keeps its current one."""
        caller = os_calls.current_cpu()
        cpus = [cpu for cpu in os_calls.usable_cpus() if cpu != caller]
        for record, cpu in zip(records, cpus):
            tid = ctypes.c_int64.from_address(record + pool_program.WORKER_TID)
            while not tid.value:
                time.sleep(0)
            os_calls.pin_thread(tid.value, cpu)

    def close(self) -> None:
        """End the workers, unless a table keeps them busy for more than a second; the next run starts new ones."""
        if not self._lock.acquire(timeout=1):
            return
        try:
            if self._control:
                self._native.dismiss(self._control)
                self._end()
        finally:
            self._lock.release()

    def _end(self) -> None:
        """Join the workers and release their shared memory."""
        for handle in self._workers:
            os_calls.libc().pthread_join(handle, None)
        self._release()
        self._forget()

    def _forget(self) -> None:
        self._control = 0
        self._workers = []
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def restart_in_child(self) -> None:
        """Reset the pool after a fork, which copies its state but none of its workers."""
        self._lock = threading.Lock()
        self._forget()


class _StoppableRun(threading.Thread):
    """A thread that runs a table. It lives until it may ``leave``, so that a late signal still finds it."""

    def __init__(self, native: _Native, control: int, record: int, table_address: int, count: int) -> None:
        super().__init__(name="tinsmith kernels", daemon=True)
        self.finished, self.leave, self.stopping = threading.Event(), threading.Event(), False
        self.record = record
        self._arguments = native, control, table_address, count

    def run(self) -> None:
        native, control, table_address, count = self._arguments
        done = 0
        while done < count and not self.stopping:
            rest = table_address + pool_program.COMMAND_BYTES * done
            done += max(native.submit_stoppable(control, rest, count - done, self.record), 0)
        self.finished.set()
        self.leave.wait()


def _can_stop() -> bool:
    """Return True if the C library can send a thread a signal with a value."""
    return bool(_STOP) and hasattr(os_calls.libc(), "pthread_sigqueue")


class _Native(NamedTuple):
    """The compiled runtime: addresses of thread functions, and entry points with their C signatures."""

    code: Loaded
    worker: int
    stopped: int
    submit: Any
    submit_stoppable: Any
    dismiss: Any
    calibrate: Any
    replay: Any
    replay_alone: Any


@functools.cache
def _native_code() -> _Native:
    futex, gettid = os_calls.futex_number(), os_calls.gettid_number()
    assert futex is not None and gettid is not None, "a native pool needs Linux's futex"
    text = pool_program.runtime_text(os_calls.architecture(), futex, gettid)
    code = load([ObjectCompiler().compile(text)], list(_Native._fields[1:]))
    worker, stopped, submit, submit_stoppable, dismiss, calibrate, replay, replay_alone = code.addresses
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    return _Native(
        code, worker, stopped,
        ctypes.CFUNCTYPE(i64, pointer, pointer, i64)(submit),
        ctypes.CFUNCTYPE(i64, pointer, pointer, i64, pointer)(submit_stoppable),
        ctypes.CFUNCTYPE(None, pointer)(dismiss),
        ctypes.CFUNCTYPE(i64, pointer, i32)(calibrate),
        ctypes.CFUNCTYPE(i64, pointer, pointer)(replay),
        ctypes.CFUNCTYPE(None, pointer)(replay_alone),
    )


class PythonPool:
    """The pool of Python threads with the same interface, for systems without a futex."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._inboxes: list[queue.SimpleQueue[tuple[int, int] | None]] = []
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start the workers unless they are running."""
        with self._lock:
            if not self._inboxes:
                self._start()

    def run(self, table_address: int, count: int, long: bool = False, serial: bool = False) -> None:
        """Run the ``count`` commands at ``table_address``; return when all are done."""
        words = (ctypes.c_int64 * (3 * count)).from_address(table_address)
        with self._lock:
            if not self._inboxes:
                self._start()
            for at in range(0, 3 * count, 3):
                self._run_one(*words[at : at + 3])

    def replay(self, commands: Commands) -> None:
        """Run a table on the values in its ``words``; return when all commands are done."""
        commands.fill()
        self.run(commands.table.address, commands.table.count)

    def _run_one(self, function: int, args: int, flags: int) -> None:
        if flags & pool_program.SERIAL or self.threads == 1:
            _KERNEL(function)(args, 0, 1)
            return
        for inbox in self._inboxes:
            inbox.put((function, args))
        try:
            _KERNEL(function)(args, 0, self.threads)
        finally:
            for _ in self._inboxes:
                self._done.get()

    def _start(self) -> None:
        self._inboxes = [queue.SimpleQueue() for _ in range(self.threads - 1)]
        for tid, inbox in enumerate(self._inboxes, 1):
            threading.Thread(target=self._serve, args=(tid, inbox, self._done), daemon=True).start()

    def _serve(
        self, tid: int, inbox: queue.SimpleQueue[tuple[int, int] | None], done: queue.SimpleQueue[None]
    ) -> None:
        while (work := inbox.get()) is not None:
            _KERNEL(work[0])(work[1], tid, self.threads)
            done.put(None)

    def close(self) -> None:
        """End the workers; the next run starts new ones."""
        with self._lock:
            for inbox in self._inboxes:
                inbox.put(None)
            self._inboxes = []

    def restart_in_child(self) -> None:
        """Reset the pool after a fork, as in ``NativePool``."""
        self._lock = threading.Lock()
        self._inboxes, self._done = [], queue.SimpleQueue()


def has_native_pool() -> bool:
    """Return True if the thread pool in machine code works here: Linux (futex) on a processor it is written for."""
    return os_calls.futex_number() is not None and os_calls.architecture() in pool_program.ARCHITECTURES

_pool: NativePool | PythonPool | None = None
_spare: list[NativePool] = []  # pools of one thread each, not in use
_creating = threading.Lock()


def get_pool() -> NativePool | PythonPool:
    """Return this process's pool, with one thread per usable core."""
    global _pool
    if _pool is not None:
        return _pool
    with _creating:
        if _pool is None:
            _pool = (NativePool if has_native_pool() else PythonPool)(os_calls.usable_cores())
            # Workers must have ended before the interpreter unloads the code that they sleep in.
            atexit.register(_pool.close)
        return _pool


def _after_fork() -> None:
    global _creating
    _creating = threading.Lock()
    _spare.clear()
    if _pool is not None:
        _pool.restart_in_child()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

ALONE = 256  # matrices with up to this number of rows and columns are factorized by one thread
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_changing = threading.Lock()
_before: list[int] = []  # LAPACK's original thread count, while functions run with another one
_inside: list[int] = []
_failed = threading.local()  # the exception of a function, which must not propagate into native code


def entry(kernel: Launch) -> Any:
    """Return the C callback ``void(args, tid, nthreads)`` of a host function; it is valid as long as this object lives.
    """
    name, dtype, shapes, shape = kernel.host
    element = getattr(dtypes, dtype).numpy
    of, to = tuple(map(tuple, shapes)), tuple(shape)
    largest = max((side for sizes in of for side in sizes[-2:]), default=1)

    def array(address: int, sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
        nbytes = int(np.prod(sizes)) * element.itemsize
        return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), element).reshape(sizes)

    def call(args: int, tid: int, threads: int) -> None:
        if getattr(_failed, "error", None) is not None:
            return  # what follows a failure in its table is not run: other processes may wait for none of it
        try:
            out, *sources = (ctypes.c_int64 * (1 + len(of))).from_address(args)
            if (write := scans.WRITERS.get(name)) is not None:
                write(array(out, to), *map(array, sources, of))
                return
            with _threads(largest):
                array(out, to)[...] = scans.run(name, of, to, *map(array, sources, of))
        except BaseException as error:
            _failed.error = error

    return _ENTRY(call)


def raise_failure() -> None:
    """Raise the exception of a function in this thread's last table: MemoryError or KeyboardInterrupt."""
    error = getattr(_failed, "error", None)
    if error is not None:
        _failed.error = None
        raise error


@contextlib.contextmanager
def _threads(side: int) -> Iterator[None]:
    """Limit LAPACK's threads to ``THREADS``, and to one for small matrices, if its library supports that: its threads
    busy-wait long after their work and keep the cores that kernels need."""
    found = _count_of_threads()
    if found is None or (side > ALONE and not settings.THREADS):
        yield
        return
    get, put = found
    with _changing:
        if not _before:
            _before.append(get())
        _inside.append(1)
        put(1 if side <= ALONE else settings.THREADS)
    try:
        yield
    finally:
        with _changing:
            _inside.pop()
            if not _inside:
                put(_before.pop())


@functools.cache
def _count_of_threads() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return functions that get and set the thread count of OpenBLAS (part of NumPy's wheels); None for other
    libraries."""
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
        with contextlib.suppress(AttributeError):
            get, put = (getattr(library, f"{prefix}openblas_{verb}_num_threads{suffix}") for verb in ("get", "set"))
            return get, put
    return None
