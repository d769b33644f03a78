"""Views of symbolic integers: a minimal stand-in type has exactly the operations of the protocol."""
import itertools

import numpy as np
import pytest

from tinsmith.core.errors import ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.shape import ShapeTracker, View
from tinsmith.shape.sint import SymbolicInt

FUNCTIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b,
             "%": lambda a, b: a % b, "<": lambda a, b: a < b, "&": lambda a, b: a and b}


def ends(value):
    return (value, value) if isinstance(value, int) else (value.vmin, value.vmax)


class Symbol:
    """An interned expression tree, like a UOp: equal trees are one object, ``==`` is identity, nothing is folded."""

    table: dict = {}

    def __new__(cls, op, *args):
        key = (op, *(a if isinstance(a, (int, str)) else id(a) for a in args))
        if key not in cls.table:
            made = super().__new__(cls)
            made.op, made.args = op, args
            made.vmin, made.vmax = cls.limits(op, args)
            cls.table[key] = made
        return cls.table[key]

    @staticmethod
    def limits(op, args):
        if op == "var":
            return args[1:]
        if op == "%":
            return 0, ends(args[1])[1] - 1
        corners = [FUNCTIONS[op](a, b) for a in ends(args[0]) for b in ends(args[1])]
        return min(corners), max(corners)

    def __add__(self, other): return Symbol("+", self, other)
    def __radd__(self, other): return self + other
    def __sub__(self, other): return Symbol("-", self, other)
    def __rsub__(self, other): return Symbol("-", other, self)
    def __mul__(self, other): return Symbol("*", self, other)
    def __rmul__(self, other): return self * other
    def __floordiv__(self, other): return Symbol("//", self, other)
    def __mod__(self, other): return Symbol("%", self, other)
    def __lt__(self, other): return Symbol("<", self, other)
    def __and__(self, other):
        assert isinstance(other, Symbol), "conditions that are known are dropped, not mixed in"
        return Symbol("&", self, other)
    def simplify(self): return self
    def __bool__(self): raise AssertionError("a symbolic value was used as a Python bool")

    def __call__(self, **values):
        if self.op == "var":
            return values[self.args[0]]
        return FUNCTIONS[self.op](*(a(**values) if isinstance(a, Symbol) else a for a in self.args))


def value(expression, **values):
    return expression(**values) if isinstance(expression, Symbol) else expression


N = Symbol("var", "n", 1, 6)


def check(tracker, data, expected, **values):
    """Index with symbols, then bind them, and compare every element with NumPy's."""
    assert tuple(value(s, **values) for s in tracker.shape) == expected.shape
    names = [f"i{k}" for k in range(len(tracker.shape))]
    idxs = [Symbol("var", name, 0, ends(s)[1] - 1) for name, s in zip(names, tracker.shape)]
    address, valid = tracker.expr_idxs(idxs)
    for point in itertools.product(*map(range, expected.shape)):
        bound = {**values, **dict(zip(names, point))}
        got = data[value(address, **bound)] if value(valid, **bound) else 0
        assert got == expected[point], (tracker, point)
        one, seen = tracker.expr_idxs(point)
        visible = bool(value(valid, **bound))
        assert bool(value(seen, **values)) == visible
        assert not visible or value(one, **values) == value(address, **bound)


def test_the_stand_in_meets_the_protocol():
    assert isinstance(N, SymbolicInt)


def test_symbolic_indices_into_plain_views():
    data = np.arange(1, 13)
    t = ShapeTracker.from_shape((3, 4)).pad(((1, 1), (0, 2))).flip((1,)).permute((1, 0)).reshape((30,))
    check(t, data, np.pad(data.reshape(3, 4), ((1, 1), (0, 2)))[:, ::-1].T.reshape(30))
    assert len(t.views) == 2


@pytest.mark.parametrize("n", range(1, 7))
def test_symbolic_sizes(n):
    data = np.arange(1, 6 * 4 + 1)
    a = data[:n * 4].reshape(n, 4)
    t = ShapeTracker.from_shape((N, 4))
    check(t.permute((1, 0)), data, a.T, n=n)
    check(t.flip((0, 1)), data, a[::-1, ::-1], n=n)
    check(t.reshape((N, 2, 2)), data, a.reshape(n, 2, 2), n=n)
    check(t.pad(((1, 0), (1, 2))), data, np.pad(a, ((1, 0), (1, 2))), n=n)
    check(t.shrink(((0, N), (1, 3))).reshape((N, 1, 2)), data, a[:, 1:3].reshape(n, 1, 2), n=n)
    check(t.reshape((N, 1, 4)).expand((N, 3, 4)), data, np.broadcast_to(a[:, None], (n, 3, 4)), n=n)
    check(t.permute((1, 0)).reshape((2, 2, N)), data, a.T.reshape(2, 2, n), n=n)
    check(t.window(1, 2, 1, 1, 3), data, np.stack([a[:, :3], a[:, 1:]], -1), n=n)
    flat = ShapeTracker.from_shape((24,)).shrink(((0, N * 4),)).reshape((N, 4))
    check(flat, data, a, n=n)


def test_a_symbolic_slice_of_a_larger_buffer_stays_one_view():
    t = ShapeTracker.from_shape((6, 4)).shrink(((0, N), (0, 4)))
    assert t.contiguous and t.shape == (N, 4)
    start = ShapeTracker.from_shape((12,)).shrink(((N, N + 3),))
    assert start.views == (View.create((start.shape[0],), (1,), N),)


def test_symbolic_views_fold_where_one_of_them_is_dense():
    t = ShapeTracker.from_shape((N, 4)).permute((1, 0)).reshape((N * 4,)).reshape((2, 2, N))
    assert len(t.views) == 2 and len(t.simplify().views) == 1
    assert ShapeTracker.from_shape((N, 4)).reshape((N * 4,)).contiguous


def test_what_surely_does_not_fit_is_refused():
    with pytest.raises(ShapeError):
        View.create((N, 4)).reshape((25,))
    with pytest.raises(ShapeError):
        View.create((N, 4)).shrink(((0, 7), (0, 4)))
    with pytest.raises(ShapeError):
        View.create((2, 4)).expand((N, 4))


def test_indices_by_default_are_variables() -> None:
    tracker = ShapeTracker.from_shape((2, 3, 1)).permute((1, 0, 2)).pad(((1, 0), (0, 0), (0, 0)))
    address, valid = tracker.expr_idxs()
    names = {n.arg for n in address.toposort() if n.op is Ops.VARIABLE}
    assert names == {("idx0", 0, 3), ("idx1", 0, 1)}
    i, j = UOp.variable("idx0", 0, 3), UOp.variable("idx1", 0, 1)
    assert (address, valid) == tracker.expr_idxs((i, j, 0))
    assert ShapeTracker.from_shape(()).expr_idxs() == (0, True)
