"""Golden output of every pass for small kernels: ``python -m tests.golden.passes`` rewrites ``passes/*.txt``.

A file holds one kernel: its tensor graph, then the output of each pass in order. After a change of a pass,
``git diff`` shows its effect.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.codegen.structures import Case, Inputs
from tests.codegen.test_matrix import product
from tests.golden.running import HERE
from tinsmith.backend.device import Device
from tinsmith.codegen.compile_kernel import _compile
from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.origin import observed
from tinsmith.ir import Ops, UOp
from tinsmith.ir.text.printer import kernel_graph_text, kernel_tree, uop_table
from tinsmith.ir.uop import Window

FOLDER = HERE / "passes"


class Passes:
    """An observer that records the result of each pass."""

    def __init__(self) -> None:
        self.seen: dict[Any, Any] = {}
        self.texts: list[str] = []
        self.last = ""

    def passed(self, name: str, value: Any) -> None:
        if not isinstance(value, KernelProgram):
            text = "\n".join(line.rstrip() for line in _text(value).split("\n"))
            self.texts += [f"== {name}", "(unchanged)" if text == self.last else text]
            self.last = text

    def rewritten(self, rule: Any, before: Any, after: Any) -> None:
        pass


def _text(value: Any) -> str:
    if isinstance(value, Kernel):
        return "\n".join([*map(str, value.opts), kernel_graph_text(value.sink)])
    if isinstance(value, UOp):
        lowered = any(s.op in (Ops.STORE, Ops.SCATTER_STORE, Ops.AFTER) for s in value.src)
        return kernel_graph_text(value) if lowered else kernel_tree(value)
    return uop_table(value)


def written(name: str) -> str:
    """Return the text of a kernel's passes."""
    device, make, opts = KERNELS[name]
    passes, before = Passes(), observed.observer
    sink, renderer = make()[1], Device[device].renderer
    observed.observer = passes
    try:
        _compile(sink, renderer, opts)
    finally:
        observed.observer = before
    return "\n".join([*passes.texts, ""])


def _of(make: Callable[[Inputs], UOp]) -> Callable[[], Case]:
    def case() -> Case:
        inputs = Inputs()
        return inputs.case("", make(inputs))

    return case


def _softmax(inputs: Inputs) -> UOp:
    x = inputs((2, 3))
    power = (x - x.reduce("MAX", (1,)).expand((2, 3))).alu("EXP")
    return power / power.reduce("ADD", (1,)).expand((2, 3))


def _windows(inputs: Inputs) -> UOp:
    """A window of three taps over a zero-padded row."""
    x = inputs((2, 8)).pad(((0, 0), (1, 1))).reshape((2, 10, 1)).expand((2, 10, 3)).window(Window(1, 2, 1, 1, 10, 8))
    return (x * inputs((1, 1, 3)).expand((2, 8, 3))).reduce("ADD", (2,))


def _product(m: int, n: int, k: int, dtype: DType = dtypes.float32) -> Callable[[], Case]:
    return lambda: ("", *product(m, n, k, dtype, dtypes.float32, "", False, 1))


def _picked(inputs: Inputs) -> UOp:
    """Return the element of each row that a label selects, as a masked sum over the row."""
    x, label = inputs((4, 3)), inputs((4, 1), dtypes.int32)
    hit = x.iota_like(1).cast(dtypes.int32).eq(label.expand(x.shape))
    return hit.where(x, x.const_like(0)).reduce("ADD", (1,))


def _centred(inputs: Inputs) -> UOp:
    x, y = inputs((2, 64)), inputs((2, 64))
    return x.reduce("ADD", (1,)).expand(x.shape) - y


def _scatter(inputs: Inputs) -> UOp:
    return inputs((4, 2)).scatter(inputs((3, 1), dtypes.int32).expand((3, 2)), inputs((3, 2)), 0, "ADD")


LOCAL, STAGE, TILE = OptOps.LOCAL, OptOps.STAGE, OptOps.TILE
KERNELS: dict[str, tuple[str, Callable[[], Case], Sequence[Opt] | None]] = {
    "product": ("PYTHON:V16", _product(2, 4, 3), None),
    "softmax": ("PYTHON:V16", _of(_softmax), None),
    "windows": ("PYTHON:V16", _of(_windows), None),
    "scatter": ("PYTHON:V16", _of(_scatter), None),
    "picked": ("PYTHON:V16", _of(_picked), None),
    "running": ("PYTHON:V16", _of(lambda inputs: inputs((2, 8)).scan("ADD", 1)), [Opt(OptOps.VECTOR, 1, 4)]),
    "staged_product": ("PYTHON:G64", _product(4, 4, 8), [
        Opt(LOCAL, 0, 4), Opt(LOCAL, 1, 4), Opt(TILE, 3, 2), Opt(STAGE, 0, (3,)), Opt(STAGE, 1, (1, 3))]),
    "shared_sum": ("PYTHON:G64", _of(_centred), [Opt(OptOps.GROUP, 2, 64), Opt(LOCAL, 1, 64)]),
    "matrix_unit": ("PYTHON:G64", _product(16, 8, 16, dtypes.float16), None),
}


if __name__ == "__main__":
    for name in KERNELS:
        (FOLDER / f"{name}.txt").write_text(written(name), "utf-8")
