"""Tensors that a forward graph keeps for its backward graph: only our programs see them, so we choose their layouts.

AOTAutograd lists them behind a forward graph's results, and asks compilers to report the strides of what they store.
The backward graph is compiled for these.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._guards import TracingContext
from torch._subclasses import FakeTensor, FakeTensorMode

from tinsmith.torch.lowering import is_getitem, is_view

VIEW: Final = torch.ops.aten.view.default
RESHAPE: Final = torch.ops.aten.reshape.default


def saved_for_backward(module: Any) -> set[Any]:
    """Return the nodes of a forward graph that only its backward graph reads, if strides are asked for."""
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None or context.output_strides is None:
        return set()
    if any(isinstance(n.target, torch._ops.HigherOrderOperator) for n in module.graph.nodes):
        return set()  # their graphs are compiled for PyTorch's strides
    returned = _returned(module)
    count = context.fw_metadata.num_forward
    saved = {n for n in returned[count:] if isinstance(n, torch.fx.Node) and n.op == "call_function"}
    return saved.difference(returned[:count])


def report_strides(module: Any, strides: Mapping[Any, tuple[int, ...]]) -> None:
    """Tell AOTAutograd the strides of saved tensors that differ from those of the graph."""
    context = TracingContext.try_get()
    if strides and context is not None and context.output_strides is not None:
        context.output_strides.extend(strides.get(n) for n in _returned(module))


class Restrided(NamedTuple):
    """An input of a graph that is given with other strides than the graph's: its number, and both strides."""

    number: int
    given: tuple[int, ...]
    graph: tuple[int, ...]


def restrided(module: Any, inputs: Sequence[Any]) -> list[Restrided]:
    """Return the inputs of a graph that are given with other strides."""
    places = [n.meta.get("val") for n in module.graph.nodes if n.op == "placeholder"]
    return [Restrided(k, tuple(t.stride()), tuple(value.stride())) for k, (value, t) in enumerate(zip(places, inputs))
            if _is_restrided(value, t)]


def with_strides(t: Any, strides: Sequence[int]) -> Any:
    """Return a tensor with these strides; a copy if it has others, as what hooks of saved tensors return."""
    if t.stride() == strides:
        return t
    return torch.empty_strided(t.shape, strides, dtype=t.dtype, device=t.device).copy_(t)


def graph_values(module: Any, inputs: Sequence[Any]) -> dict[Any, Any]:
    """Return the values of a graph's nodes as fake tensors and numbers, for inputs of any strides.

    Results keep the strides that the graph has, but for views of other memory.
    """
    nodes = list(module.graph.nodes)
    values = {n: n.meta.get("val") for n in nodes}
    if not restrided(module, inputs):
        return values
    fresh = propagated(module, inputs)
    for n in nodes:
        if n.target is VIEW and not _shares_memory(fresh[n], fresh[n.args[0]]):
            n.target = RESHAPE
    module.recompile()
    returned = {n for n in _returned(module) if isinstance(n, torch.fx.Node) and n.op != "placeholder"}
    return {n: values[n] if n in returned and _base(n) in returned else fresh.get(n, values[n]) for n in nodes}


def _shares_memory(a: Any, b: Any) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _base(node: Any) -> Any:
    """Return the node below views."""
    inner = node.args[0] if is_getitem(node) else node
    return _base(inner.args[0]) if is_view(inner) else node


def propagated(module: Any, inputs: Sequence[Any]) -> dict[Any, Any]:
    """Return the values of all nodes as fake tensors and numbers for inputs of any strides: a view that these do not
    allow is a copy."""
    found = next((t.fake_mode for t in inputs if isinstance(t, FakeTensor)), None)
    with torch.utils._python_dispatch._disable_current_modes(), (
            found or FakeTensorMode(allow_non_fake_inputs=True, static_shapes=True)) as mode:
        fakes = [mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) and found is None else a
                 for a in inputs]
        interpreter = torch.fx.Interpreter(module)
        run_node, call, seen = interpreter.run_node, interpreter.call_function, dict[Any, Any]()

        def kept(n: Any) -> Any:
            seen[n] = found = run_node(n)
            return found

        interpreter.run_node = kept
        interpreter.call_function = lambda target, *args: call(RESHAPE if target is VIEW else target, *args)
        interpreter.run(*fakes)
        return seen


def _is_restrided(graph: Any, given: Any) -> bool:
    plain = isinstance(graph, torch.Tensor) and isinstance(given, torch.Tensor) and not (
        graph._has_symbolic_sizes_strides or given._has_symbolic_sizes_strides)
    return plain and any(size != 1 and a != b for size, a, b in zip(graph.shape, graph.stride(), given.stride()))


def _returned(module: Any) -> list[Any]:
    return list(next(n for n in module.graph.nodes if n.op == "output").args[0])
