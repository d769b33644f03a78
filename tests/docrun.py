"""Runner of the examples in documents: ``python tests/docrun.py docs/tour.md`` rewrites the outputs that a page shows.

The blocks of a page run in order, in one folder and one Python process per page:

    ```python            runs; a ```text block right after it is what it prints
    ```python (# x.py)   a block that begins with a comment naming a file is written to that file instead
    ```console           `$ command` lines run in a shell; the lines after each are what it prints
    ![…](….svg)          right after a python block and its output: the drawing that its last expression is
    ```...  <!-- norun -->   a block after this comment is left alone
    ```...  <!-- needs cc --> so is one after this, and the output it shows, where there is no such command or package

The translation of a page, docs/zh/PAGE, has its blocks to the letter: they are copied there, if there are as many.

Times, speeds, process ids and hashes may differ from run to run; a longer output may be cut with a line `...`.
"""
from __future__ import annotations

import ast
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.golden.running import environment, normalised  # noqa: E402

_FENCE = re.compile(r"^```(\w*)\s*$")
_PICTURE = re.compile(r"^!\[[^\]]*\]\(([^)\s]+\.svg)\)\s*$")
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
    """Return the fenced blocks of a page."""
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
    return "<!-- norun -->" in comment or (
        needed is not None and shutil.which(needed[1]) is None and importlib.util.find_spec(needed[1]) is None)


@dataclass
class Shown:
    """The expected contents of a page: the output of each block that shows one, and the text of each picture."""

    outputs: list[tuple[Block, list[str]]]
    pictures: list[tuple[Path, str]]


def shown(page: Path) -> Shown:
    """Run the blocks of a page."""
    lines = page.read_text("utf-8").splitlines()
    found = [b for b in blocks(lines) if not b.skipped]
    wanted: list[tuple[Block, list[str]]] = []
    drawn: list[tuple[Path, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        scripts = [b for b in found if b.language == "python" and not _file(b)]
        for b in found:
            if b.language == "python" and _file(b):
                (cwd / _file(b)).write_text("\n".join(b.text) + "\n", "utf-8")
        if scripts:
            answers = [_output(b, found, lines) for b in scripts]
            pictures = [_picture(answer or b, lines) for b, answer in zip(scripts, answers)]
            texts = [_drawing(b, n) if p else b.text for n, (b, p) in enumerate(zip(scripts, pictures))]
            # Pictures show names of kernels, which depend on the vectors of the machine.
            settings = {"CPU_FEATURES": "avx2"} if any(pictures) and platform.machine() in ("x86_64", "AMD64") else {}
            printed = _run_python(texts, cwd, **settings)
            for answer, text in zip(answers, printed):
                if answer is not None:
                    wanted.append((answer, _cut(text.rstrip("\n").splitlines(), answer.text)))
            for n, picture in enumerate(pictures):
                if picture and (cwd / f"{n}.svg").exists():
                    drawn.append((page.parent / picture, (cwd / f"{n}.svg").read_text("utf-8")))
        for b in found:
            if b.language == "console":
                wanted.append((b, _run_console(b, cwd)))
    return Shown(sorted(wanted, key=lambda w: w[0].first), drawn)


def _output(b: Block, found: list[Block], lines: list[str]) -> Block | None:
    """Return the block right after ``b`` that shows its output."""
    after = next((o for o in found if o.language == "text" and o.first > b.last), None)
    return None if after is None or any(line.strip() for line in lines[b.last + 1 : after.first - 1]) else after


def _picture(b: Block, lines: list[str]) -> str:
    """Return the file of the picture right after a block, or ""."""
    line = next((line for line in lines[b.last + 1 :] if line.strip()), "")
    found = _PICTURE.match(line)
    return found[1] if found else ""


def _drawing(b: Block, number: int) -> list[str]:
    """Return the block's lines, changed to write the drawing that its last expression is, if any, to a file."""
    last = ast.parse("\n".join(b.text)).body[-1]
    if not isinstance(last, ast.Expr):
        return b.text
    text, end = list(b.text), (last.end_lineno or last.lineno) - 1
    write = f"__import__('pathlib').Path('{number}.svg').write_text(_.own_svg() + '\\n', 'utf-8')"
    text[last.lineno - 1] = f"hasattr(_ := ({text[last.lineno - 1]}"
    text[end] += f"), 'own_svg') and {write}"
    return text


def _file(b: Block) -> str:
    named = re.match(r"^# ([\w./-]+\.py)\s*$", b.text[0]) if b.text else None
    return named[1] if named else ""


def _run_python(scripts: list[list[str]], cwd: Path, **settings: str) -> list[str]:
    program = "\n".join(line for text in scripts for line in (*text, f"print({_MARK!r})"))
    script = cwd / "page.py"
    script.write_text(program + "\n", "utf-8")
    done = _shell(f'"{sys.executable}" page.py', cwd, **settings)
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


def _shell(command: str, cwd: Path, **settings: str) -> str:
    with subprocess.Popen(command, shell=True, cwd=cwd, env=environment(cwd / "cache", **settings), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          start_new_session=True) as process:
        try:
            return process.communicate(timeout=110)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the shell and all that it has started
            raise


def _cut(real: list[str], shown: list[str]) -> list[str]:
    """Return ``real`` up to the line at which the page truncates it with ``...``."""
    if shown and shown[-1].strip() == "..." and len(real) >= len(shown):
        return [*real[: len(shown) - 1], "..."]
    return real


def differences(page: Path) -> list[str]:
    """Return a description of each output or picture of a page that differs from the real one."""
    real, found = shown(page), []
    for block, wanted in real.outputs:
        if normalised("\n".join(block.text)) != normalised("\n".join(wanted)):
            found.append(f"{page.name}:{block.first + 1}\n" + "\n".join(wanted))
    for path, text in real.pictures:
        if not path.exists() or path.read_text("utf-8") != text:
            found.append(f"{page.name}: {path.name} is another picture today")
    return found


def rewrite(page: Path) -> None:
    """Put the real outputs into a page, where they differ in more than times, and draw its pictures."""
    lines = page.read_text("utf-8").splitlines()
    real = shown(page)
    for block, wanted in reversed(real.outputs):
        if normalised("\n".join(block.text)) != normalised("\n".join(wanted)):
            lines[block.first : block.last] = wanted
    page.write_text("\n".join(lines) + "\n", "utf-8")
    for path, text in real.pictures:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    if translation(page).exists():
        copy_blocks(page, translation(page))


def translation(page: Path) -> Path:
    """Return the path that a page's translation has (the file may be missing)."""
    page = page.resolve()
    return ROOT / "docs" / "zh" / (page.relative_to(ROOT / "docs") if page.is_relative_to(ROOT / "docs") else page.name)


def copy_blocks(page: Path, target: Path) -> None:
    """Give ``target`` the blocks of ``page``, one for one."""
    texts, lines = page.read_text("utf-8").splitlines(), target.read_text("utf-8").splitlines()
    ours, theirs = blocks(texts), blocks(lines)
    if len(ours) != len(theirs):
        raise ValueError(f"{target} has {len(theirs)} blocks, {page} has {len(ours)}")
    for a, b in reversed(list(zip(ours, theirs))):
        lines[b.first - 1 : b.last + 1] = texts[a.first - 1 : a.last + 1]
    target.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)
    for name in sys.argv[1:]:
        rewrite(Path(name))
