"""interpolate against its formula; weighted draws; permutations by sorting."""
from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest

from tests.tensor.helpers import check_gradient
from tinsmith import Tensor, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError


def by_formula(x: np.ndarray, new: int, mode: str, align: bool) -> np.ndarray:
    """Interpolate along the last axis, position by position, in exact fractions."""
    old, out = x.shape[-1], []
    for i in range(new):
        if mode == "nearest":
            out.append(x[..., floor(Fraction(i * old, new))])
        elif mode == "nearest-exact":
            out.append(x[..., floor((Fraction(2 * i + 1, 2)) * Fraction(old, new))])
        else:
            at = Fraction(i * (old - 1), max(new - 1, 1)) if align else max(
                Fraction(2 * i + 1, 2) * Fraction(old, new) - Fraction(1, 2), Fraction(0))
            low = floor(at)
            w = float(at - low)
            out.append(x[..., low] * (1 - w) + x[..., min(low + 1, old - 1)] * w)
    return np.stack(out, -1)


@pytest.mark.parametrize("mode, align", [("nearest", False), ("nearest-exact", False), ("linear", False),
                                         ("linear", True)])
@pytest.mark.parametrize("old, new", [(1, 1), (1, 4), (5, 1), (5, 5), (5, 13), (13, 5), (7, 49), (64, 33)])
def test_one_axis(mode: str, align: bool, old: int, new: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, old)).astype(np.float32)
    got = Tensor(x).interpolate((new,), mode, align).numpy()
    np.testing.assert_allclose(got, by_formula(x.astype(np.float64), new, mode, align), rtol=1e-5, atol=1e-6)


def test_several_axes_and_dtypes() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    rows = by_formula(x.swapaxes(2, 3).astype(np.float64), 7, "linear", False).swapaxes(2, 3)
    want = by_formula(rows, 3, "linear", False)
    np.testing.assert_allclose(Tensor(x).interpolate((7, 3), "bilinear").numpy(), want, rtol=1e-5, atol=1e-6)
    whole = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert Tensor(whole).interpolate((4, 6), mode="nearest").tolist() == whole.repeat(2, 0).repeat(2, 1).tolist()
    assert Tensor(x).cast("half").interpolate((9,)).dtype is dtypes.half
    check_gradient(lambda t: t.interpolate((5, 2)), np.random.default_rng(1).standard_normal((3, 4)))


def test_errors() -> None:
    x = Tensor.zeros(2, 3)
    with pytest.raises(ArgumentError, match="cubic"):
        x.interpolate((2,), "cubic")
    with pytest.raises(DTypeError, match="interpolate"):
        x.cast("int32").interpolate((2,))
    with pytest.raises(ShapeError, match="interpolate"):
        x.interpolate((2, 2, 2))
    with pytest.raises(ArgumentError, match="3 of 2 without replacement"):
        Tensor([1.0, 1.0]).multinomial(3)
    with pytest.raises(ShapeError, match="multinomial"):
        Tensor.zeros(2, 2, 2).multinomial()


@pytest.mark.parametrize("replacement", [True, False])
def test_draws_follow_their_weights(replacement: bool) -> None:
    """First draws of many rows: each frequency is within five standard deviations of its weight."""
    Tensor.manual_seed(3)
    weights, rows = np.array([3.0, 0.0, 1.0, 4.0, 2.0, 0.0]), 20_000
    drawn = Tensor(np.tile(weights, (rows, 1)).astype(np.float32)).multinomial(2, replacement).numpy()
    assert drawn.shape == (rows, 2) and drawn.dtype == np.int32
    share = weights / weights.sum()
    counts = np.bincount(drawn[:, 0], minlength=6)
    assert (counts[share == 0] == 0).all()
    assert (np.abs(counts - rows * share) <= 5 * np.sqrt(rows * share * (1 - share))).all()
    if replacement:
        second = np.bincount(drawn[:, 1], minlength=6)
        assert (np.abs(second - rows * share) <= 5 * np.sqrt(rows * share * (1 - share))).all()
    else:
        assert (drawn[:, 0] != drawn[:, 1]).all()
    assert sorted(Tensor([1.0, 2.0, 3.0]).multinomial(3).tolist()) == [0, 1, 2]
    assert Tensor([0.0, 0.0, 5.0]).multinomial(4, replacement=True).tolist() == [2] * 4


@pytest.mark.parametrize("n", [0, 1, 5, 300, 5000])
def test_permutation(n: int) -> None:
    Tensor.manual_seed(4)
    first = Tensor.randperm(n)
    np.testing.assert_array_equal(np.sort(first.numpy()), np.arange(n))
    bits = (Tensor.manual_seed(4), Tensor.random_bits(n))[1].numpy() if n else np.zeros(0)
    np.testing.assert_array_equal(first.numpy(), np.argsort(bits, kind="stable"))
    assert n < 5 or first.tolist() != Tensor.randperm(n).tolist()
