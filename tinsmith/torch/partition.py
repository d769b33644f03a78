"""The partition of an FX graph into parts that are programs and ops that PyTorch runs between them."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tinsmith.torch.dtypes import DTYPES
from tinsmith.torch.rules import rule_for

# ops whose results PyTorch makes as views of their first argument
VIEWS: Final = frozenset(f"aten.{name}" for name in (
    "view.default", "_unsafe_view.default", "_reshape_alias.default", "expand.default", "unsqueeze.default",
    "squeeze.default", "squeeze.dim", "squeeze.dims", "permute.default", "transpose.int", "t.default", "select.int",
    "slice.Tensor", "diagonal.default", "split.Tensor", "split_with_sizes.default", "unbind.int", "alias.default",
    "detach.default", "as_strided.default", "unfold.default"))


@dataclass
class GraphPart:
    """Consecutive nodes of one kind.

    Attributes:
        ours: the nodes become one program; else PyTorch runs each.
    """

    ours: bool
    nodes: list[Any] = field(default_factory=list)


def is_view(node: Any) -> bool:
    """Return True if the node's result is a view of its first argument's memory."""
    return node.op == "call_function" and str(node.target) in VIEWS


def is_getitem(node: Any) -> bool:
    """Return True if the node takes one result of an op with several."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in a result: of one tensor, or of a nested tuple or list."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (tuple, list)) else []


def reason_against(node: Any, values: Mapping[Any, Any], exact_random: bool = False) -> str | None:
    """Return the reason why PyTorch must run a node; None if there is a rule for it.

    Args:
        exact_random: PyTorch draws all random numbers.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "a higher-order op" if isinstance(target, torch._ops.HigherOrderOperator) else "no ATen op"
    rule = rule_for(target)
    if rule is not None and rule.random and exact_random:
        return "exact_random"
    if rule is None:
        return "no rule" if target.namespace in ("aten", "prims") else "a custom op"
    for t in [*tensors_in(values[node]), *(t for i in node.all_input_nodes for t in tensors_in(values[i]))]:
        if not is_plain(t):
            return f"a {type(t).__name__} of layout {t.layout}"
        if t.dtype not in DTYPES:
            return f"dtype {str(t.dtype).removeprefix('torch.')}"
        if t.device.type != "cpu":
            return f"a tensor on {t.device}"
    if not tensors_in(values[node]):
        return "no tensor as a result"
    return None


def is_plain(t: Any) -> bool:
    """Return True for a strided tensor of PyTorch's own class, or its fake."""
    plain = type(t) in (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor)
    return plain and t.layout is torch.strided


def partition(nodes: Sequence[Any], ours: Callable[[Any], bool]) -> list[GraphPart]:
    """Return the parts, in order, such that each needs only earlier ones: as few as the dependencies allow.

    Ops that PyTorch runs keep their order, since they may draw random numbers.

    Args:
        nodes: the nodes that compute, in topological order.
        ours: True for a node that has a rule.
    """
    level: dict[Any, int] = {}  # even: programs, odd: PyTorch
    latest = -1  # level of the latest op of PyTorch
    for n in nodes:
        mine = ours(n)
        at = max((level[i] for i in n.all_input_nodes if i in level), default=0 if mine else 1)
        if at % 2 == (1 if mine else 0):
            at += 1
        if is_getitem(n) and n.args[0] in level:
            at = level[n.args[0]]
        elif not mine:
            at = latest = max(at, latest)
        level[n] = at
    parts = [GraphPart(k % 2 == 0) for k in range(max(level.values(), default=-1) + 1)]
    for n in nodes:
        parts[level[n]].nodes.append(n)
    return [p for p in parts if p.nodes]
