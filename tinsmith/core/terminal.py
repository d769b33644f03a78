"""Standard output as people see it: colours, no line wider than the terminal, and a quiet end where nobody reads on."""
from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from tinsmith.core.late import Late
from tinsmith.core.settings import settings

if TYPE_CHECKING:
    import shutil
else:
    shutil = Late("shutil")

WIDTH = 120  # where there is no terminal
_LEAST = 40
_COLORS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "gray": 90}
_CODE = r"\x1b\[[0-9;]*m"
_BARS = " 0123456789┃┣┗┳━"
# What a line may be broken between: words, numbers with exponents, strings, operators of C, brackets.
_TOKEN = re.compile(_CODE + r"""|[^\W\d]\w*|0[xX][\w.]+(?:(?<=[pP])[+-]\d+\w*)?|\d[\w.]*(?:(?<=[eE])[+-]\d+\w*)?|"[^"]*"
|<<=?|>>=?|[-+*/%&|^=!<>]=|&&|\|\||\+\+|--|->|//|.""".replace("\n", ""), re.DOTALL)
_SIGPIPE = 13
_watched = False


def width() -> int:
    """Columns of the terminal that standard output is, 120 where it is none."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, _LEAST)


def colored(text: str, color: str) -> str:
    """``text`` in ``color`` if standard output is a terminal and ``NO_COLOR`` is unset."""
    if settings.NO_COLOR or not sys.stdout.isatty():
        return text
    return f"\u001b[{_COLORS[color]}m{text}\u001b[0m"


def visible_length(text: str) -> int:
    """Length of ``text`` without colour codes."""
    return len(re.sub(_CODE, "", text))


def show(text: str) -> None:
    """Print what a debug level asks for, folded to the terminal's width.

    Raises:
        SystemExit: if nobody reads standard output any more, as in ``| head``: the program ends without a word.
    """
    show_whole(fitted(text))


def show_whole(text: str, out: TextIO | None = None) -> None:
    """The same with every line as it is: source that people may give to a compiler.

    Args:
        out: where to, at once; standard output unless given.

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
    """``text`` with its wider lines folded: between words where that goes, else between symbols of a program.

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
    """One line as several: those after the first stand further in, below the branch of a tree that the line is on."""
    size = len(line) - len(line.lstrip(_BARS))
    head, rest = line[:size], re.sub(r" {3,}", "  ", line[size:])  # a table gives up its columns first
    if size > limit // 2:  # a deep tree: the branches nearest to the node
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


class ProgressLine:
    """A counter on the terminal's standard error, shown once the work takes more than a second, and erased at its end.

    ``PROGRESS=0`` switches it off; where ``DEBUG`` prints a line for each kernel, there is none.

    >>> with ProgressLine("compiling", 44, "kernels") as line:
    ...     line.update(12)  # doctest's standard error is no terminal: nothing is shown
    """

    PATIENCE = 1.0  # seconds before the line is shown
    INTERVAL = 0.1  # seconds between two versions of it

    def __init__(self, verb: str, total: int, things: str) -> None:
        self.verb, self.total, self.things = verb, total, things
        self._next = time.monotonic() + self.PATIENCE
        self._shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._write("")

    def update(self, done: int) -> None:
        """Show that ``done`` of the things are done, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.INTERVAL
        out = sys.__stderr__
        if out is not None and settings.PROGRESS and settings.DEBUG < 2 and sys.stderr is out and out.isatty():
            self._shown = True
            self._write(f"{self.verb} {done}/{self.total} {self.things}")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile: the work goes on
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


# *** a pipe that nobody reads on from ***


def _watch() -> None:
    """From the first debug line on, a closed pipe is no error of the program, wherever it is noticed."""
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
    """Write what is left; whether standard output turned out to be closed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _close(sys.stdout)
        return True
    except ValueError:  # the program closed it itself
        pass
    return False


def _close(out: TextIO) -> None:
    """What is still to be written goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, out.fileno())
    os.close(nowhere)
