"""Contractions are recognized alike in tensor and kernel graphs, with groups and guards."""
from __future__ import annotations

from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops.op import is_product
from tinsmith.ir.structure import Contraction, contraction, sum_of_products, unrepeated_size
from tinsmith.ir.uop import toposort


def param(number: int, *shape: int) -> UOp:
    return UOp(Ops.PARAM, dtypes.float32, (), (number, shape))


def product(batch: int, m: int, n: int, k: int) -> UOp:
    whole = (batch, m, n, k)
    return (param(1, batch, m, 1, k).expand(whole) * param(2, batch, 1, n, k).expand(whole)).reduce("ADD", (3,))


def over_ranges(value: UOp) -> list[UOp]:
    return [n for n in toposort(normalize(lower(UOp(Ops.SINK, None, (value,))))) if n.op is Ops.FOLD]


def sizes(found: Contraction) -> list[list[int]]:
    return [[r.vmax + 1 for r in group] for group in (found.batch, found.m, found.n, found.k)]


def test_a_product_is_one_in_both_graphs() -> None:
    value = product(2, 3, 5, 7)
    axes, (fold,) = contraction(value), over_ranges(value)
    ranges = contraction(fold)
    assert axes is not None and ranges is not None
    assert [unrepeated_size(f) for f in axes[:2]] == [2 * 3 * 7, 2 * 5 * 7]
    assert sizes(ranges) == [[2], [3], [5], [7]]
    assert ranges.a * ranges.b is fold.src[0] and ranges.valid is None


def test_groups_are_boxes() -> None:
    """Two axes of each kind that no reshape can merge."""
    whole = (3, 4, 5, 6, 7, 8)
    a, b = param(1, 3, 4, 1, 1, 7, 8), param(2, 1, 1, 5, 6, 8, 7).permute((0, 1, 2, 3, 5, 4))
    (fold,) = over_ranges((a.expand(whole) * b.expand(whole)).reduce("ADD", (4, 5)))
    found = contraction(fold)
    assert found is not None and sizes(found) == [[], [3, 4], [5, 6], [7, 8]]


def test_what_is_none() -> None:
    x, y = param(1, 4, 7), param(2, 1, 7).expand((4, 7))
    (vector,), (maximum,) = over_ranges((x * y).reduce("ADD", (1,))), over_ranges((x * y).reduce("MAX", (1,)))
    found = sum_of_products(vector)
    assert contraction(vector) is None and found is not None and sizes(found)[1:3] == [[4], []]
    assert sum_of_products(maximum) is None and contraction(x) is None
    assert contraction((x * y).reduce("ADD", (1,))) is None and not is_product(x * y)
    assert contraction(product(1, 2, 3, 4).reduce("MAX", (0,))) is None


def test_sums_of_sums_and_views_of_products_are_seen_through() -> None:
    assert contraction(product(2, 3, 5, 7).reduce("ADD", (0,))) is not None
    assert contraction((product(2, 3, 5, 7).src[0].cast(dtypes.float64)).reduce("ADD", (3,))) is not None


def test_a_condition_is_seen_through_where_it_is_asked_for() -> None:
    (fold,) = over_ranges(product(1, 3, 5, 7))
    (k,) = fold.src[1:]
    padded = UOp(Ops.FOLD, None, (k.lt(6).where(fold.src[0], 0.0), k), Ops.ADD)
    found = contraction(padded, guarded=True)
    assert contraction(padded) is None and found is not None
    assert found.valid is k.lt(6) and found.a * found.b is fold.src[0]
