"""A map from each line of a kernel's assembly to its line of LLVM IR, by debug information."""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_FIRST: Final = 1_000_000  # first number of our metadata, beyond those of any kernel
_FLAGS, _VERSION, _UNIT, _FILE, _FUNCTION, _TYPE, _NONE = (f"!{_FIRST + n}" for n in range(7))
_METADATA: Final = f"""
!llvm.module.flags = !{{{_FLAGS}}}
!llvm.dbg.cu = !{{{_UNIT}}}
{_FLAGS} = !{{i32 2, !"Debug Info Version", i32 3}}
{_UNIT} = distinct !DICompileUnit(language: DW_LANG_C99, file: {_FILE}, isOptimized: true, emissionKind: LineTablesOnly)
{_FILE} = !DIFile(filename: "kernel", directory: "")
{_FUNCTION} = distinct !DISubprogram(name: "kernel", scope: {_FILE}, file: {_FILE}, line: 1, type: {_TYPE}, \
spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: {_UNIT})
{_TYPE} = !DISubroutineType(types: {_NONE})
{_NONE} = !{{}}
"""
_LOCATION: Final = re.compile(r"\s+\.loc\s+\d+\s+(\d+)")
_INSTRUCTION: Final = re.compile(r"\s+[a-z]")


def source_lines(source: str, assembly: Callable[[str], str]) -> list[int]:
    """Return, for each line of ``assembly(source)``, the index of its line of ``source``; -1 where unknown.

    The assembly is that of the text without debug locations; if the compiler generates other instructions with them,
    all entries are -1.
    """
    plain, found, line = assembly(source).split("\n"), list[tuple[str, int]](), -1
    for text in assembly(_with_places(source)).split("\n"):
        place = _LOCATION.match(text)
        if place:
            line = int(place[1]) - 1
        elif _INSTRUCTION.match(text):
            found.append((text, line))
    if [text for text, _ in found] != [text for text in plain if _INSTRUCTION.match(text)]:
        return [-1] * len(plain)
    places = iter(line for _, line in found)
    return [next(places) if _INSTRUCTION.match(text) else -1 for text in plain]


def _with_places(source: str) -> str:
    """Return the text with a debug location for each instruction."""
    lines, locations = list[str](), list[str]()
    for n, text in enumerate(source.split("\n"), 1):
        if text.startswith("define "):
            text = f"{text.removesuffix('{')}!dbg {_FUNCTION} {{"
        elif text.startswith("  "):
            number = _FIRST + 10 + n
            locations.append(f"!{number} = !DILocation(line: {n}, column: 1, scope: {_FUNCTION})")
            text = f"{text}, !dbg !{number}"
        lines.append(text)
    return "\n".join(lines) + _METADATA + "\n".join(locations) + "\n"
