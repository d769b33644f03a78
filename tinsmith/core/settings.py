"""The environment variables that Tinsmith reads, each declared once with its type, default and meaning.

``settings.DEBUG`` is an int; ``with Context(DEBUG=2): ...`` changes it for a block, in this thread and task only.
An assignment outside any such block changes the process-wide default, which applies to every thread outside a block.
"""
from __future__ import annotations

import contextlib
import contextvars
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from tinsmith.core.errors import ArgumentError, shown
from tinsmith.core.log import log
from tinsmith.core.suggestions import nearest

if TYPE_CHECKING:
    from tinsmith.core.dtypes import DType

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ENVIRONMENT: Final = ("<environment>", 0)  # location in errors about a variable: no line of the user's program


_UNITS: Final = {"": 1, "B": 1, **{f"{letter}{end}": base ** (n + 1) for n, letter in enumerate("KMGT")
                               for end, base in (("B", 1000), ("iB", 1024), ("", 1000))}}


def bytes_of(text: str | float, at: tuple[str, int] | None = None) -> int:
    """Return a number of bytes, given as a number or a text with a unit; 0 for an empty text.

    >>> [bytes_of(t) for t in ("2GB", "1.5 MiB", "300k", "4096", 7, 2e9, "")]
    [2000000000, 1572864, 300000, 4096, 7, 2000000000, 0]

    Raises:
        ArgumentError: if the text is not a size.
    """
    if not text:
        return 0
    number = text if isinstance(text, int | float | numbers.Real) and not isinstance(text, bool) else 0
    if 0 < number < math.inf and number == int(number):  # includes NumPy's integers and 2e9; 1.5 lacks a unit
        return int(number)
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text) if isinstance(text, str) else None
    unit = None if found is None else next((n for u, n in _UNITS.items() if u.lower() == found[2].lower()), None)
    if found is None or unit is None:
        raise ArgumentError("memory_budget", f"{shown(text)} is not an amount of memory",
                            'a number of bytes, or a text such as "2GB", "500 MB", "1.5GiB"', at)
    return int(float(found[1]) * unit)


class Setting(NamedTuple):
    """One environment variable. ``affects_code``: programs compiled under other values must not be reused (it is in the
    cache key)."""

    name: str
    default: int | str
    doc: str
    affects_code: bool = False

    def checked(self, value: Any) -> int | str:
        """Return ``value`` if it has the setting's type."""
        if self.name == "MEMORY_BUDGET":
            return str(bytes_of(value) or "")
        if isinstance(value, str):
            return self.parse(value)
        if isinstance(self.default, str) or not isinstance(value, int):
            wanted = "text" if isinstance(self.default, str) else "a whole number"
            raise ArgumentError("Context", f"{self.name}={shown(value)} is not {wanted}",
                                f"{self.name}={self.default!r}")
        return self._not_negative("Context", value)

    def parse(self, text: str, at: tuple[str, int] | None = None) -> int | str:
        if isinstance(self.default, str):
            if self.name == "MEMORY_BUDGET":
                bytes_of(text, at)
            return text
        try:
            value = int(text or 0)
        except ValueError:
            raise ArgumentError("settings", f"{self.name}={text!r} is not a whole number: {self.doc}",
                                f"{self.name}=1", at) from None
        return self._not_negative("settings", value, at)

    def _not_negative(self, op: str, value: int, at: tuple[str, int] | None = None) -> int:
        if value < 0:
            raise ArgumentError(op, f"{self.name}={value} is negative: {self.doc}", f"{self.name}={self.default}", at)
        return value


DECLARED: Final = (
    Setting("DEBUG", 0, "1 devices, 2 timed lines, 3 schedule, 4 source, 5 trees, UOps, 6 rewrites, rules, 7 assembly"),
    Setting("DEV", "", "default device, e.g. CPU, CPU:C, PYTHON"),
    Setting("NOOPT", 0, "1 switches all optimizer choices and multi-pass kernel fusion off", True),
    Setting("TC", 1, "0 disables matrix units", True),
    Setting("NOLOCALS", 0, "1 uses blocks of one thread", True),
    Setting("DYNAMIC", 1, "0 compiles a program for every size; 1 makes sizes that change variables of one program"),
    Setting("CHECKED", 0, "1 checks indices of gathers and scatters, integer divisors and NaN in every program, and "
            "names the user's line; 2 also guards the ends of buffers and compares kernels with the interpreter, on a "
            "sample", True),
    Setting("POISON", 0, "1 fills fresh memory with a pattern that is NaN in every float type, as CHECKED does"),
    Setting("THREADS", 0, "worker threads of the CPU device; 0 = as many as the cores allowed to this process"),
    Setting("CACHELEVEL", 1, "0 switches the disk cache off"),
    Setting("CACHE_DIR", "", "where the disk cache lives; empty = the user's cache directory"),
    Setting("CACHE_KEY", "", "file of the secret that signs cache entries; empty = cache.key among the user's data"),
    Setting("CACHE_SHARED", 0, "1 allows a CACHE_DIR that other (trusted) users can write"),
    Setting("CACHE_BYTES", 1 << 30, "bytes above which the least recently used cache entries are deleted"),
    Setting("PROGRAMS", 1000, "how many compiled programs, and how many kernels, a process keeps in memory"),
    Setting("CPU_FEATURES", "", "generate for avx2, avx512 or generic instead of all features of the host", True),
    Setting("FASTMATH", 0, "1 allows rewrites that are wrong for NaN, infinities and signed zeros", True),
    Setting("EXCESS_PRECISION", 0, "1 rounds 16-bit floats where they are stored, instead of after every operation",
            True),
    Setting("VERIFY", 0, "every n-th replay of a jitted function is compared with an uncaptured run of it"),
    Setting("CHECK_IR", 0, "1 checks every program against the rules of its dialect between passes"),
    Setting("NO_COLOR", "", "any value switches terminal colours off"),
    Setting("PROGRESS", 1, "0 leaves out the line that counts kernels while they compile, on a terminal"),
    Setting("ALIAS", "", "device names to read as others, e.g. METAL=CPU,GPU=CPU"),
    Setting("JIT", 1, "0 runs jitted functions uncaptured"),
    Setting("PROFILE", 0, "1 times every kernel, prints at the end what took the time, and writes a Perfetto trace"),
    Setting("VIZ", 0, "1 shows in the browser, at the end, how programs were compiled and run; 2 writes the trace"),
    Setting("GRAPH", 0, "1 draws at the end the graphs that were computed, as SVG and DOT"),
    Setting("JITGRAPH", 0, "1 draws the graphs that TinyJit captured, as SVG and DOT"),
    Setting("TRACE_DIR", "", "where VIZ, GRAPH, JITGRAPH and PROFILE write their files; empty = the current folder"),
    Setting("BEAM", 0, "beam width of the search for opts by measured time; 0 uses the cost model's opts", True),
    Setting("BEAM_SECONDS", 10, "how long a candidate of that search may take to compile and run"),
    Setting("BEAM_FILE", "", "the text file of BEAM search results; empty = beam.txt among the user's data"),
    Setting("HISTORY_BYTES", 1 << 30, "memory that is kept for gradients through realized values; beyond it the oldest "
            "are dropped, and their gradients raise an error"),
    Setting("MEMORY_BUDGET", "", "memory that a program may take on each device, e.g. 2GB: values that do not fit are "
            "rematerialized instead of stored; empty = no limit"),
    Setting("ALLOW_TF32", 0, "1 lets matrix units multiply float32 rounded to 10 bits of significand (TF32)", True),
    Setting("CUDA_SYNC", 0, "1 waits for every kernel on a GPU, so that an error names it and the user's line"),
    Setting("RANKS", "", "of a program of many processes, rank 0 prints; all lets every process print, with a prefix"),
    Setting("DIST_TIMEOUT", 600, "seconds after which processes that wait for another one are ended; 0 = never"),
    Setting("SPIN_US", 2000, "how long an idle CPU worker spins before it sleeps, in microseconds"),
)
_BY_NAME: Final = {s.name: s for s in DECLARED}
_NAMES: Final = (*_BY_NAME, "training", "recording", "autocast_dtype")

MODES: Final[dict[str, Any]] = {"training": False, "recording": True, "autocast_dtype": None}
_MOST: Final = 256  # cached Values objects; a program uses few different combinations


class _Names:
    """The attributes of ``current()``."""

    code_key: tuple[int | str, ...]  # values of the settings with `affects_code`: part of every kernel cache key
    program_key: tuple[int | str, ...]  # `code_key` and the memory limit: part of the cache key of programs
    memory_limit: int  # MEMORY_BUDGET in bytes; 0 = none
    timed: bool  # record every kernel, copy and compilation on the timeline (PROFILE, VIZ)
    one_by_one: bool  # launch kernels one at a time, for timing or checking
    recorded: bool  # record the compilation of programs (VIZ, GRAPH, JITGRAPH)
    training: bool  # True inside ``Tensor.train``
    recording: bool  # record for gradients; False inside ``Tensor.no_grad``
    autocast_dtype: DType | None  # operand dtype inside ``Tensor.autocast``
    DEBUG: int
    DEV: str
    NOOPT: int
    TC: int
    NOLOCALS: int
    DYNAMIC: int
    CHECKED: int
    POISON: int
    THREADS: int
    CACHELEVEL: int
    CACHE_DIR: str
    CACHE_KEY: str
    CACHE_SHARED: int
    CACHE_BYTES: int
    PROGRAMS: int
    CPU_FEATURES: str
    FASTMATH: int
    EXCESS_PRECISION: int
    VERIFY: int
    CHECK_IR: int
    NO_COLOR: str
    PROGRESS: int
    ALIAS: str
    JIT: int
    PROFILE: int
    VIZ: int
    GRAPH: int
    JITGRAPH: int
    TRACE_DIR: str
    BEAM: int
    BEAM_SECONDS: int
    BEAM_FILE: str
    HISTORY_BYTES: int
    MEMORY_BUDGET: str
    CUDA_SYNC: int
    RANKS: str
    DIST_TIMEOUT: int
    SPIN_US: int
    ALLOW_TF32: int


class Values(_Names):
    """A snapshot of all settings and ``Tensor`` modes; equal snapshots are one object.

    Hot paths call ``current()`` once and read the snapshot.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        vars(self).update(given)
        self.code_key = tuple(given[s.name] for s in DECLARED if s.affects_code)
        self.memory_limit = bytes_of(given["MEMORY_BUDGET"])
        self.program_key = (*self.code_key, self.memory_limit)
        self.timed = bool(self.PROFILE or self.VIZ)
        self.one_by_one = bool(self.timed or self.DEBUG >= 2 or self.CHECKED >= 2)
        self.recorded = bool(self.VIZ or self.GRAPH or self.JITGRAPH)


_kept: Final[dict[tuple[Any, ...], Values]] = {}


def _values_of(given: Mapping[str, Any]) -> Values:
    key = tuple(given[name] for name in _NAMES)
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= _MOST:
            _kept.clear()
        found = _kept[key] = Values({name: given[name] for name in _NAMES})
    return found


class _Block:
    """The ``Context`` blocks that a thread or task is in, on top of the process's defaults.

    Attributes:
        entries: (owner, changes by name) of each block, the innermost last.
        changes: all changes combined.
        found: (the defaults used last, the resulting values).
    """

    __slots__ = ("changes", "entries", "found")

    def __init__(self, entries: tuple[tuple[object, Mapping[str, Any]], ...]) -> None:
        self.entries = entries
        self.changes = {name: value for _, changes in entries for name, value in changes.items()}
        self.found = self.on(_Process.default)

    def on(self, default: Values) -> tuple[Values, Values]:
        return default, _values_of({**vars(default), **self.changes})


class _Process:
    """The process-wide defaults, which apply outside all blocks."""

    default: Values


_block: Final[contextvars.ContextVar[_Block | None]] = contextvars.ContextVar("tinsmith", default=None)
_block_now: Final = _block.get


def current() -> Values:
    """Return the settings and modes of this thread and task."""
    block = _block_now()
    if block is None:
        return _Process.default
    default, found = block.found
    if default is not _Process.default:
        block.found = default, found = block.on(_Process.default)
    return found


def change(name: str, value: Any) -> None:
    """Assign a setting: in the innermost block that changes ``name``, until it ends; else process-wide."""
    if name not in _NAMES:
        raise AttributeError(f"no setting {name!r}")
    block = _block_now()
    entries = () if block is None else block.entries
    at = next((n for n in reversed(range(len(entries))) if name in entries[n][1]), None)
    if at is None:
        _Process.default = _values_of({**vars(_Process.default), name: value})
    else:
        owner, changes = entries[at]
        _block.set(_Block((*entries[:at], (owner, {**changes, name: value}), *entries[at + 1 :])))


def enter(owner: object, changes: Mapping[str, Any]) -> None:
    """Begin a block of this thread and task with other settings and modes."""
    block = _block_now()
    _block.set(_Block((*(() if block is None else block.entries), (owner, changes))))


def leave(owner: object) -> None:
    """End the innermost block of ``owner``; blocks begun after it, such as those of a generator, stay in effect."""
    block = _block_now()
    entries = () if block is None else block.entries
    at = next((n for n in reversed(range(len(entries))) if entries[n][0] is owner), None)
    if at is not None:  # None: ended by a thread that did not enter it
        left = (*entries[:at], *entries[at + 1 :])
        _block.set(_Block(left) if left else None)


def in_context(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap ``function`` to run once in another thread under this thread's current settings and modes.

    >>> from threading import Thread
    >>> with Context(NOOPT=1):
    ...     thread = Thread(target=in_context(lambda: print(settings.NOOPT)))
    >>> thread.start(); thread.join()
    1
    """
    context = contextvars.copy_context()

    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return context.run(function, *args, **kwargs)

    return run


class _Settings(_Names):
    """Attribute access to ``current()``; assignments go to ``change``."""

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            return getattr(current(), name)

        def __setattr__(self, name: str, value: Any) -> None:
            change(name, value)


def _read() -> None:
    """Set the process's defaults from the environment."""
    given: dict[str, Any] = dict(MODES)
    for s in DECLARED:
        text = os.environ.get(s.name)
        given[s.name] = s.default if text is None else s.parse(text, _ENVIRONMENT)
    _Process.default = _values_of(given)


def _from_environment() -> _Settings:
    """Return the settings. A malformed variable ends the program with one line and no traceback."""
    try:
        _read()
        return _Settings()
    except ArgumentError as error:
        wrong, before = error, sys.excepthook
        line = f"tinsmith: {wrong.message.partition(':')[0]}. Try: {wrong.mend}"

        def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if error is wrong:
                print(line, file=sys.stderr)
            else:
                before(kind, error, trace)

        sys.excepthook = shown
        raise


settings = _from_environment()

_OF_BEAM: Final = {
    "STRICT_MODE": "DEBUG=3 prints every candidate with its time or its fault",
    "TIMEOUT_SEC": "BEAM_SECONDS=n", "DEV_TIMEOUT": "BEAM_SECONDS=n", "LOGFILE": "BEAM_FILE=path",
    "DEBUG": "DEBUG=3 prints every candidate with its time or its fault",
    **dict.fromkeys(("UPCAST_MAX", "LOCAL_MAX", "UOPS_MAX", "MIN_PROGRESS", "PADTO", "ESTIMATE", "COMPARE",
                     "LOG_SURPASS_MAX"), "docs/search.md says what the search tries, and when it stops")}

# Variables that tinygrad reads and Tinsmith does not: name → (tinygrad's default, the equivalent here).
ELSEWHERE: Final[dict[str, tuple[str, str]]] = {
    "AMX": ("0", "matrix units are used where the machine has them; TC=0 leaves them alone"),
    "USE_TC": ("1", "TC=0 disables matrix units"),
    "TC_OPT": ("0", "sums of products are padded where it pays; with_opts(tensor, [Opt(OptOps.TC, ...)]) by hand"),
    "TC_SELECT": ("-1", "with_opts(tensor, [Opt(OptOps.TC, axis, (m, n), unit=name)]) names a matrix unit"),
    "IMAGE": ("0", "there are no image dtypes, and nothing takes their place"),
    "FLOAT16": ("0", "tensor.half() where half the precision is wanted"),
    "WINO": ("0", "convolutions are contractions over windows, and BEAM=2 searches for faster ones"),
    "FUSE_ARANGE": ("0", "ranges are indices and always part of the kernels that use them"),
    "FUSE_OPTIM": ("0", "an optimizer's step is one program already"),
    "SPLIT_REDUCEOP": ("1", "NOOPT=1 leaves reductions whole"),
    "PCONTIG": ("0", "NOOPT=1 leaves chains of reductions apart; DEBUG=3 says why a kernel has memory of its own"),
    "TRANSCENDENTAL": ("1", "functions are written with additions and multiplications wherever that is exact enough"),
    "DISABLE_FAST_IDIV": ("1", "divisions by constants are left to the compiler"),
    "NO_MEMORY_PLANNER": ("0", "POISON=1 and CHECKED=2 look for mistakes with memory"),
    "LRU": ("1", "memory is reused by size"),
    "RING": ("1", "collectives are chosen by size: docs/devices.md"),
    "ALL2ALL": ("0", "collectives are chosen by size: docs/devices.md"),
    "ALLREDUCE_CAST": ("1", "parts are added in the dtype that they have"),
    "JIT_BATCH_SIZE": ("32", "a captured function is launched as a whole"),
    "NUM_CPU_THREADS": (str(os.cpu_count() or 1), "THREADS=n"),
    "CPU_COUNT": (str(os.cpu_count() or 1), "THREADS=n"),
    "PARALLEL": (str(os.cpu_count() or 1), "BEAM uses a process of its own, and compiling all cores"),
    "IGNORE_BEAM_CACHE": ("0", "BEAM_FILE=path of an empty file"),
    "CCACHE": ("1", "CACHELEVEL=0 switches the disk cache off"),
    "SCACHE": ("1", "CACHELEVEL=0 switches the disk cache off"),
    "SPEC": ("1", "CHECK_IR=1 checks programs between passes"),
    "CHECK_OOB": ("0", "CHECKED=1 checks indices"),
    "VALIDATE_WITH_CPU": ("0", "CHECKED=2 compares kernels with the interpreter"),
    "TRACK_MATCH_STATS": ("0", "DEBUG=6 prints rewrites by rule"),
    "DEBUG_RANGEIFY": ("0", "DEBUG=3 says why a kernel has memory of its own"),
    "TRACEMETA": ("1", "methods and lines are always noted"),
    "CAPTURE_PROCESS_REPLAY": ("0", "python -m tinsmith conformance DEVICE compares programs with the interpreter"),
    "CAPTURING": ("1", "JIT=0 runs captured functions uncaptured"),
    "MAX_KERNEL_BUFFERS": ("0", "kernels are cut where they grow too large; DEBUG=3 says where and why"),
    "MAX_BUFFER_SIZE": ("0", "buffers are as large as their values"),
    "EMULATED_DTYPES": ("", "what a device does not compute with is widened"),
    "ALLOW_DEVICE_USAGE": ("1", "DEV=NPY computes nothing; JIT and graphs never open a device on their own"),
    "REWRITE_STACK_LIMIT": ("250000", "graphs are walked without recursion, however deep they are"),
    "NULL_ALLOW_COPYOUT": ("0", "there is no device NULL; Tensor.schedule() and explain(run=False) run nothing"),
    "OPT": ("2", "NOOPT=1 switches the optimizer off, BEAM=2 lets it search"),
    "OPTLOCAL": ("0", "BEAM=2 tries sizes of blocks, too"),
    "DEVECTORIZE": ("1", "NOOPT=1 leaves programs without vectors"),
    "IGNORE_OOB": ("1", "CHECKED=1 checks indices"),
    "CONST_FOLDING": ("1", "constants are always folded"),
    "MULTIOUTPUT": ("0", "what shares a kernel is decided by cost; DEBUG=3 prints the schedule"),
    "FUSE_CONV_BW": ("0", "gradients of convolutions are fused where it pays; DEBUG=3 says why not"),
    "FUSE_AS_ONE_KERNEL": ("0", "what is fused is decided by cost; DEBUG=3 says why something has memory"),
    "FUSE_ATTENTION": ("0", "what is fused is decided by cost; DEBUG=3 says why something has memory"),
    "RANGEIFY": ("1", "what is fused is decided by cost; DEBUG=3 says why something has memory"),
    "DONT_REALIZE_EXPAND": ("0", "what is fused is decided by cost; DEBUG=3 says why something has memory"),
    "DONT_GROUP_REDUCES": ("0", "NOOPT=1 leaves chains of reductions apart"),
    "REDUCEOP_SPLIT_THRESHOLD": ("32768", "NOOPT=1 leaves reductions whole"),
    "REDUCEOP_SPLIT_SIZE": ("22", "NOOPT=1 leaves reductions whole"),
    "PUSH_PERMUTES": ("0", "views are folded into the kernels that read them"),
    "LAZYCACHE": ("1", "equal nodes are one node"),
    "THREEFRY": ("1", "random numbers are Threefry's on every device"),
    "SAVE_SCHEDULE": ("0", "tensor.schedule() is the schedule; DEBUG=3 prints it"),
    "SAVE_SCHEDULE_PATH": ("schedule.pkl", "tensor.schedule() is the schedule; DEBUG=3 prints it"),
    "GRAPHUOPS": ("0", "VIZ=1 shows the UOps of every kernel, and DEBUG=5 prints them"),
    "GRAPHPATH": ("/tmp/net", "GRAPH=1 writes into the current folder"),
    "PRINT_MATCH_STATS": ("1", "DEBUG=6 prints rewrites by rule"),
    "LOGOPS": ("", "DEBUG=5 prints trees, UOps and opts"),
    "LOGKERNS": ("", "DEBUG=5 prints trees, UOps and opts"),
    "PROFILEPATH": ("", "PROFILE=1 prints at the end what took the time, and where its trace is"),
    "RUN_PROCESS_REPLAY": ("0", "python -m tinsmith conformance DEVICE compares programs with the interpreter"),
    "DISABLE_COMPILER_CACHE": ("0", "CACHELEVEL=0 switches the disk cache off"),
    "CACHEDB": ("", "CACHE_DIR=path is where the disk cache lives"),
    "DISABLE_HTTP_CACHE": ("0", "fetch(url, allow_caching=False) downloads again"),
    "CPU_LLVM": ("0", "DEV=CPU compiles with LLVM, DEV=CPU:C with gcc or clang"),
    "AMD_LLVM": ("0", "there is no device AMD; DEV=CPU, or one that Device.register adds: docs/new_accelerator.md"),
    "LLVMOPT": ("0", "NOOPT=1 switches all optimizer choices off"),
    "PTX": ("0", "DEV=CUDA writes CUDA C; DEBUG=7 prints its assembly"),
    "CUDA_PTX": ("0", "DEV=CUDA writes CUDA C; DEBUG=7 prints its assembly"),
    **{f"BEAM_{name}": ("", instead) for name, instead in _OF_BEAM.items()},
    **{name: (value, "sizes of blocks are chosen by cost; docs/opts.md gives them by hand") for name, value in (
        ("MV", "1"), ("MV_BLOCKSIZE", "4"), ("MV_THREADS_PER_ROW", "8"), ("MV_ROWS_PER_THREAD", "4"))},
    "USE_ATOMICS": ("0", "scatters add in a fixed order"),
    "DISALLOW_BROADCAST": ("0", "tensor.expand() by hand"),
    "OPENPILOT_HACKS": ("0", "nothing takes its place"),
    "TUPLE_ORDER": ("1", "the order of operands is the same in every process"),
    **{name: ("0", f"there is no device {name}; DEV=CPU, or one that Device.register adds: docs/new_accelerator.md")
       for name in ("AMD", "DSP", "NV", "QCOM")},
}
_told: set[str] = set()


def tell_unread() -> None:
    """Warn once about each tinygrad-only variable that is set: it has no effect. The warning names the replacement.

    If tinygrad expects a number, other texts are ignored: other programs use names like IMAGE or GRAPH, too.
    """
    for name, (default, _) in ELSEWHERE.items():
        value = os.environ.get(name, "")
        if value and (value.lstrip("-").isdigit() or not default.lstrip("-").isdigit()):
            tell(name, value)


def tell(name: str, value: str) -> None:
    """Warn once that the tinygrad-only variable ``name``, set to ``value``, has no effect."""
    default, instead = ELSEWHERE.get(name, (value, ""))
    if value != default and name not in _told:
        _told.add(name)
        log().warning("tinsmith: %s=%s does nothing: %s", name, value, instead)


def child_environment(**changes: int | str) -> dict[str, str]:
    """Return the environment of a child process that works under this thread's settings, with ``changes``.

    >>> with Context(NOOPT=1):
    ...     [child_environment(DEBUG=2)[name] for name in ("NOOPT", "DEBUG")]
    ['1', '2']
    """
    values = {s.name: getattr(settings, s.name) for s in DECLARED} | changes
    path = os.pathsep.join(p for p in sys.path if p)
    outer = {n: v for n, v in os.environ.items() if n not in ELSEWHERE}  # warned about once, not in each child process
    return {**outer, **{n: str(v) for n, v in values.items()}, "PYTHONPATH": path}


@contextlib.contextmanager
def Context(**changes: Any) -> Iterator[None]:
    """Change settings inside a ``with`` block, for this thread and asyncio task and the worker threads that act for it.

    >>> with Context(NOOPT=1):
    ...     settings.NOOPT
    1

    Raises:
        ArgumentError: for a name that is not a declared setting.
    """
    for name in changes:
        if name not in _BY_NAME:
            close = nearest(name, _BY_NAME)
            raise ArgumentError("Context", f"unknown setting {name!r}",
                                f"did you mean {close}=?" if close else f"one of {', '.join(_BY_NAME)}")
    owner = object()
    enter(owner, {name: _BY_NAME[name].checked(value) for name, value in changes.items()})
    try:
        yield
    finally:
        leave(owner)
