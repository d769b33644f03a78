"""Writes to inputs: what a graph copies to its arguments at its end, such as running statistics, parameters after an
optimizer's step, or a cache of keys and values.

    cache.index_copy_(2, at, keys)   →   new = index_copy(cache, 2, at, keys);  copy_(cache, new)

The program that computes the new value writes it to the argument's memory if nothing reads the old value afterwards,
and only the part that changes (``schedule.memory.slice_writes``). Otherwise it is copied at the end.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from tinsmith.torch.layouts import is_dense, tensors_in
from tinsmith.torch.lowering import GraphPart, is_getitem, is_view
from tinsmith.torch.sizes import FixedSizes, SizeValues, VariableSizes

COPY: Final = torch.ops.aten.copy_.default


class Mutation(NamedTuple):
    """A write to an argument: its placeholder, and the node with its new value."""

    target: Any
    source: Any


@dataclass
class CopyStep:
    """Copy the new value of an argument to its memory, by PyTorch."""

    target: int
    source: int

    def __call__(self, env: list[Any]) -> None:
        env[self.target].copy_(env[self.source])

    def at(self, values: SizeValues, known: dict[Any, Any]) -> CopyStep:
        return self


def mutations(nodes: Sequence[Any], values: Mapping[Any, Any]) -> dict[Any, Mutation]:
    """Return each node that copies a value to an argument of the graph at its end: no op reads its result."""
    found = dict[Any, Mutation]()
    for n in nodes:
        if n.op == "call_function" and n.target is COPY and all(u.op == "output" for u in n.users):
            target, source = n.args[:2]
            if target.op == "placeholder" and isinstance(source, torch.fx.Node) and tensors_in(values[source]):
                found[n] = Mutation(target, source)
    return found


def in_place(found: Mapping[Any, Mutation], parts: Sequence[GraphPart], values: Mapping[Any, Any],
             sizes: FixedSizes | VariableSizes) -> dict[int, list[Mutation]]:
    """Return number of a part → the writes that its program performs: those of values that it computes, to memory that
    nothing outside of it reads later. Results of the graph, and copies to other arguments at its end, read later."""
    home = {n: k for k, part in enumerate(parts) for n in part.nodes}
    out: dict[int, list[Mutation]] = {}
    for node, m in found.items():
        number = home.get(m.source)
        if number is None or not parts[number].ours or not _fits(m, parts[number], values, sizes):
            continue
        late = (u for u in _readers(m.target) if u is not node and (
            u.op == "output" or u.target is COPY or home.get(u, number) > number))
        if next(late, None) is None:
            out.setdefault(number, []).append(m)
    return out


def _fits(m: Mutation, part: GraphPart, values: Mapping[Any, Any], sizes: FixedSizes | VariableSizes) -> bool:
    """Return True if the new value is what the argument's memory holds: of its shape, dtype and device."""
    old, new, meta = values[m.target], values[m.source], sizes.meta(m.target)
    fixed = all(isinstance(n, int) for n in (*meta.shape, *meta.strides))
    return isinstance(new, torch.Tensor) and old.dtype == new.dtype and old.shape == new.shape and (
        old.device == part.device) and fixed and meta.size > 0 and is_dense(meta.shape, meta.strides)


def _readers(node: Any) -> Iterator[Any]:
    """Yield the nodes that read a node or a view of it."""
    for user in node.users:
        yield user
        if is_view(user) or is_getitem(user):
            yield from _readers(user)
