"""Random programs of differentiable methods, for Tinsmith and PyTorch side by side.

A program is a list of lines that are valid for both, or differ where the names do. Its inputs are often multiples of a
half, so that ties and zeros are common. What decides by comparison gets such exact values, or values moved apart by
noise: a tie that depends on rounding has no meaning.
"""
from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")

from tinsmith import Tensor  # noqa: E402

SHAPES = [(3,), (4,), (2, 3), (3, 4), (4, 4), (2, 3, 4), (1, 3), (1,), (0, 3), (2, 0)]
LEAST, MOST = 2, 5  # lines of a program


class Unfit(Exception):
    """No input has the shape that a line needs."""


class Program:
    """A list of lines computed by both libraries.

    Attributes:
        compiled: whether ours is to be run by compiled kernels.
        exact: names of values that are the same bits in both.
    """

    def __init__(self, seed: int) -> None:
        self.compiled = seed % 4 == 0
        self.random, self.numpy = random.Random(seed), np.random.default_rng(seed)
        self.ours: dict[str, Any] = {"Tensor": Tensor}
        self.theirs: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        self.lines: list[str] = []
        self.exact: set[str] = set()
        self.inputs: list[str] = []
        self.values: list[str] = []

    # *** values ***

    def constant(self, values: Any) -> str:
        """Return an array that both use: an index, a mask, weights."""
        array = np.asarray(values)
        name = f"c{len(self.lines)}"
        self.ours[name] = Tensor(array, requires_grad=False)
        self.theirs[name] = torch.tensor(array.astype(np.int64) if array.dtype.kind == "i" else array)
        self.lines.append(f"{name} = np.array({array.tolist()}, {array.dtype.name!r}).reshape({array.shape})")
        return name

    def input(self, shape: tuple[int, ...]) -> str:
        name = f"x{len(self.inputs)}"
        exact = self.random.random() < 0.6
        array = self.numpy.integers(-4, 5, shape) / 2 if exact else self.numpy.normal(size=shape).round(3)
        array = np.asarray(array + 0.0)
        self.ours[name], self.theirs[name] = Tensor(array), torch.tensor(array, requires_grad=True)
        self.lines.append(f"{name} = np.array({array.tolist()}).reshape({shape})")
        self.inputs.append(name)
        self.values.append(name)
        self.exact.add(name)
        return name

    def add(self, line: str, theirs: str | None = None, exact: bool = False) -> str:
        """Add a value computed by a line, which may be spelled differently for PyTorch."""
        name, theirs = f"v{len(self.lines)}", theirs or line
        self.lines.append(f"{name} = {line}" + (f"    # {theirs}" if theirs != line else ""))
        self.theirs[name] = eval(theirs, self.theirs)
        self.ours[name] = eval(line, self.ours)
        if exact:
            self.exact.add(name)
        self.values.append(name)
        return name

    # *** choices ***

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.theirs[name].shape)

    def pick(self, wanted: Callable[[tuple[int, ...]], bool] = lambda s: True) -> str:
        """Return a value of the required shape, preferably a recent one; a new input if there is none."""
        fitting = [v for v in self.values if wanted(self.shape(v))]
        if fitting and self.random.random() < 0.9:
            return self.random.choice([*fitting[-2:], *fitting])
        shapes = [s for s in SHAPES if wanted(s)]
        if not shapes:
            raise Unfit
        return self.input(self.random.choice(shapes))

    def like(self, name: str) -> str:
        """Return a value that broadcasts with another one."""
        shape = self.shape(name)
        return self.pick(lambda s: s == shape) if self.random.random() < 0.5 else self.input(
            tuple(1 if self.random.random() < 0.3 else s for s in shape[self.random.randint(0, len(shape)):]))

    def apart(self, name: str) -> str:
        """Return a value without ties."""
        return self.add(f"{name} + {self.constant(self.numpy.normal(size=self.shape(name)).round(4))}")

    def decided(self, name: str) -> str:
        """Return a value that comparisons may read."""
        return name if name in self.exact else self.apart(name)

    def axis(self, name: str) -> int:
        return self.random.randrange(len(self.shape(name)))

    def bounds(self, name: str) -> list[float]:
        """Return ascending numbers to compare with; an exact value often equals one."""
        found = [self.random.randint(-3, 3) / 2 if name in self.exact else round(self.random.gauss(0, 1), 4)
                 for _ in range(2)]
        return sorted(found)


def full(shape: tuple[int, ...]) -> bool:
    return 0 not in shape and len(shape) > 0


def matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2


# *** lines ***

SMOOTH = ["neg", "square", "exp", "sin", "cos", "tan", "tanh", "sigmoid", "atan", "asinh", "erf", "sinh", "cosh",
          "expm1", "exp2"]
EDGED = ["sqrt", "rsqrt", "log", "log2", "log10", "log1p", "reciprocal", "asin", "acos", "acosh", "atanh"]
KINKED = ["abs", "relu", "floor", "ceil", "round", "trunc"]
ACTIVATIONS = {"relu6": "relu6", "hardtanh": "hardtanh", "hardswish": "hardswish", "silu": "silu", "mish": "mish",
               "softplus": "softplus", "leaky_relu": "leaky_relu", "softsign": "softsign", "logsigmoid": "logsigmoid"}


def smooth(p: Program) -> None:
    p.add(f"{p.pick()}.{p.random.choice(SMOOTH)}()")


def edged(p: Program) -> None:
    p.add(f"{p.pick()}.{p.random.choice(EDGED)}()")


def kinked(p: Program) -> None:
    p.add(f"{p.decided(p.pick())}.{p.random.choice(KINKED)}()", exact=True)


def sign(p: Program) -> None:
    x = p.decided(p.pick())
    known = f"torch.where({x}.isnan(), {x}.detach(), {x}.sign())"  # PyTorch's sign of NaN is 0, ours and NumPy's is NaN
    p.add(f"{x}.sign()", known, exact=True)


def activation(p: Program) -> None:
    x, name = p.decided(p.pick()), p.random.choice(sorted(ACTIVATIONS))
    p.add(f"{x}.{name}()", f"F.{ACTIVATIONS[name]}({x})")


def gelu(p: Program) -> None:
    x = p.pick()
    p.add(f"{x}.gelu()", f"F.gelu({x})")


def power(p: Program) -> None:
    p.add(f"{p.pick()} ** {p.random.choice([0, 1, 2, 3, -1, -2, 0.5, 1.5, 0.3, 2.5])}")


def powers(p: Program) -> None:
    x = p.pick()
    p.add(f"{x} ** {p.like(x)}")


def binary(p: Program) -> None:
    x = p.pick()
    p.add(f"{x} {p.random.choice('+-*')} {p.like(x)}")


def quotient(p: Program) -> None:
    x = p.pick()
    p.add(f"{x} / ({p.like(x)}.square() + 0.5)")


def extreme(p: Program) -> None:
    x = p.decided(p.pick())
    y = p.decided(p.like(x))
    p.add(f"{x}.{p.random.choice(['maximum', 'minimum'])}({y})", exact=True)


def logaddexp(p: Program) -> None:
    x = p.pick()
    p.add(f"{x}.logaddexp({p.like(x)})")


def clip(p: Program) -> None:
    x = p.decided(p.pick())
    low, high = p.bounds(x)
    p.add(f"{x}.clip({p.random.choice([f'{low}, {high}', f'{low}', f'None, {high}'])})", exact=True)


def clip_by_values(p: Program) -> None:
    x = p.decided(p.pick())
    low, high = p.decided(p.pick(lambda s: s == p.shape(x))), p.decided(p.pick(lambda s: s == p.shape(x)))
    p.add(f"{x}.clip({low}, {high})", exact=True)


def where(p: Program) -> None:
    x = p.decided(p.pick())
    y = p.like(x)
    limit = p.bounds(x)[0]
    p.add(f"({x} > {limit}).where({x}, {y})", f"torch.where({x} > {limit}, {x}, {y})")


def masked_fill(p: Program) -> None:
    x = p.decided(p.pick())
    p.add(f"{x}.masked_fill({x} < {p.bounds(x)[0]}, 1.5)", exact=True)


MOVES = ["{x}.reshape(-1)", "{x}.flatten()", "{x}.flip([{a}])", "{x}.transpose({a}, {b})", "{x}.unsqueeze({a})",
         "{x}.roll({n}, {a})", "{x}.squeeze()", "{x}.repeat_interleave(2, {a})", "{x}.chunk(2, {a})[-1]",
         "{x}.unfold({a}, {k}, {n})"]


def move(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    a, b = p.axis(x), p.axis(x)
    size = p.shape(x)[a]
    form = p.random.choice(MOVES)
    p.add(form.format(x=x, a=a, b=b, n=p.random.randint(1, 3), k=p.random.randint(0, size)), exact=x in p.exact)


def expand(p: Program) -> None:
    x, n = p.pick(), p.random.randint(0, 3)
    shape = (n, *p.shape(x))
    p.add(f"{x}.expand({', '.join(map(str, shape))})", exact=x in p.exact)


def repeat(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    p.add(f"{x}.repeat({', '.join(str(p.random.randint(0, 2)) for _ in p.shape(x))})", exact=x in p.exact)


def triangle(p: Program) -> None:
    x = p.pick(lambda s: len(s) >= 2)
    p.add(f"{x}.{p.random.choice(['tril', 'triu'])}({p.random.randint(-3, 3)})", exact=x in p.exact)


def diagonal(p: Program) -> None:
    x = p.pick(lambda s: len(s) >= 2)
    p.add(f"{x}.diagonal({p.random.randint(-2, 2)}, 0, 1)", exact=x in p.exact)


def diag(p: Program) -> None:
    x = p.pick(lambda s: len(s) == 1)
    p.add(f"{x}.diag()", exact=x in p.exact)


def constant_pad(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    size = p.shape(x)[-1]
    before = p.random.randint(-size, 2)
    after = p.random.randint(-(size + min(before, 0)), 2)
    value = p.random.choice([0.0, 1.5])
    p.add(f"{x}.pad(({before}, {after}), value={value})", f"F.pad({x}, ({before}, {after}), value={value})",
          exact=x in p.exact)


def own_pad(p: Program) -> None:
    x = p.pick(lambda s: len(s) == 3 and full(s))
    mode = p.random.choice(["reflect", "replicate", "circular"])
    size = p.shape(x)[-1]
    most = min(2, size - 1)
    before, after = p.random.randint(0, most), p.random.randint(-1 if size > 2 else 0, most)
    before = min(before, size + min(after, 0)) if mode == "circular" else before
    p.add(f"{x}.pad(({before}, {after}), mode={mode!r})", f"F.pad({x}, ({before}, {after}), mode={mode!r})",
          exact=x in p.exact)


def slices(p: Program) -> None:
    x, items = p.pick(lambda s: len(s) > 0), []
    for size in p.shape(x):
        b, e, step = p.random.randint(0, size), p.random.randint(0, size), p.random.randint(1, 2)
        one = [str(p.random.randrange(-size, size))] if size else []
        items.append(p.random.choice([":", f"{b}:{e}", f"{b}::{step}", f":{e}", "None, :", *one]))
    if p.random.random() < 0.2:
        items[p.random.randrange(len(items)) :] = ["..."]
    p.add(f"{x}[{', '.join(items)}]", exact=x in p.exact)


def int_index(p: Program) -> None:
    x = p.pick(lambda s: full(s))
    a, count = p.axis(x), p.random.choice([0, 1, 2, 4])
    places = p.numpy.integers(-p.shape(x)[a], p.shape(x)[a], p.random.choice([(count,), (count, 2)]))
    i = p.constant(places.astype(np.int32))
    p.add(f"{x}[{':, ' * a}{i}]", exact=x in p.exact)


def two_indices(p: Program) -> None:
    x = p.pick(lambda s: full(s) and len(s) >= 2)
    i, j = (p.constant(p.numpy.integers(0, s, (3,)).astype(np.int32)) for s in p.shape(x)[:2])
    p.add(f"{x}[{i}, {j}]", exact=x in p.exact)


def mask_index(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    whole = p.random.random() < 0.5
    m = p.constant(p.numpy.integers(0, 2, p.shape(x) if whole else p.shape(x)[:1]).astype(bool))
    p.add(f"{x}[{m}]", exact=x in p.exact)


def gather(p: Program) -> None:
    x = p.pick(lambda s: full(s))
    a, shape = p.axis(x), p.shape(x)
    index = p.numpy.integers(0, shape[a], tuple(p.random.randint(0, 4) if n == a else s for n, s in enumerate(shape)))
    i = p.constant(index.astype(np.int32))
    p.add(f"{x}.gather({a}, {i})", exact=x in p.exact)


def _scatter_parts(p: Program, x: str) -> tuple[int, str, str]:
    shape, a = p.shape(x), p.axis(x)
    many = tuple(p.random.randint(0, 4) if n == a else s for n, s in enumerate(shape))
    return a, p.constant(p.numpy.integers(0, shape[a], many).astype(np.int32)), p.input(many)


def scatter_set(p: Program) -> None:
    x = p.pick(lambda s: full(s))
    shape, a = p.shape(x), p.axis(x)
    order = np.argsort(p.numpy.random(shape), axis=a)
    i = p.constant(np.take(order, range(p.random.randint(0, shape[a])), axis=a).astype(np.int32))
    p.add(f"{x}.scatter({a}, {i}, {p.input(p.shape(i))})")


def scatter_add(p: Program) -> None:
    x = p.pick(lambda s: full(s))
    a, i, y = _scatter_parts(p, x)
    p.add(f"{x}.scatter_add({a}, {i}, {y})")


def scatter_reduce(p: Program) -> None:
    reduce, inside = p.random.choice(["sum", "prod", "amax", "amin", "mean"]), p.random.random() < 0.5
    x = p.pick(lambda s: full(s))
    x = p.decided(x) if inside else p.apart(x)  # PyTorch counts a tie with a value that takes no part
    a, i, y = _scatter_parts(p, x)
    p.add(f"{x}.scatter_reduce({a}, {i}, {y}, {reduce!r}, include_self={inside})")


def join(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    a, rest = p.axis(x), p.shape(x)
    y = p.pick(lambda s: len(s) == len(rest) and all(m == n or i == a for i, (m, n) in enumerate(zip(s, rest)))) \
        if rest in SHAPES else p.input(tuple(p.random.randint(0, 2) if i == a else s for i, s in enumerate(rest)))
    p.add(f"Tensor.cat({x}, {y}, dim={a})", f"torch.cat([{x}, {y}], dim={a})", exact={x, y} <= p.exact)


def stack(p: Program) -> None:
    x = p.pick()
    y, a = p.pick(lambda s: s == p.shape(x)) if p.shape(x) in SHAPES else x, p.random.randint(0, len(p.shape(x)))
    p.add(f"Tensor.stack({x}, {y}, dim={a})", f"torch.stack([{x}, {y}], dim={a})", exact={x, y} <= p.exact)


def split(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    a = p.axis(x)
    first = p.random.randint(0, p.shape(x)[a])
    parts = [first, p.shape(x)[a] - first]
    p.add(f"{x}.split({parts}, {a})[{p.random.randint(0, 1)}]", exact=x in p.exact)


def total(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    p.add(f"{x}.{p.random.choice(['sum', 'mean', 'prod'])}({p.axis(x)}{p.random.choice(['', ', keepdim=True'])})")


def total_of_all(p: Program) -> None:
    p.add(f"{p.pick()}.{p.random.choice(['sum', 'mean', 'prod'])}()")


def greatest(p: Program) -> None:
    x = p.decided(p.pick(lambda s: full(s)))
    a, which = p.axis(x), p.random.choice(["max", "min"])
    p.add(f"{x}.{which}(axis={a})", f"{x}.a{which}({a})", exact=True)


def greatest_of_all(p: Program) -> None:
    p.add(f"{p.decided(p.pick(full))}.{p.random.choice(['max', 'min'])}()", exact=True)


def deviation(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    p.add(f"{x}.{p.random.choice(['std', 'var'])}({p.axis(x)}, correction={p.random.randint(0, 1)})")


def norm(p: Program) -> None:
    x = p.decided(p.pick(full))
    a, q = p.axis(x), p.random.choice(["1", "2", "3", "float('inf')", "0.5"])
    p.add(f"{x}.norm({q}, {a})", f"torch.linalg.vector_norm({x}, {q}, {a})")


def normalize(p: Program) -> None:
    x = p.pick(full)
    a = p.axis(x)
    p.add(f"{x}.normalize(2, {a})", f"F.normalize({x}, 2, {a})")


def layernorm(p: Program) -> None:
    x = p.pick(full)
    p.add(f"{x}.layernorm()", f"F.layer_norm({x}, {x}.shape[-1:])")


def softmax(p: Program) -> None:
    x = p.pick(full)
    p.add(f"{x}.{p.random.choice(['softmax', 'log_softmax', 'logsumexp', 'logcumsumexp'])}({p.axis(x)})")


def running(p: Program) -> None:
    x = p.pick(lambda s: len(s) > 0)
    p.add(f"{x}.{p.random.choice(['cumsum', 'cumprod'])}({p.axis(x)})")


def running_extreme(p: Program) -> None:
    x = p.decided(p.pick(lambda s: len(s) > 0))
    p.add(f"{x}.{p.random.choice(['cummax', 'cummin'])}({p.axis(x)})[0]", exact=True)


def sort(p: Program) -> None:
    x = p.decided(p.pick(lambda s: len(s) > 0))
    down = p.random.random() < 0.5
    p.add(f"{x}.sort({p.axis(x)}, {down})[0]", f"{x}.sort(dim={p.axis(x)}, descending={down}, stable=True)[0]",
          exact=True) if len(p.shape(x)) == 1 else p.add(
          f"{x}.sort(-1, {down})[0]", f"{x}.sort(dim=-1, descending={down}, stable=True)[0]", exact=True)


def topk(p: Program) -> None:
    x = p.apart(p.pick(full))
    a = p.axis(x)
    size = p.shape(x)[a]
    p.add(p.random.choice([f"{x}.topk({p.random.randint(0, size)}, {a})[0]",
                           f"{x}.kthvalue({p.random.randint(1, size)}, {a})[0]", f"{x}.median({a})[0]"]))


def max_pool(p: Program) -> None:
    x = p.decided(p.pick(lambda s: len(s) in (2, 3) and full(s)))
    size = p.shape(x)[-1]
    k, n, pad = p.random.randint(1, min(3, size)), p.random.randint(1, 3), p.random.randint(0, 1)
    pad = min(pad, k // 2)
    p.add(f"{x}.max_pool2d(({k},), {n}, 1, {pad})", f"F.max_pool1d({x}, {k}, {n}, {pad})", exact=True)


def max_pool_2d(p: Program) -> None:
    x = p.decided(p.pick(lambda s: len(s) == 3 and full(s) and min(s[1:]) >= 2))
    p.add(f"{x}.max_pool2d(2, 1)", f"F.max_pool2d({x}, 2, 1)", exact=True)


def avg_pool(p: Program) -> None:
    x = p.pick(lambda s: len(s) in (2, 3) and full(s))
    k, n = p.random.randint(1, min(3, p.shape(x)[-1])), p.random.randint(1, 2)
    p.add(f"{x}.avg_pool2d(({k},), {n})", f"F.avg_pool1d({x}, {k}, {n})")


def convolution(p: Program) -> None:
    x = p.pick(lambda s: s == (2, 3, 4))
    w, n, pad = p.input(p.random.choice([(2, 3, 2), (1, 3, 3)])), p.random.randint(1, 2), p.random.randint(0, 1)
    p.add(f"{x}.conv2d({w}, stride={n}, padding={pad})", f"F.conv1d({x}, {w}, None, {n}, {pad})")


def transposed_convolution(p: Program) -> None:
    x = p.pick(lambda s: s == (2, 3, 4))
    w, n = p.input((3, 2, 2)), p.random.randint(1, 2)
    p.add(f"{x}.conv_transpose2d({w}, stride={n})", f"F.conv_transpose1d({x}, {w}, None, {n})")


def product(p: Program) -> None:
    x = p.pick(lambda s: len(s) >= 2)
    inner = p.shape(x)[-1]
    p.add(f"{x} @ {p.input((inner, p.random.randint(0, 3)))}")


def einsum(p: Program) -> None:
    x = p.pick(matrix)
    y = p.input((p.shape(x)[1], 2))
    form = p.random.choice(["ij,jk->ik", "ij,jk->k", "ij,jk->j", "ij,jk->ijk"])
    p.add(f"Tensor.einsum({form!r}, {x}, {y})", f"torch.einsum({form!r}, {x}, {y})")


def attention(p: Program) -> None:
    q = p.pick(lambda s: full(s) and len(s) in (2, 3))
    shape = p.shape(q)
    k, v = p.input((*shape[:-2], 3, shape[-1])), p.input((*shape[:-2], 3, 2))
    kind = p.random.randrange(4)
    seen = p.numpy.integers(0, 2, (shape[-2], 3)).astype(bool)
    args = ["", ", is_causal=True"][kind] if kind < 2 else \
        f", {p.constant(seen if kind == 2 else np.where(seen, 0.5, -math.inf))}"
    p.add(f"{q}.scaled_dot_product_attention({k}, {v}{args})", f"F.scaled_dot_product_attention({q}, {k}, {v}{args})")


def class_loss(p: Program) -> None:
    x = p.pick(lambda s: full(s) and len(s) == 2)
    rows, classes = p.shape(x)
    y = p.constant(p.numpy.integers(0, classes, (rows,)).astype(np.int32))
    how = p.random.choice(["mean", "sum", "none"])
    p.add(f"{x}.cross_entropy({y}, {how!r})", f"F.cross_entropy({x}, {y}, reduction={how!r})")


def difference_loss(p: Program) -> None:
    x = p.decided(p.pick())
    y, name = p.decided(p.pick(lambda s: s == p.shape(x))), p.random.choice(["mse_loss", "l1_loss", "smooth_l1_loss"])
    p.add(f"{x}.{name}({y})", f"F.{name}({x}, {y})")


def binary_loss(p: Program) -> None:
    x = p.pick()
    y = p.constant(p.numpy.integers(0, 3, p.shape(x)) / 2)
    p.add(f"{x}.binary_crossentropy_logits({y})", f"F.binary_cross_entropy_with_logits({x}, {y})")


LINES = [smooth, edged, kinked, sign, activation, gelu, power, powers, binary, quotient, extreme, logaddexp, clip,
         clip_by_values, where, masked_fill, move, move, expand, repeat, triangle, diagonal, diag, constant_pad,
         own_pad, slices, slices, int_index, two_indices, mask_index, gather, scatter_set, scatter_add, scatter_reduce,
         scatter_reduce, join, stack, split, total, total_of_all, greatest, greatest_of_all, deviation, norm, normalize,
         layernorm, softmax, running, running_extreme, sort, topk, max_pool, max_pool_2d, avg_pool, convolution,
         transposed_convolution, product, einsum, attention, class_loss, difference_loss, binary_loss]


def build(p: Program) -> None:
    p.input(p.random.choice(SHAPES))
    for _ in range(p.random.randint(LEAST, MOST)):
        line = p.random.choice(LINES)
        try:
            line(p)
        except Unfit:
            continue
