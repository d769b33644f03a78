"""The database of search results: a text file with one JSON object per line, so that files of several machines can be
merged.

A line says: this kernel, rendered for this target on this machine, took this time with these opts. Of lines with the
same key the fastest counts, in any order, so files are merged by concatenation.
"""
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.cache_security import data_dir
from tinsmith.core.disk_cache import replace_file
from tinsmith.core.settings import settings

_PLAIN = vars(Opt(OptOps.NOLOCALS))  # default values of an opt's fields, which are not written


@dataclass(frozen=True)
class SearchResult:
    """One result of a search.

    Attributes:
        kernel: hash of the kernel's graph.
        target: hash of everything else that its source depends on.
        machine: the processor's name.
        name: of the kernel with these opts, for users.
        opts: the fastest that was found.
        us, before_us: microseconds with these opts, and with the default opts.
        width: of the beam.
    """

    kernel: str
    target: str
    machine: str
    name: str
    opts: tuple[Opt, ...]
    us: float
    before_us: float
    width: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kernel, self.target, self.machine

    def line(self) -> str:
        """Return the entry as a line of text.

        >>> e = SearchResult("k", "t", "m", "E_4", (Opt(OptOps.UPCAST, 0, 4),), 1.5, 2.0, 2)
        >>> '"opts": [{"amt": 4, "axis": 0, "op": "UPCAST"}]' in e.line(), parse(e.line()) == e
        (True, True)
        """
        opts = [{n: v for n, v in vars(o).items() if v != _PLAIN[n]} | {"op": o.op.name} for o in self.opts]
        fields = {**vars(self), "opts": opts}
        return json.dumps(fields, sort_keys=True)


def parse(line: str) -> SearchResult | None:
    """Return the entry in a line; None if it is not valid, such as a partly written last line."""
    try:
        fields: dict[str, Any] = json.loads(line)
        opts = tuple(map(_opt, fields.pop("opts")))
        entry = SearchResult(opts=opts, **fields)
        float(entry.us), float(entry.before_us)
        return entry
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _opt(fields: dict[str, Any]) -> Opt:
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in fields.items() if n != "op"}
    return Opt(OptOps[fields["op"]], **values)


def place() -> Path:
    """Return the path of the file: ``BEAM_FILE``, else ``beam.txt`` in the user's data directory."""
    return Path(settings.BEAM_FILE or data_dir() / "beam.txt")


def read(path: Path | None = None) -> dict[tuple[str, str, str], SearchResult]:
    """Return the best entry for each kernel, target and machine; empty if there is no file."""
    try:
        text = (path or place()).read_text("utf-8")
    except OSError:
        return {}
    return best(e for line in text.splitlines() if (e := parse(line)) is not None)


def best(entries: Iterable[SearchResult]) -> dict[tuple[str, str, str], SearchResult]:
    """Return the fastest entry for each key; ties go to the first by text, so the order of entries does not matter."""
    found: dict[tuple[str, str, str], SearchResult] = {}
    for e in entries:
        old = found.get(e.key)
        if old is None or (e.us, e.line()) < (old.us, old.line()):
            found[e.key] = e
    return found


def append(entry: SearchResult) -> None:
    """Append a line to the file in one write; do nothing if the file cannot be written."""
    with contextlib.suppress(OSError):
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (entry.line() + "\n").encode())
        finally:
            os.close(handle)


def merge(paths: Iterable[Path]) -> int:
    """Merge the entries of other files into ours, one line per key; return the number of lines.

    Raises:
        OSError: if a file cannot be read, or ours cannot be written.
    """
    entries = list(read().values())
    for path in paths:
        entries += [e for line in path.read_text("utf-8").splitlines() if (e := parse(line)) is not None]
    found = best(entries)
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(sorted(e.line() + "\n" for e in found.values())).encode())
    return len(found)
