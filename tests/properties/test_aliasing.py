"""Random programs with aliased memory: captured or not, every tensor equals the corresponding NumPy view.

State is reached by names, objects, lists, dicts and closures; it is looked at and written through views of views,
before, in and after calls; results share memory with state, with arguments and with each other, and are kept and
written; what is below them is replaced between calls.
"""
from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Tensor, TinyJit
from tinsmith.jit import replay

SIZE = 4
CALLS = 7
NEW = 100_000  # seeds from here on have replacements in the function, too
GONE = 3_000_000  # seeds from here on have state that is a strided view, whose base is gone, too


class Array:
    """A NumPy array with the method names of a tensor: views are NumPy's, all other results are row-major."""

    def __init__(self, a: Any) -> None:
        self.a = a

    def __getitem__(self, index: Any) -> Array:
        index = index if isinstance(index, tuple) else (index,)
        return Array(self.a[index if Ellipsis in index else (*index, Ellipsis)])  # a view, not a number

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, Array) or len(self.a):  # an index out of range writes nothing
            self.a[_plain(index)] = _plain(value)

    def assign(self, value: Any) -> Array:
        self.a[...] = np.array(_plain(value), self.a.dtype)
        return self

    def replace(self, other: Array) -> Array:
        if self.a.shape != other.a.shape:
            raise ValueError("another shape")
        self.a = other.a.copy()
        return self

    def __add__(self, other: Any) -> Array:
        return Array(np.array(self.a + _plain(other), np.float32, order="C"))

    def __mul__(self, other: Any) -> Array:
        return Array(np.array(self.a * _plain(other), np.float32, order="C"))

    def __iadd__(self, other: Any) -> Array:
        return self.assign(self + other)

    def __imul__(self, other: Any) -> Array:
        return self.assign(self * other)

    add_ = __iadd__

    def fill_(self, value: float) -> Array:
        return self.assign(value)

    def masked_fill_(self, mask: Any, value: float) -> Array:
        self.a[mask.a] = value
        return self

    def index_put_(self, indices: Any, value: float) -> Array:
        if len(self.a):
            self.a[tuple(i.a for i in indices)] = value
        return self

    def scatter_(self, dim: int, index: Any, value: float) -> Array:
        np.put_along_axis(self.a, index.a, value, dim)
        return self

    def __gt__(self, other: Any) -> Array:
        return Array(self.a > _plain(other))

    def sum(self) -> Array:
        return Array(np.array(self.a.sum(), np.float32))

    def int(self) -> Array:
        return Array(self.a.astype(np.int32))

    def detach(self) -> Array:
        return Array(self.a[...])

    def reshape(self, *shape: int) -> Array:
        return Array(self.a.reshape(shape))

    def flip(self, axis: int) -> Array:
        return Array(np.array(np.flip(self.a, axis) if self.a.ndim else self.a, order="C"))

    def clone(self) -> Array:
        return Array(np.array(self.a, order="C"))

    contiguous = clone

    def unsqueeze(self, axis: int) -> Array:
        return Array(np.expand_dims(self.a, axis))

    def diagonal(self) -> Array:
        n = min(self.a.shape[:2])
        return Array(np.einsum("ii...->...i", self.a[:n, :n]))

    @property
    def T(self) -> Array:
        return Array(self.a.T)

    def realize(self) -> Array:
        return self

    def numpy(self) -> Any:
        return self.a


def _plain(value: Any) -> Any:
    return value.a if isinstance(value, Array) else value


HEADER = """
class Box:
    def __init__(self):
        self.t, self.view = fresh(1), None
        self.view = self.t[1:]
    def bump(self):
        self.view += 1
        return self.t

A, X, Y = fresh(2), fresh(6), fresh(7)
B = A[:, 1:]
V, W = fresh(8)[:, 1:], fresh(0).T
box, lst, dct = Box(), [fresh(3), None], {"k": fresh(4)}
lst[1] = lst[0].T[1:]

def outer():
    inner = fresh(5)
    def closed(v):
        inner[0] = v
        return inner[:2]
    return closed, inner
closed, inner = outer()
"""

NAMES = ["A", "B", "box.t", "box.view", "lst[0]", "lst[1]", "dct['k']", "inner", "x", "y"]
VIEWS = ["{t}", "{t}[1:]", "{t}[:, 1:]", "{t}[::2]", "{t}.T", "{t}.detach()", "{t}[0]", "{t}[:, 0]", "{t}.reshape(-1)",
         "{t}.unsqueeze(0)", "{t}[1:].T", "{t}.detach()[1:]", "{t}[..., ::2].detach()", "{t}.T.T", "{t}[1:][:1]",
         "{t}.T.reshape(-1)", "{t}[:3, :3].diagonal()", "{t}[:2].reshape(-1)[1:]"]
VALUES = ["{v}", "{s}.sum()", "{t} + {v}", "{t} * 0.5 + {s}.sum() * 0.25", "{t}.flip(0)", "{t} + {s}[0].sum()"]
WRITES = ["{t}.assign({e})", "{t} += {e}", "{t} *= 0.5", "{t}[0] = {v}", "{t}[1:] = {v}", "{t}[..., :2] = {s}.sum()",
          "{t}.masked_fill_({t} > 1.0, {v})", "{t}.index_put_((ZERO,), {v})", "{t}.add_({v})", "{t}.fill_({v})",
          "{t}.scatter_(0, ({t}[:1] * 0).int(), {v})", "{t}[ZERO] = {v}", "{t}.assign({t} + 1).realize()",
          "{t}.detach()[0] = {v}", "{t}[..., 1:] += {v}", "{t}.T[0] = {v}"]
REPLACES = ["{t}.replace({t} + 1)", "{t}.replace({t} * 0.5 + {s}.sum() * 0.25)", "{t}.replace(p)"]
CALLED = ["r = box.bump()", "r = closed({v})", "r = closed({v})[1:]", "box.bump()"]
RESULTS = ["r", "p", "{w}", "p.flip(0)", "p + 1", "{w}.flip(0)", "{w}.clone()", "{w} * 2", "{t}", "p.detach()",
           "r.sum()", "{w}.contiguous()"]
MUTATIONS = [
    "{n}.assign(fresh({k}))", "{n}[0] = {v}", "{n} += {v}", "{n}.replace(fresh({k}))", "{n} = fresh({k})",
    "{n} = fresh({k}) * 2", "{n} = {w}", "{n} = {o}.detach()", "{n}.realize()", "{w}.fill_({v})", "X = {w}", "Y = {w}",
    "X = Y", "X, Y = Y, X", "X = fresh({k})", "Y = fresh({k})", "KEPT.append(OUT)", "KEPT.append({w})", "KEPT.clear()",
    "OUT[{i}].fill_({v})", "OUT[{i}] += {v}", "OUT[{i}][0] = {v}", "KEPT.append(OUT[{i}][1:])", "{n} = OUT[{i}]",
    "X = OUT[{i}]", "OUT = None", "closed, inner = outer()", "{n} = {n}.clone()", "KEPT[0] += {v}",
    "{n}.assign({n} + 1)", "pass", "pass", "pass", "{n}.detach().realize()",
]
VIEWS_ALONE = ["V", "W"]
PARTING = ["{n} = fresh({k}).T", "{n} = fresh({k})[:, 1:]", "{n} = fresh({k})[::2].T", "{n} = {n}.T"]


class Program(NamedTuple):
    """A function's text, the changes before each call, and the calls after which everything is compared."""

    text: str
    steps: list[list[str]]
    looks: list[bool]


def program(seed: int) -> Program:
    """Return the program of a seed."""
    rng = random.Random(seed)

    def filled(text: str, names: list[str]) -> str:
        def view() -> str:
            return rng.choice(VIEWS).format(t=rng.choice(names))

        t = rng.choice(names)
        v = rng.choice((0.5, 1.0, 2.0, -1.0, 3.0, 8.0))
        e = rng.choice(VALUES).format(t=t, s=rng.choice(names), v=v)
        return text.format(t=t, e=e, v=v, s=rng.choice(names), w=view(), n=rng.choice(outside), o=rng.choice(outside),
                           k=rng.randrange(9), i=rng.randrange(3))

    outside = rng.sample([*NAMES[:8], *VIEWS_ALONE], 3) if seed >= GONE else rng.sample(NAMES[:8], 3)
    mutations = [*MUTATIONS, *PARTING] if seed >= GONE else MUTATIONS
    names = [*rng.sample(outside, rng.randint(1, 3)), *rng.sample(["x", "y"], rng.randint(0, 2))]
    lines = [f"p = {filled('{w}', names)}", f"r = {filled('{w}', [*names, 'p'])}"]
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3))):
        kinds = rng.choice((WRITES, WRITES, WRITES, ["p = {w}", "r = {w}", "p = {t} * 2"], CALLED))
        local = rng.random() < 0.4
        lines.append(filled(rng.choice(kinds), ["p", "r"] if local else names))
    if seed >= NEW and rng.random() < 0.2:
        lines.insert(rng.randint(2, len(lines)), filled(rng.choice(REPLACES), names))
        if rng.random() < 0.5:
            lines.append(filled(rng.choice(WRITES), ["p", "r"]))
    results = [filled(rng.choice(RESULTS), [*names, "p"]) for _ in range(3)]
    text = "\n    ".join(["def f(x, y):", *lines, f"return {', '.join(results)}"]) + "\n"
    steps = [[filled(rng.choice(mutations), outside) for _ in range(0 if n < 1 else rng.choice((0, 0, 1, 1, 2)))]
             for n in range(CALLS)]
    rarely = rng.random() < 0.5
    return Program(text, steps, [n == CALLS - 1 or not rarely or rng.random() < 0.3 for n in range(CALLS)])


class World:
    """One run of a program.

    Args:
        make: a tensor, or what stands for one, of an array.
        wrap: what is done with the function.
    """

    def __init__(self, p: Program, make: Callable[[Any], Any], wrap: Callable[[Any], Any]) -> None:
        def fresh(n: int) -> Any:
            return make(np.arange(SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE) * 0.25 - n)

        self.space: dict[str, Any] = {"__name__": "program", "fresh": fresh, "KEPT": [], "OUT": None,
                                      "ZERO": make(np.array([0], np.int32))}
        exec(HEADER, self.space)
        exec(p.text, self.space)
        self.space["f"] = wrap(self.space["f"])

    def step(self, mutations: list[str], look: bool) -> list[Any]:
        """Call once; return the errors raised, and the values of all tensors if they are compared."""
        raised = []
        for line in [*mutations, "OUT = f(X, Y)"]:
            try:
                exec(line, self.space)
            except Exception as error:
                raised.append((line, type(error).__name__, str(error)))
        return [raised, self.shown() if look else None]

    def shown(self) -> list[tuple[str, Any]]:
        s = self.space
        every = [("A", s["A"]), ("B", s["B"]), ("box.t", s["box"].t), ("box.view", s["box"].view), ("X", s["X"]),
                 ("lst[0]", s["lst"][0]), ("lst[1]", s["lst"][1]), ("dct", s["dct"]["k"]), ("inner", s["inner"]),
                 ("Y", s["Y"]), ("V", s["V"]), ("W", s["W"]), *((f"OUT[{n}]", t) for n, t in enumerate(s["OUT"] or ()))]
        kept = [(f"KEPT[{n}]", t) for n, t in enumerate(s["KEPT"])]
        every += [(f"{name}[{m}]", u) for name, t in kept for m, u in enumerate(t if isinstance(t, tuple) else (t,))]
        return [(name, None if t is None else np.array(t.numpy())) for name, t in every]


def history(p: Program, make: Callable[[Any], Any], wrap: Callable[[Any], Any]) -> list[list[Any]]:
    world = World(p, make, wrap)
    return [world.step(mutations, look) for mutations, look in zip(p.steps, p.looks)]


def tensor(a: Any) -> Tensor:
    return Tensor(a).realize()


def check(seed: int) -> None:
    """Compare a random program in NumPy, uncaptured, captured, and captured with small state written in place, too.

    Raises:
        AssertionError: with the program, the call and the tensor that differs.
    """
    p = program(seed)
    want = history(p, Array, lambda f: f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _compare(seed, "eager", p, history(p, tensor, lambda f: f), want)
        _compare(seed, "captured", p, history(p, tensor, TinyJit), want)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replay, "SMALL", -1)  # bytes of an output that a replay always puts elsewhere
            _compare(seed, "captured, in place", p, history(p, tensor, TinyJit), want)


def _compare(seed: int, how: str, p: Program, got: list[list[Any]], want: list[list[Any]]) -> None:
    for n, ((raised, shown), (wanted, right)) in enumerate(zip(got, want)):
        story = f"seed {seed}, {how}, call {n}\n{p.text}" + "".join(
            f"  call {k} after {'; '.join(s) or 'nothing'}{' (looked at)' if p.looks[k] else ''}\n"
            for k, s in enumerate(p.steps[:n + 1]))
        lines = [line for line, *_ in raised], [line for line, *_ in wanted]
        assert lines[0] == lines[1], f"{story}raised {raised}\nNumPy  {wanted}"
        if wanted and "OUT = f(X, Y)" in lines[1]:
            return  # how far it got before it raised is another matter
        for (name, a), (_, b) in zip(shown or (), right or ()):
            same = a is b is None or (a is not None and b is not None and a.shape == b.shape and np.allclose(
                a, b, rtol=1e-4, atol=1e-4, equal_nan=True))
            assert same, f"{story}{name} got  {a}\n{name} want {b}"


FAILED_ONCE = [46, 1241, 1576, 6564, 7780, 8615, 10320, 300_011, 500_742, 2_010_201, 2_011_256, 2_012_120, 2_030_762,
               2_100_403]


@pytest.mark.parametrize("seed", [*range(FEW), *range(NEW, NEW + FEW), *range(GONE, GONE + FEW), *FAILED_ONCE])
def test_programs_that_share_memory(seed: int) -> None:
    check(seed)
