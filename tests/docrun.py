"""Documents whose examples run: ``python tests/docrun.py docs/tour.md`` rewrites the outputs that a page shows.

The blocks of a page run in order, in one folder and one Python process per page:

    ```python            runs; a ```text block right after it is what it prints
    ```python (# x.py)   a block that begins with a comment naming a file is written to that file instead
    ```console           `$ command` lines run in a shell; the lines after each are what it prints
    ```...  <!-- norun -->   a block after this comment is left alone
    ```...  <!-- needs cc --> so is one after this, and the output it shows, where there is no such command

Times, speeds, process ids and hashes may differ from run to run; a longer output may be cut with a line `...`.
"""
from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden.running import environment, normalised  # noqa: E402

_FENCE = re.compile(r"^```(\w*)\s*$")
_MARK = "\u241e block"


@dataclass
class Block:
    """A fenced block: its language, the numbers of its first and last line, its text."""

    language: str
    first: int
    last: int
    text: list[str]
    skipped: bool


def blocks(lines: list[str]) -> list[Block]:
    """The fenced blocks of a page."""
    found, at = [], 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            skipped = at > 0 and _left_alone(lines[at - 1])
            found.append(Block(opening[1], at + 1, end, lines[at + 1 : end], skipped))
            at = end
        at += 1
    return found


def _left_alone(comment: str) -> bool:
    needed = re.search(r"<!-- needs (\S+) -->", comment)
    return "<!-- norun -->" in comment or (needed is not None and shutil.which(needed[1]) is None)


def outputs(page: Path) -> list[tuple[Block, list[str]]]:
    """Every block that shows an output, with the output that it should show."""
    lines = page.read_text("utf-8").splitlines()
    found = [b for b in blocks(lines) if not b.skipped]
    wanted: list[tuple[Block, list[str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        scripts = [b for b in found if b.language == "python" and not _file(b)]
        for b in found:
            if b.language == "python" and _file(b):
                (cwd / _file(b)).write_text("\n".join(b.text) + "\n", "utf-8")
        if scripts:
            printed = _run_python(scripts, cwd)
            for b, text in zip(scripts, printed):
                after = next((o for o in found if o.language == "text" and o.first > b.last), None)
                if after is not None and not any(line.strip() for line in lines[b.last + 1 : after.first - 1]):
                    wanted.append((after, _cut(text.rstrip("\n").splitlines(), after.text)))
        for b in found:
            if b.language == "console":
                wanted.append((b, _run_console(b, cwd)))
    return sorted(wanted, key=lambda w: w[0].first)


def _file(b: Block) -> str:
    named = re.match(r"^# ([\w./-]+\.py)\s*$", b.text[0]) if b.text else None
    return named[1] if named else ""


def _run_python(scripts: list[Block], cwd: Path) -> list[str]:
    program = "\n".join(line for b in scripts for line in (*b.text, f"print({_MARK!r})"))
    script = cwd / "page.py"
    script.write_text(program + "\n", "utf-8")
    done = _shell(f'"{sys.executable}" page.py', cwd)
    script.unlink()
    parts = done.split(_MARK + "\n")
    assert len(parts) == len(scripts) + 1, done
    return parts[:-1]


def _run_console(b: Block, cwd: Path) -> list[str]:
    out: list[str] = []
    commands = [i for i, line in enumerate(b.text) if line.startswith("$ ")]
    for i, end in zip(commands, [*commands[1:], len(b.text)]):
        command = re.sub(r"\bpython\b", f'"{sys.executable}"', b.text[i][2:].split("  #")[0])
        out += [b.text[i], *_cut(_shell(command, cwd).rstrip("\n").splitlines(), b.text[i + 1 : end])]
    return out


def _shell(command: str, cwd: Path) -> str:
    done = subprocess.run(command, shell=True, cwd=cwd, env=environment(cwd / "cache"), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=110, check=False)
    return done.stdout


def _cut(real: list[str], shown: list[str]) -> list[str]:
    """``real`` up to where the page cuts it off with a line ``...``."""
    if shown and shown[-1].strip() == "..." and len(real) >= len(shown):
        return [*real[: len(shown) - 1], "..."]
    return real


def differences(page: Path) -> list[str]:
    """What a page shows that is not so."""
    found = []
    for block, wanted in outputs(page):
        if normalised("\n".join(block.text)) != normalised("\n".join(wanted)):
            found.append(f"{page.name}:{block.first + 1}\n" + "\n".join(wanted))
    return found


def rewrite(page: Path) -> None:
    """Put the real outputs into a page, where they differ by more than times."""
    lines = page.read_text("utf-8").splitlines()
    for block, wanted in reversed(outputs(page)):
        if normalised("\n".join(block.text)) != normalised("\n".join(wanted)):
            lines[block.first : block.last] = wanted
    page.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    for name in sys.argv[1:]:
        rewrite(Path(name))
