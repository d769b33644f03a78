"""UOp: the single node class of all levels, immutable and interned (hash-consed).

Equal nodes are the same object while alive, so memo tables are dictionaries by identity, and a rewrite that changes
nothing allocates nothing. A node's origin (the user's lines and the method called) is not part of its identity.
Python's arithmetic and comparison operators on nodes make ops of the op table; a misspelled attribute gets a hint.
``tracker_of`` converts a chain of movement ops to one ShapeTracker."""
from __future__ import annotations

import functools
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, UnknownNameError
from tinsmith.core.lazy_import import Late
from tinsmith.core.origin import Origin as Origin
from tinsmith.core.suggestions import missing_attribute
from tinsmith.ir.algebra.bounds import ANY, bounds_of, free_ranges
from tinsmith.ir.ops import FOR_GRADIENTS, Op, Ops
from tinsmith.ir.ops.op import Node, of_first, same, shape_of_all, shape_of_first
from tinsmith.ir.text.node import expression, short
from tinsmith.shape import ShapeTracker
from tinsmith.shape.sint import SInt, Symbols

Moves = tuple[Node, ...]  # the movement nodes above a node, outermost first


def tracker(leaf: Node, moves: Moves) -> ShapeTracker | None:
    """Return the movement ops above a leaf as one index map; None if views cannot express them."""
    found: ShapeTracker | None = ShapeTracker.from_shape(leaf.shape)
    for m in reversed(moves):
        if found is None or m.op is Ops.UNWINDOW:
            return None
        found = _windowed(found, m) if m.op is Ops.WINDOW else getattr(found, m.op.name.lower())(m.arg)
    return None if found is None else found.simplify()


def _windowed(tracker: ShapeTracker, node: Node) -> ShapeTracker | None:
    """Apply WINDOW to a tracker. Every window position reads one element, so it is a view only if the window axis is a
    pure repetition (stride 0, unmasked); else return None."""
    w, shape = node.arg, tracker.shape
    last = tracker.views[-1]
    if last.strides[w.window_axis] != 0 or tracker.axis_is_masked(w.window_axis):
        return None
    size = shape[w.window_axis]
    one = tracker.shrink(tuple((0, 1 if i == w.window_axis else s) for i, s in enumerate(shape)))
    one = one.reshape(tuple(s for i, s in enumerate(shape) if i != w.window_axis))
    axis = w.axis - (w.axis > w.window_axis)
    seen = one.window(axis, size, w.stride, w.dilation, w.outputs)
    order = list(range(len(shape) - 1))
    order.insert(w.window_axis, len(shape) - 1)
    return seen.permute(tuple(order))


def tracker_of(node: Node) -> ShapeTracker:
    """Return the movement ops on top of ``node`` as a ShapeTracker over the first buffer or computed value below them.

    An op that no view can express, such as the gradient of overlapping windows, counts as a computed value.
    """
    above: list[Node] = []
    below = node
    while below.op.kind == "movement" or below.op in FOR_GRADIENTS:
        if below.op.kind == "movement":
            above.append(below)
        below = below.src[0]
    if all(m.op not in (Ops.WINDOW, Ops.UNWINDOW) for m in above):
        every = tracker(below, tuple(above))
        assert every is not None, "views express all other movement ops"
        return every
    moves: Moves = ()
    found = ShapeTracker.from_shape(node.shape)
    while node.op.kind == "movement" or node.op in FOR_GRADIENTS:
        node, moves = node.src[0], (*moves, node) if node.op.kind == "movement" else moves
        deeper = tracker(node, moves)
        if deeper is None:
            break
        found = deeper
    return found


class Ref(weakref.ref[Any]):
    """A weak reference to a node that keeps the node's key in the intern table."""

    __slots__ = ("key",)
    key: Any

interned: dict[Any, Ref] = {}

# references to collected nodes whose table entries are not yet removed (see core.object_lifetime)
dead: deque[Any] = deque()
bury = dead.append


def forget_dead() -> None:
    """Remove the entries of dead nodes from the intern table, which frees the sources and buffers that only they held.

    Node creation and every allocation call this; other code needs it only before inspecting memory use.
    """
    while dead:
        try:
            ref = dead.popleft()
        except IndexError:  # another thread took it
            return
        key = ref.key
        # No call between test and deletion, so that no other thread can run between them.
        try:
            if interned[key] is ref:
                del interned[key]
        except KeyError:
            pass
        del key, ref  # frees the sources, whose references join `dead` before the next iteration


class Operators:
    """Operator methods for two operands; the other operand may be a Python scalar."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker finds missing attributes itself
        def __getattr__(self, name):
            return missing_attribute(self, name)

    def _binary(self, op: Op, other: Any, reverse: bool = False) -> Self:
        raise NotImplementedError

    def __add__(self, o: Any) -> Self: return self._binary(Ops.ADD, o)
    def __radd__(self, o: Any) -> Self: return self._binary(Ops.ADD, o)
    def __sub__(self, o: Any) -> Self: return self._binary(Ops.SUB, o)
    def __rsub__(self, o: Any) -> Self: return self._binary(Ops.SUB, o, True)
    def __mul__(self, o: Any) -> Self: return self._binary(Ops.MUL, o)
    def __rmul__(self, o: Any) -> Self: return self._binary(Ops.MUL, o)
    def __truediv__(self, o: Any) -> Self: return self._binary(Ops.FDIV, o)
    def __rtruediv__(self, o: Any) -> Self: return self._binary(Ops.FDIV, o, True)
    def __floordiv__(self, o: Any) -> Self: return self._binary(Ops.IDIV, o)
    def __rfloordiv__(self, o: Any) -> Self: return self._binary(Ops.IDIV, o, True)
    def __mod__(self, o: Any) -> Self: return self._binary(Ops.MOD, o)
    def __rmod__(self, o: Any) -> Self: return self._binary(Ops.MOD, o, True)
    def __and__(self, o: Any) -> Self: return self._binary(Ops.AND, o)
    def __rand__(self, o: Any) -> Self: return self._binary(Ops.AND, o)
    def __or__(self, o: Any) -> Self: return self._binary(Ops.OR, o)
    def __xor__(self, o: Any) -> Self: return self._binary(Ops.XOR, o)
    def __lshift__(self, o: Any) -> Self: return self._binary(Ops.SHL, o)
    def __rshift__(self, o: Any) -> Self: return self._binary(Ops.SHR, o)
    def __lt__(self, o: Any) -> Self: return self._binary(Ops.CMPLT, o)
    def __gt__(self, o: Any) -> Self: return self._binary(Ops.CMPLT, o, True)
    def lt(self, o: Any) -> Self: return self._binary(Ops.CMPLT, o)
    def eq(self, o: Any) -> Self: return self._binary(Ops.CMPEQ, o)
    def ne(self, o: Any) -> Self: return self._binary(Ops.CMPNE, o)
    def maximum(self, o: Any) -> Self: return self._binary(Ops.MAX, o)
    def minimum(self, o: Any) -> Self: return self._binary(Ops.MIN, o)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Window:
    """The argument of WINDOW and UNWINDOW: `inputs` positions of `axis`, read through `outputs` sliding windows."""

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

    __slots__ = ("__weakref__", "_below", "_bounds", "_linear", "_normal", "_order", "_ranges", "_shape",
                 "_simple", "arg", "device", "dtype", "op", "origin", "src")
    # Caches, None until computed:
    _below: tuple[UOp, ...] | None  # for a kernel's SINK: the nodes below it, in topological order
    _bounds: tuple[int, int] | None  # (least, greatest) value
    _linear: tuple[dict[UOp, int], int] | None  # linear form (ir.algebra.sizes)
    _normal: UOp | int | Literal[True] | None  # normal form of a size (ir.algebra.sizes); True: the node itself
    _order: tuple[Any, ...] | None  # structural sort key (ir.algebra.sizes)
    _ranges: frozenset[UOp] | None  # free RANGE nodes
    _shape: tuple[Any, ...] | None
    _simple: UOp | Literal[True] | None  # simplified form (ir.algebra.symbolic); True: the node itself
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
            rule = op.dtype
            if rule is None:
                raise TypeError(f"{op.name} needs a dtype")
            if rule is of_first or (rule is same and (len(src) == 1 or src[0].dtype is src[1].dtype) and len(src) < 3):
                dtype = src[0].dtype
            else:
                dtype = rule(src, arg)
        key = (op, dtype, src, arg.hex() if type(arg) is float else arg)
        ref = interned.get(key)
        if ref is not None:
            found: UOp | None = ref()
            if found is not None:
                return found
        arity = op.arity
        count = len(src)
        if (count != arity) if isinstance(arity, int) else not (arity[0] <= count <= arity[1]):
            raise TypeError(f"{op.name} takes {arity} sources, got {count}")
        self = object.__new__(cls)
        self.op, self.dtype, self.src, self.arg, self.origin = op, dtype, src, arg, ()
        self._ranges = self._order = self._simple = self._linear = self._normal = self._below = None
        shape = None
        if op is Ops.RESHAPE or op is Ops.EXPAND:
            shape = None if UOp in map(type, arg) else arg
        elif src and (shape := src[0]._shape) is not None:  # known at once where the op keeps it
            if op.shape is shape_of_all:
                for s in src:
                    if s._shape is not shape and s._shape != shape:
                        shape = None
                        break
            elif op.shape is not shape_of_first:
                shape = None
        self._shape = shape
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
        if first is not ref:  # another thread created the node first, or the entry's node is being collected
            other: UOp | None = first()
            if other is not None:
                return other
            interned[key] = ref
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the node with those below it that this pickler has not been given yet (see ``_Pickling``)."""
        return _last_of, (_pickling(), _Pickled(self))

    def __repr__(self) -> str:
        return short(self)

    def replace(self, **changes: Any) -> UOp:
        """Return the node with some fields changed; the origin is kept."""
        new = UOp(changes.get("op", self.op), changes.get("dtype", self.dtype), changes.get("src", self.src),
                  changes.get("arg", self.arg))
        if self.origin and not new.origin:
            new.origin = self.origin
        return new

    # *** properties ***

    @property
    def shape(self) -> tuple[Any, ...]:
        """Shape of a tensor-graph node: ints, or symbolic integers in normal form (equal sizes are the same node)."""
        return self._shape if self._shape is not None else _shape_now(self)

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
        node = self
        while node.op.kind == "movement":
            node = node.src[0]
        return node

    @property
    def st(self) -> ShapeTracker:
        """The movement ops on top of this value, as one ShapeTracker over the value below them.

        >>> x = UOp(Ops.PARAM, dtypes.float32, (), (0, (2, 3)))
        >>> x.permute((1, 0)).st
        ShapeTracker(views=(View(shape=(3, 2), strides=(1, 3), offset=0, mask=None, contiguous=False),))
        >>> (x.permute((1, 0)) + 1).st.contiguous
        True
        """
        return tracker_of(self)

    @property
    def ranges(self) -> frozenset[UOp]:
        """The free RANGE nodes of this kernel-graph node: those it depends on and does not itself iterate over."""
        return self._ranges if self._ranges is not None else _filled(self, "_ranges", free_ranges)

    @property
    def vmin(self) -> int:
        return self.bounds[0]

    @property
    def vmax(self) -> int:
        return self.bounds[1]

    min, max = vmin, vmax  # the tutorials' names

    @property
    def bounds(self) -> tuple[int, int]:
        """(least, greatest) value of an integer or bool expression; the dtype's limits if nothing more is known."""
        return self._bounds if self._bounds is not None else _filled(self, "_bounds", bounds_of)

    @property
    def is_const(self) -> bool:
        return self.op is Ops.CONST

    # *** constructors ***

    @staticmethod
    def const(dtype: DType, value: Any) -> UOp:
        """Return a constant of ``dtype`` (for a vector dtype, a vector of equal lanes)."""
        return UOp(Ops.CONST, dtype, (), dtype.as_const(value))

    @staticmethod
    def index(value: Any) -> UOp:
        """Return an index constant, or ``value`` itself if it is symbolic."""
        return value if isinstance(value, UOp) else UOp(Ops.CONST, dtypes.index, (), int(value))

    @staticmethod
    def variable(name: str, least: int, greatest: int) -> UOp:
        return UOp(Ops.VARIABLE, dtypes.index, (), (name, least, greatest))

    def bind(self, value: int) -> UOp:
        """Return this variable bound to a value for one run.

        >>> UOp.variable("n", 1, 9).bind(4).val
        4

        Raises:
            ArgumentError: if the value is out of the variable's bounds, or this is no variable.
        """
        if self.op is not Ops.VARIABLE:
            raise ArgumentError("bind", f"{short(self)} is not an unbound variable",
                                "Variable(name, least, greatest).bind(value)")
        name, least, greatest = self.arg
        number = operator.index(value) if hasattr(value, "__index__") else least - 1  # NumPy's integers too
        if not least <= number <= greatest:
            raise ArgumentError("bind", f"variable {name!r} runs from {least} to {greatest}, not to {value!r:.60}",
                                "an integer within these bounds")
        return UOp(Ops.BIND, None, (self, UOp.index(number)))

    def unbind(self) -> tuple[UOp, int]:
        """Return the (variable, value) of a bound variable."""
        return self.src[0], self.val

    @property
    def val(self) -> int:
        """The value of a bound variable."""
        if self.op is not Ops.BIND:
            raise UnknownNameError("val", f"{short(self)} is not bound to a value", "Variable(...).bind(value).val")
        return Algebra.value_of_size(self)

    @staticmethod
    def range(size: SInt | UOp, number: int, role: Any, partial: bool = False) -> UOp:
        """Return a kernel-graph index in [0, size). ``partial``: bounds checks can only fail in the last iteration."""
        return UOp(Ops.RANGE, dtypes.index, (UOp.index(size),), (number, role, *(("partial",) if partial else ())))

    @staticmethod
    def iota(length: Any, dtype: DType = dtypes.int32) -> UOp:
        """Return 0, 1, 2, …; for a symbolic length, a slice of the longest iota."""
        whole = UOp(Ops.IOTA, dtype, (), length.vmax if isinstance(length, UOp) else length)
        return whole.shrink(((0, length),)) if isinstance(length, UOp) else whole

    def const_like(self, value: Any) -> UOp:
        """Return ``value`` broadcast to this node's dtype and shape."""
        kept = self.dtype.as_const(value)
        shape = () if self.op.shape is None else self.shape
        if not shape:
            return UOp(Ops.CONST, self.dtype, (), kept)
        # the cache key of a float is its hex digits: 0.0 == -0.0 as keys
        return _spread(self.dtype, kept.hex() if type(kept) is float else kept, shape)

    def zeros(self, dtype: DType) -> UOp:
        """Return zeros of ``dtype`` with this node's shape."""
        return _spread(dtype, 0, self.shape)

    def iota_like(self, axis: int) -> UOp:
        """Return each element's coordinate along ``axis``, in this node's shape."""
        ones = (1,) * self.ndim
        line = UOp.iota(self.shape[axis]).reshape((*ones[:axis], self.shape[axis], *ones[axis + 1 :]))
        return line.expand(self.shape)

    def expand_to(self, shape: tuple[Any, ...]) -> UOp:
        """Return a scalar broadcast to ``shape``."""
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
                refused: UOp = NotImplemented  # beside a tensor, whose operator takes it
                return refused
            if self.dtype is dtypes.index and type(other) is float:
                return self.cast(dtypes.float32)._binary(op, other, reverse)
            other = self._lift(other)
        elif other.dtype is dtypes.index is not self.dtype and self._is_tensor():  # a size combined with a tensor
            other = other.cast(self.dtype).expand_to(self.shape)
        if op is Ops.FDIV and self.dtype is dtypes.index is other.dtype:  # the quotient of two sizes is a number
            return self.cast(dtypes.float32)._binary(op, other.cast(dtypes.float32), reverse)
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

    def __pow__(self, exponent: int | float) -> UOp:
        """Return a power: of a size and a whole exponent >= 0 a size, otherwise a number of dtype float32.

        >>> n = UOp.variable("n", 1, 16).bind(9)
        >>> n ** 2, (n ** -0.5).dtype
        (n*n, dtypes.float)
        """
        if type(exponent) not in (int, float):
            return NotImplemented
        if type(exponent) is int and exponent >= 0:
            return functools.reduce(operator.mul, [self] * exponent) if exponent else self._lift(1)
        base = self.cast(dtypes.float32) if self.dtype is dtypes.index else self
        if abs(exponent) != 0.5:
            return base._binary(Ops.POW, float(exponent))
        root = UOp(Ops.SQRT, None, (base,))
        return root if exponent > 0 else 1 / root

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
        for b, e in amounts:
            if not (type(b) is int and type(e) is int and b == 0 == e):
                return UOp(Ops.PAD, self.dtype, (self,), amounts)
        return self

    def shrink(self, box: tuple[tuple[Any, Any], ...]) -> UOp:
        for (b, e), s in zip(box, self.shape):
            if not (type(b) is int and b == 0 and (e is s or (type(e) is type(s) is int and e == s))):
                return UOp(Ops.SHRINK, self.dtype, (self,), box)
        return self

    def flip(self, axes: tuple[int, ...]) -> UOp:
        return UOp(Ops.FLIP, self.dtype, (self,), axes) if axes else self

    def window(self, window: Window) -> UOp:
        return UOp(Ops.WINDOW, None, (self,), window)

    def unwindow(self, window: Window) -> UOp:
        return UOp(Ops.UNWINDOW, None, (self,), window)

    def reduce(self, op: str | Op, axes: tuple[int, ...]) -> UOp:
        """Reduce with ``op`` along ``axes``, which stay with size 1; empty ``axes`` return the node unchanged."""
        row = op if isinstance(op, Op) else getattr(Ops, op)
        return UOp(Ops.REDUCE, self.dtype, (self,), (row, tuple(sorted(axes)))) if axes else self

    def gather(self, index: UOp, axis: int) -> UOp:
        return UOp(Ops.GATHER, None, (self, index), axis)

    def scatter(self, index: UOp, x: UOp, axis: int, op: str | Op | None) -> UOp:
        row = getattr(Ops, op) if isinstance(op, str) else op
        return UOp(Ops.SCATTER, None, (self, index, x), (axis, row))

    def scan(self, op: str | Op, axis: int, *start_and_weight: UOp) -> UOp:
        """Return running values (prefix reductions) along ``axis``; see SCAN."""
        return UOp(Ops.SCAN, None, (self, *start_and_weight), (op if isinstance(op, Op) else getattr(Ops, op), axis))

    def histogram(self, index: UOp, x: UOp, axis: int, op: str | Op = "ADD") -> UOp:
        """Return counters by key; see HISTOGRAM."""
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

    # *** graphs ***

    def __bool__(self) -> bool:
        """Decide a condition on sizes by the values of its variables (see ``ir.algebra.sizes.holds``); a bound size is
        true unless it is 0, as an int. Any other node is true.

        >>> n = UOp.variable("n", 1, 9).bind(4)
        >>> bool(n < 5), bool((n > 1) & (n * 2 < 5)), max(n, 3) is n, bool(n % 2)
        (True, False, True, False)
        """
        if self.dtype is dtypes.bool and self.op.alu:
            return Algebra.holds(self)
        return self.dtype is not dtypes.index or not self._is_bound_size() or Algebra.holds(self.ne(0))

    def _is_bound_size(self) -> bool:
        """Return True for an index of bound variables with values, which those of a canonical graph lack."""
        if self.op is not Ops.BIND and not self.op.alu:
            return False
        stack, seen = [self], {self}
        while stack:
            n = stack.pop()
            if n.op is Ops.BIND:
                if n.src[1].dtype is not dtypes.index:
                    return False
            elif n.op.alu:
                stack += [s for s in n.src if s not in seen]
                seen.update(n.src)
            elif n.op is not Ops.CONST:
                return False
        return True

    def toposort(self) -> list[UOp]:
        """Return this node and all nodes below it, sources first."""
        return toposort(self)

    def render(self) -> str:
        """Return an integer expression in Python syntax, of any length; ``repr`` truncates it.

        >>> i, j = UOp.variable("i", 0, 1), UOp.variable("j", 0, 3)
        >>> (i * 4 + j).render(), (i * 4 + j).min, (i * 4 + j).max
        ('i*4+j', 0, 7)
        """
        return expression(self, sys.maxsize)

    def simplify(self) -> UOp:
        """Return the node simplified by integer algebra and by the rules that hold for every value of every dtype."""
        return Algebra.simplify(self)

    def substitute(self, table: dict[UOp, UOp]) -> UOp:
        """Return the graph with nodes replaced by ``table``; replacements are not searched again."""
        return substitute((self,), table)[0]


class Algebra:
    """Late-bound integer algebra called by UOp methods; ``ir.algebra.symbolic`` and ``ir.algebra.sizes``, which import
    UOp, fill it in. The former, a table of rules, is imported at the first ``simplify``."""

    simplify: ClassVar[Callable[[UOp], UOp]] = staticmethod(
        lambda node: Late("tinsmith.ir.algebra.symbolic").simplify(node))
    holds: ClassVar[Callable[[UOp], bool]]
    value_of_size: ClassVar[Callable[[Any], int]]
    normal_size: ClassVar[Callable[[Any], Any]]

Symbols.variable = UOp.variable


class _Pickling:
    """The nodes that one pickler, or one ``deepcopy``, has already pickled. Further tensors of the same graph refer to
    them, so that pickling many tensors takes linear time.

    Only the memo of the pickler keeps it alive. It is pickled before each node. So only another pickler, running at the
    same time, can ask for it again; that one needs separate nodes.

    Attributes:
        times: number of picklers that have pickled it.
        places: node → the part that contains it, and its number in the part.
    """

    __slots__ = ("__weakref__", "places", "times")

    def __init__(self) -> None:
        self.times = 0
        self.places: dict[UOp, tuple[_Part, int]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        self.times += 1
        return tuple, ()

_of_thread = threading.local()


def _pickling(new: bool = False) -> _Pickling:
    """Return the latest ``_Pickling`` of this thread, or a new one if there is none."""
    ref = getattr(_of_thread, "pickling", None)
    found: _Pickling | None = None if ref is None or new else ref()
    if found is None:
        found = _Pickling()
        _of_thread.pickling = weakref.ref(found)
    return found


class _Pickled:
    """A reference to a node in a pickle, resolved through its ``_Pickling``, which is pickled first."""

    __slots__ = ("node",)

    def __init__(self, node: UOp) -> None:
        self.node = node

    def __reduce__(self) -> tuple[Any, ...]:
        pickling = _pickling()
        if pickling.times > 1:
            pickling = _pickling(new=True)
        found = pickling.places.get(self.node)
        if found is not None:
            return _one_of, (pickling, *found)
        part = _Part(self.node, pickling.places)
        return _one_of, (pickling, part, len(part.nodes) - 1, _PartDone(pickling, part))


class _Part:
    """The nodes below a node that are not in a part yet, pickled as a flat list, so that deep graphs need no recursion.

    Attributes:
        nodes: in topological order.
        outside: their sources in other parts, with the place of each.
    """

    __slots__ = ("nodes", "outside")

    def __init__(self, root: UOp, places: dict[UOp, tuple[_Part, int]]) -> None:
        self.nodes = toposort(root, lambda n: n not in places)
        own = set(self.nodes)
        self.outside = {s: places[s] for n in self.nodes for s in n.src if s not in own}

    def __reduce__(self) -> tuple[Any, ...]:
        number = {s: k for k, s in enumerate((*self.outside, *self.nodes))}
        rows = [(n.op, n.dtype, tuple([number[s] for s in n.src]), n.arg) for n in self.nodes]
        return _nodes_of, (list(self.outside.values()), rows)


class _PartDone:
    """The end of a part in a pickle: later nodes refer to the part. (Arguments of its nodes may be nodes, too.)"""

    __slots__ = ("part", "pickling")

    def __init__(self, pickling: _Pickling, part: _Part) -> None:
        self.pickling, self.part = pickling, part

    def __reduce__(self) -> tuple[Any, ...]:
        self.pickling.places.update((n, (self.part, k)) for k, n in enumerate(self.part.nodes))
        return tuple, ()


def _nodes_of(outside: list[tuple[list[UOp], int]], rows: list[tuple[Op, DType, tuple[int, ...], Any]]) -> list[UOp]:
    """Return the nodes of a pickled part."""
    nodes = [part[k] for part, k in outside]
    for op, dtype, src, arg in rows:
        nodes.append(UOp(op, dtype, tuple([nodes[i] for i in src]), arg))
    return nodes[len(outside):]


def _one_of(_: Any, part: list[UOp], number: int, done: Any = None) -> UOp:
    """Return a pickled node."""
    return part[number]


def _last_of(_: Any, node: UOp) -> UOp:
    """Return ``node``, the second item of a pickled pair; the first is the ``_Pickling`` that must be loaded before
    it."""
    return node


@functools.lru_cache(2048)
def _spread(dtype: DType, value: Any, shape: tuple[Any, ...]) -> UOp:
    """Return a constant (a float given as its hex digits) broadcast to ``shape``; cached, as programs repeat it."""
    kept = float.fromhex(value) if type(value) is str else dtype.as_const(value)
    return UOp(Ops.CONST, dtype, (), kept).expand_to(shape)


def toposort(root: UOp | Iterable[UOp], enter: Callable[[UOp], bool] | None = None) -> list[UOp]:
    """Return the nodes below ``root`` (one or several), sources first; only nodes for which ``enter`` is true are
    visited."""
    if isinstance(root, UOp) and root.op is Ops.SINK and enter is None:  # cached: many passes walk the same kernel
        if root._below is None:
            root._below = tuple(toposort(root.src))
        return [*root._below, root]
    order: list[UOp] = []
    seen: set[UOp] = set()
    stack: list[tuple[UOp, Iterator[UOp]]] = []  # ancestors of the current node, each with its unvisited sources
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
    """Return ``rule(node)``, cached in ``attribute``; nodes below that lack it are computed first, without
    recursion."""
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


def _shape_now(node: UOp) -> tuple[Any, ...]:
    """Compute the shape of a node, in one step if those of its sources are known."""
    for s in node.src:
        if s._shape is None:
            return _filled(node, "_shape", _shape_of)
    shape = node._shape = _shape_of(node)
    return shape


def _shape_of(node: UOp) -> tuple[Any, ...]:
    if node.op.shape is None:
        raise TypeError(f"{node.op.name} has no shape: it exists only below the tensor graph")
    shape = node.op.shape(node)
    for size in shape:
        if type(size) is UOp and size._normal is not True:
            return tuple([Algebra.normal_size(s) for s in shape])
    return shape


def substitute(roots: Sequence[UOp], table: dict[UOp, UOp]) -> list[UOp]:
    """Return several graphs with nodes replaced by ``table``."""
    new: dict[UOp, UOp] = dict(table)
    for node in toposort(roots, lambda n: n not in table):
        if node.src and (src := tuple([new.get(s, s) for s in node.src])) != node.src:
            new[node] = node.replace(src=src)
    return [new.get(r, r) for r in roots]
