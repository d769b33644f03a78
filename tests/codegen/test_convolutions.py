"""Convolutions of ordinary networks on the CPU: counts of what their kernels copy, compute and share."""
from __future__ import annotations

import numpy as np
import pytest

from benchmarks.corpus.programs import Build, CorpusProgram, computed, gradients
from benchmarks.corpus.record import kernels
from tests.codegen.running import run_on
from tinsmith import Tensor, dtypes, with_opts
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.lower.lower import lower
from tinsmith.codegen.lower.normalize import normalize
from tinsmith.codegen.opt import OptOps
from tinsmith.core.dtypes import DType
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Contraction, Role, count_of, range_size, structure
from tinsmith.ir.uop import Window, toposort


def kernels_of_gradients(x: tuple[int, ...], w: tuple[int, ...], dtype: DType = dtypes.float32, **how: int) -> list[
        Kernel]:
    """Return the optimized kernels of a convolution and its gradients for a target with AVX512-BF16."""
    def build() -> Build:
        a, b = Tensor.empty(*x, requires_grad=True), Tensor.empty(*w, requires_grad=True)
        return gradients(a.cast(dtype).conv2d(b.cast(dtype), **how).float(), a, b)
    return [k.kernel for k in kernels(CorpusProgram("convolution", build), "avx512_bf16") if k.kernel is not None]


def copied(kernel: Kernel) -> int:
    """Return the number of elements copied into local memory, each counted as often as it is copied."""
    return sum(count_of(n.src[0].ranges | n.ranges | frozenset(n.src[1:])) for n in kernel.nodes if n.op is Ops.STAGE)


def units(kernel: Kernel) -> list[str]:
    return [o.unit for o in kernel.opts if o.unit]


def test_bf16_gradients_pack_few_elements() -> None:
    """Weights are not packed again for each pixel; an image is packed at most once per tap; windows that slide along
    rows share their elements."""
    images, channels, size, taps = 4, 32, 28, 3
    made = kernels_of_gradients((images, channels, size, size), (channels, channels, taps, taps), dtypes.bfloat16)
    forward, of_images, of_weights = [k for k in made if units(k)]
    image = images * channels * size * size
    assert max(copied(forward), copied(of_images)) < (taps * taps + 3) * image, of_images.opts
    assert copied(of_weights) < (taps + 1.2) * image, of_weights.opts


def copies(kernel: Kernel) -> int:
    return max(count_of(frozenset(r for r in f.src[0].ranges if r.arg[1] is Role.UPCAST)) for f in kernel.folds)


def test_groups_are_products_with_anything_behind_them() -> None:
    """A grouped convolution whose epilogue (bias, ReLU) indexes all channels by one range is still a contraction: its
    columns are the 16 output channels of a group."""
    def build() -> Build:
        x, w, b = Tensor.empty(8, 64, 28, 28), Tensor.empty(64, 16, 3, 3), Tensor.empty(64)
        return computed(x.conv2d(w, b, padding=1, groups=4).relu())
    (kernel,) = (k.kernel for k in kernels(CorpusProgram("groups", build), "avx512") if k.kernel is not None)
    found = structure(kernel.sink)
    assert isinstance(found, Contraction) and [r.vmax + 1 for r in found.n if r.arg[1] is Role.VECTOR] == [16]
    assert copies(kernel) >= 8


@pytest.mark.parametrize(("taps", "stride", "sums"), [(7, 1, 4), (5, 2, 4), (3, 1, 1), (3, 2, 1)])
def test_depthwise_sums_stand_side_by_side(taps: int, stride: int, sums: int) -> None:
    """Several sums are in flight, the steps of a sliding window are unrolled, and small windows completely; the
    gradient of the weights reads an image once for all taps."""
    made = kernels_of_gradients((8, 96, 28, 28), (96, 1, taps, taps), padding=taps // 2, stride=stride, groups=96)
    forward, of_weights = made[0], max(made, key=lambda k: count_of(frozenset(k.reduces)))
    assert copies(forward) >= sums
    assert forward.opts[-2].op is OptOps.UNROLL
    assert copies(of_weights) >= 4 and any(r.arg[1] is Role.VECTOR for f in of_weights.folds for r in f.src[0].ranges)


def test_bf16_transposed_convolutions_fill_the_unit() -> None:
    """Rows and columns of the unit are chosen by price: not the two phases of the stride, along which results are
    contiguous, but the channels."""
    def build() -> Build:
        x, w = (Tensor.empty(*s, dtype=dtypes.bfloat16) for s in ((16, 64, 16, 16), (64, 64, 4, 4)))
        return computed(x.conv_transpose2d(w, stride=2, padding=1))
    made = [k.kernel for k in kernels(CorpusProgram("transposed", build), "avx512_bf16") if k.kernel is not None]
    (product,) = [k for k in made if k.folds]
    needed = 16 * 64 * 64 * 17 * 17 * 4 * 4
    computed_products = max(count_of(n.src[0].ranges | n.src[1].ranges | n.ranges) for n in product.nodes
                            if n.op in (Ops.MMA, Ops.FOLD))
    assert computed_products < 1.5 * needed, product.opts


def depthwise_last(x: Tensor, w: Tensor, stride: int = 1) -> Tensor:
    """A depthwise convolution of [N, H, W, C], with the result in the same order."""
    return x.permute(0, 3, 1, 2).conv2d(w, groups=w.shape[0], padding=w.shape[2] // 2, stride=stride).permute(
        0, 2, 3, 1).contiguous()


@pytest.mark.parametrize(("taps", "stride"), [(3, 2), (5, 1), (4, 3)])
def test_windows_in_rows_of_any_length_share_their_elements(taps: int, stride: int) -> None:
    """Positions that fill up the last tile do not make the windows copy an element once for each tap."""
    def forward(positions: int) -> Kernel:
        shape = 2, 64, (positions - 1) * stride + taps
        return next(k for k in kernels_of_gradients(shape, (64, 64, taps), dtypes.bfloat16, stride=stride) if units(k))
    whole, partial = forward(64), forward(63)
    assert copied(partial) <= copied(whole)


@pytest.mark.parametrize(("channels", "size", "taps"), [(64, 28, 3), (40, 33, 5), (96, 14, 7), (17, 21, 3)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_depthwise_channels_last_is_read_in_place(channels: int, size: int, taps: int, dtype: DType) -> None:
    """Lanes run along the channels without a copy of the image; only the weights are copied, once. Positions in a row
    are computed together, so that an element is loaded less than once per product."""
    def build() -> Build:
        shapes = (2, size, size, channels), (channels, 1, taps, taps)
        return computed(depthwise_last(*(Tensor.empty(*s, dtype=dtype) for s in shapes)))
    made = [k.kernel for k in kernels(CorpusProgram("depthwise", build), "avx512_bf16")]
    assert len(made) == 1 and made[0] is not None
    (kernel,) = made
    assert kernel is not None and copied(kernel) < 1.5 * max(channels, 32) * taps**2
    assert copies(kernel) >= 7 and [range_size(r) for r in kernel.order if r.arg[1] is Role.UNROLL] == [taps]


@pytest.mark.parametrize(("shape", "taps", "stride"), [
    ((1, 1, 1, 16), 3, 1), ((2, 13, 7, 64), 3, 1), ((1, 9, 11, 17), 5, 2), ((2, 5, 23, 48), 7, 1),
    ((3, 6, 6, 3), 3, 2), ((0, 6, 6, 32), 3, 1)])
def test_depthwise_channels_last_is_that_of_integers(shape: tuple[int, ...], taps: int, stride: int) -> None:
    rng, pad = np.random.default_rng(taps), taps // 2
    x, w = (rng.integers(-4, 5, s).astype(np.float32) for s in (shape, (shape[3], 1, taps, taps)))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))), (
        taps, taps), (1, 2))[:, ::stride, ::stride]
    want = np.einsum("nhwcij,cij->nhwc", windows, w[:, 0])
    np.testing.assert_array_equal(depthwise_last(Tensor(x), Tensor(w), stride).numpy(), want)


@pytest.mark.parametrize("size", [9, 14, 28, 33])
def test_guarded_lanes_a_few_elements_apart_are_read_as_whole_vectors(size: int) -> None:
    """A padded window of stride 2 needs no gather; no element outside of the lanes' range is read."""
    x, w = Tensor.empty(2, 4, size, size, device="CPU"), Tensor.empty(4, 1, 3, 3, device="CPU")
    lines = with_opts(x.conv2d(w, padding=1, stride=2, groups=4), None).uops
    lanes = [u for u in lines if u.op is Ops.LOAD and u.dtype.count > 1]
    assert lanes and all(u.src[1].dtype.count == 1 for u in lanes)


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
@pytest.mark.parametrize(("groups", "cin", "cout", "taps", "stride"), [
    (2, 3, 4, 3, 1), (4, 1, 1, 5, 2), (3, 1, 2, 3, 2), (2, 1, 1, 7, 1)])
def test_grouped_convolutions_are_those_of_integers(device: str, groups: int, cin: int, cout: int, taps: int,
                                                    stride: int) -> None:
    rng, size, pad = np.random.default_rng(0), 7, taps // 2
    images, weights = (rng.integers(-2, 3, shape).astype(np.float32) for shape in (
        (2, groups * cin, size, size), (groups * cout, cin, taps, taps)))
    x, w = (Tensor(v, device=device, requires_grad=True) for v in (images, weights))
    y = x.conv2d(w, padding=pad, stride=stride, groups=groups)
    out = int(y.shape[-1])
    g = rng.integers(-2, 3, (2, groups * cout, out, out)).astype(np.float32)
    wide = np.pad(images, ((0, 0), (0, 0), (pad, pad), (pad, pad))).reshape(2, groups, cin, size + 2 * pad, -1)
    by_group, of_y = weights.reshape(groups, cout, cin, taps, taps), g.reshape(2, groups, cout, out, out)
    want, of_x, of_w = np.zeros_like(of_y), np.zeros_like(wide), np.zeros_like(by_group)
    for ky, kx in np.ndindex(taps, taps):
        at = (..., slice(ky, ky + stride * (out - 1) + 1, stride), slice(kx, kx + stride * (out - 1) + 1, stride))
        want += np.einsum("ngiyx,goi->ngoyx", wide[at], by_group[..., ky, kx])
        of_w[..., ky, kx] = np.einsum("ngoyx,ngiyx->goi", of_y, wide[at])
        of_x[at] += np.einsum("ngoyx,goi->ngiyx", of_y, by_group[..., ky, kx])
    got = [t.numpy() for t in (y * 2 + 1, *(y * Tensor(g, device=device)).sum().gradient(x, w))]
    np.testing.assert_array_equal(got[0], want.reshape(got[0].shape) * 2 + 1)
    np.testing.assert_array_equal(got[1], of_x[..., pad : pad + size, pad : pad + size].reshape(images.shape))
    np.testing.assert_array_equal(got[2], of_w.reshape(weights.shape))


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_bf16_gradients_are_those_of_real_numbers(device: str) -> None:
    """Small integers, which bfloat16 and all of their sums represent exactly."""
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
    """Return the guarded loads and selects of a kernel."""
    nodes = toposort(normalize(lower(sink)))
    return sum((n.op is Ops.LOAD and len(n.src) == 3) or n.op is Ops.WHERE for n in nodes)


@pytest.mark.parametrize("device", ["PYTHON", "CPU"])
def test_a_factor_is_asked_for_once_where_it_counts(device: str) -> None:
    """Of two padded factors one guard is enough, also through casts and products; a load that may be out of bounds
    keeps its own."""
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
