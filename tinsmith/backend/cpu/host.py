"""Host functions (NumPy and LAPACK) as commands of the pool: the thread that runs a command table calls back into
Python."""
from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tinsmith.codegen.launch import Launch
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings
from tinsmith.ir.ops import host

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
            if (write := host.WRITERS.get(name)) is not None:
                write(array(out, to), *map(array, sources, of))
                return
            with _threads(largest):
                array(out, to)[...] = host.run(name, of, to, *map(array, sources, of))
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
