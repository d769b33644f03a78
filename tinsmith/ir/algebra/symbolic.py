"""Integer algebra, and rewrites that hold for every value of every dtype.

Sums of index expressions are kept as one linear form (term × coefficient, plus a constant), so that flattened and
unflattened indices cancel: ``(a*4 + b) // 4 → a`` and ``(a*4 + b) % 4 → b`` for 0 ≤ b < 4. Rewrites that are wrong for
NaN, infinities or signed zeros are a separate set, applied only under ``FASTMATH=1``.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.core.origin import observed
from tinsmith.ir.algebra.sizes import _LINEAR, Linear, from_linear, is_index, linear_form, order
from tinsmith.ir.ops import Op, Ops
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, literal, rewrite
from tinsmith.ir.uop import Algebra, UOp, toposort


def digits(place: UOp) -> list[UOp]:
    """Return the ranges that are the mixed-radix digits of an index, the fastest last; [] if it is not such a number.

    >>> i, j = UOp.range(4, 0, None), UOp.range(8, 1, None)
    >>> digits(i * 8 + j) == [i, j], digits(i) == [i], digits(i * 9 + j), digits(i + 1)
    (True, True, [], [])
    """
    terms, total = linear_form(place)
    found = sorted(terms, key=lambda r: terms[r])
    whole = 1
    for r in found:
        if total or r.op is not Ops.RANGE or terms[r] != whole:
            return []
        whole *= r.vmax + 1
    return found[::-1]


def _bounds(terms: Linear, constant: int) -> tuple[int, int]:
    low = high = constant
    for t, c in terms.items():
        a, b = t.bounds
        low += min(a * c, b * c)
        high += max(a * c, b * c)
    return low, high


def _collect(n: UOp) -> UOp | None:
    if n.op is Ops.MUL and Ops.CONST not in (n.src[0].op, n.src[1].op):
        return None
    if _is_collected(n):
        return n
    terms, constant = linear_form(n)
    return from_linear(_recombined(terms), constant, n)


def _is_collected(n: UOp) -> bool:
    """Return True if ``n`` already equals ``from_linear`` of its terms, checked without building it; False if unsure.

    A sum is canonical if it is a left-leaning chain of distinct terms, largest strides first, and then a constant.
    """
    seen: set[UOp] = set()
    after: tuple[Any, ...] | None = None
    top = n
    while True:
        part = n.src[1] if n.op is Ops.ADD else n
        term, stride = part, 1
        if part.op is Ops.MUL:
            term, factor = part.src
            if factor.op is not Ops.CONST or factor.arg in (0, 1):
                return False
            stride = abs(factor.arg)
        if term.op is Ops.CONST:
            if part is not top.src[-1] or n is not top or term is not part or not term.arg:
                return False
        else:
            if term.op in _LINEAR or (term.op is Ops.MOD and term.src[1].op is Ops.CONST) or term in seen:
                return False
            seen.add(term)
            key = -stride, order(term)
            if after is not None and key > after:
                return False
            after = key
        if n.op is not Ops.ADD:
            return True
        n = n.src[0]


def _recombined(terms: Linear) -> Linear:
    """Apply (x // c)*c + x % c = x, so that flattening and unflattening an index gives the index itself."""
    for t, k in terms.items():
        if t.op is not Ops.MOD or not t.src[1].is_const:
            continue
        x, c = t.src
        parts = [x // c, x.src[0] // (x.src[1].arg * c.arg)] if x.op is Ops.IDIV and x.src[1].is_const else [x // c]
        for part in parts:
            if terms.get(part) == k * c.arg and c.arg > 0:
                rest = {u: v for u, v in terms.items() if u is not t and u is not part}
                return _recombined({**rest, x: rest.get(x, 0) + k})
    return {t: k for t, k in terms.items() if k}


def _split(terms: Linear, constant: int, c: int) -> tuple[Linear, int, Linear, int]:
    """Return (quotient, constant // c, rest, constant % c) with terms = c*quotient + rest, |coefficients of rest| <
    c."""
    quotient = {t: math.trunc(k / c) for t, k in terms.items()}
    rest = {t: k - quotient[t] * c for t, k in terms.items()}
    return ({t: k for t, k in quotient.items() if k}, constant // c, {t: k for t, k in rest.items() if k}, constant % c)


def _coarse(rest: Linear, left: int, d: int) -> tuple[int, Linear] | None:
    """Return the greatest divisor g of d with rest + left = g*coarse + fine, 0 ≤ fine < g, and the terms of fine; or
    None."""
    for g in sorted({math.gcd(d, k) for k in rest.values()}, reverse=True):
        fine = {t: k for t, k in rest.items() if k % g}
        low, high = _bounds(fine, left % g)
        if g > 1 and low >= 0 and high < g:
            return g, fine
    return None


def _divide(x: UOp, c: UOp) -> UOp | None:
    """Simplify x // c: (c*q + r) // c = q + r//c; r//c = 0 for 0 ≤ r < c; (g*a + f) // (g*b) = a//b for 0 ≤ f < g."""
    d: int = c.arg
    if d <= 0:
        return None
    if d == 1:
        return x
    low, high = x.bounds
    if low // d == high // d:
        return UOp.const(x.dtype, low // d)
    if x.op is Ops.IDIV and x.src[1].is_const and x.src[1].arg > 0:
        inner: UOp = x.src[0] // (d * x.src[1].arg)
        return inner
    terms, constant = linear_form(x)
    quotient, whole, rest, left = _split(terms, constant, d)
    low, high = _bounds(rest, left)
    if low // d == high // d:
        return from_linear(quotient, whole + low // d, x)
    found = _coarse(rest, left, d)
    if found is not None:
        g, fine = found
        inner = from_linear({t: k // g for t, k in rest.items() if t not in fine}, left // g, x)
        return from_linear(quotient, whole, x) + (inner // (d // g))
    if quotient or whole:
        return from_linear(quotient, whole, x) + from_linear(rest, left, x) // d
    return None


def _remainder(x: UOp, c: UOp) -> UOp | None:
    """Simplify x % c: (c*q + r) % c = r % c; r % c = r for 0 ≤ r < c; (g*a + f) % (g*b) = a%b*g + f for 0 ≤ f < g."""
    d: int = c.arg
    if d <= 0:
        return None
    if d == 1:
        return UOp.const(x.dtype, 0)
    low, high = x.bounds
    if low >= 0 and high < d:
        return x
    if x.op is Ops.MOD and x.src[1].is_const and x.src[1].arg > 0 and x.src[1].arg % d == 0:
        return x.src[0] % d
    terms, constant = linear_form(x)
    quotient, whole, rest, left = _split(terms, constant, d)
    low, high = _bounds(rest, left)
    if low // d == high // d:
        return from_linear(rest, left - d * (low // d), x)
    found = _coarse(rest, left, d)
    if found is not None:
        g, fine = found
        inner = from_linear({t: k // g for t, k in rest.items() if t not in fine}, left // g, x)
        return (inner % (d // g)) * g + from_linear(fine, left % g, x)
    if quotient or whole:
        return from_linear(rest, left, x) % d
    return None


def _less(n: UOp, x: UOp, y: UOp) -> UOp | None:
    """Rewrite x < y as (terms) < constant, divided by the greatest common divisor of the coefficients."""
    low, high = n.bounds
    if low == high:
        return UOp.const(dtypes.bool, low)
    terms, constant = linear_form(x - y)
    if not terms:
        return UOp.const(dtypes.bool, constant < 0)
    low, high = _bounds(terms, constant)
    if high < 0 or low >= 0:
        return UOp.const(dtypes.bool, high < 0)
    limit = -constant
    g = math.gcd(*terms.values())
    if g > 1:
        terms, limit = {t: k // g for t, k in terms.items()}, -((-limit) // g)
    if len(terms) == 1:
        (t, k), = terms.items()
        if k == 1 and t.op is Ops.IDIV and t.src[1].is_const and t.src[1].arg > 0:
            return t.src[0].lt(limit * t.src[1].arg)
    terms, limit = _without_rest(terms, limit)
    new = from_linear(terms, 0, x).lt(limit)
    return None if new is n else new


def _without_rest(terms: Linear, limit: int) -> tuple[Linear, int]:
    """Return a comparison ``k*a + rest < k*limit`` with 0 ≤ rest < k as ``a < limit``; other comparisons unchanged."""
    for k in sorted({abs(c) for c in terms.values() if limit % c == 0}, reverse=True):
        rest = {t: c for t, c in terms.items() if c % k}
        low, high = _bounds(rest, 0)
        if k > 1 and rest and low >= 0 and high < k:
            return {t: c // k for t, c in terms.items() if t not in rest}, limit // k
    return terms, limit


def _compared_index(n: UOp) -> UOp | None:
    """Compare an index itself instead of its cast to an integer type that can hold it."""
    x, y = n.src
    low, high = x.src[0].bounds if x.op is Ops.CAST and is_index(x.src[0]) else (0, -1)
    if not (low <= high and x.dtype.min <= low and high <= x.dtype.max):
        return None
    return n.replace(src=(x.src[0], UOp.index(y.arg)))


def _decided(n: UOp) -> UOp | None:
    low, high = n.bounds
    return UOp.const(n.dtype, low) if low == high and not n.is_const else None

# Index arithmetic in Python ints: the same values as the rows' meanings, without NumPy's overhead.
_INDEX_FOLD: dict[Op, Callable[..., int | bool]] = {
    Ops.ADD: operator.add, Ops.SUB: operator.sub, Ops.MUL: operator.mul, Ops.NEG: operator.neg,
    Ops.MAX: max, Ops.MIN: min,
    Ops.IDIV: lambda x, y: x // y if y else 0, Ops.MOD: lambda x, y: x % y if y else 0,
    Ops.CMPLT: operator.lt, Ops.CMPEQ: operator.eq, Ops.CMPNE: operator.ne,
}

_CONDITIONS: dict[Op, Callable[..., int | bool]] = {Ops.AND: operator.and_, Ops.OR: operator.or_}


def is_made_of(node: UOp, r: UOp) -> bool:
    """Return True if an index or condition depends on the range ``r`` and constants alone.

    >>> r, n = UOp.range(4, 0, None), UOp.variable("n", 1, 9)
    >>> is_made_of(r // 2, r), is_made_of(r % n, r), is_made_of(UOp.index(3), r)
    (True, False, False)
    """
    return node.ranges == {r} and all((n.op.alu and (is_index(n) or n.dtype.is_bool)) or n.op is Ops.CONST
                                      for n in toposort(node, lambda n: n is not r))


def values_over(node: UOp, r: UOp, count: int | None = None) -> list[int | bool]:
    """Return the values of an index or condition that depends on ``r`` alone (``is_made_of``), for every value of ``r``
    or for the first ``count``.

    >>> r = UOp.range(4, 0, None)
    >>> values_over(r * 2 + 1, r), values_over((r // 2).lt(1), r)
    ([1, 3, 5, 7], [True, True, False, False])
    """
    steps = range(r.vmax + 1 if count is None else count)
    columns: dict[UOp, list[int | bool]] = {r: list(steps)}
    for n in toposort(node, lambda n: n is not r):
        exact = _INDEX_FOLD.get(n.op) if n.src and n.src[0].dtype is dtypes.index else _CONDITIONS.get(n.op)
        if n.op is Ops.CONST:
            columns[n] = [n.arg] * len(steps)
        elif exact is not None:
            columns[n] = list(map(exact, *(columns[s] for s in n.src)))
        else:
            constants = [n.replace(src=tuple(UOp.const(s.dtype, columns[s][v]) for s in n.src)) for v in steps]
            columns[n] = [c.simplify().arg for c in constants]
    return columns[node]


def _fold(n: UOp) -> UOp | None:
    for s in n.src:
        if s.op is not Ops.CONST:
            return None
    if not n.src or n.dtype.count > 1:
        return None
    exact = _INDEX_FOLD.get(n.op)
    if exact is not None and n.src[0].dtype is dtypes.index:
        return UOp.const(n.dtype, exact(*(s.arg for s in n.src)))
    assert n.op.meaning is not None
    with np.errstate(all="ignore"):
        value = n.op.meaning(n, *(np.asarray(s.arg, s.dtype.numpy) for s in n.src))
    return UOp.const(n.dtype, value.item())


def _cast_of_cast(n: UOp, x: UOp) -> UOp | None:
    """Drop the inner cast of a double cast if it is lossless."""
    middle, end = n.src[0].dtype.scalar, n.dtype.scalar
    start = x.dtype.scalar
    if middle.is_float and start.is_float and end.is_float and middle.itemsize > start.itemsize:
        return x.cast(n.dtype)
    if (start.is_int or start.is_bool) and middle.is_int and end.is_int:
        low, high = x.bounds
        if int(middle.min) <= low and high <= int(middle.max):
            return x.cast(n.dtype)
    return None

_x, _y, _c, _d = Pat("x"), Pat("y"), Pat("c", const=True), Pat("d", const=True)
_ALU = tuple(op for op in vars(Ops.__mro__[1]).values() if getattr(op, "elementwise", False))
_int = Pat("n", when=lambda n: n.dtype.is_int and n.dtype.count == 1)


def _i() -> UOp:
    return UOp.variable("i", 0, 30)


def _f() -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (0, ()))


def _of(pattern: Pat, when: Callable[[UOp], bool]) -> Pat:
    return Pat("n", pattern.ops, pattern.src, when=when)


def _index_pair(n: UOp) -> bool:
    return n.src[0].dtype is dtypes.index

symbolic = RuleSet("symbolic", (
    Rule("fold-constants", "f(c, d) = its value", Pat("n", _ALU, when=lambda n: n.op is not Ops.BITCAST), _fold,
         lambda: UOp.const(dtypes.int32, 3) + 4),
    Rule("decided-by-bounds", "x in [c, c] → c", Pat("n", _ALU, when=lambda n: is_index(n) or n.dtype is dtypes.bool),
         _decided, lambda: _i() // 31),
    Rule("times-one", "x * 1 = x", _x * 1, lambda x: x, lambda: _f() * 1),
    Rule("times-minus-one", "x * -1 = -x", Pat("n", (Ops.MUL,), (_x, literal(-1)), when=lambda n: n.dtype.is_float),
         lambda n, x: -x, lambda: _f() * -1),
    Rule("divide-by-one", "x / 1 = x", _x / 1, lambda x: x, lambda: _f() / 1),
    Rule("minus-zero", "x - 0 = x", _x - 0, lambda x: x, lambda: _f() - 0),
    Rule("plus-minus-zero", "x + -0.0 = x", _x + Pat(const=True, when=lambda n: str(n.arg) == "-0.0"), lambda x: x,
         lambda: _f() + -0.0),
    Rule("no-number", "x + nan = nan, also for - * / and remainders (some compilers mishandle a constant nan)",
         Pat("n", (Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.FMOD), when=lambda n: n.dtype.is_float and any(
             s.op is Ops.CONST and s.arg != s.arg for s in n.src)),
         lambda n: UOp.const(n.dtype, float("nan")), lambda: _f() + float("nan")),
    Rule("double-negation", "-(-x) = x", -_x.__neg__(), lambda x: x, lambda: -_f().__neg__()),
    Rule("times-zero-int", "x * 0 = 0 (integers)", Pat("n", (Ops.MUL,), (_x, literal(0)),
        when=lambda n: n.dtype.is_int),
         lambda n, x: UOp.const(n.dtype, 0), lambda: _i() * 0),
    Rule("collect-terms", "a*x + b*x + c = (a+b)*x + c (signed integers only: unsigned ones wrap)",
         Pat("n", (Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL), when=lambda n: n.dtype.kind == "int" and n.dtype.count == 1),
         _collect,
         lambda: _i() * 2 + 3 + _i()),
    Rule("divide", "(c*q + r) // c = q + r//c", _of(_x // _c, is_index), lambda n, x, c: _divide(x, c),
         lambda: (_i() * 8 + 5) // 4),
    Rule("remainder", "(c*q + r) % c = r % c", _of(_x % _c, is_index), lambda n, x, c: _remainder(x, c),
         lambda: (_i() * 8 + 5) % 4),
    Rule("compare", "x < y by bounds, as terms < constant", Pat("n", (Ops.CMPLT,), (_x, _y), when=_index_pair), _less,
         lambda: (_i() * 2 + 1).lt(9)),
    Rule("compare-index", "cast(i) < c = i < c, also == and !=, where the cast is exact",
         Pat("n", (Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE), (Pat(ops=(Ops.CAST,)), Pat(const=True)),
             when=lambda n: n.src[0].dtype.is_int), _compared_index, lambda: _i().cast(dtypes.int32).lt(9)),
    Rule("and-true", "x & true = x", Pat("n", (Ops.AND,), (_x, literal(True)), when=lambda n: n.dtype.is_bool),
         lambda n, x: x, lambda: _i().lt(3) & True),
    Rule("and-false", "x & false = false", Pat("n", (Ops.AND,), (_x, literal(0))), lambda n, x: UOp.const(n.dtype, 0),
         lambda: _i().lt(3) & False),
    Rule("and-itself", "x & x = x", _x & _x, lambda x: x, lambda: _i().lt(3) & _i().lt(3)),
    Rule("and-again", "(x & y) & y = x & y", Pat("n", (Ops.AND,), (Pat("a", (Ops.AND,), (_x, _y)), _y)),
         lambda n, a, x, y: a, lambda: (_i().lt(3) & _f().lt(1)) & _f().lt(1)),
    Rule("or-false", "x | false = x", _x | False, lambda x: x, lambda: _i().lt(3) | False),
    Rule("where-decided", "where(c, x, y) = x or y", Pat("", (Ops.WHERE,), (_c, _x, _y)),
         lambda c, x, y: x if c.arg else y, lambda: UOp.const(dtypes.bool, True).where(_f(), 1.0)),
    Rule("where-same", "where(c, x, x) = x", Pat("", (Ops.WHERE,), (_y, _x, _x)), lambda x, y: x,
         lambda: _f().lt(1).where(_f(), _f())),
    Rule("cast-twice", "cast(cast(x)) = cast(x) if the inner cast is lossless",
         Pat("n", (Ops.CAST,), (_x.cast(),)), _cast_of_cast,
         lambda: _f().cast(dtypes.float64).cast(dtypes.float16)),
    Rule("same-cast", "cast to its own dtype = x", Pat("n", (Ops.CAST, Ops.BITCAST), (_x,)),
         lambda n, x: x if x.dtype is n.dtype else None, lambda: UOp(Ops.CAST, dtypes.float32, (_f(),))),
))


class _Memo(dict[UOp, UOp]):
    """The rewriter's memo, stored on the nodes themselves (``_simple``), so that an expression is simplified only
    once."""

    def __contains__(self, node: Any) -> bool:
        return node._simple is not None

    def get(self, node: UOp, default: Any = None) -> Any:
        found = node._simple
        return node if found is True else default if found is None else found

    def __getitem__(self, node: UOp) -> UOp:
        found = node._simple
        assert found is not None
        return node if found is True else found

    def __setitem__(self, node: UOp, value: UOp) -> None:
        node._simple = True if value is node else value  # True instead of the node itself avoids a reference cycle


class _Again(_Memo):
    """The memo while an observer records rewrites: only nodes known to be simplified, or rewritten in this pass, count
    as done, so that earlier rewrites run again and are recorded."""

    def __init__(self, seen: dict[UOp, UOp]) -> None:
        self.seen = seen

    def __contains__(self, node: Any) -> bool:
        return node._simple is True or node in self.seen

    def get(self, node: UOp, default: Any = None) -> Any:
        return node if node._simple is True else self.seen.get(node, default)

    def __getitem__(self, node: UOp) -> UOp:
        return node if node._simple is True else self.seen[node]

    def __setitem__(self, node: UOp, value: UOp) -> None:
        self.seen[node] = value
        if node._simple is None:
            super().__setitem__(node, value)

_memo = _Memo()


def rename(root: UOp, table: dict[UOp, UOp]) -> UOp:
    """Return ``root`` with ranges replaced by others of the same number and size; simplified nodes stay marked as
    simplified.

    >>> i, j = UOp.range(3, 0, "r"), UOp.range(3, 0, "other")
    >>> rename((i * 2 + 1).simplify(), {i: j}) is j * 2 + 1
    True
    """
    new = dict(table)
    for n in toposort(root, lambda n: n not in table):
        src = tuple([new.get(s, s) for s in n.src])
        if src != n.src:
            new[n] = made = n.replace(src=src)
            if n._simple is True:
                made._simple = True
    return new.get(root, root)


def simplify(node: UOp) -> UOp:
    """Return ``node`` with the ``symbolic`` rules applied to every node.

    >>> i, j = UOp.variable("i", 0, 7), UOp.variable("j", 0, 3)
    >>> simplify((i * 4 + j) // 4) is i, simplify((i * 4 + j) % 4) is j
    (True, True)
    """
    found = node._simple
    if found is True:
        return node
    if observed.observer is not None:
        return rewrite([node], symbolic, _Again(observed.observer.seen))[0]
    return rewrite([node], symbolic, _memo)[0] if found is None else found

Algebra.simplify = simplify

_x = Pat("x")


def _float(node: UOp) -> bool:
    return node.dtype.is_float

fastmath = RuleSet("fastmath", (
    Rule("minus-itself", "x - x = 0, but NaN for NaN and infinities", Pat("n", (Ops.SUB,), (_x, _x), when=_float),
         lambda n, x: UOp.const(n.dtype, 0), lambda: _f() - _f()),
    Rule("times-zero", "x * 0 = 0, but NaN for NaN and infinities", Pat("n", (Ops.MUL,), (_x, literal(0)), when=_float),
         lambda n, x: UOp.const(n.dtype, 0), lambda: _f() * 0),
    Rule("by-itself", "x / x = 1, but NaN for 0, NaN and infinities", Pat("n", (Ops.FDIV,), (_x, _x), when=_float),
         lambda n, x: UOp.const(n.dtype, 1), lambda: _f() / _f()),
    Rule("plus-zero", "x + 0 = x, but +0 for -0", Pat("n", (Ops.ADD,), (_x, literal(0)), when=_float),
         lambda n, x: x, lambda: _f() + 0),
))
