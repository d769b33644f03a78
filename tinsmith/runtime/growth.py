"""A warning, once per line, if a user's line compiles a program for every size of its data, such as a growing
length."""
from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tinsmith.core.errors import user_line
from tinsmith.core.recent import Recent
from tinsmith.ir import UOp
from tinsmith.ir.uop import toposort

MANY: Final = 5  # programs of one structure after which a line is warned about
_KEPT: Final = 4096  # (line, structure) pairs that are remembered


@dataclass
class _Programs:
    """The programs of one line and one structure: the shapes in each, and the seconds to compile them all."""

    shapes: list[tuple[Any, ...]] = field(default_factory=list)
    seconds: float = 0.0


_made: Recent[Any, _Programs] = Recent()
_warned: set[tuple[str, int]] = set()


def note(graph: Sequence[UOp], seconds: float) -> None:
    """Record that a new canonical graph was compiled; warn if its line has compiled MANY
    programs that differ in sizes only."""
    line = user_line()
    if line in _warned or line[1] == 0:
        return
    nodes = toposort(graph)
    number = {n: k for k, n in enumerate(nodes)}
    shapes = tuple(n.shape for n in nodes)
    if any(isinstance(s, UOp) for shape in shapes for s in shape):
        return
    key = (*line, tuple((n.op, n.dtype, tuple(number[s] for s in n.src)) for n in nodes))
    found = _made.get(key)
    if found is None:
        found = _made[key] = _Programs()
        _made.trim(_KEPT)
    found.seconds += seconds
    if shapes not in found.shapes:
        found.shapes.append(shapes)
    if len(found.shapes) >= MANY:
        _warned.add(line)
        warnings.warn_explicit(_text(found), UserWarning, *line)


def _text(found: _Programs) -> str:
    """Return the text of the warning, with the sizes of the first axis that differs."""
    columns = [axis for shapes in zip(*found.shapes) if len({len(s) for s in shapes}) == 1 for axis in zip(*shapes)]
    sizes = next((axis for axis in columns if len(set(axis)) > 1), ())
    named = f" (sizes {', '.join(map(str, sizes))})" if sizes else ""
    return (f"this line has made {len(found.shapes)} programs that differ in sizes alone{named}, in "
            f"{found.seconds:.1f} s; each new size takes another one. Bind the size to a Variable "
            "(x[:Variable('n', 1, most).bind(n)]), or pad to a few sizes; docs/symbolic.md has both")
