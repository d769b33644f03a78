"""Convolutions of ordinary networks on cores: what their kernels copy, compute and share, counted."""
from __future__ import annotations

import numpy as np
import pytest

from benchmarks.corpus.programs import Build, CorpusProgram, gradients
from benchmarks.corpus.record import kernels
from tests.codegen.running import run_on
from tinsmith import Tensor, dtypes
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower import lower
from tinsmith.codegen.normalize import normalize
from tinsmith.codegen.tuning import count_of
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import Window, toposort


def kernels_of_gradients(x: tuple[int, ...], w: tuple[int, ...], dtype: DType = dtypes.float32, **how: int) -> list[
        Kernel]:
    """Those of a convolution and its gradients on a machine with AVX512-BF16, each behind its opts."""
    def build() -> Build:
        a, b = Tensor.empty(*x, requires_grad=True), Tensor.empty(*w, requires_grad=True)
        return gradients(a.cast(dtype).conv2d(b.cast(dtype), **how).float(), a, b)
    return [k.kernel for k in kernels(CorpusProgram("convolution", build), "avx512_bf16") if k.kernel is not None]


def copied(kernel: Kernel) -> int:
    """Elements that are brought into local memory, each as often as that happens."""
    return sum(count_of(n.src[0].ranges | n.ranges | frozenset(n.src[1:])) for n in kernel.nodes if n.op is Ops.STAGE)


def units(kernel: Kernel) -> list[str]:
    return [o.unit for o in kernel.opts if o.unit]


def test_bf16_gradients_pack_few_elements() -> None:
    """The weights are not packed again for every pixel, as many as there are taps at most come for each of the images,
    and windows that slide along rows share their places."""
    images, channels, size, taps = 4, 32, 28, 3
    made = kernels_of_gradients((images, channels, size, size), (channels, channels, taps, taps), dtypes.bfloat16)
    forward, of_images, of_weights = [k for k in made if units(k)]
    image = images * channels * size * size
    assert max(copied(forward), copied(of_images)) < (taps * taps + 3) * image, of_images.opts
    assert copied(of_weights) < (taps + 1.2) * image, of_weights.opts


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_bf16_gradients_are_those_of_real_numbers(device: str) -> None:
    """Small integers, which bfloat16 and all sums of them hold exactly."""
    rng = np.random.default_rng(0)
    values = [rng.integers(-2, 3, shape).astype(np.float32) for shape in ((2, 3, 7, 6), (4, 3, 3, 3), (2, 4, 7, 6))]
    x, w, g = (Tensor(v, device=device, requires_grad=True) for v in values)
    y = x.cast(dtypes.bfloat16).conv2d(w.cast(dtypes.bfloat16), padding=1).float()
    got = [t.numpy() for t in (y * g).sum().gradient(x, w)]
    wide = np.pad(values[0], ((0, 0), (0, 0), (1, 1), (1, 1)))
    of_x, of_w = np.zeros_like(wide), np.zeros_like(values[1])
    for ky, kx in np.ndindex(3, 3):
        of_w[:, :, ky, kx] = np.einsum("noyx,niyx->oi", values[2], wide[:, :, ky : ky + 7, kx : kx + 6])
        of_x[:, :, ky : ky + 7, kx : kx + 6] += np.einsum("noyx,oi->niyx", values[2], values[1][:, :, ky, kx])
    np.testing.assert_array_equal(got[0], of_x[:, :, 1:-1, 1:-1])
    np.testing.assert_array_equal(got[1], of_w)


def guards(sink: UOp) -> int:
    """Loads and values of a kernel that are asked for under a condition."""
    nodes = toposort(normalize(lower(sink)))
    return sum((n.op is Ops.LOAD and len(n.src) == 3) or n.op is Ops.WHERE for n in nodes)


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_a_factor_is_asked_for_once_where_it_counts(device: str) -> None:
    """Of two padded factors the guard of one is enough, seen through casts and products; a value that would be read
    beyond its memory keeps its own."""
    rng = np.random.default_rng(1)
    g, w = (UOp(Ops.PARAM, t, (), (n, s)) for t, n, s in ((dtypes.float32, 1, (5,)), (dtypes.float16, 2, (3,))))
    values = {p: rng.integers(1, 5, p.shape).astype(p.dtype.numpy) for p in (g, w)}
    window = Window(0, 1, 1, 1, 7, 5)
    spread = g.reshape((5, 1)).expand((5, 3)).unwindow(window)
    taps = w.reshape((1, 3)).expand((5, 3))
    want = np.convolve(values[g], values[w].astype(np.float32) ** 2)
    for factor in (taps.cast(dtypes.float32).alu("MUL", taps.cast(dtypes.float32)), (taps * taps).cast(dtypes.float32)):
        for x, y in ((spread, factor.unwindow(window)), (factor.unwindow(window), spread)):
            sink = UOp(Ops.SINK, None, ((x * y).reduce("ADD", (1,)),))
            np.testing.assert_array_equal(run_on(device, sink, values, None)[0], want)
            assert guards(sink) == 1
    other = UOp(Ops.PARAM, dtypes.float32, (), (2, (5,)))
    inverse = (UOp.const(dtypes.float32, 1).reshape((1,)).expand((5,)).alu("FDIV", other)).pad(((0, 3),))
    sink = UOp(Ops.SINK, None, ((g.pad(((0, 3),)) * inverse).reduce("ADD", (0,)).reshape((1,)),))
    (got,) = run_on(device, sink, {g: values[g], other: np.full(5, 0.5, np.float32)}, None)
    assert got[0] == 2 * values[g].sum()
