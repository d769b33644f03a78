"""Convolutions whose windows come through a ring: forward and gradients, edges, removed synchronization, CUDA text."""
from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.running import buffers, computes_the_same, each_is_needed, expected, linearize_on, params, run_on
from tests.codegen.test_matrix import close
from tests.codegen.test_rings import CUDA, DEVICE
from tinsmith import Tensor
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import compile_kernel
from tinsmith.codegen.emit.linearize import linearize
from tinsmith.codegen.opt import OptOps
from tinsmith.codegen.planner.gpu.rings import patches
from tinsmith.core.dtypes import dtypes
from tinsmith.ir import Ops, UOp
from tinsmith.ir.structure import Role

Inputs = dict[UOp, np.ndarray]


def convolution(n: int, h: int, c: int, k: int, taps: int = 3, stride: int = 1, padding: int = 1, what: str = "y",
                w: int = 0) -> tuple[UOp, Inputs]:
    """Return the kernel of a channels-last convolution (``y``) or its gradient (``x`` or ``w``), and its inputs."""
    x, f = (Tensor.empty(*s, dtype=dtypes.float16, device=DEVICE, requires_grad=True).realize()
            for s in ((n, h, w or h, c), (k, taps, taps, c)))
    y = x.permute(0, 3, 1, 2).conv2d(f.permute(0, 3, 1, 2), stride=stride, padding=padding).permute(0, 2, 3, 1)
    if what != "y":
        slope = Tensor.empty(*y.shape, dtype=dtypes.float16, device=DEVICE).realize()
        (y,) = y.gradient(x if what == "x" else f, gradient=slope)
    steps = y.contiguous().schedule().steps
    assert len(steps) == 1, "nothing is copied"
    sink = steps[0].item.sink
    rng = np.random.default_rng(0)
    return sink, {p: rng.integers(-3, 4, p.arg[1]).astype(np.float16) for p in params(sink)}


def through_ring(sink: UOp) -> bool:
    return any(u.op is Ops.ASYNC_COPY for u in compile_kernel(sink, Device[DEVICE].renderer).uops)


@pytest.mark.parametrize("what", ["y", "x", "w"])
def test_windows_are_boxes(what: str) -> None:
    sink, inputs = convolution(2, 8, 64, 64, what=what)
    opts = compile_kernel(sink, Device[DEVICE].renderer).opts
    assert through_ring(sink) and {OptOps.MERGE, OptOps.STAGE} <= {o.op for o in opts}
    computes_the_same(DEVICE, sink, inputs, opts, close)


@pytest.mark.parametrize("size, channels, stride, padding", [
    ((6, 9), (64, 72), 1, 0), ((8, 7), (72, 40), 1, 1), ((11, 16), (96, 32), 2, 1), ((11, 9), (64, 40), 2, 0),
    ((9, 16), (64, 136), 2, 2)])
def test_edges(size: tuple[int, int], channels: tuple[int, int], stride: int, padding: int) -> None:
    """Positions outside the image are not stored; channels past the last and window elements outside the image are
    0."""
    sink, inputs = convolution(4, size[0], *channels, 3, stride, padding, w=size[1])
    assert through_ring(sink)
    close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


@pytest.mark.parametrize("shape, what", [
    ((1, 16, 64, 32, 5, 1, 2), "x"), ((4, 8, 64, 64, 1, 2, 0), "y"), ((2, 8, 64, 64, 1, 2, 0), "w"),
    ((2, 9, 64, 64, 3, 2, 0), "w"), ((1, 8, 128, 64, 3, 1, 1), "w"), ((3, 7, 64, 64, 3, 1, 2), "x"),
    ((4, 7, 64, 64, 3, 1, 1), "w"), ((2, 11, 64, 64, 3, 1, 1), "w"), ((2, 13, 64, 64, 2, 2, 1), "y"),
    ((3, 9, 64, 72, 2, 2, 1), "y"), ((4, 11, 72, 64, 3, 3, 1), "y")])
def test_gradients_strides_and_other_windows(shape: tuple[int, ...], what: str) -> None:
    sink, inputs = convolution(*shape, what=what)
    assert through_ring(sink)
    close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


@pytest.mark.parametrize("shape, what", [((4, 8, 12, 64), "y")])  # pixels do not begin at multiples of 16 bytes
def test_what_is_no_box_goes_another_way(shape: tuple[int, ...], what: str) -> None:
    sink, inputs = convolution(*shape, what=what)
    assert not through_ring(sink)
    close(run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0])


def test_padding_is_zero_whatever_lies_there() -> None:
    """Memory after an image or past its edges is not multiplied, even if it holds infinities."""
    sink, inputs = convolution(2, 9, 64, 64, stride=1, padding=1)
    image = next(values for p, values in inputs.items() if values.size == 2 * 9 * 9 * 64)
    image.reshape(2, 9, 9, 64)[:, 8, 8] = np.inf
    with np.errstate(invalid="ignore"):
        got, want = run_on(DEVICE, sink, inputs, None)[0], expected(sink, inputs)[0]
    assert np.isfinite(want).any() and np.array_equal(np.isfinite(got), np.isfinite(want))


def test_every_order_is_needed() -> None:
    sink, inputs = convolution(2, 8, 64, 64)
    program = linearize(linearize_on(DEVICE, sink, compile_kernel(sink, Device[DEVICE].renderer).opts))
    kinds = {Ops.WAIT, Ops.FENCE, Ops.COMMIT, Ops.ARRIVE, Ops.ASYNC_COPY}
    assert set(each_is_needed(program, buffers(sink, inputs), lambda u: u.op in kinds)) == kinds


def test_patches_leave_little_over() -> None:
    pixels = tuple(UOp.range(n, i, Role.GLOBAL) for i, n in enumerate((64, 56, 56)))
    channel = UOp.range(256, 3, Role.REDUCE)
    memory = UOp(Ops.PARAM, dtypes.float16.ptr(), (), (1, (64 * 56 * 56 * 256,)))
    image = memory.load(((pixels[0] * 56 + pixels[1]) * 56 + pixels[2]) * 256 + channel)

    def shape(ranges: tuple[UOp, ...], size: int, windows: bool = True, stored: int = 1) -> list[int]:
        return [n for _, n in patches(image, image, ranges, size, 64, windows, {pixels[-1]: stored})]

    assert shape(pixels, 64) == [4, 4, 4] and shape(pixels, 128) == [4, 4, 8]
    assert shape(pixels[1:], 64) == [8, 8]
    assert shape(pixels, 64, stored=8) == [2, 4, 8], "vectors of eight pixels are stored"
    assert shape(pixels[:1], 128) == [0], "a range of its own"
    assert shape(pixels, 64, windows=False) == [0], "no box leaves less over than one long range"
    steps = (channel, *pixels[:2])
    assert patches(image, image, steps, 0, 64, True, {}) == ((3, 64), (0, 1), (1, 1)), "channels outermost"
    assert patches(image, image, steps, 256, 64, True, {}) == ((0, 1), (1, 1), (3, 256)), "along memory"
    assert shape(pixels, 192) == [6, 4, 8], "what is no power of two is outermost"


# *** CUDA ***


@pytest.mark.parametrize("what", ["y", "w"])
def test_the_assembler_keeps_steps_under_way(what: str) -> None:
    """ptxas neither spills nor serializes the asynchronous steps (its notes C7510 to C7517)."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="compiling for CUDA needs cuda-bindings")
    from tinsmith.backend.cuda.driver import NVRTCCompiler
    from tinsmith.core.errors import DeviceError
    try:
        compiler = NVRTCCompiler("sm_90a")
    except DeviceError as error:
        pytest.skip(f"no NVRTC here: {error}")
    sink, _ = convolution(64, 56, 256, 256, what=what)
    program = compile_kernel(sink, CUDA)
    assert "copy_box4(" in program.source
    _, log = compiler._compiled(program.source)
    assert " 0 bytes spill stores" in log and "C75" not in log, log


def test_maps_of_windows() -> None:
    """Tensor maps have at most five dimensions; their boxes skip elements by the stride."""
    sink, _ = convolution(64, 28, 256, 256, stride=2)
    first, second = compile_kernel(sink, CUDA).maps
    image, steps = [256, 28, 28, 64], [1, 2, 2, 1]
    assert first[:5] == [1, 0, "float16", image, [1, 256, 7168, 200704]] and first[6] == steps
    assert [(n - 1) // step + 1 for n, step in zip(first[5], steps)] == [64, 2, 2, 32]
    assert second == [2, 0, "float16", [2304, 256], [1, 2304], [64, 256], [], 128]
