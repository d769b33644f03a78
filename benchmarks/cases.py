"""The benchmark cases: each has a kind of work, its sizes, and the operations or bytes that its rate counts.

``peers.py`` holds, per system, one builder for each kind.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True)
class Case:
    """One row of the table. ``work`` is in floating-point operations or bytes, ``unit`` is the unit of the rate."""

    name: str
    kind: str
    sizes: dict[str, int | str]
    work: float = 0
    unit: str = ""
    loops: int = 1          # calls per sample, where one call is too short to time
    best: bool = False      # the best sample counts, not the median
    fresh: bool = False     # first call of a fresh process: with an empty disk cache, then with a filled one


def _matmul(m: int, k: int, n: int, batch: int = 1, dtype: str = "float32", best: bool = False) -> Case:
    what = {"float32": "", "bfloat16": "bf16 "}.get(dtype, f"{dtype} ") + "matmul"
    shape = f"{m}³" if m == k == n else f"{m}×{k}×{n}"
    name = f"{what} {f'{batch} of ' if batch > 1 else ''}{shape}"
    sizes: dict[str, int | str] = {"m": m, "k": k, "n": n, "batch": batch, "dtype": dtype}
    return Case(name, "matmul", sizes, 2.0 * batch * m * k * n, "GFLOP/s", best=best)


def _conv_step(n: int, cin: int, hw: int, cout: int, k: int, padding: int, groups: int = 1,
               stride: int = 1) -> tuple[Case, Case]:
    """Return a convolution forward, and forward with both gradients (three times the operations)."""
    out = (hw + 2 * padding - k) // stride + 1
    sizes: dict[str, int | str] = {
        "n": n, "cin": cin, "hw": hw, "cout": cout, "k": k, "padding": padding, "groups": groups, "stride": stride}
    what = "depthwise" if groups > 1 else "conv"
    apart = f"/{stride}" if stride > 1 else ""
    name, work = f"{what} {k}×{k}{apart} {n}×{cin}×{hw}×{hw}→{cout}", 2.0 * n * cout * out * out * cin // groups * k * k
    return (Case(name, "conv", sizes, work, "GFLOP/s"),
            Case(f"{name} + backward", "conv_step", sizes, 3 * work, "GFLOP/s"))


def _memory(name: str, kind: str, shape: tuple[int, int], passes: float) -> Case:
    """Return a memory-bound case: ``passes`` is the number of times ``shape`` in float32 is read or written."""
    return Case(name, kind, {"rows": shape[0], "cols": shape[1]}, 4 * prod(shape) * passes, "GB/s")


def _bf16(case: Case) -> Case:
    """Return the same case in bfloat16."""
    return replace(case, name=f"bf16 {case.name}", sizes={**case.sizes, "dtype": "bfloat16"})


def _moved(name: str, kind: str, outputs: int, **sizes: int | str) -> Case:
    """Return a case that only moves data: ``outputs`` float32 elements are written, and about as many read."""
    return Case(name, kind, sizes, 8.0 * outputs, "GB/s")


_SQUARE = (4096, 4096)  # 64 MB of float32

_GPT = Case("gpt step", "gpt", {"batch": 4, "length": 128, "width": 256, "heads": 4, "layers": 2, "vocab": 2048})

CASES = (
    _matmul(256, 256, 256), _matmul(512, 512, 512, best=True), _matmul(1024, 1024, 1024), _matmul(2048, 2048, 2048),
    _matmul(64, 1000, 333), _matmul(784, 100, 512), _matmul(256, 256, 256, batch=16),
    _memory("matvec 4096²", "matvec", _SQUARE, 1),
    *(_matmul(n, n, n, dtype="bfloat16") for n in (512, 1024, 2048)), _matmul(512, 512, 512, dtype="int8"),
    Case("bf16 matvec 4096²", "matvec", {"rows": 4096, "cols": 4096, "dtype": "bfloat16"}, 2.0 * prod(_SQUARE), "GB/s"),
    _bf16(_conv_step(16, 64, 56, 64, 3, 1)[0]), _bf16(_conv_step(16, 64, 56, 64, 1, 0)[0]),
    *_conv_step(16, 64, 56, 64, 3, 1), *_conv_step(512, 1, 28, 32, 5, 0), *_conv_step(16, 64, 56, 64, 1, 0),
    *_conv_step(16, 64, 56, 64, 3, 1, 64), *_conv_step(16, 64, 56, 128, 3, 1, stride=2),
    *_conv_step(16, 64, 56, 256, 1, 0, stride=2),
    Case("attention 1×8×512×64", "attention", {"b": 1, "h": 8, "s": 512, "d": 64}, 4.0 * 8 * 512 * 512 * 64, "GFLOP/s"),
    Case("attention forward+backward", "attention_step", {"b": 1, "h": 8, "s": 512, "d": 64}, 14.0 * 8 * 512 * 512 * 64,
         "GFLOP/s"),
    _memory("sum 64 MB", "sum", _SQUARE, 1),
    _memory("column sum 64 MB", "column_sum", _SQUARE, 1),
    _memory("add 64 MB", "add", _SQUARE, 3),
    _memory("transpose 64 MB", "transpose", _SQUARE, 2),
    _memory("softmax 4096²", "softmax", _SQUARE, 2),
    _memory("layernorm 4096²", "layernorm", _SQUARE, 2),
    _memory("gelu(x·2+y) 16M", "gelu", _SQUARE, 3),
    _moved("cat of 5 × 1000×777 along columns", "cat", 5 * 777_000, rows=1000, cols=777, parts=5),
    _moved("roll 4000×1003", "roll", 4_012_000, rows=4000, cols=1003),
    _moved("flip of columns 4000×1003", "flip", 4_012_000, rows=4000, cols=1003),
    _moved("repeat_interleave 1000² by 3", "interleave", 3_000_000, rows=1000, cols=1000, times=3),
    *(_moved(f"pad {mode} 16×64×56² by 2", "pad", 16 * 64 * 60**2, n=16, c=64, hw=56, by=2, mode=mode)
      for mode in ("constant", "reflect", "replicate", "circular")),
    Case("cumsum 1M", "cumsum", {"n": 1_000_000}, 8e6, "GB/s"),
    Case("sort 100k", "sort", {"n": 100_000}),
    Case("tiny add", "add", {"rows": 1, "cols": 4}, loops=100),
    Case("mnist step", "mnist", {"batch": 512}),
    _GPT, _bf16(_GPT),
    Case("mnist first step", "mnist", {"batch": 512}, fresh=True),
)
BY_NAME = {case.name: case for case in CASES}
