"""Break lines that longer names have made too long, as this code base breaks them: after a comma, below the bracket."""
from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

WIDTH = 120


def open_bracket(text: str) -> int | None:
    """Return the column of the innermost bracket that a line leaves open."""
    stack: list[int] = []
    quote = ""
    for column, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c == "#":
            break
        elif c in "([{":
            stack.append(column)
        elif c in ")]}" and stack:
            stack.pop()
    return stack[-1] if stack else None


def comment_at(line: str) -> int | None:
    quote = ""
    for column, c in enumerate(line):
        if quote:
            quote = "" if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c == "#":
            return column
    return None


def wrapped(line: str, prose: bool) -> list[str]:
    indent = len(line) - len(line.lstrip())
    if prose or line.lstrip().startswith("#"):
        lead = line[:indent] + ("# " if line.lstrip().startswith("#") else "")
        cut = line.rfind(" ", len(lead) + 1, WIDTH)
        return [line[:cut], lead + line[cut + 1:]]
    at = comment_at(line)
    if at is not None:
        return [line[:indent] + line[at:], line[:at].rstrip()]
    end = WIDTH
    while (cut := line.rfind(", ", indent, end)) > 0:
        bracket = open_bracket(line[:cut])
        if line[:cut].count('"') % 2 == 0:
            if bracket is None and line.lstrip().startswith("assert "):
                return [line[:cut + 1] + " (", " " * (indent + 4) + line[cut + 2:] + ")"]
            column = indent if bracket is None else bracket + 1
            return [line[:cut + 1], " " * column + line[cut + 2:]]
        end = cut
    if (cut := line.rfind('": ', indent, WIDTH)) > 0:  # a long value of a dictionary
        return [line[:cut + 2], " " * (indent + 4) + line[cut + 3:]]
    return [line]


def main() -> None:
    command = ["ruff", "check", "--no-cache", "--select", "E501", "--output-format", "concise", *sys.argv[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found: dict[str, list[int]] = {}
    for row in done.splitlines():
        if "E501" in row:
            file, line, *_ = row.split(":")
            found.setdefault(file, []).append(int(line))
    for file, numbers in found.items():
        path = Path(file)
        lines = path.read_text("utf-8").split("\n")
        inside = set()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                    and isinstance(node.value.value, str)):
                inside |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        for number in sorted(numbers, reverse=True):
            line = lines[number - 1]
            prose = number in inside and not line.lstrip().startswith((">>>", "..."))
            new = wrapped(line, prose)
            lines[number - 1:number] = new
        path.write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    main()
