"""The backend of ``torch.compile``: AOTAutograd's graphs, compiled for the sizes that come."""
from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from tinsmith.core.errors import ArgumentError, is_from_handler
from tinsmith.core.settings import settings
from tinsmith.schedule.passes.dynamic_sizes import Refused
from tinsmith.torch.decompositions import decompositions
from tinsmith.torch.devices import reason_against_device
from tinsmith.torch.executable import Executable, Options
from tinsmith.torch.layouts import tensors_in
from tinsmith.torch.lowering import NoRule, is_getitem
from tinsmith.torch.mutation import mutations
from tinsmith.torch.report import REPORT, GraphRecord
from tinsmith.torch.saved import (
    Restrided,
    graph_values,
    propagated,
    report_strides,
    restrided,
    saved_for_backward,
    with_strides,
)
from tinsmith.torch.sizes import SizeSymbols, VariableSizes, is_symbol

MOST_RANGES: Final = 8  # programs with variable sizes of one graph
_MOST_SIZES: Final = 512  # sets of sizes that are ready to run


@dataclass
class SizeRange:
    """A graph compiled with variables for its sizes.

    Attributes:
        executable: its programs.
        holds: the guard: True for values of the symbols that they serve.
    """

    executable: Executable
    holds: Callable[[Sequence[int]], bool]


class CompiledGraph:
    """A graph of AOTAutograd, compiled once for its sizes, or with variables for its symbolic sizes.

    A graph that cannot have variables has one ``Executable`` for each combination of its sizes.

    Args:
        inputs: fake tensors and numbers of the strides that it will be called with.
        kind: "forward", "backward" or "inference".
    """

    def __init__(self, module: Any, inputs: Sequence[Any], kind: str, options: Options) -> None:
        self.module, self.options = module, options
        self.record = GraphRecord(kind)
        REPORT.graphs.append(self.record)
        self.nodes = list(module.graph.nodes)
        self.values, self.strides = graph_values(module, inputs), dict[int, tuple[int, ...]]()
        self.dynamic = any(map(_has_symbols, self.values.values()))
        self.symbols = SizeSymbols([n for n in self.nodes if n.op == "placeholder"], self.values)
        self.ranges: list[SizeRange] = []
        self.executables: dict[tuple[Any, ...], Executable] = {}  # for values of the symbols
        self.only: Executable | None = None
        self.refused = _refused(self.nodes, self.values, kind)
        if self.refused:
            self.record.refused = self.refused
            self.record.ops = sum(n.op == "call_function" and not is_getitem(n) for n in self.nodes)
            self.strides = {i.number: i.graph for i in restrided(module, inputs)}
            warnings.warn(f"tinsmith: PyTorch runs a {kind} graph, because of {self.refused}", stacklevel=2)
        elif not self.dynamic:
            free = saved_for_backward(module) if kind == "forward" else set()
            self.only = self._compile(self.values, free=free)
            report_strides(module, self.only.strides)
            self._keep_strides(restrided(module, inputs))

    def _keep_strides(self, inputs: Sequence[Restrided]) -> None:
        """Give the programs saved tensors with the strides that they were compiled for, whatever hooks return; where
        PyTorch runs an op, those of its graph, which its kernels may rely on."""
        assert self.only is not None
        self.strides = {i.number: i.given for i in inputs}
        if inputs and any(self.only.reasons.values()):
            self.strides = {i.number: i.graph for i in inputs}
            self.values = {n: n.meta.get("val") for n in self.nodes}
            self.record.sizes = 0
            self.only = self._compile(self.values)

    def _compile(self, values: dict[Any, Any], sizes: VariableSizes | None = None,
                 refused: Mapping[Any, str] | None = None, free: Collection[Any] = ()) -> Executable:
        begin = time.perf_counter()
        try:
            with torch.utils._python_dispatch._disable_current_modes(), (
                    contextlib.nullcontext() if sizes is None else sizes.traced()):
                found = Executable(self.module, values, self.record, self.options, sizes=sizes, refused=refused,
                                   free=free)
        finally:
            self.record.compile_seconds += time.perf_counter() - begin
        self.record.sizes += 1
        return found

    def _compile_for(self, args: Sequence[Any], key: tuple[int, ...]) -> Executable:
        """Return the executable of the sizes of ``args``, of which ``key`` has the values of the symbols."""
        found = next((r.executable.at(key) for r in self.ranges if r.holds(key)), None)
        if found is not None:
            return found
        values = propagated(self.module, args)
        if self.record.fixed or len(self.ranges) == MOST_RANGES:
            return self._compile(values)
        fixed: Executable | None = None
        refused: dict[Any, str] = {}
        while True:
            try:
                made = self._compile_range(values, key, refused)
                self.ranges.insert(0, made)
                self.record.ranges += 1
                return made.executable.at(key)
            except NoRule as error:
                fixed = fixed or self._compile(values)
                reason = fixed.reasons[error.node]
                if reason is None:  # there is a rule for fixed sizes
                    self.record.fixed = str(error)
                    return fixed
                refused[error.node] = reason
            except Refused as error:
                self.record.fixed = str(error)
                return fixed or self._compile(values)

    def _compile_range(self, values: dict[Any, Any], key: tuple[int, ...], refused: Mapping[Any, str]) -> SizeRange:
        """Compile the graph with variables for its sizes.

        Raises:
            NoRule: naming a node whose rule does not cover variable sizes.
            Refused: if there is no such program, with the reason.
        """
        pinned: frozenset[int] = frozenset()
        factor = 4
        while len(pinned) < len(key):
            try:
                sizes = VariableSizes(self.symbols, self.values, key, pinned, factor)
                executable = self._compile(values, sizes, refused)
            except NoRule:
                raise
            except Exception as error:  # an op or a planner that does not take symbolic sizes
                if is_from_handler(error) or settings.CHECK_IR:
                    raise
                if factor == 1:
                    raise Refused(f"{error}" if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
                                  ) from error
                factor = 1
                continue
            used = sizes.used_as_numbers()
            if not used:
                return SizeRange(executable, sizes.guard())
            pinned |= used
        raise Refused("each of its sizes is used as a number")

    def __call__(self, args: list[Any]) -> Any:
        self.record.calls += 1
        for k, strides in self.strides.items():
            args[k] = with_strides(args[k], strides)
        if self.only is not None:
            return self.only(args)
        if self.refused:
            given = list(args)
            args.clear()
            return self.module(*given)
        key = self.symbols.read(args)
        found = self.executables.get(key)
        if found is None:
            found = self._compile_for(args, key)
            while len(self.executables) >= _MOST_SIZES:
                self.executables.pop(next(iter(self.executables)), None)
            self.executables[key] = found
        return found(args)


def _has_symbols(value: Any) -> bool:
    return is_symbol(value) or any(t._has_symbolic_sizes_strides for t in tensors_in(value))


def _refused(nodes: Sequence[Any], values: Mapping[Any, Any], kind: str) -> str:
    """Return the reason why PyTorch must run the complete graph; "" if there is none."""
    written = set(mutations(nodes, values)) if kind != "backward" else set()
    unbacked = torch.fx.experimental.symbolic_shapes.free_unbacked_symbols
    if any(unbacked(v) for v in values.values() if is_symbol(v) or tensors_in(v)):
        return "sizes that depend on data"
    for n in nodes:
        schema = getattr(n.target, "_schema", None)
        if schema is not None and schema.is_mutable and n not in written:
            return f"{n.target}, which writes to its arguments"
    devices = {t.device for v in values.values() for t in tensors_in(v) if t.device.type != "meta"}
    return next(filter(None, map(reason_against_device, sorted(devices, key=str))), "")


def compiler(kind: str, options: Options) -> Callable[[Any, Sequence[Any]], Any]:
    """Return the function that compiles AOTAutograd's graphs of one kind."""
    return lambda module, inputs: make_boxed(CompiledGraph(module, inputs, kind, options))


def make_boxed(graph: CompiledGraph) -> Callable[[list[Any]], Any]:
    """Return the function that AOTAutograd calls with a list of arguments, which it empties."""
    def run(args: list[Any]) -> Any:
        return graph(args)

    vars(run)["_boxed_call"] = True
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
                        partition_fn=min_cut_rematerialization_partition,
                        keep_inference_input_mutations=True)(module, inputs)
