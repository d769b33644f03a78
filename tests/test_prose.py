"""Backticked names in docstrings, comments and pages exist; a public class name has one meaning."""
from __future__ import annotations

import ast
import builtins
import functools
import importlib
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tinsmith"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted(p for p in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
               if p.name != "performance-history.md")  # names files as they were
TICKS = re.compile(r"``([^`\n]+)``|(?<!`)`([^`\n]+)`(?!`)")
FILE = re.compile(r"(?:[\w.-]+/)*[\w-]+\.py$")
MODULE = re.compile(r"tinsmith(?:\.\w+)+$")
IDENTIFIER = re.compile(r"_?[A-Za-z]\w*$")
KERNEL = re.compile(r"(?:[rE]|rand|host_svd)(?:_\d+)+$")  # names that kernels get from their sizes
# Names of other projects: the pages that compare with them, and names that they define.
ELSEWHERE = ("docs/api.md", "docs/rosetta.md", "docs/from_tinygrad.md", "docs/from_pytorch.md", "docs/torch.md")
FOREIGN = {"tinsmith.devices",  # the group of entry points
           "RegexFullMatch", "ImageDecoder", "TreeEnsemble",  # ONNX's ops
           "compute_at",  # Halide's
           "simdgroup_float8x8", "simdgroup_half8x8"}  # Metal's


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def identifiers() -> frozenset[str]:
    """Return every identifier, attribute, argument and short string that code outside of docstrings has."""
    texts: set[str] = set()
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"),
                 *(ROOT / "examples").rglob("*.py")]:
        stack: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
        while stack:  # not ast.walk, which takes twice the time
            node = stack.pop()
            for value in [getattr(node, field, None) for field in node._fields]:  # others may have set more attributes
                for part in value if isinstance(value, list) else (value,):
                    if isinstance(part, str):
                        texts.add(part)
                    elif isinstance(part, ast.AST) and not (
                            isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)):
                        stack.append(part)
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return frozenset({*keyword.kwlist, *dir(builtins), *words})


@functools.cache
def files() -> tuple[str, ...]:
    return tuple(name(p) for folder in ("tinsmith", "tests", "examples", "benchmarks", "tools")
                 for p in (ROOT / folder).rglob("*.py"))


def fault(text: str) -> str | None:
    """Return the reason why a text in backticks names nothing; None if it does, or is no name."""
    if text in FOREIGN or KERNEL.fullmatch(text):
        return None
    if FILE.fullmatch(text):
        return None if any(f == text or f.endswith("/" + text) for f in files()) else "no such file"
    if MODULE.fullmatch(text):
        words = text.split(".")
        for end in range(len(words), 0, -1):
            try:
                found: object = importlib.import_module(".".join(words[:end]))
            except ModuleNotFoundError:
                continue
            for word in words[end:]:
                if not hasattr(found, word):
                    return f"{'.'.join(words[:end])} has no {word}"
                found = getattr(found, word)
            return None
    if IDENTIFIER.fullmatch(text) and ("_" in text.strip("_") or re.search(r"[a-z][A-Z]", text)):
        return None if text in identifiers() else "no code has this name"
    return None


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every docstring and comment of a file."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found = ast.get_docstring(node, clean=False)
            if found:
                yield node.body[0].lineno, found
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*#", line):
            yield number, line


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_names_in_docstrings_exist(path: Path) -> None:
    wrong = [f"{name(path)}:{line}: `{text}`: {reason}" for line, prose in docstrings(path)
             for a, b in TICKS.findall(prose) if (reason := fault(text := a or b))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_pages_exist(page: Path) -> None:
    wrong = []
    inside = False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        inside ^= line.startswith("```")
        if not inside:
            wrong += [f"{name(page)}:{number}: `{text}`: {reason}" for a, b in TICKS.findall(line)
                      if (reason := fault(text := a or b)) and not (name(page) in ELSEWHERE and "no code" in reason)]
    assert not wrong, "\n".join(wrong)


def test_a_public_class_name_has_one_meaning() -> None:
    """Exempt: names of compat, which are tinygrad's, and examples, each of which is a separate program."""
    where = defaultdict(list)
    for path in SOURCES:
        if path.parent.name not in ("compat", "examples"):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    where[node.name].append(name(path))
    assert {n: places for n, places in where.items() if len(places) > 1} == {}
