"""Folding: a graph of thousands of nodes as a tree of groups: by the model's layers, then by the user's
functions, then by lines and methods.

A group is one pass through a layer, a function or a line; a loop gives one group per iteration, so that each level is a
readable graph. No level has more than MOST boxes.
"""
from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

MOST: Final = 48  # boxes of a level
FLAT: Final = 60  # largest graph that is not folded

Group = dict[str, Any]  # keys: label, origin, kids (numbers of nodes, and of groups as -1 - number)


def functions(text: str) -> list[tuple[int, int, str]]:
    """Return (first line, last line, qualified name) of each function of a Python file, outer ones first.

    >>> functions("class A:\\n  def f(self):\\n    pass\\n")
    [(2, 3, 'A.f')]
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found: list[tuple[int, int, str]] = []
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, prefix = stack.pop()
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{prefix}.{child.name}" if prefix else child.name
                if not isinstance(child, ast.ClassDef):
                    found.append((child.lineno, child.end_lineno or child.lineno, name))
            stack.append((child, name))
    return sorted(found)


class Folding:
    """The tree of groups over the nodes of one program of a trace; the last group is the root.

    Args:
        nodes: as in a trace: op at 0, sources at 4, the origin's number at 5, state at 6.
        origins: (method, file, line).
        files: file → text of the user's file.
        layers: for each origin, the path of its layer, which may be followed by its class, or ``""``.
    """

    def __init__(self, nodes: Sequence[Sequence[Any]], origins: Sequence[Sequence[Any]],
                 files: Mapping[str, str], layers: Sequence[str] = ()) -> None:
        self.nodes, self.origins = nodes, origins
        self.groups: list[Group] = []
        self.of_line = _functions_of_lines(origins, files)
        self.origin = _with_readers(nodes)
        # the last one is for nodes without origin (index -1)
        named = [layer_path(text) for text in [*layers, *[""] * (len(origins) + 1 - len(layers))]]
        self.layers = [path for path, _ in named]
        self.kinds = dict(named)  # path of a layer → its class
        self.lines = [line for _, _, line in origins] + [0]  # the last one is for nodes without origin (index -1)
        everything = list(range(len(nodes)))
        kids = everything if len(nodes) <= FLAT else self._by_place(everything, "")
        self._group("", -1, kids)

    def _group(self, label: str, origin: int, kids: list[int]) -> int:
        """Add a group and return its number as a kid; more than MOST kids are divided into groups of neighbours."""
        while len(kids) > MOST:
            size = max(-(-len(kids) // MOST), MOST // 2)
            parts = [kids[i : i + size] for i in range(0, len(kids), size)]
            kids = [self._new(f"{n} of {len(parts)}: {self._ops(part)}", -1, part) for n, part in enumerate(parts, 1)]
        return self._new(label, origin, kids)

    def _ops(self, kids: list[int]) -> str:
        """Return a short description of a part: its first and last group, or its most frequent ops."""
        labels = [self.groups[-1 - k]["label"] for k in kids if k < 0]
        if labels:
            return labels[0] if len(labels) == 1 else f"{labels[0]} … {labels[-1]}"
        found = Counter(self.nodes[k][0] for k in kids if self.nodes[k][6] not in ("view", "constant"))
        return ", ".join(op for op, _ in found.most_common(2)) or "views"

    def _new(self, label: str, origin: int, kids: list[int]) -> int:
        self.groups.append({"label": label, "origin": origin, "kids": kids})
        return -len(self.groups)

    def _by_place(self, nodes: list[int], inside: str) -> list[int]:
        """Return the kids for the nodes of a layer: grouped by its sublayers; other nodes by the user's functions."""
        runs = self._runs(nodes, lambda n: self._place(n, inside), lambda key: key[0] == inside)
        inner = {layer: self._by_line if layer == inside else functools.partial(self._by_place, inside=layer)
                 for (layer, _), _ in runs}
        if len(runs) == 1:
            return next(iter(inner.values()))(nodes)
        return [self._one_or_group(f"{name or self._layer(layer, inside, part) or 'values'}{_turn(turn)}", part,
                                   inner[layer])
                for ((layer, name), turn), part in runs.items()]

    def _layer(self, path: str, inside: str, nodes: Sequence[int]) -> str:
        """Return the name of the layer that a group shows; that of a sublayer if the group holds nothing else."""
        if path == inside:
            return ""
        exact = {self.layers[self.origin[n]] for n in nodes}
        path = next(iter(exact)) if len(exact) == 1 else path
        return f"{path} {self.kinds.get(path, '')}".rstrip()

    def _place(self, node: int, inside: str) -> tuple[str, str]:
        """Return the sublayer of ``inside`` that holds a node, or ``inside`` and the user's function if it is in none.

        ``blocks.0`` counts as one level.
        """
        origin = self.origin[node]
        rest = self.layers[origin].removeprefix(inside).lstrip(".").split(".")
        if not rest[0]:
            return inside, self.of_line[origin] if origin >= 0 else ""
        count = next((n for n, part in enumerate(rest) if n and not part.isdigit()), len(rest))
        return f"{inside}.{'.'.join(rest[:count])}".lstrip("."), ""

    def _by_line(self, nodes: list[int]) -> list[int]:
        runs = self._runs(nodes, lambda n: self.origin[n])
        if len(runs) == 1:
            return nodes
        return [self._one_or_group(f"{self._line(key)}{_turn(turn)}", part, lambda part: part)
                for (key, turn), part in runs.items()]

    def _line(self, origin: int) -> str:
        method, file, line = self.origins[origin] if origin >= 0 else ("", "", 0)
        return f"{method or 'line'} {file.rsplit('/', 1)[-1]}:{line}" if line else "values"

    def _one_or_group(self, label: str, nodes: list[int], inner: Callable[[list[int]], list[int]]) -> int:
        return nodes[0] if len(nodes) == 1 else self._group(label, self.origin[nodes[-1]], inner(nodes))

    def _runs(self, nodes: Sequence[int], key: Callable[[int], Hashable],
              by_lines: Callable[[Any], bool] = lambda _: True) -> dict[tuple[Any, int], list[int]]:
        """Return nodes by key and turn (iteration).

        A turn begins where a path returns to a key it has left, or, for keys that go by lines, to an earlier line: the
        function is called again, or the next iteration of a loop begins.
        """
        inside = set(nodes)
        turns: dict[int, dict[Hashable, int]] = {}  # node → the latest turn of each key above it
        own: dict[int, int] = {}
        free: list[int] = []  # data, and views of data
        for n in nodes:
            mine, k, turn = dict[Hashable, int](), key(n), 0
            for s in self.nodes[n][4]:
                if s not in inside:
                    continue
                for other, count in turns[s].items():
                    if mine.get(other, -1) < count:
                        mine[other] = count
                if k in turns[s]:
                    again = key(s) != k or (by_lines(k)
                                            and self.lines[self.origin[s]] > self.lines[self.origin[n]])
                    turn = max(turn, turns[s][k] + again)
            if mine or self.nodes[n][6] in ("fused", "stored"):
                mine[k] = max(turn, mine.get(k, 0))
            else:
                free.append(n)
            own[n], turns[n] = mine.get(k, 0), mine
        self._with_first_reader(free, own, inside, key)
        found: dict[tuple[Any, int], list[int]] = {}
        for n in nodes:
            found.setdefault((key(n), own[n]), []).append(n)
        return found

    def _with_first_reader(self, free: Sequence[int], own: dict[int, int], inside: set[int],
                           key: Callable[[int], Hashable]) -> None:
        """Give free nodes the turn of the first node that reads them."""
        waiting = set(free)
        first: dict[int, int] = {}
        for n in sorted(inside, reverse=True):
            if n in waiting:
                own[n] = first.get(n, 0)
            for s in self.nodes[n][4]:
                if s in waiting and key(s) == key(n):
                    first[s] = min(first.get(s, own[n]), own[n])


def folding(document: Mapping[str, Any], program: Mapping[str, Any]) -> Folding:
    """Return the groups of one program of a trace; a trace without recorded layers has no layer groups."""
    return Folding(program["nodes"], document["origins"], document["files"], document.get("layers", ()))


def layer_path(text: str) -> tuple[str, str]:
    """Return the path in a layer's name, with the prefix of gradients, and the class after it.

    >>> layer_path("blocks.0.attn"), layer_path("grad of layers.0 Conv2d")
    (('blocks.0.attn', ''), ('grad of layers.0', 'Conv2d'))
    """
    found = re.fullmatch(r"((?:grad of )?\S*)(?: (.*))?", text)
    return (found[1], found[2] or "") if found else (text, "")


def _turn(turn: int) -> str:
    return f" ({turn + 1})" if turn else ""


def _functions_of_lines(origins: Sequence[Sequence[Any]], files: Mapping[str, str]) -> list[str]:
    """Return the name of the innermost function around each line, or of the file if there is none."""
    known = {file: functions(text) for file, text in files.items()}
    return [next((name for first, last, name in reversed(known.get(file, [])) if first <= line <= last),
                 file.rsplit("/", 1)[-1]) for _, file, line in origins]


def _with_readers(nodes: Sequence[Sequence[Any]]) -> list[int]:
    """Return each node's origin; data and constants take that of their first reader."""
    found = [n[5] if n[4] else -1 for n in nodes]
    for n in range(len(nodes) - 1, -1, -1):
        for s in nodes[n][4]:
            if found[s] < 0 or not nodes[s][4]:
                found[s] = found[n]
    return [o if o >= 0 else nodes[n][5] for n, o in enumerate(found)]
