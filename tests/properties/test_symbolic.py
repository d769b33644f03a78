"""Symbolic programs against concrete ones: the same lines with bound variables, with integers, and in NumPy."""
from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Tensor, TinyJit, Variable
from tinsmith.core.errors import TinsmithError

Env = dict[str, int]
N, M = Variable("n", 1, 10), Variable("m", 0, 4)
DATA = np.arange(40, dtype=np.float64).reshape(10, 4) % 13 - 6
SIZES = ("n", "m", "n + 1", "m + 1", "2 * n", "n - 1", "n // 2", "(n + 1) // 2", "n + m", "10 - n", "n * m",
         "n - n // 2", "1", "2", "3", "4")
MOST = 2000  # elements


class Program:
    """Lines for tensors and for arrays; ``shape`` holds the text of each size, valid for all bindings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random
        self.envs: list[Env] = [{"n": n, "m": pick.randint(0, 4)} for n in pick.sample(range(1, 11), 3)]
        self.shape = ["n", "4"]
        self.lines = [("x = a[:n]", "x = a[:n]")]
        self.exact = True  # no rounding so far: places of a maximum can be told
        self.smooth = True  # the result has a gradient
        self.risky = pick.random() < 0.25  # a line may be wrong for some of the values
        self.sound = [True] * len(self.envs)  # where no line is wrong
        for _ in range(pick.randint(2, 6)):
            pick.choice(STEPS)(self)

    def size(self, text: str) -> tuple[int, ...]:
        """Return the values of a size for all bindings."""
        return tuple(eval(text, {}, dict(env)) for env in self.envs)

    def fits(self, *conditions: str) -> bool:
        """Return True if the conditions hold for all bindings; in a risky program, for at least one."""
        held = [all(eval(c, {}, dict(env)) for c in conditions) for env in self.envs]
        if not all(held) and not (self.risky and any(held)):
            return False
        self.sound = [a and b for a, b in zip(self.sound, held)]
        return True

    def axis(self) -> int:
        return self.random.randrange(len(self.shape)) if self.shape else 0

    def any_size(self) -> str:
        return self.random.choice(SIZES)

    def add(self, ours: str, numpys: str, shape: list[str]) -> None:
        """Append a line, if its result is not too large."""
        counts = np.prod([self.size(s) for s in shape] or [[1]], axis=0)
        if len(shape) <= 4 and max(counts) <= MOST and (min(counts) > 0 or "-1" not in ours):
            self.lines.append((f"x = {ours}", f"x = {numpys}"))
            self.shape = shape
            self.smooth = self.smooth and min(counts) > 0

    def source(self, which: int) -> str:
        return "\n    ".join([f"def program(a{', n, m, Tensor' if which == 0 else ', n, m, np'}):",
                              *(line[which] for line in self.lines), "return x"])

    def function(self, which: int) -> Callable[..., Any]:
        space: dict[str, Any] = {}
        exec(compile(self.source(which), "<program>", "exec"), space)
        found: Callable[..., Any] = space["program"]
        return found


def times(a: str, b: str) -> str:
    return f"({a}) * ({b})"


def replaced(shape: list[str], axis: int, *sizes: str) -> list[str]:
    return [*shape[:axis], *sizes, *shape[axis + 1 :]]


def at(axis: int, text: str) -> str:
    """Return the text of an index that selects ``text`` of one axis and all of the earlier ones."""
    return ", ".join([":"] * axis + [text])


def cut(p: Program) -> None:
    if not p.shape:
        return
    d = p.axis()
    begin, end = p.random.choice(("0", "1", "n // 2", "m")), p.random.choice((*SIZES, p.shape[d]))
    if p.fits(f"0 <= {begin} < {end} <= {p.shape[d]}"):
        index = at(d, f"{begin}:{end}")
        p.add(f"x[{index}]", f"x[{index}]", replaced(p.shape, d, f"({end}) - ({begin})"))


def last(p: Program) -> None:
    if not p.shape:
        return
    d, k = p.axis(), p.random.randint(1, 3)
    if p.fits(f"{p.shape[d]} >= {k}"):
        index = at(d, p.random.choice((f"-{k}:", f":-{k}", f"-{k}")))
        size = {f"-{k}:": [str(k)], f":-{k}": [f"{p.shape[d]} - {k}"]}.get(index.split(", ")[-1], [])
        p.add(f"x[{index}]", f"x[{index}]", replaced(p.shape, d, *size))


def join(p: Program) -> None:
    if not p.shape:
        return
    d, part = p.axis(), p.any_size()
    if p.fits(f"0 <= {part} <= {p.shape[d]}"):
        index = at(d, f":{part}")
        a, b = p.random.choice(((f"x[{index}]", "x"), ("x", f"x[{index}]")))
        p.add(f"{a}.cat({b}, dim={d})", f"np.concatenate([{a}, {b}], {d})",
              replaced(p.shape, d, f"({part}) + ({p.shape[d]})"))


def halves(p: Program) -> None:
    """Append operands whose equal sizes are written differently, so that they are known to fit only by value."""
    if p.shape and p.shape[(d := p.axis())] not in "01234":
        s = p.shape[d]
        first, second = at(d, f":({s}) // 2"), at(d, f":({s} + 1) // 2")
        p.add(f"x + x[{first}].cat(x[{second}], dim={d})", f"x + np.concatenate([x[{first}], x[{second}]], {d})",
              p.shape)


def repeat(p: Program) -> None:
    if p.shape:
        counts = [p.random.choice(("1", "1", "2", "n", "m + 1")) for _ in p.shape]
        p.add(f"x.repeat({', '.join(counts)})", f"np.tile(x, ({', '.join(counts)},))",
              [times(c, s) for c, s in zip(counts, p.shape)])


def flatten(p: Program) -> None:
    if len(p.shape) > 1:
        d = p.random.randrange(len(p.shape) - 1)
        shape = [*p.shape[:d], times(p.shape[d], p.shape[d + 1]), *p.shape[d + 2 :]]
        given = ", ".join([*p.shape[:d], p.random.choice((shape[d], "-1")), *p.shape[d + 2 :]])
        p.add(f"x.reshape({given})", f"x.reshape({', '.join(shape)})", shape)


def split(p: Program) -> None:
    if p.shape:
        d, k = p.axis(), p.random.choice(("2", "4", "n", "m + 1", "n - 1"))
        if min(p.size(k)) > 0 and p.fits(f"({p.shape[d]}) % ({k}) == 0"):
            rest = f"({p.shape[d]}) // ({k})"
            parts = p.random.choice(([k, "-1"], ["-1", k], [k, rest]))
            known = [rest if s == "-1" else s for s in parts]
            p.add(f"x.reshape({', '.join(replaced(p.shape, d, *parts))})",
                  f"x.reshape({', '.join(replaced(p.shape, d, *known))})", replaced(p.shape, d, *known))


def swap(p: Program) -> None:
    if len(p.shape) == 2:
        a, b = p.shape
        p.add(f"x.reshape({b}, {a})", f"x.reshape({b}, {a})", [b, a])


def expand(p: Program) -> None:
    d, s = p.random.randint(0, len(p.shape)), p.random.choice(("2", "3", "n", "m + 1"))
    ones = [*p.shape[:d], "1", *p.shape[d:]]
    wide = [*["-1"] * d, s, *["-1"] * (len(p.shape) - d)]
    p.add(f"x.unsqueeze({d}).expand({', '.join(wide)})",
          f"np.broadcast_to(np.expand_dims(x, {d}), ({', '.join([*p.shape[:d], s, *p.shape[d:]])},))",
          replaced(ones, d, s))


def pad(p: Program) -> None:
    if p.shape:
        d, value = p.axis(), p.random.choice((0, 0, 3))
        before, after = p.random.choice(("0", "1", "m", "n // 2")), p.random.choice(("0", "2", "10 - n", "n"))
        amounts = ", ".join("(0, 0)" if i != d else f"({before}, {after})" for i in range(len(p.shape)))
        p.add(f"x.pad(({amounts},), value={value})", f"np.pad(x, ({amounts},), constant_values={value})",
              replaced(p.shape, d, f"{before} + ({p.shape[d]}) + {after}"))


def flip(p: Program) -> None:
    if p.shape:
        d = p.axis()
        p.add(f"x.flip({d})", f"np.flip(x, {d})", p.shape)


def permute(p: Program) -> None:
    order = p.random.sample(range(len(p.shape)), len(p.shape))
    if order:
        p.add(f"x.permute({', '.join(map(str, order))})", f"x.transpose({', '.join(map(str, order))})",
              [p.shape[i] for i in order])


def stepped(p: Program) -> None:
    fixed = [d for d, s in enumerate(p.shape) if s in "1234"]
    if fixed:
        d = p.random.choice(fixed)
        step = p.random.choice((2, 3, -1, -2))
        index = at(d, f"::{step}")
        p.add(f"x[{index}]", f"x[{index}]", replaced(p.shape, d, str(len(range(int(p.shape[d]))[::step]))))


def reduce(p: Program) -> None:
    if not p.shape:
        return
    d, keep = p.axis(), p.random.random() < 0.5
    name = p.random.choice(("sum", "max", "min", "mean", "argmax" if p.exact else "sum", "var"))
    if not p.fits(f"{p.shape[d]} > 0"):
        return
    shape = replaced(p.shape, d, *(["1"] if keep else []))
    extra = ", correction=0" if name == "var" else ""
    cast = ".cast('float64')" if name == "argmax" else ""
    p.smooth = p.smooth and name != "argmax"
    p.exact = p.exact and name not in ("mean", "var")
    p.add(f"x.{name}({d}, keepdim={keep}{extra}){cast}", f"1.0 * x.{name}({d}, keepdims={keep})", shape)


def softmax(p: Program) -> None:
    if p.shape and p.fits(f"{p.shape[d := p.axis()]} > 0"):
        p.exact = False
        e = f"np.exp(x - x.max({d}, keepdims=True))"
        p.add(f"x.softmax({d})", f"{e} / {e}.sum({d}, keepdims=True)", p.shape)


def cumsum(p: Program) -> None:
    if p.shape:
        d = p.axis()
        p.add(f"x.cumsum({d})", f"x.cumsum({d})", p.shape)


def product(p: Program) -> None:
    if len(p.shape) == 2:
        a, b = p.shape
        if p.random.random() < 0.5:
            p.add("x @ x.T / 8", "x @ x.T / 8", [a, a])
        else:
            p.add("x.T @ x / 8", "x.T @ x / 8", [b, b])


def elementwise(p: Program) -> None:
    if not p.shape:
        p.add("x * 2 + n", "x * 2 + n", p.shape)
        return
    d = p.axis()
    text = p.random.choice(("x * 0.5 - x.flip({d})", "x + x[{one}]", "(x > 0).where(x, m)", "x.abs().sqrt()"))
    if "one" in text and not p.fits(f"{p.shape[d]} > 0"):
        return
    p.exact, p.smooth = p.exact and "sqrt" not in text, p.smooth and "sqrt" not in text
    ours = text.format(d=d, one=at(d, ":1"))
    theirs = ours.replace(f"x.flip({d})", f"np.flip(x, {d})").replace("(x > 0).where(x, m)", "np.where(x > 0, x, m)")
    p.add(ours, theirs.replace("x.abs().sqrt()", "np.sqrt(np.abs(x))"), p.shape)


def row(p: Program) -> None:
    if not p.shape:
        return
    d, place = p.axis(), p.random.choice(("n - 1", "m", "n // 2", "0", "2", "-1"))
    if p.fits(f"{'1' if place == '-1' else place} < {p.shape[d]} + {1 if place == '-1' else 0}"):
        p.add(f"x[{at(d, place)}]", f"x[{at(d, place)}]", replaced(p.shape, d))


def pick(p: Program) -> None:
    if not p.shape:
        return
    d, count = p.axis(), p.random.choice(("n", "m + 1", "3", "2 * n"))
    if p.fits(f"{p.shape[d]} > 0"):
        p.add(f"x[{at(d, f'(Tensor.arange({count}) * 3) % ({p.shape[d]})')}]",
              f"x[{at(d, f'(np.arange({count}) * 3) % ({p.shape[d]})')}]", replaced(p.shape, d, count))


def along(p: Program) -> None:
    """Append a gather whose index has a symbolic size."""
    if len(p.shape) == 2 and p.fits(f"{p.shape[1]} > 0"):
        rows, columns = p.shape
        count = p.random.choice(("n", "m + 1", "3"))
        index = f"(lib.arange({count}) + 1).reshape(1, {count}).expand({rows}, {count}) % ({columns})"
        p.add(f"x.gather(1, {index.replace('lib', 'Tensor')})",
              f"np.take_along_axis(x, np.broadcast_to((np.arange({count}) + 1) % ({columns}), ({rows}, {count})), 1)",
              [rows, count])


def write(p: Program) -> None:
    """Write rows of a cache, then read some or all of them."""
    if len(p.shape) == 2 and p.shape[1] in "1234":
        begin = p.random.choice(("m", "0", "10 - n", "2"))
        rows, columns = p.random.choice(("1", "n // 2 + 1", p.shape[0])), p.shape[1]
        if p.fits(f"0 < {rows} <= {p.shape[0]}", f"{begin} + {rows} <= 12"):
            place = f"{begin}:{begin} + {rows}"
            ours = (f"c = Tensor.zeros(12, {columns}, dtype='float64').contiguous().realize(); c[{place}] = x[:{rows}]",
                    f"c = np.zeros((12, {columns})); c[{place}] = x[:{rows}]")
            p.lines.append(ours)
            p.smooth = False
            end = p.random.choice(("12", f"{begin} + {rows}"))
            p.add(f"c[:{end}]", f"c[:{end}]", [end, columns])


STEPS = (cut, cut, last, join, join, halves, repeat, flatten, split, split, swap, expand, pad, flip, permute, stepped,
         reduce, reduce, softmax, cumsum, product, elementwise, elementwise, row, pick, along, write)


def run(program: Callable[..., Tensor], data: Tensor, env: Env, symbolic: bool,
        gradient: bool = False) -> np.ndarray[Any, Any] | TinsmithError:
    """Return the value of a program, or the gradient of the sum of its squares, or the error that it raises."""
    n, m = (N.bind(env["n"]), M.bind(env["m"])) if symbolic else (env["n"], env["m"])
    try:
        out = program(data, n, m, Tensor)
        return out.square().sum().gradient(data)[0].numpy() if gradient else out.numpy()
    except TinsmithError as error:
        return error


def check(seed: int) -> None:
    p = Program(seed)
    ours, numpys = p.function(0), p.function(1)
    data = Tensor(DATA).realize()
    captured = TinyJit(ours) if seed % 3 == 0 else None
    for env, sound in [*zip(p.envs, p.sound), *zip(p.envs[:2], p.sound)]:
        concrete, symbolic = run(ours, data, env, False), run(ours, data, env, True)
        if sound:
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                expect(p, f"numbers {env}", concrete, numpys(DATA, env["n"], env["m"], np))
            expect(p, f"variables {env}", symbolic, concrete)
        elif isinstance(symbolic, TinsmithError):  # refused, at the line that is wrong
            assert "<program>" in str(symbolic), symbolic
        else:
            expect(p, f"variables {env}", symbolic, concrete)
        if captured is not None:
            expect(p, f"capture {env}", run(captured, data, env, True), symbolic)
    if seed % 4 == 1 and p.smooth and all(p.sound):
        for env in p.envs[:2]:
            want, got = (run(ours, data, env, symbolic, gradient=True) for symbolic in (False, True))
            expect(p, f"gradient {env}", got, want)


def expect(p: Program, what: str, got: Any, want: Any) -> None:
    """Check the same shape and values, or the same error."""
    if isinstance(got, TinsmithError) or isinstance(want, TinsmithError):
        assert type(got) is type(want), f"{what}: {got}, not {want}\n{p.source(0)}"
        return
    assert got.shape == np.shape(want), f"{what}: shape {got.shape}, not {np.shape(want)}\n{p.source(0)}"
    close = np.allclose(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert close, f"{what}: {got.tolist()}, not {np.asarray(want).tolist()}\n{p.source(0)}"


@pytest.mark.parametrize("seed", range(FEW))
def test_symbolic(seed: int) -> None:
    check(seed)
