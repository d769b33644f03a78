"""Writes through random views, lazy or realized, against NumPy: the same operations return views."""
from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Tensor
from tinsmith.core.errors import ShapeError

SHAPES = [(6,), (3, 4), (2, 3, 2), (4, 1), (2, 2, 3)]


class Program:
    """Pairs of a tensor and an array that must stay equal, and the operations applied to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pairs: list[tuple[Any, Any]] = []
        self.text: list[str] = []
        for _ in range(self.random.randint(1, 2)):
            shape = self.random.choice(SHAPES)
            self.begin(np.arange(1, int(np.prod(shape)) + 1, dtype=np.int32).reshape(shape))

    def begin(self, a: Any) -> None:
        how = self.random.choice(["lazy", "realized", "computed", "constant"])
        if how == "constant":
            a = np.full_like(a, 7)
            t = Tensor.full(a.shape, 7)
        else:
            t = Tensor(a)
            t = t.realize() if how == "realized" else t + 0 if how == "computed" else t
        self.add(t, a.copy(), f"{how} {a.shape}")

    def add(self, t: Any, a: Any, text: str) -> None:
        assert t.shape == a.shape, f"{text}: shape {t.shape}, NumPy {a.shape}"
        self.pairs.append((t, a))
        self.text.append(f"t{len(self.pairs) - 1} = {text}")

    def pick(self) -> tuple[int, Any, Any]:
        n = self.random.randrange(len(self.pairs))
        return n, *self.pairs[n]

    # *** steps ***

    def index(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        out: list[Any] = []
        for s in shape[: self.random.randint(0, len(shape))]:
            kind = self.random.randrange(5)
            if kind == 0 and s:
                out.append(self.random.randrange(-s, s))
            elif kind == 1:
                out.append(slice(None))
            elif kind == 2:
                out.append(slice(self.random.randint(0, s), None, self.random.choice([None, 2])))
            elif kind == 3:
                out.append(slice(None, self.random.randint(-s, s)))
            else:
                out.append(slice(None, None, -1))
        out.append(...)
        if self.random.random() < 0.2:
            out.append(None)
        return tuple(out)

    def view(self) -> None:
        n, t, a = self.pick()
        kind = self.random.randrange(6)
        if kind <= 1:
            i = self.index(a.shape)
            self.add(t[i], a[i], f"t{n}[{i}]")
        elif kind == 2:
            order = self.random.sample(range(a.ndim), a.ndim)
            self.add(t.permute(order), a.transpose(order), f"t{n}.permute({order})")
        elif kind == 3:
            shape = self.random.choice([(-1,), (a.size, 1), (1, *a.shape), (2, -1) if a.size % 2 == 0 else (-1,)])
            if a.size:
                self.add(t.reshape(shape), a.reshape(shape), f"t{n}.reshape({shape})")
        elif kind == 4:
            shape = (2, *a.shape)
            wide = np.lib.stride_tricks.as_strided(a, shape, (0, *a.strides))
            self.add(t.expand(shape), wide, f"t{n}.expand({shape})")
        elif a.ndim >= 2:
            self.add(t.diagonal(), _diagonal(a), f"t{n}.diagonal()")

    def fresh(self, t: Any, a: Any, text: str) -> None:
        """Add a computed pair. The array is row-major: NumPy may keep the order of an operand, and a reshape of that is
        a copy."""
        self.add(t, np.array(a, order="C"), text)

    def copy(self) -> None:
        n, t, a = self.pick()
        kind = self.random.randrange(8)
        if kind == 0:
            self.fresh(t.clone(), a.copy(), f"t{n}.clone()")
        elif kind == 1:
            self.fresh(t.contiguous(), a.copy(), f"t{n}.contiguous()")
        elif kind == 2:
            self.fresh(t.cast("int32"), a.copy(), f"t{n}.cast(int32)")
        elif kind == 3 and a.ndim:
            self.fresh(t.pad(((1, 0),) * a.ndim), np.pad(a, ((1, 0),) * a.ndim), f"t{n}.pad")
        elif kind == 4 and a.ndim:
            self.fresh(t.repeat(*[2] * a.ndim), np.tile(a, (2,) * a.ndim), f"t{n}.repeat")
        elif kind == 5 and a.ndim and a.shape[0]:
            rows = [self.random.randrange(a.shape[0]) for _ in range(2)]
            self.fresh(t[rows], a[rows], f"t{n}[{rows}]")
        elif kind == 6 and a.ndim:
            self.fresh(t.flip(0), a[::-1].copy(), f"t{n}.flip(0)")
        else:
            shift = self.random.randint(0, 1)
            self.fresh(t.roll(shift, 0) if a.ndim else t + 0, np.roll(a, shift, 0) if a.ndim else a.copy(),
                     f"t{n}.roll({shift})")

    def compute(self) -> None:
        n, t, a = self.pick()
        self.fresh(t * 2 - 1, a * 2 - 1, f"t{n} * 2 - 1")

    def write(self) -> None:
        n, t, a = self.pick()
        how = self.random.randrange(6)
        number = self.random.randint(-50, 50)
        if _overlaps(a):
            try:
                t += number
            except ShapeError:
                return
            raise AssertionError(f"t{n} shows elements several times, and was written")
        self.text.append(f"write {how} t{n} {number}")
        if how == 0:
            t += number
            a += number
        elif how == 1:
            t.assign(t * 3 - number)
            a[...] = a * 3 - number
        elif how == 2:
            i = self.index(a.shape)
            self.text[-1] += f" [{i}]"
            t[i] = number
            a[i] = number
        elif how == 3 and a.ndim and a.shape[0] > 1:
            t[1:] = t[:-1]
            a[1:] = a[:-1].copy()
        elif how == 4 and a.ndim and a.shape[0]:
            row = self.random.randrange(a.shape[0])
            self.text[-1] += f" [[{row}]]"
            t[[row]] = number
            a[[row]] = number
        elif a.ndim:
            mask = a % 2 == 0
            t[t % 2 == 0] = number
            a[mask] = number

    def mix(self) -> None:
        n, t, a = self.pick()
        m, u, b = self.pick()
        if a.shape == b.shape and not _overlaps(a):
            self.text.append(f"t{n} += t{m}")
            t += u
            a += b.copy()

    def read(self) -> None:
        n, t, a = self.pick()
        if self.random.random() < 0.5:
            t.realize()
            self.text.append(f"t{n}.realize()")
        else:
            self.compare(n, t, a)

    def compare(self, n: int, t: Any, a: Any) -> None:
        found = t.numpy()
        assert found.dtype == a.dtype and np.array_equal(found, a), f"t{n}\n{found}\nNumPy:\n{a}"

    def drop(self) -> None:
        if len(self.pairs) > 2:
            n = self.random.randrange(len(self.pairs))
            self.text.append(f"del t{n}; its number goes to t{len(self.pairs) - 1}")
            self.pairs[n] = self.pairs[-1]
            self.pairs.pop()

    def run(self) -> None:
        steps = [self.view] * 6 + [self.write] * 5 + [self.copy] * 2 + [self.read] * 3
        steps += [self.compute, self.mix, self.drop]
        for _ in range(self.random.randint(4, 18)):
            self.random.choice(steps)()
        for n in self.random.sample(range(len(self.pairs)), len(self.pairs)):
            self.compare(n, *self.pairs[n])


def _diagonal(a: Any) -> Any:
    """Return a writable view of a diagonal."""
    size = min(a.shape[:2])
    return np.lib.stride_tricks.as_strided(a, (*a.shape[2:], size), (*a.strides[2:], a.strides[0] + a.strides[1]))


def _overlaps(a: Any) -> bool:
    """Return True if an array repeats an element (an axis with stride 0)."""
    return a.size > 0 and any(n > 1 and stride == 0 for n, stride in zip(a.shape, a.strides))


def check(seed: int) -> None:
    """Run a program of the seed.

    Raises:
        AssertionError: with the program, if a tensor differs from its array.
    """
    p = Program(seed)
    try:
        p.run()
    except Exception as error:
        raise AssertionError("\n".join([*p.text, repr(error)[:2000]])) from error


@pytest.mark.parametrize("seed", range(4 * FEW))
def test_views(seed: int) -> None:
    check(seed)
