"""Terminal output: colours, folding to the terminal's width, human-readable numbers, and a silent exit when the reader
of a pipe has closed it."""
from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TextIO, TypeVar

from tinsmith.core.lazy_import import Late
from tinsmith.core.settings import settings

if TYPE_CHECKING:
    import shutil

    import tqdm
else:
    shutil = Late("shutil")
    tqdm = Late("tqdm")

WIDTH = 120  # columns assumed if standard output is not a terminal
_LEAST = 40  # columns, at least
_COLORS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "gray": 90}
_CODE = r"\x1b\[[0-9;]*m"
_BARS = " 0123456789┃┣┗┳━"

# Tokens that a folded line is not broken inside: words, numbers with exponents, strings, C operators, brackets.
_TOKEN = re.compile(_CODE + r"""|[^\W\d]\w*|0[xX][\w.]+(?:(?<=[pP])[+-]\d+\w*)?|\d[\w.]*(?:(?<=[eE])[+-]\d+\w*)?|"[^"]*"
|<<=?|>>=?|[-+*/%&|^=!<>]=|&&|\|\||\+\+|--|->|//|.""".replace("\n", ""), re.DOTALL)

_SIGPIPE = 13
_watched = False


def width() -> int:
    """Return the columns of the terminal; 120 if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, _LEAST)


def colored(text: str, color: str) -> str:
    """Return ``text`` in ``color`` if standard output is a terminal and ``NO_COLOR`` is unset."""
    if settings.NO_COLOR or not sys.stdout.isatty():
        return text
    return f"\u001b[{_COLORS[color]}m{text}\u001b[0m"


def visible_length(text: str) -> int:
    """Return the length of ``text`` without colour codes."""
    return len(re.sub(_CODE, "", text))


def show(text: str) -> None:
    """Print debug output, folded to the terminal's width.

    Raises:
        SystemExit: if the reader of standard output has closed it, as in ``| head``: the program exits silently.
    """
    show_whole(fitted(text))


def show_whole(text: str, out: TextIO | None = None) -> None:
    """Print debug output unfolded, such as source that users may pass to a compiler.

    Args:
        out: a stream, which is flushed; default: standard output.

    Raises:
        SystemExit: as ``show`` does.
    """
    _watch()
    try:
        print(text, file=out, flush=out is not None)
    except BrokenPipeError:
        _close(out or sys.stdout)
        raise SystemExit(128 + _SIGPIPE) from None


def fitted(text: str, columns: int | None = None) -> str:
    """Return ``text`` with lines wider than the limit folded: between words if possible, else between program tokens.

    >>> print(fitted("  1 ┣━┳ MUL of three words\\n  acc0 = (val0*val1)+(val2*val3);", 20))
      1 ┣━┳ MUL of three
        ┃       words
      acc0 =
          (val0*val1)+(
          val2*val3);
    """
    limit = width() if columns is None else columns
    return "\n".join(line if len(line) <= limit or visible_length(line) <= limit else _folded(line, limit)
                     for line in text.splitlines())


def _folded(line: str, limit: int) -> str:
    """Fold one line; continuation lines are indented below the tree branch of the first."""
    size = len(line) - len(line.lstrip(_BARS))
    head, rest = line[:size], re.sub(r" {3,}", "  ", line[size:])  # drop column padding first
    if size > limit // 2:  # a deep tree: show only the innermost branches
        head = f"{head[:4].rstrip():>3s} …{head[size - limit // 3 :]}"
    below = "".join("┃" if c in "┃┣" else " " for c in head) + "    "
    rows, row, used = [], head, len(head)
    for word in re.findall(r"\s*\S+", rest):
        if used + visible_length(word) > limit and used > len(below):
            rows.append(row)
            row, used, word = below, len(below), word.lstrip()
        for token in [word] if used + visible_length(word) <= limit else _tokens(word, limit - len(below)):
            length = visible_length(token)
            if used + length > limit and used > len(below):
                rows.append(row)
                row, used, token = below, len(below), token.lstrip()
            row += token
            used += length
    return "\n".join([*rows, row])


def _tokens(word: str, longest: int) -> Iterator[str]:
    for token in _TOKEN.findall(word):
        yield from (token[i : i + longest] for i in range(0, len(token), longest))


PATIENCE = 1.0  # seconds of work before a progress line is shown

_T = TypeVar("_T")


def counted(items: Sequence[_T], verb: str, things: str) -> Iterator[_T]:
    """Yield the items; after one second of work, a line on the terminal counts them.

    The line (``compiling 12/44 kernels``, on standard error) is erased at the end. ``PROGRESS=0`` disables it, and so
    does ``DEBUG=2``, which prints a line for each kernel.

    >>> list(counted([1, 2], "compiling", "kernels"))
    [1, 2]
    """
    begin, bar = time.monotonic(), None
    try:
        for n, item in enumerate(items):
            if bar is not None:
                bar.update()
            elif time.monotonic() - begin >= PATIENCE and settings.PROGRESS and settings.DEBUG < 2:
                bar = tqdm.tqdm(total=len(items), initial=n, leave=False, disable=None,  # None: unless on a terminal
                                bar_format=f"{verb} {{n_fmt}}/{{total_fmt}} {things}")
            yield item
    finally:
        if bar is not None:
            bar.close()


# *** closed pipes ***
def _watch() -> None:
    """From the first debug line on, let a closed pipe end the program silently, at exit and in unhandled errors."""
    global _watched
    if _watched:
        return
    _watched = True
    atexit.register(_flush)
    before = sys.excepthook

    def quiet(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not (isinstance(error, BrokenPipeError) and _flush()):
            before(kind, error, trace)

    sys.excepthook = quiet


def _flush() -> bool:
    """Flush standard output; return True if its reader has closed it."""
    try:
        sys.stdout.flush()
        closed = _has_no_reader(sys.stdout)
    except BrokenPipeError:
        closed = True
    except ValueError:  # the program closed it itself
        closed = False
    if closed:
        _close(sys.stdout)
    return closed


def _has_no_reader(out: TextIO) -> bool:
    """Return True for a pipe that nobody reads: a failed write can leave the buffers empty, so that a flush finds no
    fault."""
    if not hasattr(select, "poll"):
        return False
    with contextlib.suppress(OSError, ValueError):  # it is no file, or closed
        found = select.poll()
        found.register(out.fileno(), 0)
        return any(event & select.POLLERR for _, event in found.poll(0))
    return False


def _close(out: TextIO) -> None:
    """Redirect pending and further output of ``out`` to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)


def plural(n: int, word: str) -> str:
    """Return a count with its noun in the right number.

    >>> plural(1, "copy"), plural(2, "copy"), plural(2, "launch"), plural(0, "kernel")
    ('1 copy', '2 copies', '2 launches', '0 kernels')
    """
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("ch") else f"{word}s"
    return f"{n} {word if n == 1 else many}"


def name_column(name: str, width: int, indent: int) -> str:
    """Return a name as a column of a table that begins at column ``indent``. A name is never truncated, so that it can
    be searched for: after a longer name, the row continues on the next line.

    >>> name_column("r_4", 6, 2), name_column("r_4_16_8", 6, 2)
    ('r_4   ', 'r_4_16_8\\n        ')
    """
    return name.ljust(width) if len(name) <= width else f"{name}\n{' ' * (indent + width)}"


def cut(text: str, width: int) -> str:
    """Truncate to ``width`` characters, with an ellipsis.

    >>> cut("abcdef", 4), cut("abcd", 4)
    ('abc…', 'abcd')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


def percent(share: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.257), percent(0.004)
    ('26 %', '0.4 %')
    """
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"


def time_text(seconds: float) -> str:
    """Format seconds with a suitable unit: us, ms or s.

    >>> [time_text(s) for s in (3e-8, 1.234e-5, 0.0123, 2.0)]
    ['0.03 us', '12.3 us', '12.3 ms', '2.00 s']
    """
    value, unit = next(((seconds * k, u) for k, u in ((1e6, "us"), (1e3, "ms")) if seconds * k < 1000), (seconds, "s"))
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def bytes_text(n: int) -> str:
    """Format a number of bytes with a decimal unit.

    >>> [bytes_text(n) for n in (12, 4096, 67108864)]
    ['12 B', '4.1 KB', '67.1 MB']
    """
    value, unit = next(((n / k, u) for k, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")) if n >= k), (float(n), "B"))
    return f"{n} B" if unit == "B" else f"{value:.1f} {unit}"
