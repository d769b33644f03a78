"""Decompositions of ops that a target lacks into ops that it has. Floats of 16 and 8 bits compute in float32 and round
after every op, or, with ``EXCESS_PRECISION=1``, where they are stored."""
from __future__ import annotations

from collections.abc import Sequence

from tinsmith.codegen.decompose.elementary import FUNCTIONS, one_plus_tanh, transcendentals
from tinsmith.codegen.decompose.floats import FORMATS, LOG2E, as_bytes, flip_sign, split_sign
from tinsmith.codegen.transform.computed_operand import same_value
from tinsmith.core.dtypes import dtypes
from tinsmith.core.settings import settings
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.algebra.symbolic import fastmath, simplify
from tinsmith.ir.ops.elementwise import CALLED, ROUGH
from tinsmith.ir.rewrite import Pat, Rule, RuleSet, readers_of, rewrite
from tinsmith.ir.uop import toposort

_x, _y = Pat("x"), Pat("y")


_HALVES = (dtypes.float16, dtypes.bfloat16, *dtypes.fp8s)


def _widen(n: UOp) -> UOp | None:
    """Rewrite f(x, y) on narrow floats to cast(f(cast x, cast y)); comparisons keep their result type."""
    if not any(s.dtype in _HALVES for s in n.src) or n.op in (Ops.LOAD, Ops.STORE):
        return None
    src = tuple(s.cast(dtypes.float32) if s.dtype in _HALVES else s for s in n.src)
    dtype = dtypes.float32 if n.dtype in _HALVES else n.dtype
    wide = UOp(n.op, dtype, src, n.arg)
    return wide.cast(n.dtype) if n.dtype in _HALVES else wide


def _half() -> UOp:
    return UOp(Ops.PARAM, dtypes.float16, (), (0, ()))


_ARITHMETIC = (*(op for op in vars(Ops.__mro__[1]).values() if getattr(op, "alu", False) and op is not Ops.WHERE),
               Ops.FOLD, Ops.PREFIX)

widen_halves = RuleSet("widen-halves", (
    Rule("compute-in-float32", "f(x) = cast(f(cast(x))) on narrow floats", Pat("n", _ARITHMETIC), _widen,
         lambda: _half() + _half()),
    Rule("bfloat16-from-double", "double → bfloat16 goes through float",
         Pat("n", (Ops.CAST,), (_x,), when=lambda n: n.dtype is dtypes.bfloat16 and n.src[0].dtype is dtypes.float64),
         lambda n, x: x.cast(dtypes.float32).cast(dtypes.bfloat16),
         lambda: UOp(Ops.PARAM, dtypes.float64, (), (0, ())).cast(dtypes.bfloat16)),
))


_CONTINUOUS = frozenset({
    Ops.NEG, Ops.RECIP, Ops.SQRT, Ops.EXP, Ops.LOG, Ops.EXP2, Ops.LOG2, Ops.EXPM1, Ops.LOG1P, Ops.SIN, Ops.COS,
    Ops.TANH, Ops.ERF, Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.POW, Ops.MAX, Ops.MIN})


def keep_excess_precision(sink: UOp) -> UOp:
    """Return the kernel graph whose operations on 16-bit floats read each other's results in float32.

        add(mul(a, b), c) in bfloat16         →   cast(add(mul(cast a, cast b), cast c))
        cast(cast(x, bfloat16), float32)      →   x

    Values that are stored, compared, or turned into integers are rounded, so that a comparison holds as it does between
    stored values; and so are the factors of sums of products, which matrix units read.
    """
    new, wide, factors = dict[UOp, UOp](), dict[UOp, UOp](), _factors(sink)
    for n in toposort(sink):
        src = tuple(new[s] for s in n.src)
        new[n] = n if src == n.src else n.replace(src=src)
        chosen = n.op is Ops.WHERE and any(s in wide for s in n.src[1:])
        if n.op is Ops.CAST and n.dtype is dtypes.float32 and n.src[0] in wide and n not in factors:
            new[n] = wide[n.src[0]]
        elif n.dtype not in (dtypes.float16, dtypes.bfloat16):
            continue
        elif n.op is Ops.CAST and n.src[0].dtype is dtypes.float32:
            wide[n] = src[0]
        elif chosen or n.op in _CONTINUOUS:
            wide[n] = UOp(n.op, dtypes.float32, tuple(
                wide[s] if s in wide else new[s].cast(dtypes.float32) if s.dtype is n.dtype else new[s]
                for s in n.src), n.arg)
            new[n] = wide[n].cast(n.dtype)
    return new[sink]


def _factors(sink: UOp) -> set[UOp]:
    """Return the values that sums multiply."""
    found, stack = set[UOp](), [n.src[0] for n in toposort(sink) if n.op is Ops.FOLD]
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack += n.src if n.op in (Ops.MUL, Ops.WHERE) else ()
    return found


def decompose(sink: UOp) -> UOp:
    """Return the kernel graph in dtypes that targets compute in."""
    if settings.FASTMATH:
        (sink,) = rewrite([sink], fastmath)
    if settings.EXCESS_PRECISION:
        sink = keep_excess_precision(sink)
    return as_bytes(rewrite([sink], widen_halves)[0])


def _tanh_plus_one(sink: UOp, rough: bool) -> dict[UOp, UOp]:
    """Return replacements for every 1 + tanh(x) whose tanh has no other reader, including a factor multiplied with it.
    """
    users: dict[UOp, list[UOp]] = {}
    for n in toposort(sink):
        for s in n.src:
            if s.op is Ops.TANH or s.op is Ops.ADD:
                users.setdefault(s, []).append(n)
    table = dict[UOp, UOp]()
    for tanh in (n for n in users if n.op is Ops.TANH):
        if all(n.op is Ops.ADD and any(s.is_const and s.arg == 1 for s in n.src) for n in users[tanh]):
            for u in users[tanh]:
                table[u] = one_plus_tanh(tanh.src[0], UOp.const(u.dtype, 1.0), rough)
                (n, *others) = users.get(u, (u,))
                if n.op is Ops.MUL and not others and n.src[0] is not n.src[1]:
                    table[n] = one_plus_tanh(tanh.src[0], n.src[n.src[0] is u], rough)
    return table


exactly = RuleSet("exactly", (
    Rule("not-roughly", "a rough function is that function",
         Pat("n", (Ops.SQRT, Ops.RECIP, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.COS), (_x,), when=lambda n: n.arg == ROUGH),
         lambda n, x: UOp(n.op, None, (x,)),
         lambda: UOp(Ops.SIN, None, (UOp(Ops.PARAM, dtypes.float32, (), (0, ())),), ROUGH)),
))


without_signs = RuleSet("without-signs", (
    Rule("magnitude", "max(x, -x) + 0 = x without its sign bit",
         Pat("", (Ops.ADD,), (Pat("", (Ops.MAX,), (_x, -_x)), Pat("c", const=True)), when=lambda n: n.dtype in FORMATS),
         lambda x, c: split_sign(x)[0] if c.arg == 0 else None,
         lambda: (lambda x: x.maximum(-x) + 0.0)(UOp(Ops.PARAM, dtypes.float32, (), (0, ())))),
))


def _rough_reciprocals(sink: UOp) -> dict[UOp, UOp]:
    """Replace 1/x by an approximation to one ulp where the results are rounded to 16 bits: exact division takes ten
    times as long, which is noticeable in the epilogue of a matrix product."""
    nodes = toposort(sink)
    readers = readers_of(nodes)
    return {n: UOp(Ops.RECIP, None, n.src, ROUGH) for n in nodes if n.op is Ops.RECIP and n.dtype is dtypes.float32
            and _only_roughly(n, readers, False, (*_LINEAR, Ops.MULADD, Ops.NEG, Ops.EXP, Ops.EXP2, Ops.TANH))}


def _rough_powers(sink: UOp) -> dict[UOp, UOp]:
    """Replace exp(x) by 2**(x·log2(e)) where a relative error of 1e-5 is negligible: in values rounded to 16 bits, and,
    for x - m, m the maximum of x, in a sum, whose greatest term is 1."""
    nodes = toposort(sink)
    readers = readers_of(nodes)
    found = dict[UOp, UOp]()
    for n in nodes:
        if n.op is Ops.EXP and n.dtype is dtypes.float32:
            power = _times(n.src[0], LOG2E)
            if n.src[0].op is Ops.SUB and _only_roughly(n, readers, True) and _greatest(*n.src[0].src):
                found[n] = UOp(Ops.EXP2, None, (power,), ROUGH)
            elif _only_roughly(n, readers, False, (*_LINEAR, Ops.MULADD, Ops.RECIP)):
                found[n] = UOp(Ops.EXP2, None, (power,))  # 16 bits hold results that ROUGH flushes to 0
    return found


def _times(x: UOp, factor: float) -> UOp:
    """Return ``x * factor``. If ``x`` is y·c or y·c + d with constants c and d, they are multiplied instead of ``x``.
    """
    if x.op in (Ops.MUL, Ops.MULADD) and all(s.is_const for s in x.src[1:]):
        return UOp(x.op, None, (x.src[0], *(s.const_like(s.arg * factor) for s in x.src[1:])))
    return x * factor


_LINEAR = (Ops.WHERE, Ops.MUL, Ops.ADD, Ops.SUB)


def _only_roughly(x: UOp, readers: dict[UOp, list[UOp]], summed: bool, through: Sequence[Op] = _LINEAR) -> bool:
    """Return True if every reader of a value computes a result from it by the ops ``through`` that is rounded to 16
    bits, or (``summed``) sums it unchanged."""
    stack = [(n, summed) for n in readers.get(x, ())]
    while stack:
        n, same = stack.pop()
        if (n.op is Ops.FOLD and n.arg is Ops.ADD and same) or (n.op is Ops.CAST and n.dtype in _HALVES):
            continue
        if n.op not in through or not readers.get(n):
            return False
        stack += [(user, same and n.op is Ops.WHERE) for user in readers[n]]
    return True


def _inside(x: UOp) -> UOp:
    """Return the value under a WHERE with a constant else branch."""
    return x.src[1] if x.op is Ops.WHERE and x.src[2].is_const else x


def _greatest(x: UOp, top: UOp) -> bool:
    """Return True if ``top`` is the maximum over all values of ``x``, or 0 where that is not finite; threads may share
    the reduction."""
    free = top.ranges
    fold = top.src[2] if top.op is Ops.WHERE else top
    while fold.op is Ops.FOLD and fold.arg is Ops.MAX:
        renamed = dict[UOp, UOp]()
        if same_value(x, _inside(fold.src[0]), renamed):
            return all(a is b or b not in free for a, b in renamed.items())
        fold = fold.src[0]
        if fold.op is Ops.LOAD and fold.src[0].op is Ops.STAGE:
            fold = fold.src[0].src[0]
    return False


def _quick_remainder(n: UOp) -> UOp:
    """Compute FMOD of magnitudes as a - b·trunc(a/b), rounded once: exact while the quotient has no more digits than a
    float. A quotient that was rounded up gives a negative remainder, which is corrected."""
    f = FORMATS[n.dtype]
    (a, sign), (b, _) = map(split_sign, n.src)
    quotient = a / b
    rest = UOp(Ops.MULADD, None, (quotient.alu("TRUNC") * -1.0, b, a))
    rest = a.lt(b).where(a, rest.lt(0.0).where(rest + b, rest))
    exact = quotient.lt(2.0**f.mantissa)
    return flip_sign(UOp(Ops.UNLIKELY, None, (exact.ne(True), UOp(Ops.FMOD, None, (a, b), CALLED), rest)), sign)


quick_remainders = RuleSet("quick-remainders", (
    Rule("fmod", "fmod(x, y) = ±(a - b·trunc(a/b)), a = abs(x), b = abs(y)",
         Pat("n", (Ops.FMOD,), when=lambda n: n.arg is None and n.dtype.scalar in FORMATS), _quick_remainder,
         lambda: UOp(Ops.FMOD, None, tuple(UOp(Ops.PARAM, dtypes.float32, (), (n, ())) for n in range(2)))),
))


def expand(sink: UOp, fma: bool = False, scales: bool = False, exp2s: bool = False, rough: bool = False,
           bits: bool = False) -> UOp:
    """Expand functions to arithmetic. Runs after all opts, which match ``exp(x)``.

    ``fma``: MULADD rounds once on the target; ``scales``: it has SCALE; ``exp2s``: it has EXP2 of float32; ``rough``:
    it has the ``ROUGH`` (approximate) functions; ``bits``: vectors of floats can be reinterpreted as integers, and the
    target has no NaN-preserving maximum.
    """
    if bits and any(n.op is Ops.MAX for n in toposort(sink)):
        (sink,) = rewrite([sink], without_signs)
    if not rough and any(n.arg == ROUGH for n in toposort(sink)):
        (sink,) = rewrite([sink], exactly)
    if fma and bits and any(n.op is Ops.FMOD for n in toposort(sink)):
        (sink,) = rewrite([sink], quick_remainders)
    if rough and (reciprocals := _rough_reciprocals(sink)):
        sink = sink.substitute(reciprocals)
    if any(n.op in FUNCTIONS for n in toposort(sink)):
        if rough:
            sink = sink.substitute(_rough_powers(sink))
        sink = sink.substitute(_tanh_plus_one(sink, rough))
        (sink,) = rewrite([sink], transcendentals(fma, scales, exp2s))
        return simplify(sink)
    return sink
