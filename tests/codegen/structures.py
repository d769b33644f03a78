"""Kernels of every structure that the planner recognizes, at sizes around their tiles; see test_structures.

``python -m tests.codegen.structures CPU`` ends with a fault if any access leaves a buffer: each ends at a page that
nobody may touch. ``CPU_FEATURES`` chooses the instructions.
"""
from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import numpy as np

from tests.codegen.running import Array, expected, params, run_on
from tests.codegen.test_matrix import close, product
from tests.schedule import test_streams
from tests.schedule.helpers import schedule
from tinsmith.backend.device import Device
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import Window

Case = tuple[str, UOp, dict[UOp, Array]]
PRODUCTS = ((1, 33, 65), (33, 65, 1), (13, 1, 17), (7, 31, 63), (16, 32, 64), (15, 33, 31), (65, 17, 33))
LARGE = ((97, 130, 129), (64, 257, 66), (33, 600, 300))


class Inputs:
    """A factory of parameters with random values, numbered after the outputs."""

    def __init__(self, outputs: int = 1) -> None:
        self.outputs, self.values = outputs, dict[UOp, Array]()
        self.random = np.random.default_rng(len(self.values) + 7)

    def __call__(self, shape: tuple[int, ...], dtype: DType = dtypes.float32) -> UOp:
        p = UOp(Ops.PARAM, dtype, (), (len(self.values) + self.outputs, shape))
        self.values[p] = self.random.integers(-4, 5, shape).astype(dtype.numpy)
        return p

    def case(self, name: str, value: UOp) -> Case:
        return name, UOp(Ops.SINK, None, (value,)), self.values


def products(large: bool) -> Iterator[Case]:
    types = ((dtypes.float32, dtypes.float32), (dtypes.bfloat16, dtypes.float32), (dtypes.float16, dtypes.float32),
             (dtypes.int8, dtypes.int32), (dtypes.uint8, dtypes.int32), (dtypes.float64, dtypes.float64))
    for (dtype, acc), shape in itertools.product(types, (*PRODUCTS, *(LARGE if large else ()))):
        for transposed, epilogue, batch in (("", False, 1), ("b", True, 1), ("a", False, 2), ("ab", True, 3)):
            sink, inputs = product(*shape, dtype, acc, transposed, epilogue, batch)
            yield f"product {shape} {dtype} {transposed} {epilogue} {batch}", sink, inputs


def convolution(inputs: Inputs, n: int, groups: int, cin: int, cout: int, size: int, taps: int, stride: int, pad: int,
                dilation: int) -> UOp:
    """Return a grouped convolution; ``cin`` and ``cout`` are channels per group."""
    x = inputs((n, groups, 1, cin, size, size)).pad(((0, 0),) * 4 + ((pad, pad),) * 2)
    wide = size + 2 * pad
    out = (wide - dilation * (taps - 1) - 1) // stride + 1
    for axis in (4, 5):
        shape = (*x.shape, 1)
        x = x.reshape(shape).expand((*x.shape, taps)).window(Window(axis, len(shape) - 1, stride, dilation, wide, out))
    whole = (n, groups, cout, cin, out, out, taps, taps)
    w = inputs((1, groups, cout, cin, 1, 1, taps, taps))
    return (x.expand(whole) * w.expand(whole)).reduce("ADD", (3, 6, 7)).reshape((n, groups, cout, out, out))


def convolutions() -> Iterator[Case]:
    for numbers in ((1, 1, 3, 5, 9, 3, 1, 1, 1), (2, 1, 4, 16, 16, 3, 1, 1, 1), (1, 1, 2, 3, 17, 3, 2, 1, 1),
                    (2, 1, 3, 4, 13, 3, 1, 2, 2), (1, 5, 1, 1, 15, 3, 1, 1, 1), (1, 2, 3, 4, 11, 5, 1, 2, 1),
                    (2, 1, 7, 9, 8, 1, 1, 0, 1), (1, 1, 1, 32, 28, 5, 1, 0, 1)):
        inputs = Inputs()
        value = convolution(inputs, *numbers)
        yield inputs.case(f"convolution {numbers}", value)
    for sizes in ((3, 2, 5, 9, 3), (5, 7, 17, 8, 3), (70, 5, 16, 8, 3), (2, 1, 32, 12, 5)):
        inputs = Inputs()
        value = weight_gradient(inputs, *sizes)
        yield inputs.case(f"weight gradient {sizes}", value)


def weight_gradient(inputs: Inputs, n: int, cin: int, cout: int, size: int, taps: int) -> UOp:
    """Return the weight gradient of a convolution: a sum over images and positions of output gradient times window."""
    out = size - taps + 1
    x = inputs((n, cin, size, size))
    for axis in (2, 3):
        shape = (*x.shape, 1)
        x = x.reshape(shape).expand((*x.shape, taps)).window(Window(axis, len(shape) - 1, 1, 1, size, out))
    whole = (cout, cin, taps, taps, n, out, out)
    flow = inputs((n, cout, out, out)).permute((1, 0, 2, 3)).reshape((cout, 1, 1, 1, n, out, out))
    windows = x.permute((1, 4, 5, 0, 2, 3)).reshape((1, *whole[1:]))
    return (windows.expand(whole) * flow.expand(whole)).reduce("ADD", (4, 5, 6)).reshape((cout, cin, taps, taps))


def rows(sizes: tuple[int, ...]) -> Iterator[Case]:
    """Kernels of rows: reductions of rows, columns and all elements, several passes per row, and pointwise work."""
    for m, n in itertools.product((1, 5, 17), sizes):
        inputs = Inputs()
        x = inputs((m, n))
        top = x.reduce("MAX", (1,)).expand((m, n))
        power = (x - top).alu("EXP")
        yield inputs.case(f"softmax {m} {n}", power / power.reduce("ADD", (1,)).expand((m, n)))
        for axes in ((0,), (1,), (0, 1)):
            for op in ("ADD", "MAX"):
                inputs = Inputs()
                yield inputs.case(f"{op} {m} {n} {axes}", inputs((m, n)).reduce(op, axes))
        inputs = Inputs()
        mean = inputs((m, n)) * inputs((1, n)).expand((m, n))
        yield inputs.case(f"columns {m} {n}", mean + inputs((m, 1)).expand((m, n)))
        for dtype in (dtypes.float32, dtypes.int8, dtypes.bool):
            inputs = Inputs()
            yield inputs.case(f"transpose {m} {n} {dtype}", inputs((m, n), dtype).permute((1, 0)).contiguous())
            inputs = Inputs()
            yield inputs.case(f"pad {m} {n} {dtype}", inputs((m, n), dtype).pad(((1, 0), (2, 3))).flip((1,)))
        inputs = Inputs()
        table, where = inputs((m, n)), inputs((9, 1), dtypes.int32).expand((9, n))
        yield inputs.case(f"gather {m} {n}", table.gather(where, 0))
        inputs = Inputs()
        base, where, x = inputs((m, n)), inputs((9, 1), dtypes.int32).expand((9, n)), inputs((9, n))
        yield inputs.case(f"scatter {m} {n}", base.scatter(where, x, 0, "ADD"))


def pools() -> Iterator[Case]:
    """Max-pooling of adjacent windows and its gradient."""
    for step, windows, dtype in itertools.product((2, 3, 4), (1, 3, 4, 5, 16, 17, 33),
                                                  (dtypes.float32, dtypes.bfloat16, dtypes.int8)):
        shape, whole = (3, 2, step, windows, step), (3, 2 * step, windows * step)
        for flat in (False, True):
            inputs = Inputs()
            x = inputs(whole, dtype)
            above = x.maximum(x.const_like(0))
            parts = above.reshape(shape)
            top = parts.reduce("MAX", (2, 4))
            if not flat:
                yield inputs.case(f"pool {step} {windows} {dtype}", top.reshape((3, 2, windows)))
            share = parts.eq(top.expand(shape)).where(parts.const_like(1), parts.const_like(0))
            flow = share * (share.reduce("ADD", (2, 4)).expand(shape) + top.expand(shape)).cast(dtype)
            flow = x.const_like(0).lt(above).where(flow.reshape(whole), x.const_like(0)) if flat else flow
            yield inputs.case(f"pool gradient {step} {windows} {dtype} {flat}", flow.reshape(whole))


def sums_of_steps() -> Iterator[Case]:
    """Kernels with row statistics, a map of the rows, and sums over the steps of each block kept in memory."""
    for shape in ((3, 4, 16), (2, 6, 33), (1, 5, 1), (5, 8, 15), (3, 4, 5, 7), (2, 16, 3, 17)):
        inner = tuple(range(2, len(shape)))
        for dtype in (dtypes.float32, dtypes.float64):
            inputs = Inputs(4)
            x, g = inputs(shape, dtype), inputs(shape, dtype)
            total = x.reduce("ADD", inner)
            y = (x - total.expand(shape)) * g
            yield f"sums of steps {shape} {dtype}", UOp(Ops.SINK, None, (
                total, y, y.reduce("ADD", (1,)), (g * x).reduce("ADD", (1,))), 2), inputs.values
        inputs = Inputs(2)
        y = inputs(shape) * inputs((*shape[:-1], 1)).expand(shape)
        yield f"sums of products {shape}", UOp(Ops.SINK, None, (y, y.reduce("ADD", (1,))), 1), inputs.values


def attentions(large: bool) -> Iterator[Case]:
    """Attention and its gradients: full rows, blocks of rows, tiles shared by two sums."""
    sizes = [(2, 33, 61, 8, 24), (1, 65, 63, 16, 17), *([(8, 40, 192, 8, 24), (2, 33, 512, 8, 40)] if large else [])]
    random = np.random.default_rng(9)
    for size, mask in itertools.product(sizes, ("none", "causal")):
        for n, item in enumerate(schedule(*test_streams.recorded(test_streams.inputs(*size), mask, None)).items):
            if item.sink is not None and item.tiles:  # small values: the rows' greatest one is random as well
                given = {p: (random.integers(-2, 3, p.shape) / 4).astype(p.dtype.numpy) for p in params(item.sink)}
                yield f"attention {size} {mask} {n}", item.sink, given


def of_blocks() -> Iterator[Case]:
    """Kernels whose threads share block-local memory: operand tiles, transposed tiles, reductions and scans."""
    f32, f16 = dtypes.float32, dtypes.float16
    for shape, dtype in (((64, 32, 32), f32), ((16, 32, 32), f32), ((33, 50, 65), f32),
                         ((32, 32, 48), f16)):
        sink, inputs = product(*shape, dtype, dtypes.float32, "", False, 1)
        yield f"product {shape} {dtype}", sink, inputs
    for numbers in ((2, 1, 4, 17, 11, 3, 1, 1, 1), (2, 2, 3, 16, 9, 3, 2, 0, 1)):
        inputs = Inputs()
        yield inputs.case(f"convolution {numbers}", convolution(inputs, *numbers))
    inputs = Inputs()
    yield inputs.case("weight gradient", weight_gradient(inputs, 2, 2, 17, 9, 3))
    for m, n in ((1, 700), (3, 260), (2, 96), (40, 49), (9, 17)):
        inputs = Inputs()
        x = inputs((m, n))
        power = (x - x.reduce("MAX", (1,)).expand((m, n))).alu("EXP")
        yield inputs.case(f"softmax {m} {n}", power / power.reduce("ADD", (1,)).expand((m, n)))
        inputs = Inputs()
        x = inputs((m, n))
        yield inputs.case(f"two sums {m} {n}", x.reduce("ADD", (1,)) * (x * x).reduce("ADD", (1,)))
        inputs = Inputs()
        yield inputs.case(f"running {m} {n}", inputs((m, 4 * n)).scan("ADD", 1))
    for shape, axes in (((200, 64), (0,)), ((130, 7), (0,)), ((4, 20, 30), (0, 2)), ((512, 32), (0,)),
                        ((1024, 128), (0,))):
        inputs = Inputs()
        yield inputs.case(f"sum {shape} {axes}", inputs(shape).reduce("ADD", axes))
    inputs = Inputs()
    yield inputs.case("transpose", inputs((64, 128)).permute((1, 0)).contiguous())


def cases(large: bool) -> Iterator[Case]:
    yield from products(large)
    yield from convolutions()
    yield from pools()
    yield from sums_of_steps()
    yield from rows((1, 7, 15, 16, 17, 33, 64, 131) if large else (1, 7, 16, 33))


def check(device: str, threads: int = 2, large: bool = True, every: int = 1, first: int = 0) -> int:
    """Compare the streams, and one of ``every`` other cases from ``first`` on, with the interpreter; return the number
    of cases."""
    count = 0
    for name, sink, inputs in itertools.chain(attentions(large), itertools.islice(cases(large), first, None, every)):
        if "-v" in sys.argv:
            print(name, flush=True)
        for got, want in zip(run_on(device, sink, inputs, None, threads), expected(sink, inputs)):
            try:
                close(got, want)
            except AssertionError as error:
                raise AssertionError(f"{device}: {name}: {error}") from None
        count += 1
    return count


if __name__ == "__main__":
    units = [u.name for u in Device[sys.argv[1]].renderer.target.units]
    numbers = [int(a) for a in sys.argv[2:] if a.isdecimal()]
    print(check(sys.argv[1], 2, True, *numbers), "cases", *units)
