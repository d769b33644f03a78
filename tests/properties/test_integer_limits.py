"""Integers wrap around at the limits of every dtype, on every device, for any fusion of operations in a kernel.

A random program is a list of operations over arrays that mostly hold the least and the greatest numbers of their dtype.
All of it becomes few kernels, so that compilers see sums, differences, negations, magnitudes, quotients, shifts and
extremes beside each other. NumPy computes the same.
"""
from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from tests.codegen.running import HAS_C
from tests.properties.runner import FEW
from tinsmith import Context, Device, Tensor
from tinsmith.core.errors import DeviceError

SHAPE = (4, 40)
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DEVICES = ["CPU", "CPU:C", "PYTHON", "PYTHON:G64", "OPENCL", "CUDA"]
INTERPRETED = 8  # of which seed a program runs by the slow interpreters too


@functools.cache
def missing(device: str) -> str:
    """Return why a device cannot be opened; "" if it can."""
    if device == "CPU:C" and not HAS_C:
        return "no C compiler"
    try:
        Device.here(device)
    except DeviceError as error:
        return str(error)
    return ""


class Program:
    """Pairs of Tinsmith's and NumPy's values, and the operations that computed them."""

    def __init__(self, seed: int) -> None:
        self.random, numbers = random.Random(seed), np.random.default_rng(seed)
        self.lines = list[str]()
        self.values = list[tuple[Tensor, Any]]()
        for _ in range(3):
            dtype = np.dtype(self.random.choice(INTEGERS))
            self.values.append(self.array(numbers, dtype))
        for _ in range(self.random.randint(3, 9)):
            self.step()

    def array(self, numbers: np.random.Generator, dtype: np.dtype[Any]) -> tuple[Tensor, Any]:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        near = [low, low + 1, low // 2, 0, 1, 2, 3, high // 2, high // 2 + 1, high - 1, high]
        near += [-1, -2] * (low < 0)
        at = numbers.integers(0, len(near), SHAPE)
        a = np.array(near, dtype)[at]
        a = np.where(numbers.random(SHAPE) < 0.2, numbers.integers(low, high, SHAPE, dtype, endpoint=True), a)
        return Tensor(a), a

    def step(self) -> None:
        x, a = self.random.choice(self.values)
        y, b = self.random.choice(self.values)
        y, b = y.cast(a.dtype.name), b.astype(a.dtype)
        name, make = self.random.choice(list(self.operations(x, a, y, b).items()))
        with np.errstate(all="ignore"):
            ours, theirs = make()
        self.lines.append(f"v{len(self.values)} = {name} in {theirs.dtype}")
        self.values.append((ours, theirs))

    def operations(self, x: Tensor, a: Any, y: Tensor, b: Any) -> dict[str, Any]:
        bits = 8 * a.dtype.itemsize
        other, places = self.random.choice(INTEGERS), self.random.randrange(bits)
        zero, safe = np.zeros((), a.dtype), np.where(b == 0, 1, b).astype(a.dtype)
        divisor = (y == 0).where(Tensor.ones_like(y), y)
        some, of = y & (bits - 1), b & a.dtype.type(bits - 1)
        return {
            "x + y": lambda: (x + y, a + b), "x - y": lambda: (x - y, a - b), "x * y": lambda: (x * y, a * b),
            "-x": lambda: (-x, -a), "0 - x": lambda: (0 - x, zero - a), "|x|": lambda: (x.abs(), np.abs(a)),
            "sign(x)": lambda: (x.sign(), np.sign(a)), "~x": lambda: (~x, ~a),
            "x < 0 ? -x : x": lambda: ((x < 0).where(-x, x), np.where(a < 0, -a, a)),
            "x < y ? x : -y": lambda: ((x < y).where(x, -y), np.where(a < b, a, -b)),
            "x // y": lambda: (x // divisor, a // safe), "x % y": lambda: (x % divisor, a % safe),
            f"x << {places}": lambda: (x << places, a << a.dtype.type(places)),
            f"x >> {places}": lambda: (x >> places, a >> a.dtype.type(places)),
            "x << y": lambda: (x << some, a << of), "x >> y": lambda: (x >> some, a >> of),
            "x & y": lambda: (x & y, a & b), "x ^ y": lambda: (x ^ y, a ^ b),
            "max(x, y)": lambda: (x.maximum(y), np.maximum(a, b)),
            "min(x, y)": lambda: (x.minimum(y), np.minimum(a, b)),
            "max(x, |y|)": lambda: (x.maximum(y.abs()), np.maximum(a, np.abs(b))),
            "max(x, max(y, y - x))": lambda: (x.maximum(y.maximum(y - x)), np.maximum(a, np.maximum(b, b - a))),
            "min(x, min(y, -x))": lambda: (x.minimum(y.minimum(-x)), np.minimum(a, np.minimum(b, -a))),
            "the rows' maxima of |x|": lambda: (
                x.abs().max(1, keepdim=True).expand(SHAPE), np.broadcast_to(np.abs(a).max(1, keepdims=True), SHAPE)),
            "the rows' minima": lambda: (
                x.min(1, keepdim=True).expand(SHAPE), np.broadcast_to(a.min(1, keepdims=True), SHAPE)),
            "running maxima of |x|": lambda: (x.abs().cummax(1)[0], np.maximum.accumulate(np.abs(a), 1)),
            other: lambda: (x.cast(other), a.astype(other)),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines)


def compare(seed: int, device: str) -> None:
    with Context(DEV=device):
        program = Program(seed)
        Tensor.realize(*(ours for ours, _ in program.values))
        for n, (ours, theirs) in enumerate(program.values):
            got = ours.numpy()
            assert got.dtype == theirs.dtype, f"{device}, v{n} of\n{program}"
            np.testing.assert_array_equal(got, theirs, f"{device}, v{n} of\n{program}")


def check(seed: int) -> None:
    """Compare a program on every available device; on the interpreters only for some seeds."""
    for device in DEVICES:
        if not missing(device) and (seed % INTERPRETED == 0 or not device.startswith("PYTHON")):
            compare(seed, device)


@pytest.mark.parametrize("device", [pytest.param(d, marks=pytest.mark.cuda if d == "CUDA" else ()) for d in DEVICES])
def test_integers_wrap_around(device: str) -> None:
    if missing(device):
        pytest.skip(missing(device))
    for seed in range(FEW):
        compare(seed, device)
