"""The functions and progress bars of ``tinygrad.helpers``, with tinygrad's names and signatures."""
from __future__ import annotations

import contextlib
import cProfile
import ctypes
import decimal
import functools
import getpass
import gzip
import math
import os
import pstats
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm as _Bar

from tinsmith.core.disk_cache import cache_prune, fetched, replace_file
from tinsmith.core.errors import ArgumentError
from tinsmith.core.settings import settings
from tinsmith.core.terminal import colored

T = TypeVar("T")
K = TypeVar("K")

VERSION = "0.14.0"  # the tinygrad whose names the tables follow
OSX, WIN = sys.platform == "darwin", sys.platform == "win32"
CI = os.getenv("CI", "") != ""


# *** numbers and sequences ***
def prod(x: Iterable[Any]) -> Any:
    """Return the product of numbers; 1 if there are none.

    >>> prod((2, 3))
    6
    """
    return math.prod(x)


def argfix(*x: Any) -> tuple[Any, ...]:
    """Arguments given one by one or as one sequence."""
    return tuple(x[0]) if len(x) == 1 and isinstance(x[0], (tuple, list)) else x


def argsort(x: Sequence[Any]) -> Any:
    """Positions that sort ``x``, as the type of ``x``."""
    kind: Any = type(x)
    return kind(sorted(range(len(x)), key=x.__getitem__))


def all_same(items: Sequence[Any]) -> bool:
    """Return True if all items are equal."""
    return all(x == items[0] for x in items)


def all_int(t: Sequence[Any]) -> bool:
    """Return True if all items are ints, none symbolic."""
    return all(isinstance(s, int) for s in t)


def dedup(x: Iterable[T]) -> list[T]:
    """Return the items without duplicates, in order of first appearance."""
    return list(dict.fromkeys(x))


def flatten(items: Iterable[Iterable[T]]) -> list[T]:
    """Flatten one level of nesting."""
    return [x for inner in items for x in inner]


def fully_flatten(items: Any) -> list[Any]:
    """Flatten all levels of lists and tuples."""
    return [x for i in items for x in fully_flatten(i)] if isinstance(items, (list, tuple)) else [items]


def make_tuple(x: Any, count: int) -> tuple[Any, ...]:
    """Return ``x`` ``count`` times if it is an int."""
    return (x,) * count if isinstance(x, int) else tuple(x)


def merge_dicts(dicts: Iterable[dict[K, T]]) -> dict[K, T]:
    """One dictionary of several that agree where they overlap."""
    merged: dict[K, T] = {}
    for d in dicts:
        for key, value in d.items():
            if merged.setdefault(key, value) != value:
                raise ArgumentError("merge_dicts", f"{key!r} is both {merged[key]!r} and {value!r}")
    return merged


def partition(items: Iterable[T], chosen: Callable[[T], Any]) -> tuple[list[T], list[T]]:
    """Return (items for which ``chosen`` is true, other items)."""
    yes: list[T] = []
    no: list[T] = []
    for item in items:
        (yes if chosen(item) else no).append(item)
    return yes, no


def ceildiv(num: int, amt: int) -> int:
    """Division rounded up."""
    return -(num // -amt)


def round_up(num: int, amt: int) -> int:
    """Return the least multiple of ``amt`` not below ``num``."""
    return ceildiv(num, amt) * amt


def unwrap(x: T | None) -> T:
    """Return ``x``, which is not None."""
    assert x is not None, "unwrap: None"
    return x


def round_down(num: int, amt: int) -> int:
    """Return the greatest multiple of ``amt`` not above ``num``."""
    return num // amt * amt


def cdiv(x: int, y: int) -> int:
    """C's division of integers, towards zero; 0 by zero."""
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def cmod(x: int, y: int) -> int:
    """Return the remainder of ``cdiv``."""
    return x - cdiv(x, y) * y


def floordiv(x: int, y: int) -> int:
    """Division rounded down; 0 by zero."""
    return 0 if y == 0 else x // y


def floormod(x: int, y: int) -> int:
    """Return the remainder of ``floordiv``."""
    return x - floordiv(x, y) * y


def next_power2(x: int) -> int:
    """Return the least power of two not below ``x``."""
    return 1 if x == 0 else 1 << (x - 1).bit_length()


def polyN(x: Any, p: Sequence[float]) -> Any:
    """Return a polynomial, coefficients from the highest power down.

    >>> polyN(2.0, [1.0, 0.0, 3.0])
    7.0
    """
    return functools.reduce(lambda total, c: total * x + c, p, 0.0)


def strides_for_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of dense memory, in elements; 0 along axes of size 1."""
    steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tuple(0 if n == 1 else s for n, s in zip(shape, steps))


def get_shape(x: Any) -> tuple[int, ...]:
    """Return the shape of nested lists.

    >>> get_shape([[1, 2], [3, 4], [5, 6]])
    (3, 2)
    """
    if not isinstance(x, (list, tuple)) and not hasattr(x, "shape"):
        return ()
    if hasattr(x, "shape"):
        return tuple(x.shape)
    inner = [get_shape(v) for v in x]
    if inner and not all_same(inner):
        raise ArgumentError("get_shape", f"ragged nested lists {x!r:.60}", "lists of equal lengths")
    return (len(x), *(inner[0] if inner else ()))


def get_child(obj: Any, key: str) -> Any:
    """Return the value at a dotted path through attributes, lists and dicts.

    >>> get_child({"layers": [{"weight": 3}]}, "layers.0.weight")
    3
    """
    for part in key.split("."):
        if isinstance(obj, (list, tuple)) or part.isdigit():
            obj = obj[int(part)]
        else:
            obj = obj[part] if isinstance(obj, dict) else getattr(obj, part)
    return obj


def get_single_element(x: Sequence[T]) -> T:
    """Return the only element of ``x``."""
    assert len(x) == 1, f"{len(x)} elements, not one"
    return x[0]


def to_tuple(x: Any) -> tuple[Any, ...]:
    """Return ``x`` if it is a tuple, else ``(x,)``."""
    return x if isinstance(x, tuple) else (x,)


def getbits(value: int, start: int, end: int) -> int:
    """Bits ``start`` to ``end``, both included."""
    return (value >> start) & ((1 << (end - start + 1)) - 1)


def lo32(x: int) -> int:
    """Return the low 32 bits."""
    return x & 0xFFFFFFFF


def hi32(x: int) -> int:
    """Return the bits above the low 32."""
    return x >> 32


def data64(data: int) -> tuple[int, int]:
    """High and low half of 64 bits."""
    return hi32(data), lo32(data)


def data64_le(data: int) -> tuple[int, int]:
    """Low and high half of 64 bits."""
    return lo32(data), hi32(data)


# *** text ***
def ansistrip(s: str) -> str:
    """Return ``s`` without ANSI colour codes."""
    return re.sub("\u001b\\[[0-9]*m", "", s)


def ansipad(s: str, w: int) -> str:
    """Padded with spaces to ``w`` visible characters."""
    return s + " " * max(w - len(ansistrip(s)), 0)


def word_wrap(x: str, wrap: int = 80) -> str:
    """Lines of at most ``wrap`` characters."""
    parts = ([line[i : i + wrap] for i in range(0, max(len(line), 1), wrap)] for line in x.split("\n"))
    return "\n".join(flatten(parts))


def to_function_name(s: str) -> str:
    """Return a name for a function of C: other signs as their code points in hexadecimal, without colours.

    >>> to_function_name("a b-c")
    'a20b2Dc'
    """
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else f"{ord(c):02X}" for c in ansistrip(s))


def pluralize(st: str, cnt: int) -> str:
    """Return a number and its noun."""
    return f"{cnt} {st}" + ("" if cnt == 1 else "s")


def size_to_str(s: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    unit = min(int(s).bit_length() // 10, 3) if s else 0
    return f"{s / 1024**unit:.2f} {('B', 'KB', 'MB', 'GB')[unit]}"


def stderr_log(msg: str) -> None:
    """Write ``msg`` to standard error."""
    print(msg, end="", file=sys.stderr, flush=True)


def panic(e: type[Exception] | None = None, *arg: Any) -> Any:
    """Raise an exception, usable as an expression."""
    raise (e or RuntimeError)(*arg)


def colorize_float(x: float) -> str:
    """Return a ratio of times: green for a gain, red for a loss."""
    return colored(f"{x:7.2f}x", "green" if x < 0.75 else "red" if x > 1.15 else "yellow")


def time_to_str(t: float, w: int = 8) -> str:
    """Return a time in the unit that suits it."""
    factor, unit = next((1 / f, u) for f, u in ((1.0, "s "), (1e-3, "ms"), (1e-6, "us")) if t > f * 10 or u == "us")
    return f"{t * factor:{w}.2f}{unit}"


# *** memory ***
def from_mv(mv: memoryview, to_type: Any = ctypes.c_char) -> Any:
    """Return a ctypes array over writable bytes.

    >>> from_mv(memoryview(bytearray(b"\\0")))[0]
    b'\\x00'
    """
    return (to_type * (mv.nbytes // ctypes.sizeof(to_type))).from_buffer(mv)


def to_mv(ptr: int, sz: int) -> memoryview:
    """Return the ``sz`` bytes at an address."""
    return memoryview((ctypes.c_uint8 * sz).from_address(ptr)).cast("B")


def mv_address(mv: memoryview) -> int:
    """Address of writable bytes."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mv))


def flat_mv(mv: memoryview) -> memoryview:
    """Return the memory as a 1-D view of bytes."""
    return mv.cast("B") if mv.nbytes else mv


# *** files ***
def temp(x: str, append_user: bool = False) -> str:
    """Return a name in the folder of temporary files."""
    return str(Path(tempfile.gettempdir()) / (f"{x}.{getpass.getuser()}" if append_user else x))


def fetch(url: str, name: str | Path | None = None, subdir: str | None = None, gunzip: bool = False,
          allow_caching: bool = True, headers: dict[str, str] | None = None) -> Path:
    """Download ``url`` once; return the path of the cached file (``gunzip``: of its decompressed content)."""
    path = fetched(url, None if name is None else str(name), subdir, again=not allow_caching, headers=headers)
    if not gunzip:
        return path
    unpacked = path.with_name(path.name + ".gunzip")
    if not unpacked.is_file() or not allow_caching:
        replace_file(unpacked, gzip.decompress(path.read_bytes()))
    return unpacked


def diskcache_clear() -> None:
    """Delete all entries of the disk cache."""
    cache_prune(0)


# *** time ***
class Timing(contextlib.ContextDecorator):
    """Prints how long a block took.

    Args:
        on_exit: text to add, from the nanoseconds.
    """

    def __init__(self, prefix: str = "", on_exit: Callable[[int], str] | None = None, enabled: bool = True) -> None:
        self.prefix, self.on_exit, self.enabled = prefix, on_exit, enabled

    def __enter__(self) -> Timing:
        self.st = time.perf_counter_ns()
        return self

    def __exit__(self, *error: object) -> None:
        self.et = time.perf_counter_ns() - self.st
        if self.enabled:
            print(f"{self.prefix}{self.et * 1e-6:6.2f} ms" + (self.on_exit(self.et) if self.on_exit else ""))


def profile_marker(name: str, color: str = "gray") -> None:
    """Print a marker with the time to standard error if PROFILE is set, to separate sections of a profile."""
    if settings.PROFILE:
        print(colored(f"*** {name} at {time.perf_counter() * 1e3:.2f} ms", color), file=sys.stderr)


def perf_counter_us() -> decimal.Decimal:
    """Return the time of a monotonic clock in microseconds."""
    return decimal.Decimal(time.perf_counter_ns()) / 1000


class Profiling(contextlib.ContextDecorator):
    """Profiles a block with cProfile: prints the ``frac`` of functions that took most, and writes ``fn`` for pstats."""

    def __init__(self, enabled: bool = True, sort: str = "cumtime", frac: float = 0.2, fn: str | None = None,
                 ts: float = 1) -> None:
        self.enabled, self.sort, self.frac, self.fn = enabled, sort, frac, fn
        self.time_scale = 1e3 / ts
        self.profile = cProfile.Profile()

    def __enter__(self) -> Profiling:
        if self.enabled:
            self.profile.enable()
        return self

    def __exit__(self, *error: object) -> None:
        if not self.enabled:
            return
        self.profile.disable()
        if self.fn:
            self.profile.dump_stats(self.fn)
        rows: Any = pstats.Stats(self.profile).strip_dirs().sort_stats(self.sort)
        order: list[Any] = rows.fcn_list or []
        for at in order[: int(len(order) * self.frac)]:
            calls, _, own, total, _ = rows.stats[at]
            scale = self.time_scale
            print(f"n:{calls:8d}  tm:{own * scale:7.2f}ms  tot:{total * scale:7.2f}ms  {at[2]}  {at[0]}:{at[1]}")


class tqdm:
    """A progress bar on standard error; ``trange(n)`` is one over a range.

    >>> list(tqdm([1, 2], disable=True)), tqdm.HMS(75), tqdm.SI(1234)
    ([1, 2], '01:15', '1.23k')
    """

    def __init__(self, iterable: Iterable[Any] | None = None, desc: str = "", disable: bool = False, unit: str = "it",
                 unit_scale: bool = False, total: int | None = None, rate: int = 100) -> None:
        vars(self)["_bar"] = _Bar(iterable, desc or None, total, file=sys.stderr, mininterval=1 / rate, disable=disable,
                                  unit=unit.strip(), unit_scale=unit_scale)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_bar"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_bar"], name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(vars(self)["_bar"])

    def __len__(self) -> int:
        return len(vars(self)["_bar"])

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, n: int = 0, close: bool = False) -> None:
        """Advance by ``n``; ``close`` ends the line."""
        vars(self)["_bar"].update(n)
        if close and not self.disable:
            self.refresh()
            if self.total is not None and self.n >= self.total:
                self.close()
            else:
                self.fp.write("\n")

    HMS = staticmethod(_Bar.format_interval)
    SI = staticmethod(_Bar.format_sizeof)


class trange(tqdm):
    """``tqdm(range(n))``."""

    def __init__(self, n: int, **arguments: Any) -> None:
        super().__init__(range(n), **arguments)

HMS, SI = tqdm.HMS, tqdm.SI
