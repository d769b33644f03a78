"""UOp: the one node class of every level, immutable and interned.

Equal nodes are the same object, so memo tables are dictionaries by identity and an unchanged rewrite costs nothing.
A node's origin (the user's lines and the method called) is no part of its identity.
"""
from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, UnknownNameError
from tinsmith.core.sint import SInt, Symbols
from tinsmith.ir.interning import Ref, bury, dead, forget_dead, interned
from tinsmith.ir.operators import Operators
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.properties import ANY, bounds_of, free_ranges
from tinsmith.ir.text import expression, short
from tinsmith.ir.views import tracker_of
from tinsmith.shape import ShapeTracker

Origin = tuple[str, str, int]  # method, file, line
Found = TypeVar("Found")


@dataclass(frozen=True)
class Window:
    """The argument of WINDOW and UNWINDOW: `inputs` positions of `axis` seen through `outputs` windows."""

    axis: int
    window_axis: int
    stride: int
    dilation: int
    inputs: int
    outputs: int


class UOp(Operators):
    """A node: op, dtype, sources, argument.

    >>> x = UOp.const(dtypes.int32, 2)
    >>> (x + 1) is (x + 1), (x + 1).simplify().arg
    (True, 3)
    """

    __slots__ = ("__weakref__", "_base", "_below", "_bounds", "_linear", "_normal", "_order", "_ranges", "_shape",
                 "_simple", "arg", "device", "dtype", "op", "origin", "src")
    _base: UOp | None  # of a movement op
    _below: tuple[UOp, ...] | None  # of a kernel: its nodes in order
    _bounds: tuple[int, int] | None
    _linear: tuple[dict[UOp, int], int] | None
    _normal: UOp | int | Literal[True] | None  # True: itself
    _order: tuple[Any, ...] | None
    _ranges: frozenset[UOp] | None
    _shape: tuple[Any, ...] | None
    _simple: UOp | Literal[True] | None  # True: itself
    device: str | None
    op: Op
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    origin: tuple[Origin, ...]

    def __new__(cls, op: Op, dtype: DType | None = None, src: tuple[UOp, ...] = (), arg: Any = None) -> UOp:
        if dead:
            forget_dead()
        if dtype is None:
            if op.dtype is None:
                raise TypeError(f"{op.name} needs a dtype")
            dtype = op.dtype(src, arg)
        key = (op, dtype, src, arg.hex() if type(arg) is float else arg)
        ref = interned.get(key)
        if ref is not None:
            found: UOp | None = ref()
            if found is not None:
                return found
        arity = op.arity
        count = len(src)
        if (count != arity) if type(arity) is int else not (arity[0] <= count <= arity[1]):  # type: ignore[index]
            raise TypeError(f"{op.name} takes {arity} sources, got {count}")
        self = object.__new__(cls)
        self.op, self.dtype, self.src, self.arg, self.origin = op, dtype, src, arg, ()
        self._shape = self._ranges = self._order = self._simple = self._linear = self._normal = self._below = None
        self._base = None
        self._bounds = ANY if dtype.is_float else None
        self.device = None
        if op.device is not None:
            self.device = op.device(arg)
        else:
            for s in src:
                if s.device is not None:
                    self.device = s.device
                    break
        ref = Ref(self, bury)
        ref.key = key
        first = interned.setdefault(key, ref)
        if first is not ref:  # another thread made the node at the same time, or it is about to die
            other: UOp | None = first()
            if other is not None:
                return other
            interned[key] = ref
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle holds the graph as a list, so that deep graphs need no recursion."""
        order = toposort(self)
        number = {n: i for i, n in enumerate(order)}
        return _rebuilt, ([(n.op, n.dtype, tuple(number[s] for s in n.src), n.arg) for n in order],)

    def __repr__(self) -> str:
        return short(self)

    def replace(self, **changes: Any) -> UOp:
        """The same node with other fields; origins are kept."""
        new = UOp(changes.get("op", self.op), changes.get("dtype", self.dtype), changes.get("src", self.src),
                  changes.get("arg", self.arg))
        if self.origin and not new.origin:
            new.origin = self.origin
        return new

    # *** properties ***

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of a tensor-graph node: ints or symbolic integers, in their normal form: equal sizes are one node."""
        return self._shape if self._shape is not None else _filled(self, "_shape", _shape_of)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        """Number of elements."""
        total: Any = 1
        for s in self.shape:
            total = total * s
        return total

    @property
    def base(self) -> UOp:
        """The node below this node's movement ops (the tutorials' LazyBuffer.base)."""
        if self.op.kind != "movement":
            return self
        node, above = self, []
        while node.op.kind == "movement" and node._base is None:
            above.append(node)
            node = node.src[0]
        found = node._base or node
        for n in above:
            n._base = found
        return found

    @property
    def st(self) -> ShapeTracker:
        """How this value is seen: the movement ops on top of it as one ShapeTracker, of what is below them.

        >>> x = UOp(Ops.PARAM, dtypes.float32, (), (0, (2, 3)))
        >>> x.permute((1, 0)).st
        ShapeTracker(views=(View(shape=(3, 2), strides=(1, 3), offset=0, mask=None, contiguous=False),))
        >>> (x.permute((1, 0)) + 1).st.contiguous
        True
        """
        return tracker_of(self)

    @property
    def ranges(self) -> frozenset[UOp]:
        """The RANGE nodes that this kernel-graph node still depends on."""
        return self._ranges if self._ranges is not None else _filled(self, "_ranges", free_ranges)

    @property
    def vmin(self) -> int:
        return self.bounds[0]

    @property
    def vmax(self) -> int:
        return self.bounds[1]

    min, max = vmin, vmax  # the names of the tutorials

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest value of an integer or bool expression (those of the dtype where nothing is known)."""
        return self._bounds if self._bounds is not None else _filled(self, "_bounds", bounds_of)

    @property
    def is_const(self) -> bool:
        return self.op is Ops.CONST

    # *** constructors ***

    @staticmethod
    def const(dtype: DType, value: Any) -> UOp:
        """A constant of ``dtype`` (a vector dtype gives a vector of equal lanes)."""
        return UOp(Ops.CONST, dtype, (), dtype.as_const(value))

    @staticmethod
    def index(value: SInt | UOp) -> UOp:
        """An index constant, or the symbolic integer itself."""
        return value if isinstance(value, UOp) else UOp(Ops.CONST, dtypes.index, (), int(value))  # type: ignore[arg-type]

    @staticmethod
    def variable(name: str, least: int, greatest: int) -> UOp:
        return UOp(Ops.VARIABLE, dtypes.index, (), (name, least, greatest))

    def bind(self, value: int) -> UOp:
        """This variable with its value for one run.

        >>> UOp.variable("n", 1, 9).bind(4).val
        4

        Raises:
            ArgumentError: if the value is out of the variable's bounds, or this is no variable.
        """
        if self.op is not Ops.VARIABLE:
            raise ArgumentError("bind", f"{short(self)} is no unbound variable",
                                "Variable(name, least, greatest).bind(value)")
        name, least, greatest = self.arg
        number = operator.index(value) if hasattr(value, "__index__") else least - 1  # NumPy's integers too
        if not least <= number <= greatest:
            raise ArgumentError("bind", f"variable {name!r} runs from {least} to {greatest}, not to {value!r:.60}",
                                "an integer within these bounds")
        return UOp(Ops.BIND, None, (self, UOp.index(number)))

    def unbind(self) -> tuple[UOp, int]:
        """A bound variable's two parts: the variable and the value."""
        return self.src[0], self.val

    @property
    def val(self) -> int:
        """The value that a bound variable has."""
        if self.op is not Ops.BIND:
            raise UnknownNameError("val", f"{short(self)} is not bound to a value", "Variable(...).bind(value).val")
        return Algebra.value_of_size(self)

    @staticmethod
    def range(size: SInt | UOp, number: int, role: Any, partial: bool = False) -> UOp:
        """A kernel-graph index in [0, size); ``partial``: only in the last iteration guards decide anything."""
        return UOp(Ops.RANGE, dtypes.index, (UOp.index(size),), (number, role, *(("partial",) if partial else ())))

    @staticmethod
    def iota(length: Any, dtype: DType = dtypes.int32) -> UOp:
        """0, 1, 2, …; of a symbolic length, the beginning of the longest line."""
        whole = UOp(Ops.IOTA, dtype, (), length.vmax if isinstance(length, UOp) else length)
        return whole.shrink(((0, length),)) if isinstance(length, UOp) else whole

    def const_like(self, value: Any) -> UOp:
        """``value`` with this node's dtype and shape."""
        if self.op.shape is None or not self.shape:
            return UOp.const(self.dtype, value)
        kept = self.dtype.as_const(value)  # a float by its digits: 0.0 and -0.0 are equal keys
        return _spread(self.dtype, kept.hex() if type(kept) is float else kept, self.shape)

    def zeros(self, dtype: DType) -> UOp:
        """Zeros of ``dtype`` with this node's shape."""
        return _spread(dtype, 0, self.shape)

    def iota_like(self, axis: int) -> UOp:
        """Each element's coordinate along ``axis``, in this node's shape."""
        ones = (1,) * self.ndim
        line = UOp.iota(self.shape[axis]).reshape((*ones[:axis], self.shape[axis], *ones[axis + 1 :]))
        return line.expand(self.shape)

    def expand_to(self, shape: tuple[Any, ...]) -> UOp:
        """A scalar repeated to ``shape``."""
        if not shape:
            return self
        ones = (1,) * len(shape)
        one = UOp(Ops.RESHAPE, self.dtype, (self,), ones)
        return one if shape == ones else UOp(Ops.EXPAND, self.dtype, (one,), shape)

    # *** arithmetic: Python scalars take this node's dtype and shape ***

    def alu(self, op: str | Op, *others: UOp) -> UOp:
        return UOp(op if isinstance(op, Op) else getattr(Ops, op), None, (self, *others))

    def _binary(self, op: Op, other: Any, reverse: bool = False) -> UOp:
        if not isinstance(other, UOp):
            if self.dtype is dtypes.index and type(other) not in (int, bool, float) and hasattr(other, "uop"):
                return NotImplemented  # type: ignore[no-any-return]  # beside a tensor, whose operator takes it
            other = self._lift(other)
        elif other.dtype is dtypes.index is not self.dtype and self._is_tensor():  # a size beside values
            other = other.cast(self.dtype).expand_to(self.shape)
        return UOp(op, None, (other, self) if reverse else (self, other))

    def _lift(self, value: Any) -> UOp:
        if self.dtype is dtypes.index:
            return UOp(Ops.CONST, dtypes.index, (), int(value))
        return self.const_like(value) if self._is_tensor() else UOp.const(self.dtype, value)

    def _is_tensor(self) -> bool:
        try:
            return bool(self.shape)
        except TypeError:
            return False

    def __le__(self, o: Any) -> UOp: return self < o + 1 if self.dtype is dtypes.index else NotImplemented
    def __ge__(self, o: Any) -> UOp: return self + 1 > o if self.dtype is dtypes.index else NotImplemented
    def __neg__(self) -> UOp: return UOp(Ops.NEG, None, (self,))
    def ge(self, o: Any) -> UOp: return self.lt(o).logical_not()

    def logical_not(self) -> UOp:
        return UOp(Ops.CMPEQ, None, (self, self._lift(False)))

    def where(self, yes: Any, no: Any) -> UOp:
        if not isinstance(yes, UOp):
            yes = no._lift(yes)
        if not isinstance(no, UOp):
            no = yes._lift(no)
        return UOp(Ops.WHERE, None, (self, yes, no))

    def cast(self, dtype: DType) -> UOp:
        return self if dtype is self.dtype else UOp(Ops.CAST, dtype, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        return self if dtype is self.dtype else UOp(Ops.BITCAST, dtype, (self,))

    # *** movement and reductions ***

    def reshape(self, shape: tuple[Any, ...]) -> UOp:
        return self if shape == self.shape else UOp(Ops.RESHAPE, self.dtype, (self,), shape)

    def expand(self, shape: tuple[Any, ...]) -> UOp:
        return self if shape == self.shape else UOp(Ops.EXPAND, self.dtype, (self,), shape)

    def permute(self, order: tuple[int, ...]) -> UOp:
        return self if order == tuple(range(len(order))) else UOp(Ops.PERMUTE, self.dtype, (self,), order)

    def pad(self, amounts: tuple[tuple[Any, Any], ...]) -> UOp:
        none = all(type(b) is int and type(e) is int and b == 0 == e for b, e in amounts)
        return self if none else UOp(Ops.PAD, self.dtype, (self,), amounts)

    def shrink(self, box: tuple[tuple[Any, Any], ...]) -> UOp:
        whole = all(type(b) is int and b == 0 and (e is s or (type(e) is type(s) is int and e == s))
                    for (b, e), s in zip(box, self.shape))
        return self if whole else UOp(Ops.SHRINK, self.dtype, (self,), box)

    def flip(self, axes: tuple[int, ...]) -> UOp:
        return UOp(Ops.FLIP, self.dtype, (self,), axes) if axes else self

    def window(self, window: Window) -> UOp:
        return UOp(Ops.WINDOW, None, (self,), window)

    def unwindow(self, window: Window) -> UOp:
        return UOp(Ops.UNWINDOW, None, (self,), window)

    def reduce(self, op: str | Op, axes: tuple[int, ...]) -> UOp:
        """Combine along ``axes``, which stay with size 1; no axes leave the node as it is."""
        row = op if isinstance(op, Op) else getattr(Ops, op)
        return UOp(Ops.REDUCE, None, (self,), (row, tuple(sorted(axes)))) if axes else self

    def gather(self, index: UOp, axis: int) -> UOp:
        return UOp(Ops.GATHER, None, (self, index), axis)

    def scatter(self, index: UOp, x: UOp, axis: int, op: str | Op | None) -> UOp:
        row = getattr(Ops, op) if isinstance(op, str) else op
        return UOp(Ops.SCATTER, None, (self, index, x), (axis, row))

    def scan(self, op: str | Op, axis: int, *start_and_weight: UOp) -> UOp:
        """Running values along ``axis``; see SCAN."""
        return UOp(Ops.SCAN, None, (self, *start_and_weight), (op if isinstance(op, Op) else getattr(Ops, op), axis))

    def histogram(self, index: UOp, x: UOp, axis: int, op: str | Op = "ADD") -> UOp:
        """Counters by key; see HISTOGRAM."""
        return UOp(Ops.HISTOGRAM, None, (self, index, x), (op if isinstance(op, Op) else getattr(Ops, op), axis))

    def contiguous(self) -> UOp:
        return self if self.op in (Ops.BUFFER, Ops.CONTIGUOUS, Ops.ASSIGN) else UOp(Ops.CONTIGUOUS, None, (self,))

    def copy_to(self, device: str | None) -> UOp:
        return self if device is None or device == self.device else UOp(Ops.COPY, None, (self,), device)

    # *** memory of kernel graphs ***

    def load(self, index: UOp, valid: UOp | None = None) -> UOp:
        return UOp(Ops.LOAD, self.dtype.scalar, (self, index) if valid is None else (self, index, valid))

    def store(self, index: UOp, value: UOp, valid: UOp | None = None) -> UOp:
        return UOp(Ops.STORE, None, (self, index, value) if valid is None else (self, index, value, valid))

    # *** whole graphs ***

    def __bool__(self) -> bool:
        """A condition on sizes holds or not by the values of their variables; any other node is true.

        >>> n = UOp.variable("n", 1, 9).bind(4)
        >>> bool(n < 5), bool((n > 1) & (n * 2 < 5)), max(n, 3) is n
        (True, False, True)
        """
        if self.dtype is not dtypes.bool or not self.op.alu:
            return True
        return Algebra.holds(self)

    def toposort(self) -> list[UOp]:
        """All nodes below and this one, sources first."""
        return toposort(self)

    def render(self) -> str:
        """An integer expression as Python would write it, however long; ``repr`` cuts it off.

        >>> i, j = UOp.variable("i", 0, 1), UOp.variable("j", 0, 3)
        >>> (i * 4 + j).render(), (i * 4 + j).min, (i * 4 + j).max
        ('i*4+j', 0, 7)
        """
        return expression(self, sys.maxsize)

    def simplify(self) -> UOp:
        """Simplified by the rules of integer algebra (and those of all types that hold for every value)."""
        return Algebra.simplify(self)

    def substitute(self, table: dict[UOp, UOp]) -> UOp:
        """The graph with nodes replaced; replacements are not searched again."""
        return substitute((self,), table)[0]


class Algebra:
    """What integer algebra tells nodes. Its rules are built from nodes: ``ir.symbolic`` and ``ir.sizes`` lend them."""

    simplify: ClassVar[Callable[[UOp], UOp]]
    holds: ClassVar[Callable[[UOp], bool]]
    value_of_size: ClassVar[Callable[[Any], int]]
    normal_size: ClassVar[Callable[[Any], Any]]


Symbols.variable = UOp.variable


def _rebuilt(rows: list[tuple[Op, DType, tuple[int, ...], Any]]) -> UOp:
    """The last node of a pickled list."""
    nodes: list[UOp] = []
    for op, dtype, src, arg in rows:
        nodes.append(UOp(op, dtype, tuple(nodes[i] for i in src), arg))
    return nodes[-1]


@functools.lru_cache(2048)
def _spread(dtype: DType, value: Any, shape: tuple[Any, ...]) -> UOp:
    """A number (a float as its hexadecimal digits) as a value of ``shape``; kept, as programs ask for it again."""
    return UOp.const(dtype, float.fromhex(value) if type(value) is str else value).expand_to(shape)


def toposort(root: UOp | Iterable[UOp], enter: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """Nodes below ``root`` (one or several), sources first; only those for which ``enter`` holds are visited."""
    if isinstance(root, UOp) and root.op is Ops.SINK and enter is None:  # many passes ask for all nodes of a kernel
        if root._below is None:
            root._below = tuple(toposort(root.src))
        return [*root._below, root]
    order: list[UOp] = []
    seen: set[UOp] = set()
    stack: list[tuple[UOp, Iterator[UOp]]] = []  # of those around the node whose sources are being visited
    for r in (root,) if isinstance(root, UOp) else root:
        if r in seen or (enter is not None and not enter(r)):
            continue
        seen.add(r)
        node, sources = r, iter(r.src)
        while True:
            for s in sources:
                if s not in seen:
                    seen.add(s)
                    if enter is None or enter(s):
                        if s.src:
                            stack.append((node, sources))
                            node, sources = s, iter(s.src)
                            break
                        order.append(s)
            else:
                order.append(node)
                if not stack:
                    break
                node, sources = stack.pop()
    return order


def _filled(node: UOp, attribute: str, rule: Callable[[UOp], Found]) -> Found:
    """``rule`` of a node, kept as its ``attribute``; nodes below that lack it get theirs first, without recursion."""
    stack = [node]
    while stack:
        n = stack[-1]
        missing = [s for s in n.src if getattr(s, attribute) is None]
        if missing:
            stack += missing
            continue
        if getattr(n, attribute) is None:
            setattr(n, attribute, rule(n))
        stack.pop()
    found: Found = getattr(node, attribute)
    return found


def _shape_of(node: UOp) -> tuple[Any, ...]:
    if node.op.shape is None:
        raise TypeError(f"{node.op.name} has no shape: it lives below the tensor graph")
    shape = node.op.shape(node)
    for size in shape:
        if type(size) is UOp and size._normal is not True:
            return tuple([Algebra.normal_size(s) for s in shape])
    return shape


def substitute(roots: Sequence[UOp], table: dict[UOp, UOp]) -> list[UOp]:
    """Several graphs with nodes replaced by ``table``."""
    new: dict[UOp, UOp] = dict(table)
    for node in toposort(roots, lambda n: n not in table):
        if node.src and (src := tuple([new.get(s, s) for s in node.src])) != node.src:
            new[node] = node.replace(src=src)
    return [new.get(r, r) for r in roots]
