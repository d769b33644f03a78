"""Functions of the host among the commands of the pool: called back by the thread that runs a table of them."""
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

ALONE = 256  # rows and columns of matrices that one thread factorizes
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_changing = threading.Lock()
_before: list[int] = []  # the number of LAPACK's threads that was found, while functions run with another one
_inside: list[int] = []
_failed = threading.local()  # what a function raised, which native code must not see


def entry(kernel: Launch) -> Any:
    """What native code calls, which lives as long as this object: ``void(args, tid, nthreads)``."""
    name, dtype, shapes, shape = kernel.host
    element = getattr(dtypes, dtype).numpy
    of, to = tuple(map(tuple, shapes)), tuple(shape)
    largest = max(side for sizes in of for side in sizes[-2:])

    def array(address: int, sizes: tuple[int, ...]) -> np.ndarray[Any, Any]:
        nbytes = int(np.prod(sizes)) * element.itemsize
        return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), element).reshape(sizes)

    def call(args: int, tid: int, threads: int) -> None:
        try:
            out, *sources = (ctypes.c_int64 * (1 + len(of))).from_address(args)
            with _threads(largest):
                array(out, to)[...] = host.run(name, of, to, *map(array, sources, of))
        except BaseException as error:
            _failed.error = error

    return _ENTRY(call)


def raise_failure() -> None:
    """Raise what a function of this thread's last table raised: no memory, or Ctrl-C."""
    error = getattr(_failed, "error", None)
    if error is not None:
        _failed.error = None
        raise error


@contextlib.contextmanager
def _threads(side: int) -> Iterator[None]:
    """LAPACK takes as many threads as THREADS allows, and one for small matrices, where that can be said: its threads
    keep the cores that kernels are waiting for, long after they have done anything."""
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
    """How OpenBLAS, which NumPy's wheels come with, is asked and told how many threads it takes; None for others."""
    library = ctypes.CDLL(np.linalg._umath_linalg.__file__)
    for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):
        with contextlib.suppress(AttributeError):
            get, put = (getattr(library, f"{prefix}openblas_{verb}_num_threads{suffix}") for verb in ("get", "set"))
            return get, put
    return None
