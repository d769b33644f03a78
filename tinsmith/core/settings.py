"""Every environment variable that Tinsmith reads, declared once with its type, default and meaning.

``settings.DEBUG`` is an int; ``with Context(DEBUG=2): ...`` changes it for a block, in this thread only.
"""
from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tinsmith.core.errors import ArgumentError


class Setting(NamedTuple):
    """One environment variable. ``affects_code`` says that programs compiled under other values must not be reused."""

    name: str
    default: int | str
    doc: str
    affects_code: bool = False

    def checked(self, value: Any) -> int | str:
        """``value`` if it is of the setting's type."""
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(self.default, str) or not isinstance(value, int):
            wanted = "text" if isinstance(self.default, str) else "a whole number"
            raise ArgumentError("Context", f"{self.name}={value!r} is not {wanted}", f"{self.name}={self.default!r}")
        return value

    def parse(self, text: str) -> int | str:
        if isinstance(self.default, str):
            return text
        try:
            return int(text or 0)
        except ValueError:
            raise ArgumentError("settings", f"{self.name}={text!r} is not a whole number: {self.doc}",
                                f"{self.name}=1") from None


DECLARED: Final = (
    Setting("DEBUG", 0, "1 devices, 2 timed lines, 3 schedule, 4 source, 5 trees and UOps, 6 rewrites, 7 assembly"),
    Setting("DEV", "", "default device, e.g. CPU, CPU:C, PYTHON"),
    Setting("NOOPT", 0, "1 switches all optimizer choices and multi-pass kernel fusion off", True),
    Setting("CHECKED", 0, "1 checks indices of gathers and scatters, integer divisors and NaN in every program, and "
            "names the user's line; 2 also guards the ends of buffers and compares kernels with the interpreter, on a "
            "sample", True),
    Setting("POISON", 0, "1 fills fresh memory with a pattern that is NaN in every float type, as CHECKED does"),
    Setting("THREADS", 0, "worker threads of the CPU device; 0 = as many as the cores allowed to this process"),
    Setting("CACHELEVEL", 1, "0 switches the disk cache off"),
    Setting("CACHE_DIR", "", "where the disk cache lives; empty = the user's cache directory"),
    Setting("CACHE_BYTES", 1 << 30, "size above which the disk cache drops what was used longest ago"),
    Setting("PROGRAMS", 1000, "how many compiled programs, and how many kernels, a process keeps in memory"),
    Setting("CPU_FEATURES", "", "generate for avx2, avx512 or generic instead of all that the host has", True),
    Setting("FASTMATH", 0, "1 allows rewrites that are wrong for NaN, infinities and signed zeros", True),
    Setting("VERIFY", 0, "every n-th replay of a jitted function is compared with an uncaptured run of it"),
    Setting("CHECK_IR", 0, "1 checks every program against the rules of its dialect between passes"),
    Setting("NO_COLOR", "", "any value switches terminal colours off"),
    Setting("ALIAS", "", "device names to read as others, e.g. METAL=CPU,GPU=CPU"),
    Setting("JIT", 1, "0 runs jitted functions uncaptured"),
    Setting("PROFILE", 0, "1 times every kernel and prints at the end which of them took how long"),
    Setting("BEAM", 0, "width of the search for opts by measured time, kernel by kernel; 0 takes the model's", True),
    Setting("BEAM_SECONDS", 10, "how long a candidate of that search may take to compile and run"),
    Setting("BEAM_FILE", "", "the text file with what searches found; empty = beam.txt among the user's data"),
    Setting("HISTORY_BYTES", 1 << 30, "memory that is kept for gradients through realized values; beyond it the oldest "
            "are let go, and who asks for their gradient gets an error"),
    Setting("SPIN_US", 2000, "how long an idle CPU worker spins before it sleeps, in microseconds"),
)
_BY_NAME: Final = {s.name: s for s in DECLARED}


class _Settings(threading.local):
    """Attribute access to the declared settings; each thread starts from the environment."""

    def __init__(self) -> None:
        for s in DECLARED:
            text = os.environ.get(s.name)
            super().__setattr__(s.name, s.default if text is None else s.parse(text))
        self._changed()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._changed()

    def _changed(self) -> None:
        super().__setattr__("token", object())
        super().__setattr__("code_key", tuple(getattr(self, s.name) for s in DECLARED if s.affects_code))

    token: object  # another one after every change
    code_key: tuple[int | str, ...]  # the values that change generated code: part of every cache key
    DEBUG: int
    DEV: str
    NOOPT: int
    CHECKED: int
    POISON: int
    THREADS: int
    CACHELEVEL: int
    CACHE_DIR: str
    CACHE_BYTES: int
    PROGRAMS: int
    CPU_FEATURES: str
    FASTMATH: int
    VERIFY: int
    CHECK_IR: int
    NO_COLOR: str
    ALIAS: str
    JIT: int
    PROFILE: int
    BEAM: int
    BEAM_SECONDS: int
    BEAM_FILE: str
    HISTORY_BYTES: int
    SPIN_US: int


settings = _Settings()


def child_environment(**changes: int | str) -> dict[str, str]:
    """The environment of a process that works under the settings of this thread, but for ``changes``.

    >>> with Context(NOOPT=1):
    ...     [child_environment(DEBUG=2)[name] for name in ("NOOPT", "DEBUG")]
    ['1', '2']
    """
    values = {s.name: getattr(settings, s.name) for s in DECLARED} | changes
    path = os.pathsep.join(p for p in sys.path if p)
    return {**os.environ, **{n: str(v) for n, v in values.items()}, "PYTHONPATH": path}


@contextlib.contextmanager
def Context(**changes: Any) -> Iterator[None]:
    """Change settings inside a ``with`` block.

    >>> with Context(NOOPT=1):
    ...     settings.NOOPT
    1

    Raises:
        ArgumentError: for a name that is not a declared setting.
    """
    for name in changes:
        if name not in _BY_NAME:
            raise ArgumentError("Context", f"unknown setting {name!r}", f"one of {', '.join(_BY_NAME)}")
    before = {name: getattr(settings, name) for name in changes}
    try:
        for name, value in changes.items():
            setattr(settings, name, _BY_NAME[name].checked(value))
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
