"""Linear forms of integer expressions, and symbolic sizes.

A linear form is {term: coefficient} plus a constant. A size is a polynomial with integer coefficients over its
variables (quotients and remainders count as variables). Its normal form makes provably equal sizes the same node:
``(n + 1) * 4`` and ``4 * n + 4`` both become ``n * 4 + 4``. Sizes also occur inside the arguments of movement ops; the
functions here find the variables there, and their bindings.

A condition that the algebra cannot prove is decided by the values that the variables are bound to. The decision holds
for those values only, so the JIT evaluates such conditions again before it replays a program with other values.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, DTypeError
from tinsmith.core.object_lifetime import OfThread
from tinsmith.ir.interpret.tensor import evaluate_scalar
from tinsmith.ir.ops import Ops
from tinsmith.ir.text.node import expression
from tinsmith.ir.uop import Algebra, UOp, Window, toposort

# The value of a variable for which programs are planned, if its bounds allow. All usual tiles divide it, so that a
# candidate that needs full tiles is offered; the tail of the symbolic kernel costs little.
TYPICAL: Final = 240
SMALL: Final = 1 << 16  # the bound of a variable that stands for small sizes: room for larger ones

Linear = dict[UOp, int]

_LINEAR = (Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL)


def is_index(node: UOp) -> bool:
    return node.dtype is dtypes.index


def linear_form(node: UOp) -> tuple[Linear, int]:
    """Return an integer expression as ({term: coefficient}, constant).

    >>> i = UOp.variable("i", 0, 9)
    >>> linear_form(i * 3 + 2 - i) == ({i: 2}, 2), linear_form(i + UOp.range(1, 0, None)) == ({i: 1}, 0)
    (True, True)
    """
    if node.op not in _LINEAR:
        if node.op is Ops.RANGE and node.vmax == 0:
            return {}, 0  # a range of size 1 is always 0
        return ({}, node.arg) if node.op is Ops.CONST else ({node: 1}, 0)
    found = node._linear
    if found is None:
        found = _sum_of_terms(node)
        if node in found[0]:  # a product of two terms is its own term; caching it would make a reference cycle
            return found
        node._linear = found
    return dict(found[0]), found[1]


def _sum_of_terms(node: UOp) -> tuple[Linear, int]:
    terms: Linear = {}
    constant = 0
    stack = [(node, 1)]
    while stack:
        n, factor = stack.pop()
        if n.op is Ops.CONST:
            constant += factor * n.arg
        elif n.op is Ops.RANGE and n.vmax == 0:
            continue  # a range of size 1 is always 0
        elif n.op is Ops.ADD:
            stack += [(s, factor) for s in n.src]
        elif n.op is Ops.SUB:
            stack += [(n.src[0], factor), (n.src[1], -factor)]
        elif n.op is Ops.NEG:
            stack.append((n.src[0], -factor))
        elif n.op is Ops.MUL and n.src[1].op is Ops.CONST:
            stack.append((n.src[0], factor * n.src[1].arg))
        elif n.op is Ops.MUL and n.src[0].op is Ops.CONST:
            stack.append((n.src[1], factor * n.src[0].arg))
        else:
            terms[n] = terms.get(n, 0) + factor
    return {t: c for t, c in terms.items() if c}, constant


def weighted_sum(parts: Iterable[tuple[UOp, int]]) -> UOp:
    """Return Σ index · factor, simplified, without building a node for every intermediate sum.

    >>> i, j = UOp.variable("i", 0, 7), UOp.variable("j", 0, 3)
    >>> weighted_sum([(i, 4), (j + 1, 1)]) is (i * 4 + j + 1).simplify()
    True
    """
    total: Linear = {}
    constant = 0
    for node, factor in parts:
        terms, rest = linear_form(node.simplify())
        constant += rest * factor
        for term, k in terms.items():
            total[term] = total.get(term, 0) + k * factor
    return from_linear({t: k for t, k in total.items() if k}, constant, UOp.index(0)).simplify()


def order(node: UOp) -> tuple[Any, ...]:
    """Return a sort key that depends on structure alone, so that equal programs sort alike in every process."""
    if node._order is None:
        for n in toposort(node, lambda m: m._order is None):
            number = n.arg[0] if n.op is Ops.RANGE else -1
            n._order = (number < 0, number, n.op.name, str(n.arg), tuple(s._order for s in n.src))
        assert node._order is not None
    return node._order


def from_linear(terms: Linear, constant: int, like: UOp) -> UOp:
    """Return the canonical sum of a linear form: largest strides first, the constant last."""
    result: UOp | None = None
    for term, c in sorted(terms.items(), key=lambda item: (-abs(item[1]), order(item[0]))):
        part = term if c == 1 else term * UOp.const(like.dtype, c)
        result = part if result is None else result + part
    k = UOp.const(like.dtype, constant)
    return k if result is None else (result if constant == 0 else result + k)


def shifted(total: UOp, constant: int) -> UOp:
    """Return ``(total + constant).simplify()`` for an already simplified ``total``, mostly without running the rewrite
    rules.

    >>> i = UOp.variable("i", 0, 9)
    >>> shifted(i * 3, 2) is (i * 3 + 2).simplify(), shifted(i + 1, -1) is i
    (True, True)
    """
    if not constant:
        return total
    moved = total + constant
    if total.op is not Ops.CONST and not (total.op is Ops.ADD and total.src[1].op is Ops.CONST):
        moved._simple = True
    return moved.simplify()

Factors = tuple[UOp, ...]  # of a monomial, sorted
Polynomial = dict[Factors, int]  # {monomial: coefficient}
Rational = dict[Factors, Fraction]
K = TypeVar("K", int, Fraction)


def polynomial(node: UOp) -> Polynomial:
    """Return an integer expression, multiplied out.

    >>> n = UOp.variable("n", 1, 9)
    >>> sorted((len(term), k) for term, k in polynomial((n + 1) * (n + 2)).items())
    [(0, 2), (1, 3), (2, 1)]
    """
    new: dict[UOp, Polynomial] = {}
    for n in toposort(node, lambda n: n.op in (*_SUMS, Ops.MUL, Ops.CONST)):
        if n.op is Ops.CONST:
            new[n] = {(): n.arg} if n.arg else {}
            continue
        parts: list[Polynomial] = [new[s] if s in new else {(s.simplify(),): 1} for s in n.src]
        if n.op is Ops.MUL:
            new[n] = _product(*parts)
        else:
            new[n] = _sum(parts[0] if len(parts) > 1 else {}, parts[-1], 1 if n.op is Ops.ADD else -1)
    return new.get(node, {(node,): 1})

_SUMS = (Ops.ADD, Ops.SUB, Ops.NEG)


def _sum(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    out = dict(a)
    for term, k in b.items():
        out[term] = out.get(term, 0) + sign * k
    return {term: k for term, k in out.items() if k}


def _product(a: dict[Factors, K], b: dict[Factors, K]) -> dict[Factors, K]:
    out: dict[Factors, K] = {}
    for left, i in a.items():
        for right, j in b.items():
            term = tuple(sorted(left + right, key=order))
            out[term] = out[term] + i * j if term in out else i * j
    return {term: k for term, k in out.items() if k}


def normal_size(size: Any) -> Any:
    """Return a size in its normal form; an int if it does not depend on any variable.

    >>> n = UOp.variable("n", 1, 9)
    >>> normal_size((n + 1) * 4) is normal_size(4 * n + 4), normal_size(n + 3 - n)
    (True, 3)
    """
    if not isinstance(size, UOp):
        return size
    if size._normal is None:
        _recent.append(size)
        found = _normal_form(size)
        size._normal = True if found is size else found
        if found is not size and isinstance(found, UOp):
            found._normal = True
    return size if size._normal is True else size._normal


# Sizes and conditions that were simplified last: results are stored on the nodes, and a program makes equal ones again.
_recent: deque[UOp] = deque(maxlen=4096)


def _normal_form(size: UOp) -> UOp | int:
    total: UOp | None = None
    for term, k in sorted(polynomial(size.simplify()).items(), key=lambda t: (-len(t[0]), [order(x) for x in t[0]])):
        value = UOp.index(1) if not term else term[0]
        for factor in term[1:]:
            value = value * factor
        total = value * k if total is None else total + value * k
    simple = UOp.index(0) if total is None else total.simplify()
    return int(simple.arg) if simple.is_const else simple


def is_never_negative(size: UOp) -> bool:
    """Return True if a size is proved to be at least 0 for all values of its variables.

    Each variable v is replaced by its least value plus a new variable u ≥ 0, and the size is multiplied out. If no
    coefficient is negative, neither is the size. In a product of parts that are not negative, a quotient a // d is
    replaced by a / d where the product is subtracted, and by (a - d + 1) / d where it is added.

    >>> n, m = UOp.variable("n", 1, 9), UOp.variable("m", 2, 9)
    >>> is_never_negative(n * m - n), is_never_negative(n - (n + 1) // 2), is_never_negative(n - m)
    (True, True, False)
    """
    return size.vmin >= 0 or all(k >= 0 for k in _shifted_terms(size).values())


def _shifted_terms(size: UOp) -> Rational:
    """Return a lower bound of a size: {variables that were shifted to begin at 0: coefficient}."""
    total: Rational = {}
    for parts, factor in polynomial(size).items():
        quotients = [p for p in parts if p.op is Ops.IDIV and p.src[1].is_const and p.src[1].arg > 0]
        bounded = all(p.vmin >= 0 for p in parts) and (factor < 0 or len(quotients) == 1)
        value: Rational = {(): Fraction(factor)}
        for p in parts:
            if bounded and p in quotients:
                d = p.src[1].arg
                top = p.src[0] if factor < 0 else p.src[0] - (d - 1)
                value = _product(value, {t: Fraction(k, d) for t, k in _exactly_shifted(top).items()})
            else:
                value = _product(value, _exactly_shifted(p))
        for term, k in value.items():
            total[term] = total.get(term, Fraction(0)) + k
    return total


def _exactly_shifted(node: UOp) -> Rational:
    """Return an expression in terms of its parts minus their least values."""
    total: Rational = {}
    for parts, factor in polynomial(node).items():
        value: Rational = {(): Fraction(factor)}
        for p in parts:
            value = _product(value, {(p,): Fraction(1), (): Fraction(int(p.vmin))})
        for term, k in value.items():
            total[term] = total.get(term, Fraction(0)) + k
    return total


def unbound(size: UOp) -> Iterator[UOp]:
    """Return the variables of a size that have no value."""
    return (n for n in toposort(size, lambda n: n.op is not Ops.BIND) if n.op is Ops.VARIABLE)

Watcher = Callable[[UOp, int], None]

# Called with every size or condition whose bound value influenced a program, and with that value.
watchers: OfThread[Watcher] = OfThread()


def value_of_size(size: Any) -> int:
    """Return the value of a size or condition for the bound values of its variables, and report it to the watchers.

    >>> value_of_size(UOp.variable("n", 1, 9).bind(4) * 2 + 1)
    9
    """
    if not isinstance(size, UOp):
        return int(size)
    assert all(n.src[1].dtype is dtypes.index for n in toposort(size) if n.op is Ops.BIND), \
        "cached programs contain no bound values"
    check_bound("int", size)
    value = evaluate_scalar(size, {})
    for told in watchers:
        told(size, value)
    return value


def holds(condition: UOp) -> bool:
    """Return True if a condition on sizes holds: for every value of its variables or, if unprovable, for their bound
    values.

    A node that is not a condition on variables alone, such as a node of a kernel, counts as true.

    >>> n = UOp.variable("n", 1, 9).bind(4)
    >>> holds(n < 10), holds(n < 4), holds(UOp.range(3, 0, None) < 2)
    (True, False, True)

    Raises:
        ArgumentError: if a variable has no value.
    """
    nodes = toposort(condition, lambda n: n.op is not Ops.BIND)
    if any(not n.op.alu and n.op not in (Ops.CONST, Ops.VARIABLE) for n in nodes):
        return True
    if condition._simple is None:
        _recent.append(condition)
    simple = condition.simplify()
    if simple.is_const:
        return bool(simple.arg)
    check_bound("bool", simple)
    return bool(value_of_size(simple))


def check_bound(op: str, size: UOp) -> None:
    """Check that a size can be used.

    Raises:
        ArgumentError: if a variable has no value, or the size divides by 0.
        DTypeError: if it is no integer.
    """
    if size.dtype.is_float:
        raise DTypeError(op, f"a size cannot be a {size.dtype!r}", "an integer, such as n // 2")
    free = next(unbound(size), None)
    if free is not None:
        raise ArgumentError(op, f"variable {free.arg[0]!r} has no value", f"{free.arg[0]}.bind(value)")
    for n in toposort(size, lambda n: n.op is not Ops.BIND):
        if n.op in (Ops.IDIV, Ops.MOD) and not holds(n.src[1].ne(0)):
            raise ArgumentError(op, f"{size_text(n)} divides by {size_text(n.src[1])}", "a nonzero divisor")


def size_text(size: Any) -> str:
    """Return a size as readable text, with the values of its variables, or their bounds if they have no value.

    >>> n = UOp.variable("n", 1, 9)
    >>> size_text(n.bind(3) * 4 + 4), size_text(n.bind(3)), size_text(n)
    ('n*4+4 (16 with n = 3)', 'n = 3', 'n (n from 1 to 9)')
    """
    if not isinstance(size, UOp):
        return str(size)
    if size.op is Ops.BIND:
        return f"{size.src[0].arg[0]} = {size.src[1].arg}"
    bound = [n for n in toposort(size) if n.op is Ops.BIND]
    plain = expression(size.substitute({n: n.src[0] for n in bound}))
    free = sorted(f"{n.arg[0]} from {n.arg[1]} to {n.arg[2]}" for n in unbound(size))
    values = sorted(f"{n.src[0].arg[0]} = {n.src[1].arg}" for n in bound)
    total = [] if free else [str(evaluate_scalar(size, {}))]
    return f"{plain} ({' with '.join([*total, ', '.join(values + free)])})"

Algebra.holds = holds
Algebra.value_of_size = value_of_size
Algebra.normal_size = normal_size


def symbols(arg: Any) -> Iterator[UOp]:
    """Yield the symbolic integers inside an argument: a shape, padding, box or Window."""
    if isinstance(arg, UOp):
        yield arg
    elif type(arg) is tuple:
        for a in arg:
            yield from symbols(a)
    elif isinstance(arg, Window):
        yield from symbols((arg.inputs, arg.outputs))


def with_symbols(arg: Any, table: dict[UOp, UOp]) -> Any:
    """Return an argument with ``table`` substituted in its symbolic integers."""
    if isinstance(arg, UOp):
        return arg.substitute(table)
    if isinstance(arg, Window):
        inputs, outputs = with_symbols((arg.inputs, arg.outputs), table)
        return replace(arg, inputs=inputs, outputs=outputs)
    return tuple(with_symbols(a, table) for a in arg) if type(arg) is tuple else arg


def bindings(order: Iterable[UOp]) -> list[UOp]:
    """Return the BIND nodes among ``order`` and in the arguments of its movement ops, in first-visit order."""
    found: dict[UOp, None] = {}
    for n in order:
        if n.op is Ops.BIND:
            found[n] = None
        elif n.op.kind == "movement":
            for u in symbols(n.arg):
                found.update(dict.fromkeys(b for b in toposort(u) if b.op is Ops.BIND))
    return list(found)
