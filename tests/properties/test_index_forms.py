"""Random index expressions of every form, read, written, accumulated and differentiated, against PyTorch.

PyTorch knows no negative steps: there its operand is flipped first. Every fourth program is compiled; the others are
given their meaning by the op table, which takes no compiler's time.
"""
from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")

from tests.properties.runner import FEW  # noqa: E402
from tinsmith import Tensor  # noqa: E402
from tinsmith.ir import Ops  # noqa: E402
from tinsmith.ir.interpret.tensor import evaluate  # noqa: E402
from tinsmith.runtime.launch import copy_to_host  # noqa: E402

INT_TYPES = ["int8", "int16", "int32", "int64"]
WRONG = 0.04  # share of items that do not fit


class Index:
    """An index expression for both libraries.

    Attributes:
        ours, theirs: what stands between the brackets.
        flips: axes of PyTorch's operand that are flipped first.
        basic: whether the result is a view on both sides.
        text: what ours is made of.
        only_arrays: whether every item is a tensor, as ``index_put`` takes them.
    """

    def __init__(self, r: random.Random, shape: tuple[int, ...], only_arrays: bool = False) -> None:
        self.random, self.shape = r, shape
        self.flips: list[int] = []
        self.basic = True
        self.only_arrays = only_arrays
        self.common = tuple(r.randint(1, 3) for _ in range(r.choice([1, 1, 1, 2])))
        self.arrays = only_arrays or r.random() < 0.7
        items = self.items()
        self.text = ", ".join(t for _, _, t in items) or "()"
        self.ours, self.theirs = tuple(i for i, _, _ in items), tuple(j for _, j, _ in items)
        if not only_arrays:
            self.wrap()

    def wrap(self) -> None:
        """Drop the tuple around a single item, or make it a list, where the meaning is the same."""
        kind = self.random.random()
        if len(self.ours) == 1 and not isinstance(self.ours[0], (tuple, list, range)) and kind < 0.7:
            self.ours, self.theirs = self.ours[0], self.theirs[0]
        elif len(self.ours) == 1 and isinstance(self.ours[0], (list, range)) and kind < 0.7:
            self.ours, self.theirs = self.ours[0], self.theirs[0]
            self.text += "  (bare)"
        elif kind < 0.25 and not all(isinstance(i, int) for i in self.theirs):
            self.ours, self.theirs = list(self.ours), list(self.theirs)
            self.text = f"[{self.text}]"

    def items(self) -> list[tuple[Any, Any, str]]:
        out: list[tuple[Any, Any, str]] = []
        axis, dots = 0, self.only_arrays
        while axis < len(self.shape):
            kind = self.random.random()
            if not self.only_arrays and kind < 0.08:
                out.append((None, None, "None"))
            elif not dots and kind < 0.18:
                dots = True
                out.append((..., ..., "..."))
                axis += self.random.randint(0, len(self.shape) - axis)
            elif self.ends(kind, axis, out):
                break
            else:
                used, item = self.item(axis)
                axis += used
                out.append(item)
        if not self.only_arrays and self.random.random() < 0.1:
            out.append((None, None, "None"))
        return out

    def ends(self, kind: float, axis: int, out: list[tuple[Any, Any, str]]) -> bool:
        """Return True if the index ends here, leaving trailing axes implicit; never after an Ellipsis."""
        short = kind < 0.24 and bool(out) and not any(i is ... for i, _, _ in out)
        return short or (self.only_arrays and not self.shape[axis])

    def item(self, axis: int) -> tuple[int, tuple[Any, Any, str]]:
        """Return the number of axes that an index item consumes, and the item."""
        size = self.shape[axis]
        kinds = ["int", "slice", "slice", "all"] + (["zero", "array", "array", "array", "mask", "truth"]
                                                    if self.arrays else [])
        kind = self.random.choice(["array", "array", "mask", "zero"] if self.only_arrays else kinds)
        if kind == "mask":
            return self.mask(axis)
        if kind == "truth":
            return 0, self.truth()
        if kind in ("int", "zero", "array") and not size:
            kind = "all"
        if kind == "int":
            n = self.position(size)
            return 1, (self.random.choice([n, n, np.int64(n)]), n, str(n))
        if kind == "zero":
            return 1, self.zero(size)
        if kind == "array":
            return 1, self.array(size)
        if kind == "all":
            return 1, (slice(None), slice(None), ":")
        return 1, self.slice(axis, size)

    def position(self, size: int) -> int:
        if self.random.random() < WRONG / 4:
            return self.random.choice([size, -size - 1])
        return self.random.randrange(-size, size)

    def slice(self, axis: int, size: int) -> tuple[Any, Any, str]:
        bound = [None, *range(-size - 2, size + 3)]
        s = slice(self.random.choice(bound), self.random.choice(bound), self.random.choice([None, 1, 2, 3, -1, -2, -3]))
        places = range(size)[s]
        text = f"{s.start}:{s.stop}:{s.step}"
        if places.step > 0:
            return s, s, text
        if not len(places):
            return s, slice(0, 0), text
        self.flips.append(axis)  # an axis read from its end
        return s, slice(size - 1 - places[0], size - places[-1], -places.step), text

    def zero(self, size: int) -> tuple[Any, Any, str]:
        """Return a 0-d index tensor."""
        self.basic = False
        n = self.position(size)
        form = self.random.choice(["tensor", "computed", "numpy"])
        if form == "numpy" and not self.only_arrays:
            return np.array(n), n, f"np.array({n})"
        kind = self.random.choice(INT_TYPES)
        ours = Tensor(n, dtype=kind) if form == "tensor" or not -size <= n < size else Tensor(n, dtype=kind) + 0
        return ours, torch.tensor(n), f"T({n}, {kind})"

    def array(self, size: int) -> tuple[Any, Any, str]:
        """Return positions in a shape that broadcasts to the common one."""
        self.basic = False
        shape = self.common[self.random.randint(0, len(self.common) - 1) :]
        shape = tuple(1 if self.random.random() < 0.15 else n for n in shape)
        if self.random.random() < WRONG:
            shape = (*shape[:-1], shape[-1] + 1)
        if self.random.random() < 0.05:
            shape = (0,)
        a = np.array([self.position(size) for _ in range(int(np.prod(shape)))], np.int64).reshape(shape)
        form = self.random.choice(["list", "list", "tuple", "numpy", "tensor", "tensor", "computed", "range",
                                   "tensors"])
        kind = self.random.choice(INT_TYPES)
        if self.only_arrays and form not in ("tensor", "computed"):
            form = "tensor"
        if form == "range" and a.size and size >= shape[-1] and len(shape) == 1:
            a = np.arange(shape[0])
            return range(shape[0]), range(shape[0]), f"range({shape[0]})"
        theirs = torch.tensor(a)
        text = f"{form} {a.tolist()} {kind}"
        if form == "tuple":
            return _tuples(a.tolist()), _tuples(a.tolist()), text
        if form == "list" or (not a.size and not self.only_arrays):
            return a.tolist(), a.tolist(), text
        if form == "numpy":
            return a.astype(kind), theirs, text
        inside = bool(((a >= -size) & (a < size)).all())
        if form == "tensors" and a.ndim == 1 and inside:
            return [Tensor(n) for n in a.tolist()], [torch.tensor(n) for n in a.tolist()], text
        t = Tensor(a.astype(kind))
        return t + 0 if form == "computed" and inside else t, theirs, text

    def mask(self, axis: int) -> tuple[int, tuple[Any, Any, str]]:
        """Return a mask of one or two axes with as many true elements as the last axis of the common shape."""
        self.basic = False
        used = self.random.choice([1, 1, 2]) if axis + 1 < len(self.shape) else 1
        shape = self.shape[axis : axis + used]
        total = int(np.prod(shape))
        count = self.random.choice([1, self.common[-1], self.common[-1]])
        flat = np.zeros(total, bool)
        flat[self.random.sample(range(total), min(count, total))] = True
        a = flat.reshape(shape)
        if self.random.random() < WRONG:
            a = np.concatenate([a, a])
        form = self.random.choice(["list", "numpy", "tensor", "computed"])
        text = f"{form} {a.tolist()}"
        if form == "list" and a.size and not self.only_arrays and a.ndim == 1:
            return used, (a.tolist(), a.tolist(), text)
        if form == "numpy" and not self.only_arrays:
            return used, (a, torch.tensor(a), text)
        return used, (Tensor(a).logical_not().logical_not() if form == "computed" else Tensor(a), torch.tensor(a), text)

    def truth(self) -> tuple[Any, Any, str]:
        """Return a 0-d mask."""
        self.basic = False
        value = self.random.random() < 0.8
        return (*self.random.choice([(value, value), (np.bool_(value), value), (Tensor(value), torch.tensor(value))]),
                str(value))


def _tuples(a: Any) -> Any:
    return tuple(map(_tuples, a)) if isinstance(a, list) else a


class Program:
    """A tensor that is read and written by random indices.

    Attributes:
        ours, theirs: what is read and written now.
        leaves: of both, that gradients are compared for.
        losses: terms that were read, weighted.
    """

    def __init__(self, seed: int) -> None:
        self.random, self.numpy = random.Random(seed), np.random.default_rng(seed)
        self.compiled = seed % 4 == 0
        self.text: list[str] = []
        self.leaves: list[tuple[Any, Any]] = []
        self.losses: list[tuple[Any, Any]] = []
        shape = tuple(self.random.choice([1, 2, 3, 3, 4, 4, 0 if self.random.random() < 0.2 else 2])
                      for _ in range(self.random.choice([0, 1, 2, 2, 3, 3, 4])))
        ours, theirs = self.leaf(shape)
        self.ours, self.theirs = ours * 2, theirs * 2
        if self.random.random() < 0.4:
            order = self.random.sample(range(len(shape)), len(shape))
            self.text.append(f"permute {order}")
            self.ours, self.theirs = self.ours.permute(order), self.theirs.permute(order)

    def leaf(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        a = self.numpy.integers(-9, 10, shape).astype(np.float32)
        pair = Tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
        self.text.append(f"leaf {shape}")
        self.leaves.append(pair)
        return pair

    def index(self, only_arrays: bool = False) -> Index:
        return Index(self.random, tuple(self.theirs.shape), only_arrays)

    def flipped(self, i: Index) -> Any:
        return self.theirs.flip(i.flips) if i.flips else self.theirs

    def both(self, ours: Any, theirs: Any, count: int = 1) -> tuple[Any, Any] | None:
        """Return the results of both libraries; None if both raise.

        Args:
            count: how many elements the index names: PyTorch checks no position if there are none.
        """
        try:
            expected, error = theirs(), None
        except (IndexError, ValueError, TypeError, RuntimeError) as e:
            expected, error = None, e
        try:
            found = ours()
        except (IndexError, ValueError, TypeError, RuntimeError) as e:
            assert error is not None or (not count and isinstance(e, IndexError)), f"refused: {e}"
            return None
        assert error is None, f"PyTorch refuses: {error}"
        return found, expected

    # *** steps ***

    def read(self) -> None:
        i = self.index()
        self.text.append(f"read x{tuple(self.theirs.shape)}[{i.text}]")
        where = self.numbered(i)
        pair = self.both(lambda: self.ours[i.ours], lambda: self.flipped(i)[i.theirs], where is None or where.size)
        if pair is not None:
            self.compare(*pair)
            self.weigh(*pair)
            if i.basic and not i.flips and self.random.random() < 0.4:
                self.text.append("the view written")
                pair[0].assign(pair[0] * 3)
                pair[1].mul_(3)
                self.compare(self.ours, self.theirs)

    def weigh(self, ours: Any, theirs: Any) -> None:
        w = self.numpy.integers(-3, 4, tuple(theirs.shape)).astype(np.float32)
        self.losses.append(((ours * Tensor(w, requires_grad=False)).sum(), (theirs * torch.tensor(w)).sum()))

    def value(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        kind = self.random.randrange(4)
        if kind == 0 or not shape:
            return self.numpy.integers(-9, 10).item(), None
        narrow = tuple(1 if self.random.random() < 0.2 else n for n in shape)
        narrow = narrow[self.random.choice([0, 0, self.random.randint(0, len(shape))]) :]
        if self.random.random() < 0.1:
            narrow = (1, *narrow)
        if self.random.random() < WRONG:
            narrow = (*narrow, 5)
        return self.leaf(narrow)

    def write(self) -> None:
        i = self.index()
        where = self.numbered(i)
        if where is None:
            return
        ours, theirs = self.value(where.shape)
        if len(np.unique(where)) < where.size:  # which of equal places wins is undefined in PyTorch
            ours, theirs = 7, None
        theirs = ours if theirs is None else theirs
        self.text.append(f"write x{tuple(self.theirs.shape)}[{i.text}] = {getattr(ours, 'shape', ours)}")

        def written() -> Any:
            y = self.theirs.flip(i.flips) if i.flips else self.theirs.clone()
            y[i.theirs] = theirs
            return y.flip(i.flips) if i.flips else y

        def put() -> Any:
            self.ours[i.ours] = ours
            return self.ours

        pair = self.both(put, written, where.size)
        if pair is not None:
            self.theirs = pair[1]
        self.compare(self.ours, self.theirs)

    def numbered(self, i: Index) -> Any:
        """Return the flat positions that an index selects; None if the index is invalid (both sides must refuse it)."""
        numbers = torch.arange(self.theirs.numel()).reshape(self.theirs.shape)
        try:
            return (numbers.flip(i.flips) if i.flips else numbers)[i.theirs].numpy()
        except (IndexError, ValueError, TypeError, RuntimeError):
            return None

    def accumulate(self) -> None:
        i = self.index(only_arrays=True)
        where = self.numbered(i) if i.ours else None
        if where is None:
            return
        ours, theirs = self.leaf(where.shape)
        add = self.random.random() < 0.7 or len(np.unique(where)) < where.size
        self.text.append(f"index_put x{tuple(self.theirs.shape)} [{i.text}] accumulate={add}")
        pair = self.both(lambda: self.ours.index_put(i.ours, ours, add),
                         lambda: self.theirs.index_put(i.theirs, theirs, add), where.size)
        if pair is not None:
            self.ours, self.theirs = pair
        self.compare(self.ours, self.theirs)

    def compare(self, ours: Any, theirs: Any) -> None:
        expected = theirs.detach().numpy()
        assert ours.shape == expected.shape, f"shape {ours.shape}, PyTorch {expected.shape}"
        found = self.values(ours)
        assert np.array_equal(found, expected), f"\n{found}\nPyTorch:\n{expected}"

    def values(self, x: Any) -> Any:
        if self.compiled or not x.numel():
            return x.numpy()
        memory = {n: copy_to_host(n) for n in x.uop.toposort() if n.op is Ops.BUFFER}
        return evaluate([x.uop], memory)[0]

    def gradients(self) -> None:
        self.weigh(self.ours, self.theirs)
        ours, theirs = self.losses[0]
        for a, b in self.losses[1:]:
            ours, theirs = ours + a, theirs + b
        self.text.append("gradients")
        wanted = [t for _, t in self.leaves]
        expected = torch.autograd.grad(theirs, wanted, allow_unused=True, materialize_grads=True)
        ours.backward()
        for (mine, _), e in zip(self.leaves, expected):
            if mine.grad is None:
                assert not bool(e.any()), "no gradient, PyTorch has one"
            else:
                self.compare(mine.grad, e)

    def run(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            self.random.choice([self.read, self.read, self.write, self.write, self.accumulate])()
        self.gradients()


def check(seed: int) -> None:
    """Run a program of the seed.

    Raises:
        AssertionError: with the program, if a value or a gradient differs from PyTorch's.
    """
    p = Program(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of lists that count as tuples
            p.run()
    except Exception as error:
        raise AssertionError("\n".join([*p.text, repr(error)[:2000]])) from error


@pytest.mark.parametrize("seed", range(4 * FEW))
def test_index_forms(seed: int) -> None:
    check(seed)
