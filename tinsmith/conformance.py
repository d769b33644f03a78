"""The conformance suite of a device: small programs of every kind, run on it and compared with ``ir.interpret.tensor``.

``run("CPU")`` returns one result per case; a device conforms if all of them are ok.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.backend.device import Device
from tinsmith.backend.memory import Buffer
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Op, Ops, UOp
from tinsmith.ir.interpret.tensor import evaluate
from tinsmith.ir.ops import op_table
from tinsmith.ir.ops.op import Array
from tinsmith.ir.uop import Window
from tinsmith.runtime.realize import realize

_EPSILON: Final = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-22, "float64": 2.0**-50}


class Result(NamedTuple):
    """The outcome of one case; ``message`` describes the fault."""

    name: str
    ok: bool
    message: str = ""


@dataclass
class Inputs:
    """Creates the inputs of a case on the device, and keeps their values for the interpreter."""

    device: str
    values: dict[UOp, Array] = field(default_factory=dict)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def tensor(self, values: Any, dtype: DType) -> UOp:
        array = np.ascontiguousarray(np.asarray(values).astype(dtype.numpy))
        buffer = Buffer(self.device, array.size, dtype)
        if array.size:
            buffer.copyin(array.reshape(-1).view(np.uint8).data)
        node = UOp(Ops.BUFFER, dtype, (), buffer)
        self.values[node] = array.reshape(-1)
        return node.reshape(array.shape)

    def small(self, shape: tuple[int, ...], dtype: DType = dtypes.float32) -> UOp:
        """Return random small integers, whose sums are exact in any order."""
        return self.tensor(self.random.integers(0 if dtype.is_unsigned else -4, 5, shape), dtype)


Build = Callable[[Inputs], list[UOp]]


@dataclass(frozen=True)
class Case:
    """A program to run: ``build`` returns its outputs. ``rounding``: permitted error of floats, in ulps."""

    name: str
    build: Build
    rounding: int = 0


# *** the cases ***


def _pairs(dtype: DType) -> tuple[Array, Array]:
    if dtype.is_bool:
        values: list[float] = [0, 1]
    elif dtype.is_float:
        values = [0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 3.75, 100.0, np.inf, -np.inf, np.nan]
    else:
        low, high = int(dtype.min), int(dtype.max)
        values = [low, high, high - 1, 0, 1, 2, 7, dtype.bits - 1, dtype.bits, *([-1, -3] if low < 0 else [])]
    a, b = zip(*itertools.product(np.array(values, dtype.numpy), repeat=2))
    return np.array(a, dtype.numpy), np.array(b, dtype.numpy)


def _op_case(op: Op, dtype: DType) -> Case:
    def build(inputs: Inputs) -> list[UOp]:
        x, y = (inputs.tensor(v, dtype) for v in _pairs(dtype))
        return [UOp(op, None, (x,) if op.arity == 1 else (x, y))]

    return Case(f"{op.name} {dtype.name}", build, 1 if op in (Ops.MAX, Ops.MIN) or dtype.itemsize == 2 else 0)


def _function_case(op: Op, dtype: DType) -> Case:
    assert op.domain is not None
    points = np.linspace(*op.domain, 129)

    def build(inputs: Inputs) -> list[UOp]:
        x = inputs.tensor(points, dtype)
        return [x.alu(op, *[inputs.tensor(np.linspace(-2, 2, 129), dtype)] * (op.arity == 2))]

    return Case(f"{op.name} {dtype.name}", build, 8)


def _cast_case(old: DType, new: DType) -> Case:
    return Case(f"CAST {old.name} to {new.name}", lambda i: [i.tensor(_pairs(old)[0], old).cast(new)])


def op_cases(storage: frozenset[DType]) -> Iterator[Case]:
    """Yield a case of every op for every dtype that the device stores."""
    held = [d for d in dtypes.all if d in storage]
    for dtype in held:
        kind = "b" if dtype.is_bool else "f" if dtype.is_float else "i"
        for op in op_table():
            if kind in op.takes:
                yield _function_case(op, dtype) if op.domain is not None else _op_case(op, dtype)
        yield from (_cast_case(dtype, new) for new in held if new is not dtype)
        yield Case(f"WHERE {dtype.name}", partial(_where, dtype))


def _where(dtype: DType, i: Inputs) -> list[UOp]:
    condition = i.tensor(i.random.integers(0, 2, 33), dtypes.bool)
    return [condition.where(i.small((33,), dtype), i.small((33,), dtype))]


def _reduction(op: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: DType, i: Inputs) -> list[UOp]:
    return [i.small(shape, dtype).reduce(op, axes)]


def reduce_cases(storage: frozenset[DType] = frozenset(dtypes.all)) -> Iterator[Case]:
    """Yield reductions along each axis and along all axes, of short and long rows, in dtypes that the device stores."""
    for shape in ((1, 1), (3, 7), (64, 64), (5, 1000), (1000, 3), (17, 33)):
        for axes in ((0,), (1,), (0, 1)):
            for op in ("ADD", "MAX", "MIN"):
                yield Case(f"REDUCE {op} {shape} along {axes}", partial(_reduction, op, shape, axes, dtypes.float32))
    for dtype in (d for d in (dtypes.int32, dtypes.int64, dtypes.uint32, dtypes.float64) if d in storage):
        yield Case(f"REDUCE ADD {dtype.name}", partial(_reduction, "ADD", (9, 31), (1,), dtype))
    yield Case("REDUCE MUL", lambda i: [i.small((9, 5)).reduce("MUL", (1,))])
    yield Case("REDUCE MAX with NaN", lambda i: [i.tensor([[1, np.nan], [2, 3]], dtypes.float32).reduce("MAX", (1,))])


def _moved(move: Callable[[UOp], UOp], i: Inputs) -> list[UOp]:
    return [move(i.small((3, 4, 5))) * 2]


def _moved_sum(move: Callable[[UOp], UOp], i: Inputs) -> list[UOp]:
    return [move(i.small((3, 4, 5)) + i.small((3, 4, 5)))]


def movement_cases() -> Iterator[Case]:
    """Yield every movement op, on an input and on a sum."""
    moves: dict[str, Callable[[UOp], UOp]] = {
        "RESHAPE": lambda x: x.reshape((6, 10)), "PERMUTE": lambda x: x.permute((2, 0, 1)),
        "FLIP": lambda x: x.flip((0, 2)),
        "PAD": lambda x: x.pad(((1, 0), (0, 2), (3, 3))), "SHRINK": lambda x: x.shrink(((1, 3), (0, 4), (2, 5))),
        "EXPAND": lambda x: x.reshape((3, 4, 5, 1)).expand((3, 4, 5, 2)),
        "WINDOW": lambda x: x.reshape((3, 4, 5, 1)).expand((3, 4, 5, 3)).window(Window(2, 3, 1, 1, 5, 3)),
        "UNWINDOW": lambda x: x.unwindow(Window(1, 2, 2, 1, 11, 4)),
    }
    for name, move in moves.items():
        yield Case(name, partial(_moved, move))
        yield Case(f"{name} of a sum", partial(_moved_sum, move))


def _scanned(op: str, i: Inputs) -> list[UOp]:
    return [i.small((7, 33)).scan(op, 1)]


def index_cases() -> Iterator[Case]:
    """Yield gathers, scatters, scans and histograms, with some indices out of range."""
    def gather(i: Inputs) -> list[UOp]:
        index = i.tensor(i.random.integers(-2, 12, (20, 1)), dtypes.int32).expand((20, 6))
        return [i.small((10, 6)).gather(index, 0) + 1]

    yield Case("GATHER", gather)
    for op in (None, "ADD", "MAX"):
        def scatter(i: Inputs, op: str | None = op) -> list[UOp]:
            index = i.tensor(i.random.integers(-2, 12, (20, 1)), dtypes.int32).expand((20, 6))
            return [i.small((10, 6)).scatter(index, i.small((20, 6)), 0, op)]

        yield Case(f"SCATTER {op or 'set'}", scatter)
    for name in ("ADD", "MAX"):
        yield Case(f"SCAN {name}", partial(_scanned, name))

    def weighted(i: Inputs) -> list[UOp]:
        return [i.small((33, 7)).scan("MULADD", 0, i.small((1, 7)), i.small((33, 7)) * 0.125)]

    def histogram(i: Inputs) -> list[UOp]:
        index = i.tensor(i.random.integers(-2, 12, (3, 20)), dtypes.int32)
        return [i.small((3, 10)).histogram(index, i.small((3, 20)), 1)]

    yield Case("SCAN MULADD", weighted, 16)
    yield Case("HISTOGRAM", histogram)


def matmul(a: UOp, b: UOp) -> UOp:
    (m, k), n = a.shape, b.shape[1]
    product = a.reshape((m, k, 1)).expand((m, k, n)) * b.reshape((1, k, n)).expand((m, k, n))
    return product.reduce("ADD", (1,)).reshape((m, n))


def _multiplied(left: tuple[int, int], right: tuple[int, int], i: Inputs) -> list[UOp]:
    return [matmul(i.small(left), i.small(right))]


def program_cases() -> Iterator[Case]:
    """Yield contractions, multi-pass row kernels, programs of several kernels or outputs, and a size bound at
    launch."""
    for m, k, n in ((1, 1, 1), (7, 5, 3), (64, 64, 64), (33, 17, 65)):
        yield Case(f"matmul {m}x{k}x{n}", partial(_multiplied, (m, k), (k, n)))
    yield Case("three matmuls", lambda i: [matmul(matmul(i.small((9, 8)), i.small((8, 7))).contiguous(),
                                                  matmul(i.small((7, 6)), i.small((6, 5))).contiguous())])

    def rows(i: Inputs) -> list[UOp]:
        x = i.small((19, 23))
        centred = x - x.reduce("MAX", (1,)).expand((19, 23))
        square = centred * centred + 1
        return [square / square.reduce("ADD", (1,)).expand((19, 23))]

    def outputs(i: Inputs) -> list[UOp]:
        x, y = i.small((19, 23)), i.small((19, 23))
        return [x + y, (x * y).reduce("ADD", (0,)), x.permute((1, 0)).contiguous()]

    def symbolic(i: Inputs) -> list[UOp]:
        n = UOp(Ops.BIND, None, (UOp.variable("n", 1, 40), UOp.index(27)))
        return [i.small((40, 6)).shrink(((0, n), (0, 6))).reduce("ADD", (0,))]

    yield Case("several passes over rows", rows, 4)
    yield Case("several outputs", outputs)
    yield Case("a size known at launch", symbolic)


def cases(device: str) -> Iterator[Case]:
    """Yield all cases for a device."""
    storage = Device.here(device).renderer.target.storage
    yield from op_cases(storage)
    yield from reduce_cases(storage)
    yield from movement_cases()
    yield from index_cases()
    yield from program_cases()


# *** running ***


def _difference(got: Array, want: Array, dtype: DType, rounding: int) -> str:
    """Return a description of the first wrong element, and their number; "" if all are close enough."""
    if not dtype.is_float:
        wrong = got != want
    else:
        a, b = got.astype(np.float64), want.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= rounding * _EPSILON[dtype.name] * np.maximum(np.abs(b), 1e-3)
        wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)) | near)
    if not wrong.any():
        return ""
    at = int(np.flatnonzero(wrong)[0])
    return f"element {at} is {got[at]}, should be {want[at]} ({int(wrong.sum())} of {wrong.size} differ)"


def run_case(device: str, case: Case) -> Result:
    """Run one case; an exception counts as a failure with its text."""
    try:
        inputs = Inputs(device)
        roots = case.build(inputs)
        wanted = evaluate(roots, inputs.values)
        roots = [r if r.op.kind != "movement" else r.contiguous() for r in roots]
        buffers = realize(roots, device)
        for root, buffer, want in zip(roots, buffers, wanted):
            message = _difference(buffer.numpy()[: want.size], want.reshape(-1), root.dtype, case.rounding)
            if message:
                return Result(case.name, False, message)
    except Exception as error:
        return Result(case.name, False, f"{type(error).__name__}: {error}")
    return Result(case.name, True)


def run(device: str) -> list[Result]:
    """Run the suite on a device.

    >>> [r.name for r in run("PYTHON") if not r.ok]  # doctest: +SKIP
    []
    """
    return [run_case(device, case) for case in cases(device)]
