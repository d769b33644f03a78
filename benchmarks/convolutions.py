"""``python -m benchmarks.convolutions``: convolutions and their gradients on a GPU, compared with cuDNN in one process.

Timed as in ``benchmarks.products``: CUDA graphs in turn. Channels-last rows have images [N, H, W, C] in memory on both
sides; cuDNN picks its algorithm by autotuning. Results are compared with those of float32.
"""
from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cuda import machine
from benchmarks.products import SPAN, in_turn, ours, rates, torch_graph
from tinsmith import Device, Tensor


@dataclass(frozen=True)
class Row:
    """A convolution with ``taps`` × ``taps`` windows, or its gradient for the images (``x``) or the weights (``w``)."""

    images: int
    size: int
    channels: int
    filters: int
    reach: float
    what: str = "y"
    stride: int = 1
    taps: int = 3
    last: bool = True  # channels last in memory

    @property
    def name(self) -> str:
        what = {"y": "", "x": " data gradient", "w": " weight gradient"}[self.what]
        return (f"{self.taps}×{self.taps}{f'/{self.stride}' * (self.stride > 1)} {self.images}×{self.channels}×"
                f"{self.size}²→{self.filters}{what}{'' if self.last else ' NCHW'}")

    @property
    def padding(self) -> int:
        return self.taps // 2

    @property
    def outputs(self) -> int:
        return (self.size + 2 * self.padding - self.taps) // self.stride + 1

    @property
    def operations(self) -> float:
        return 2.0 * self.images * self.outputs ** 2 * self.filters * self.channels * self.taps ** 2


ROWS = (
    *(Row(64, 56, 256, 256, 0.95, what) for what in "yxw"), Row(64, 56, 256, 256, 1.0, last=False),
    *(Row(64, 28, 256, 256, 0.95, what) for what in "yxw"), *(Row(256, 14, 256, 256, 0.95, what) for what in "yxw"),
    *(Row(256, 7, 512, 512, 0.95, what) for what in "yxw"), *(Row(256, 28, 256, 256, 0.95, what, 2) for what in "yxw"),
    Row(64, 56, 64, 256, 0.95, taps=1), Row(64, 56, 64, 64, 0.95), Row(64, 56, 64, 64, 0.95, "w"),
    Row(8, 55, 72, 136, 0.95), Row(64, 56, 256, 256, 1.0, "x", last=False), Row(64, 56, 256, 256, 1.0, "w", last=False),
)


def torch_call(row: Row, torch: Any, x: Any, w: Any, slope: Any) -> Callable[[], Any]:
    stride, padding = [row.stride] * 2, [row.padding] * 2
    if row.what == "y":
        return lambda: torch.nn.functional.conv2d(x, w, stride=stride, padding=padding)
    wanted = [row.what == "x", row.what == "w", False]
    return lambda: torch.ops.aten.convolution_backward(
        slope, x, w, None, stride, padding, [1, 1], False, [0, 0], 1, wanted)[row.what == "w"]


def our_call(row: Row, x: Any, w: Any, slope: Any) -> Callable[[], Tensor]:
    """Return the same call for Tinsmith, on tensors that share PyTorch's memory; results have the operands' layout."""
    def shared(t: Any) -> Tensor:
        whole = Tensor.from_dlpack(t.permute(0, 2, 3, 1) if row.last else t)
        return whole.permute(0, 3, 1, 2) if row.last else whole

    mine, filters, up = (shared(t) for t in (x, w, slope))

    def call() -> Tensor:
        a, b = (parameter(t) if row.what != "y" else t for t in (mine, filters))
        y = a.conv2d(b, padding=row.padding, stride=row.stride)
        if row.what != "y":
            (y,) = y.gradient(a if row.what == "x" else b, gradient=up)
        return y.permute(0, 2, 3, 1).contiguous() if row.last else y.contiguous()
    return call


def parameter(t: Tensor) -> Tensor:
    t = t.detach()
    t.requires_grad = True
    return t


def measure(row: Row, torch: Any, device: Any) -> str:
    """Return one line of the table."""
    count = 4
    form = torch.channels_last if row.last else torch.contiguous_format

    def made(*shape: int) -> Any:
        return torch.randn(shape, device="cuda").half().to(memory_format=form)

    images = [made(row.images, row.channels, row.size, row.size) for _ in range(count)]
    slopes = [made(row.images, row.filters, row.outputs, row.outputs) for _ in range(count)]
    w = made(row.filters, row.channels, row.taps, row.taps)
    mine, results, replay = ours([our_call(row, x, w, s) for x, s in zip(images, slopes)], device)
    eager, theirs = torch_graph(torch, [torch_call(row, torch, x, w, s) for x, s in zip(images, slopes)])
    systems = {"ours": mine, "cuDNN": eager}
    turns = max(1, min(20, int(SPAN / eager(1) / count)))
    mine(1)
    got = torch.from_dlpack(results[-1]).clone()
    want = torch_call(row, torch, images[-1].float(), w.float(), slopes[-1].float())()
    seconds = in_turn(systems, turns)
    device.synchronize()
    same = "" if bool((got == torch.from_dlpack(results[-1])).all()) else "  NOT THE SAME AGAIN"
    got = got.permute(0, 3, 1, 2) if row.last else got
    errors = [float((x.float() - want).norm() / want.norm()) for x in (got, theirs[-1])]
    del replay
    ratio = seconds["cuDNN"] / seconds["ours"]
    return (f"{row.name:44s} {rates(row.operations, seconds)}  {ratio:.3f} of {row.reach}  "
            f"errors {errors[0]:.1e} {errors[1]:.1e}{same}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolutions", description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="rows whose names begin so, with commas between")
    options = parser.parse_args(arguments)
    torch = importlib.import_module("torch")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    Device.DEFAULT = "CUDA"
    print(machine(), flush=True)
    for row in ROWS:
        if row.name.startswith(tuple(options.only.split(","))):
            try:
                print(measure(row, torch, Device["CUDA"]), flush=True)
            except Exception as error:
                print(f"{row.name}: {type(error).__name__}: {str(error)[:400]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
