"""Sizes of a graph's tensors: numbers, or expressions of Tinsmith's variables in place of PyTorch's SymInts.

A graph with SymInts is lowered with one bound variable per symbol. Rules and layouts compute with ``TracedSize``, which
behaves as the integer of the current call; a comparison that does not hold for all values is recorded, and becomes a
guard of the program (``tensor/sizes/traced.py``).
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from tinsmith.core.dtypes import dtypes
from tinsmith.ir import UOp
from tinsmith.ir.algebra.sizes import bindings, normal_size, watchers
from tinsmith.ir.interpret.tensor import evaluate_scalar, evaluator
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.dynamic_sizes import MOST_ELEMENTS, Refused
from tinsmith.tensor.sizes.traced import TracedSize, plain, tracing
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.layouts import DTYPES, Meta, is_dense, meta_of, tensors_in

NAME: Final = "size#"  # of variables, with their numbers
_LEAST_BOUND: Final = 1024  # the least upper bound of a variable
_SYMBOLIC: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbol(value: Any) -> bool:
    """Return True for a symbolic number of PyTorch."""
    return isinstance(value, _SYMBOLIC)


class FixedSizes:
    """The sizes of a graph whose tensors have fixed sizes.

    Args:
        values: node → fake tensor, nested tuple of them, or number.
    """

    symbolic = False

    def __init__(self, values: Mapping[Any, Any]) -> None:
        self.values = values

    def meta(self, node: Any) -> Any:
        """Return the ``Meta`` of a node's result, or a tuple of them."""
        return meta_of(self.values[node])

    def number(self, node: Any, device: str) -> Any:
        """Return the number that a node computes, or its other result without a tensor."""
        return self.values[node]

    def filled(self, node: Any) -> tuple[Any, ...]:
        """Return the strides of a tensor that fills its memory."""
        found: Meta = self.meta(node)
        return found.strides

    def offset(self, node: Any) -> Any:
        """Return the number of the first element of a node's tensor in its memory."""
        return int(self.values[node].storage_offset())


class SizeSymbols:
    """The symbols in the sizes of a graph, and the arguments that show their values.

    Args:
        placeholders: the graph's placeholders.
        values: node → fake tensor with symbolic sizes, nested tuple of them, or symbolic number.

    Attributes:
        symbols: sympy's symbols, in order.
        hidden: the symbols that no argument shows.
    """

    def __init__(self, placeholders: Sequence[Any], values: Mapping[Any, Any]) -> None:
        self.places: dict[Any, tuple[int, int]] = {}  # symbol → number of an argument and its axis; -1: a number
        self.environment: Any = None
        for axes in (False, True):
            for k, n in enumerate(placeholders):
                value = values[n]
                for axis, size in enumerate(value.shape) if axes and isinstance(value, torch.Tensor) else [(-1, value)]:
                    if isinstance(size, torch.SymInt):
                        self.environment = size.node.shape_env
                        if size.node.expr.is_Symbol:
                            self.places.setdefault(size.node.expr, (k, axis))
        self.symbols = list(self.places)
        used = {s for v in values.values() for s in _free_symbols(v)}
        self.hidden = sorted(used - set(self.symbols), key=str)
        self._numbers = [k for k, axis in self.places.values() if axis < 0]
        self._axes = [(k, axis) for k, axis in self.places.values() if axis >= 0]

    def read(self, args: Sequence[Any]) -> tuple[int, ...]:
        """Return the values of the symbols for the arguments of a call."""
        found = [args[k] for k in self._numbers]
        return (*found, *(args[k].shape[axis] for k, axis in self._axes)) if self._axes else tuple(found)

    def limits(self, number: int) -> tuple[int, int | None]:
        """Return the least value of a symbol that PyTorch's guards allow, and the greatest if there is one."""
        found = self.environment.var_to_range[self.symbols[number]]
        low, high = (int(end) if end.is_Integer else None for end in (found.lower, found.upper))
        return max(low or 0, 0), high


def _free_symbols(value: Any) -> set[Any]:
    if is_symbol(value):
        found: set[Any] = value.node.expr.free_symbols
        return found
    sizes = [s for t in tensors_in(value) for s in (*t.shape, *t.stride(), t.storage_offset())]
    return {s for size in sizes if is_symbol(size) for s in size.node.expr.free_symbols}


class VariableSizes:
    """The sizes of a graph as expressions of variables, for the values of the symbols within bounds.

    Args:
        symbols: the graph's symbols.
        values: node → fake tensor with symbolic sizes, nested tuple of them, or symbolic number.
        current: the values of the symbols in the current call.
        pinned: the numbers of the symbols whose value is fixed.
        factor: the upper bound of a variable is at least ``factor`` times its current value.

    Raises:
        Refused: if a size is no expression of the variables.
    """

    symbolic = True

    def __init__(self, symbols: SizeSymbols, values: Mapping[Any, Any], current: Sequence[int],
                 pinned: frozenset[int] = frozenset(), factor: int = 4) -> None:
        if symbols.hidden:
            raise Refused(f"no argument shows the size {symbols.hidden[0]}")
        self.values, self.current, self.pinned = values, tuple(current), pinned
        self.limits = [symbols.limits(k) for k in range(len(current))]
        self.factor = factor
        self.bounds: list[tuple[int, int]] = []
        for value, (low, most) in zip(current, self.limits):
            high = max(1 << (factor * value - 1).bit_length(), _LEAST_BOUND) if factor > 1 else value
            self.bounds.append((min(low, value), max(value, high if most is None else min(high, most))))
        self.decisions: dict[UOp, int] = {}  # size or condition → its value, on which the program depends
        self._symbols = symbols.symbols
        self._narrow()

    def _bind(self) -> None:
        variables = [UOp.variable(f"{NAME}{k}", *ends).bind(v) for k, (ends, v) in enumerate(zip(
            self.bounds, self.current))]
        self.variables = [None if k in self.pinned else v for k, v in enumerate(variables)]
        self._table: dict[Any, Any] = {s: self.current[k] if k in self.pinned else variables[k]
                                       for k, s in enumerate(self._symbols)}
        self._made: dict[Any, Any] = {}
        self.decisions.clear()

    def _narrow(self) -> None:
        """Narrow the bounds until no size can be negative, and no tensor too large."""
        shapes = [tuple(t.shape) for v in self.values.values() for t in tensors_in(v) if any(map(is_symbol, t.shape))]
        moved = True
        while moved:
            self._bind()
            with self._recorded():
                found = [[self.size(s) for s in shape] for shape in shapes]
            low = {b for shape in found for s in shape if isinstance(s, TracedSize) and may_be_negative(s.node)
                   for b in bindings(toposort(s.node))}
            counts = [plain(math.prod(shape)) for shape in found]
            high = {b for c in counts if isinstance(c, UOp) and c.vmax >= MOST_ELEMENTS for b in bindings(toposort(c))}
            moved = False
            for k, (b, value) in enumerate(zip(self.variables, self.current)):
                least, most = self.bounds[k]
                self.bounds[k] = ((least + value + 1) // 2 if b in low else least,
                                  max(most // 2, value) if b in high else most)
                moved |= self.bounds[k] != (least, most)

    def size(self, value: Any) -> Any:
        """Return an integer of PyTorch, which may be symbolic, as an int or a traced size."""
        if not is_symbol(value):
            return int(value)
        if not isinstance(value, torch.SymInt):
            raise Refused(f"{value} is computed from sizes, and is no integer")
        expression = value.node.expr
        if expression not in self._made:
            found = normal_size(_translated(expression, self._table))
            self._made[expression] = TracedSize(found) if isinstance(found, UOp) else int(found)
        return self._made[expression]

    def _meta(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(map(self._meta, value))
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
            return None
        return Meta(tuple(map(self.size, value.shape)), tuple(map(self.size, value.stride())), DTYPES[value.dtype])

    def meta(self, node: Any) -> Any:
        """Return the ``Meta`` of a node's result, or a tuple of them."""
        return self._meta(self.values[node])

    def number(self, node: Any, device: str) -> Any:
        """Return the number that a node computes, or its other result without a tensor.

        A float that is computed from sizes is a tensor of rank 0.
        """
        value = self.values[node]
        if isinstance(value, torch.SymFloat):
            found = _float(value.node.expr, self._table, device)
            return found.cast(dtypes.float64) if isinstance(found, Tensor) else float(found)
        return self.size(value) if is_symbol(value) else value

    def filled(self, node: Any) -> tuple[Any, ...] | None:
        """Return the strides of a tensor that fills its memory for the current sizes; None if it does not for all."""
        t, found = self.values[node], self.meta(node)
        nbytes = self.size(t.untyped_storage().nbytes())
        dense = is_dense(found.shape, found.strides) and self.size(t.storage_offset()) == 0
        return found.strides if dense and nbytes == found.size * t.dtype.itemsize else None

    def offset(self, node: Any) -> Any:
        """Return the number of the first element of a node's tensor in its memory."""
        return self.size(self.values[node].storage_offset())

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Record the decisions that depend on sizes."""
        def record(size: UOp, value: int) -> None:
            self.decisions[size] = value

        watchers.append(record)
        try:
            yield
        finally:
            watchers.remove(record)

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Show the sizes to rules as traced sizes, and record the decisions that depend on them."""
        with self._recorded(), tracing():
            yield

    def used_as_numbers(self) -> set[int]:
        """Return the numbers of the symbols whose values, and not only comparisons of them, decided something."""
        used = {b for size in self.decisions if not size.dtype.is_bool for b in bindings(toposort(size))}
        return {k for k, v in enumerate(self.variables) if v in used}

    def guard(self) -> Callable[[Sequence[int]], bool]:
        """Return the function from values of the symbols to True if the program is valid for them."""
        tests = [(k, *(ends if k not in self.pinned else (v, v))) for k, (ends, v) in enumerate(zip(
            self.bounds, self.current))]
        known = [v for v in self.variables if v is not None]
        free = [k for k, v in enumerate(self.variables) if v is not None]
        conditions = [c for c in self.decisions if any(b in known for b in bindings(toposort(c)))]
        decided, wanted = evaluator(conditions, known), [self.decisions[c] for c in conditions]

        def holds(values: Sequence[int]) -> bool:
            return all(low <= values[k] <= high for k, low, high in tests) and decided(
                [values[k] for k in free]) == wanted

        return holds

    def at(self, values: Sequence[int]) -> SizeValues:
        """Return the function that evaluates sizes for values of the symbols."""
        return SizeValues(self, values)


class SizeValues:
    """The evaluation of sizes for values of the symbols.

    Args:
        sizes: the sizes.
        values: the values of the symbols.
    """

    def __init__(self, sizes: VariableSizes, values: Sequence[int]) -> None:
        self.sizes = sizes
        self.table: dict[UOp, int] = {b: v for b, v in zip(sizes.variables, values) if b is not None}
        self._numbers = dict(zip(sizes._symbols, values))

    def __call__(self, value: Any) -> Any:
        """Return sizes, also in tuples, as integers; other values as they are."""
        if type(value) is TracedSize:
            value = value.node
        if isinstance(value, UOp):
            if value not in self.table:
                self.table[value] = evaluate_scalar(value, self.table)
            return self.table[value]
        return tuple(map(self, value)) if type(value) is tuple else value

    def number(self, value: Any) -> Any:
        """Return a symbolic number of PyTorch as a number."""
        if not is_symbol(value):
            return value
        found = value.node.expr.xreplace(self._numbers)
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
        return kind(found)


def may_be_negative(size: Any) -> bool:
    """Return True if a size is negative for some extreme values of its variables.

    The extremes of a polynomial that is linear in each variable are at the ends of the variables' ranges. Interval
    arithmetic would find ``a * b - a`` negative.

    >>> a, b = (UOp.variable(name, 2, 9).bind(3) for name in "ab")
    >>> may_be_negative(a * b - a), may_be_negative(a - 4)
    (False, True)
    """
    if not isinstance(size, UOp) or size.vmin >= 0:
        return False
    free = bindings(toposort(size))
    ends = itertools.product(*((b.src[0].arg[1], b.src[0].arg[2]) for b in free))
    return any(evaluate_scalar(size, dict(zip(free, values))) < 0 for values in ends)


def _translated(expression: Any, table: Mapping[Any, Any]) -> Any:
    """Return an expression of sympy as an int or a node.

    Raises:
        Refused: if it has an operation that sizes do not have.
    """
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return table[expression]
    args = expression.args
    kind = type(expression).__name__
    if kind == "Pow" and args[1].is_Integer and 0 < int(args[1]) <= 4:
        return math.prod([_translated(args[0], table)] * int(args[1]))
    found = _OPERATIONS.get(kind)
    if found is None:
        raise Refused(f"the size {expression}")
    return functools.reduce(found, [_translated(a, table) for a in args])


def _extreme(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the maximum or minimum of two sizes; which one it is becomes a guard."""
    def of(a: Any, b: Any) -> Any:
        found = choose(*(TracedSize(v) if isinstance(v, UOp) else v for v in (a, b)))
        return plain(found)

    return of

_OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "Add": operator.add, "Mul": operator.mul, "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv,
    "Mod": operator.mod, "PythonMod": operator.mod, "Max": _extreme(max), "Min": _extreme(min)}


def _float(expression: Any, table: Mapping[Any, Any], device: str) -> Any:
    """Return an expression of sympy with float values as a number or a tensor of rank 0.

    Raises:
        Refused: if it has another operation.
    """
    kind = type(expression).__name__
    if expression.is_number:
        return float(expression)
    if expression.is_integer and kind != "ToFloat":
        found = _translated(expression, table)
        return Tensor(found, device=device).cast(dtypes.float64) if isinstance(found, UOp) else float(found)
    if kind not in _FLOATS:
        raise Refused(f"{expression}, which is computed from sizes")
    return functools.reduce(_FLOATS[kind], [_float(a, table, device) for a in expression.args])

_FLOATS: Final[dict[str, Callable[..., Any]]] = {
    "Add": operator.add, "Mul": operator.mul, "Pow": operator.pow, "FloatPow": operator.pow, "ToFloat": float,
    "FloatTrueDiv": operator.truediv, "IntTrueDiv": operator.truediv}
