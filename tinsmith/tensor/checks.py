"""Runtime checks of ``CHECKED=1``: out-of-range indices and loss classes, integer division by zero, and NaN results of
NaN-free inputs. A failed check raises an error that names the user's source line.

Each check is one or more extra outputs of the same program: the minimum and maximum index of a GATHER, "any divisor is
0", "any result element is NaN". The code generator needs no support for them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.backend.device import Device, members
from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import CheckError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import Op
from tinsmith.ir.rewrite import readers_of
from tinsmith.ir.uop import Origin, toposort

_VIEWS = (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.CAST)
_LOSSES = ("cross_entropy", "nll_loss", "sparse_categorical_crossentropy")  # losses that pick a score by class label
_LINES_PER_PROGRAM = 16  # source lines tested per program when searching for the origin of a NaN


@dataclass
class RuntimeCheck:
    """A check: extra nodes to compute with a program, and the interpretation of their values.

    Attributes:
        roots: the extra nodes, of one element each.
        verdict: function from their values to the error to raise, or None.
    """

    roots: list[UOp]
    verdict: Callable[[list[Any]], CheckError | None]


class Checks:
    """The checks of one program.

    Args:
        nodes: the program's results.
    """

    def __init__(self, nodes: Sequence[UOp]) -> None:
        self.nodes = list(nodes)
        self.order = toposort(self.nodes)
        self.own = [*_index_checks(self.order), *_divisor_checks(self.order)]
        self.inputs, self.results = _nan_roots(self.order, self.nodes)

    @property
    def roots(self) -> list[UOp]:
        """The nodes to compute in addition to the program's results."""
        return [*(r for c in self.own for r in c.roots), *self.inputs, *self.results.values()]

    def judge(self, buffers: Sequence[Buffer], run: Callable[[list[UOp]], list[Buffer]]) -> None:
        """Raise the error of the first failed check.

        Args:
            buffers: the values of ``roots``.
            run: computes further nodes, to find the source line that produced a NaN.

        Raises:
            CheckError: if a check failed.
        """
        values = iter([b.numpy()[0].item() for b in buffers])
        for check in self.own:
            error = check.verdict([next(values) for _ in check.roots])
            if error is not None:
                raise error
        nan = [next(values) for _ in self.inputs]
        if any(nan):
            return
        for node in self.results:
            if next(values):
                raise self._nan_error(node, run)

    def _nan_error(self, node: UOp, run: Callable[[list[UOp]], list[Buffer]]) -> CheckError:
        """Return the error for the first source line whose result has a NaN; for ``node``'s line if none is found."""
        lines = list(_line_ends(toposort(node)))
        for begin in range(0, len(lines), _LINES_PER_PROGRAM):
            some = lines[begin : begin + _LINES_PER_PROGRAM]
            found = run([_any(n.ne(n)) for n in some])
            first = next((n for n, b in zip(some, found) if b.numpy()[0]), None)
            if first is not None:
                node = first
                break
        op, at = _place(node)
        return CheckError(op, f"the result of shape {node.shape} holds NaN, and none of the values that went in does",
                          "look for 0/0, inf-inf, 0*inf, or a logarithm or root of a negative number", at)


def _any(condition: UOp) -> UOp:
    """Return a node of one element: True if ``condition`` is true anywhere."""
    return condition.reduce(Ops.OR, tuple(range(condition.ndim))).reshape((1,)).contiguous()


def _extreme(op: Op, x: UOp) -> UOp:
    return x.reduce(op, tuple(range(x.ndim))).reshape((1,)).contiguous()


def _place(node: UOp) -> tuple[str, tuple[str, int] | None]:
    """Return the method that made ``node`` and its (file, line): the origin of the node or of its nearest source."""
    for n in reversed(toposort(node)):
        if n.origin:
            method, file, line = n.origin[-1]
            return method or node.op.name.lower(), (file, line)
    return node.op.name.lower(), None


# *** indices ***


def _index_checks(order: Sequence[UOp]) -> Iterator[RuntimeCheck]:
    """Yield one check per distinct pair of index and axis size; indices proven in range need none."""
    seen = set()
    for node in order:
        if (label := _label(node)) is not None:
            choice = node.src[0] if node.op is Ops.REDUCE else node
            yield _index_check(node, label, 0, choice.shape[node.arg[1][0] if node.op is Ops.REDUCE else -1])
        if node.op not in (Ops.GATHER, Ops.SCATTER):
            continue
        axis = node.arg if node.op is Ops.GATHER else node.arg[0]
        places = _coordinates(node.src[1]) or [(node.src[1], node.src[0].shape[axis])]
        for place, size in places:
            index, wraps = _given(place, size)
            if isinstance(size, UOp) or (index, size, wraps) in seen or 0 in index.shape:
                continue
            seen.add((index, size, wraps))
            low = -size if wraps else 0
            if not (low <= index.vmin and index.vmax < size):
                yield _index_check(node, index, low, size)


def _index_check(node: UOp, index: UOp, low: int, size: int) -> RuntimeCheck:
    def verdict(extremes: list[Any]) -> CheckError | None:
        least, greatest = extremes
        if low <= least and greatest < size:
            return None
        made = node.src[1] if node.origin and node.origin[-1][0] in ("backward", "gradient") else node
        op, at = _place(made)
        outside = greatest if greatest >= size else least
        what = "write is dropped" if node.op is Ops.SCATTER else "element read is 0" if node.op is Ops.GATHER else \
            "class has the score 0" if node.op is Ops.REDUCE else "class gives zeros"
        return CheckError(op, f"index {outside} is out of range for an axis of size {size} (the indices, of shape "
                          f"{index.shape}, go from {least} to {greatest}); without CHECKED the {what}",
                          f"indices from {low} to {size - 1}", at)

    return RuntimeCheck([_extreme(Ops.MIN, index), _extreme(Ops.MAX, index)], verdict)


def _label(node: UOp) -> UOp | None:
    """Return the class labels of a loss or of ``one_hot``, or None for any other node.

    A loss picks one score per row as ``where(arange(classes) == label, score, 0)``, summed along the classes;
    ``one_hot`` is the same WHERE without the sum."""
    method = node.origin[-1][0] if node.origin else ""
    if node.op is Ops.REDUCE and len(node.arg[1]) == 1 and method in _LOSSES:
        choice = node.src[0]
    elif node.op is Ops.WHERE and method == "one_hot":
        choice = node
    else:
        return None
    if choice.op is not Ops.WHERE or choice.src[0].op is not Ops.CMPEQ:
        return None
    counted, label = map(_below, choice.src[0].src)
    return label if counted.op is Ops.IOTA and not any(isinstance(s, UOp) for s in choice.shape) else None


def _coordinates(index: UOp) -> list[tuple[UOp, int]]:
    """Return the per-axis indices and axis sizes of a flat index over several axes (see ``tensor.indexing``), which has
    the form ``where(0 <= i < n and 0 <= j < m and …, i * m + j …, -1)``; an empty list for any other index."""
    index = _below(index)
    if index.op is not Ops.WHERE or _constant(index.src[2]) != -1:
        return []
    found, stack = [], [index.src[0]]
    while stack:
        n = stack.pop()
        if n.op is Ops.AND:
            stack += n.src
        elif n.op is Ops.CMPLT and isinstance(_constant(n.src[1]), int):
            found.append((n.src[0], _constant(n.src[1])))
        elif not (n.op is Ops.CMPEQ and n.src[0].op is Ops.CMPLT):  # not "at least 0", the other half of each
            return []
    return found[::-1]


def _given(place: UOp, size: Any) -> tuple[UOp, bool]:
    """Return the index as the user gave it, and True if its negative values count from the end of the axis."""
    place = _below(place)
    if place.op is Ops.WHERE and place.src[0].op is Ops.CMPLT and _constant(place.src[0].src[1]) == 0:
        test, shifted, plain = place.src[0].src[0], place.src[1], place.src[2]
        if test is plain and shifted.op is Ops.ADD and shifted.src[0] is plain and _constant(shifted.src[1]) == size:
            return _below(plain), True
    return place, False


def _below(node: UOp) -> UOp:
    """Return the integer node below casts and below views that keep every element."""
    while node.op in _VIEWS and node.src[0].dtype.is_int:
        node = node.src[0]
    return node


def _constant(node: UOp) -> Any:
    base = node.base
    return base.arg if base.op is Ops.CONST else None


# *** divisors ***


def _divisor_checks(order: Sequence[UOp]) -> Iterator[RuntimeCheck]:
    for node in order:
        if node.op not in (Ops.IDIV, Ops.MOD) or not node.dtype.is_int or 0 in node.shape:
            continue
        divisor = _below(node.src[1])
        if divisor.vmin <= 0 <= divisor.vmax:
            yield _divisor_check(node, divisor)


def _divisor_check(node: UOp, divisor: UOp) -> RuntimeCheck:
    def verdict(zero: list[Any]) -> CheckError | None:
        if not zero[0]:
            return None
        op, at = _place(node)
        return CheckError(op, f"an integer division by zero (divisors of shape {divisor.shape}, {divisor.dtype!r}); "
                          "without CHECKED the result is 0", "divisors that are not 0", at)

    return RuntimeCheck([_any(divisor.eq(0))], verdict)


# *** NaN ***


def _nan_roots(order: Sequence[UOp], nodes: Sequence[UOp]) -> tuple[list[UOp], dict[UOp, UOp]]:
    """Return the "has a NaN" tests of the inputs, and of each result; none for a program with a NaN constant."""
    constant = any(n.op is Ops.CONST and n.arg != n.arg and not _made_by_power(n, order) for n in order)
    results = {n: _any(n.ne(n)) for n in nodes if n.dtype.is_float and 0 not in n.shape and n.op is not Ops.COPY}
    if constant or not results:
        return [], {}
    inputs = [n for n in order if n.dtype.is_float and 0 not in n.shape and _is_input(n)]
    return [_any(n.ne(n)) for n in inputs], results


def _is_input(node: UOp) -> bool:
    """Return True for a buffer that kernels can read, and for the COPY of a buffer that they cannot."""
    if node.op is Ops.COPY:
        source = node.src[0].base
        return source.op is Ops.BUFFER and not Device[members(source.arg.device)[0]].has_programs
    return node.op is Ops.BUFFER and Device[members(node.arg.device)[0]].has_programs


def _made_by_power(constant: UOp, order: Sequence[UOp]) -> bool:
    """Return True if a NaN constant is the result of ``pow`` for a negative base with a fractional exponent."""
    readers = [n for n in order if any(s.base is constant for s in n.src) and n.op.kind != "movement"]
    return bool(readers) and all(n.origin and "pow" in n.origin[-1][0] for n in readers)


def _line_ends(order: Sequence[UOp]) -> Iterator[UOp]:
    """Yield the float nodes that are final results of a source line: read by another line or by no node."""
    inside = set()
    for n in order:
        for s in n.src:
            if _line(s) == _line(n):
                inside.add((s, n))
    readers = readers_of(order)
    for n in order:
        if n.dtype.is_float and n.op.kind != "movement" and n.op not in (Ops.BUFFER, Ops.CONST, Ops.COPY) \
                and 0 not in n.shape and any((n, r) not in inside for r in readers.get(n, [])):
            yield n


def _line(node: UOp) -> Origin | None:
    return node.origin[-1] if node.origin else None
