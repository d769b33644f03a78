"""The backend of ``torch.compile``: AOTAutograd's graphs, compiled for the sizes that come."""
from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

from tinsmith.core.errors import ArgumentError
from tinsmith.torch.executable import Executable, Options
from tinsmith.torch.lowering import is_getitem, tensors_in
from tinsmith.torch.report import REPORT, GraphRecord

# ops that have rules of their own, which are better than PyTorch's decompositions
_KEPT = ("_scaled_dot_product_flash_attention_for_cpu", "gelu_backward", "embedding_dense_backward",
         "native_batch_norm_backward", "native_layer_norm_backward", "native_group_norm_backward",
         "_softmax_backward_data", "_log_softmax_backward_data", "_safe_softmax", "upsample_nearest2d",
         "upsample_bilinear2d", "baddbmm", "index_add", "addcmul", "addcdiv", "silu", "rsub", "sigmoid_backward",
         "tanh_backward", "threshold_backward")


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return PyTorch's decompositions into core ATen, except those of ops that have a rule undecomposed."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    for op in list(table):
        namespace, name, *_ = str(op).split(".")
        if namespace == "aten" and name in _KEPT:
            del table[op]
    return table


class CompiledGraph:
    """A graph of AOTAutograd, with one ``Executable`` for each combination of its symbolic sizes.

    Args:
        kind: "forward", "backward" or "inference".
    """

    def __init__(self, module: Any, kind: str, options: Options) -> None:
        self.module, self.options = module, options
        self.record = GraphRecord(kind)
        REPORT.graphs.append(self.record)
        self.nodes = list(module.graph.nodes)
        self.values = {n: n.meta.get("val") for n in self.nodes}
        self.symbolic = [k for k, n in enumerate(n for n in self.nodes if n.op == "placeholder")
                         if _is_symbol(self.values[n])]
        self.dynamic = bool(self.symbolic) or any(map(_has_symbols, self.values.values()))
        self.executables: dict[tuple[Any, ...], Executable] = {}
        self.only: Executable | None = None
        self.refused = _refused(self.nodes, self.values)
        if self.refused:
            self.record.refused = self.refused
            self.record.ops = sum(n.op == "call_function" and not is_getitem(n) for n in self.nodes)
            warnings.warn(f"tinsmith: PyTorch runs a {kind} graph, because of {self.refused}", stacklevel=2)
        elif not self.dynamic:
            self.only = self._compile(self.values)

    def _compile(self, values: dict[Any, Any]) -> Executable:
        begin = time.perf_counter()
        with torch.utils._python_dispatch._disable_current_modes():
            found = Executable(self.module, values, self.record, self.options)
        self.record.compile_seconds += time.perf_counter() - begin
        self.record.sizes += 1
        return found

    def __call__(self, args: list[Any]) -> Any:
        self.record.calls += 1
        if self.only is not None:
            return self.only(args)
        if self.refused:
            given = list(args)
            args.clear()
            return self.module(*given)
        key = tuple(args[k] for k in self.symbolic)
        found = self.executables.get(key)
        if found is None:
            found = self.executables[key] = self._compile(_with_sizes(self.module, args))
        return found(args)


def _is_symbol(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _has_symbols(value: Any) -> bool:
    return _is_symbol(value) or any(t._has_symbolic_sizes_strides for t in tensors_in(value))


def _refused(nodes: Sequence[Any], values: Mapping[Any, Any]) -> str:
    """Return the reason why PyTorch must run the complete graph; "" if there is none."""
    unbacked = torch.fx.experimental.symbolic_shapes.free_unbacked_symbols
    if any(unbacked(v) for v in values.values() if _is_symbol(v) or tensors_in(v)):
        return "sizes that depend on data"
    for n in nodes:
        schema = getattr(n.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return f"{n.target}, which writes to its arguments"
    devices = {t.device.type for v in values.values() for t in tensors_in(v)}
    if not devices <= {"cpu"}:
        return f"tensors on {', '.join(sorted(devices - {'cpu'}))}: this backend runs on the CPU so far"
    return ""


class _Sizes(torch.fx.Interpreter):  # type: ignore[misc]
    """An interpreter that keeps the value of each node."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.seen: dict[Any, Any] = {}

    def run_node(self, n: Any) -> Any:
        self.seen[n] = found = super().run_node(n)
        return found


def _with_sizes(module: Any, args: Sequence[Any]) -> dict[Any, Any]:
    """Return the values of all nodes as fake tensors and numbers for the sizes of ``args``."""
    with torch.utils._python_dispatch._disable_current_modes(), FakeTensorMode(
            allow_non_fake_inputs=True, static_shapes=True) as mode:
        fakes = [mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a for a in args]
        interpreter = _Sizes(module)
        interpreter.run(*fakes)
        return interpreter.seen


def compiler(kind: str, options: Options) -> Callable[[Any, Sequence[Any]], Any]:
    """Return the function that compiles AOTAutograd's graphs of one kind."""
    return lambda module, inputs: make_boxed(CompiledGraph(module, kind, options))


def make_boxed(graph: CompiledGraph) -> Callable[[list[Any]], Any]:
    """Return the function that AOTAutograd calls with a list of arguments, which it empties."""
    def run(args: list[Any]) -> Any:
        return graph(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def backend(module: Any, inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **more: Any) -> Any:
    """Compile a graph of TorchDynamo: the backend "tinsmith" of ``torch.compile``.

    Args:
        options: the fields of ``Options``.

    Raises:
        ArgumentError: for an option that does not exist.
    """
    given = {k: v for k, v in {**(options or {}), **more}.items() if k != "mode"}
    known = [f.name for f in fields(Options)]
    for name in given:
        if name not in known:
            raise ArgumentError("torch.compile", f"the backend has no option {name!r}", " or ".join(known))
    chosen = Options(**given)
    return aot_autograd(fw_compiler=compiler("forward", chosen), bw_compiler=compiler("backward", chosen),
                        inference_compiler=compiler("inference", chosen), decompositions=decompositions(),
                        partition_fn=min_cut_rematerialization_partition)(module, inputs)
