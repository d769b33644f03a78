"""From an FX graph to programs: its partition, and the lowering of each part.

A part is a program; PyTorch runs the ops between parts. A part is lowered by applying rules node by node, and each
result is checked against PyTorch's shapes.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tinsmith.backend.device import Device
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import TinsmithError
from tinsmith.schedule.passes.layout_propagation import orders_computed
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.devices import TorchDevice, reason_against_device, torch_device
from tinsmith.torch.layouts import DTYPES, Meta, is_dense, meta_of, ordered, placeholder, tensors_in
from tinsmith.torch.precision import may_round, rounding
from tinsmith.torch.program import NewVersion, TorchProgram, result_of
from tinsmith.torch.rules import AtenRule, Unsupported, rule_for
from tinsmith.torch.sizes import FixedSizes, VariableSizes

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
        device: PyTorch's device of the program.
    """

    ours: bool
    device: Any = None
    nodes: list[Any] = field(default_factory=list)


def is_view(node: Any) -> bool:
    """Return True if the node's result is a view of its first argument's memory."""
    return node.op == "call_function" and str(node.target) in VIEWS


def is_getitem(node: Any) -> bool:
    """Return True if the node takes one result of an op with several."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def device_of(node: Any, values: Mapping[Any, Any]) -> Any:
    """Return PyTorch's device of a node's tensors; None if they are on several, or there are none.

    Numbers of rank 0 on the CPU may be arguments of an op on another device. The random state of attention is on no
    device while a graph is traced ("meta").
    """
    made = {t.device for t in tensors_in(values[node]) if t.device.type != "meta"}
    read = {t.device for i in node.all_input_nodes for t in tensors_in(values[i])
            if t.device.type != "meta" and (t.ndim or t.device.type != "cpu")}
    found = made | read
    return next(iter(found)) if len(found) == 1 else None


def reason_against(node: Any, values: Mapping[Any, Any], exact_random: bool = False,
                   devices: Callable[[Any], TorchDevice] = torch_device) -> str | None:
    """Return the reason why PyTorch must run a node; None if there is a rule for it.

    Args:
        exact_random: PyTorch draws all random numbers.
        devices: from PyTorch's device to ours.
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
    if not tensors_in(values[node]):
        return "no tensor as a result"
    device = device_of(node, values)
    return "tensors on several devices" if device is None else reason_against_device(device, devices) or None


def is_plain(t: Any) -> bool:
    """Return True for a strided tensor of PyTorch's own class, or its fake."""
    plain = type(t) in (torch.Tensor, torch.nn.Parameter, torch._subclasses.FakeTensor)
    return plain and t.layout is torch.strided


def partition(nodes: Sequence[Any], ours: Callable[[Any], bool],
              device: Callable[[Any], Any] = lambda n: None) -> list[GraphPart]:
    """Return the parts, in order, such that each needs only earlier ones: as few as the dependencies allow.

    Ops that PyTorch runs keep their order, since they may draw random numbers. A program is on one device.

    Args:
        nodes: the nodes that compute, in topological order.
        ours: True for a node that has a rule.
        device: the device of a node that has a rule.
    """
    level: dict[Any, int] = {}  # even: programs, odd: PyTorch
    where: dict[Any, Any] = {}  # devices of nodes in programs
    latest = -1  # level of the latest op of PyTorch
    for n in nodes:
        mine = ours(n)
        where[n] = where[n.args[0]] if is_getitem(n) and n.args[0] in where else device(n) if mine else None
        at = max((level[i] + (mine and level[i] % 2 == 0 and where[i] != where[n])  # a part of another device
                  for i in n.all_input_nodes if i in level), default=0 if mine else 1)
        if at % 2 == (1 if mine else 0):
            at += 1
        if is_getitem(n) and n.args[0] in level:
            at = level[n.args[0]]
        elif not mine:
            at = latest = max(at, latest)
        level[n] = at
    parts: dict[tuple[int, Any], GraphPart] = {}
    for n in sorted(nodes, key=level.__getitem__):
        at = level[n]
        parts.setdefault((at, where[n]), GraphPart(at % 2 == 0, where[n])).nodes.append(n)
    return list(parts.values())

_DROPPED = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad")


class NoRule(Exception):
    """A rule does not cover the arguments of ``node``; ``reason`` says why."""

    def __init__(self, node: Any, reason: str) -> None:
        super().__init__(f"{node.target}: {reason}")
        self.node, self.reason = node, reason


def build(nodes: Sequence[Any], inputs: Mapping[Any, Meta], outputs: Sequence[Any], values: Mapping[Any, Any],
          sizes: FixedSizes | VariableSizes, device: TorchDevice, free: Collection[Any] = (),
          written: Sequence[tuple[Any, Any]] = ()) -> TorchProgram:
    """Return the program of a part.

    Args:
        nodes: the part's nodes, in order.
        inputs: nodes whose tensors it reads, with the layouts in which it gets them.
        outputs: nodes whose tensors it returns.
        values: node → fake tensor, nested tuple of them, or number, for the current sizes.
        sizes: the sizes of the nodes' results.
        device: the device that it runs on.
        free: outputs that may be stored in another order of axes than PyTorch's.
        written: (input, node) for each input to which the program writes a node's value.

    Raises:
        NoRule: naming the node that PyTorch must run.
    """
    stream = random.state()
    random.restore((0, 0))  # a program's draws are numbered from 0; its calls bring the seed
    try:
        with device.current():
            return _built(nodes, inputs, outputs, values, sizes, device, free, written)
    finally:
        random.restore(stream)


def _built(nodes: Sequence[Any], inputs: Mapping[Any, Meta], outputs: Sequence[Any], values: Mapping[Any, Any],
           sizes: FixedSizes | VariableSizes, device: TorchDevice, free: Collection[Any],
           written: Sequence[tuple[Any, Any]]) -> TorchProgram:
    env: dict[Any, Any] = {}
    buffers = []
    for n, meta in inputs.items():
        if 0 in meta.shape:
            env[n] = Tensor.zeros(*meta.shape, dtype=meta.dtype, device=device.name)
            buffers.append(placeholder(Meta((1,), (1,), meta.dtype), device.name)[1])
        else:
            env[n], buffer = placeholder(meta, device.name)
            buffers.append(buffer)
    for n in nodes:
        env[n] = env[n.args[0]][n.args[1]] if is_getitem(n) else _applied(n, env, values, sizes, device.name)
    tensors, results = [], []
    orders = orders_computed([env[n].uop for n in outputs], [n in free for n in outputs], Device[device.name].target)
    for n, order in zip(outputs, orders):
        meta = sizes.meta(n)
        tensor, result = result_of(env[n], meta if order is None else ordered(meta, order), values[n].dtype)
        tensors.append(tensor)
        results.append(result)
    places, versions = list(inputs), []
    for target, n in written:
        meta = sizes.meta(target)
        tensor, result = result_of(env[n], meta, values[target].dtype)
        tensors.append(tensor)
        results.append(result)
        versions.append(NewVersion(places.index(target), env[n].uop, meta))
    return TorchProgram(device, buffers, tensors, results, versions)


def _applied(node: Any, env: Mapping[Any, Any], values: Mapping[Any, Any], sizes: FixedSizes | VariableSizes,
             device: str) -> Any:
    """Return the value of one node by its rule, in PyTorch's dtypes and shapes."""
    rule = rule_for(node.target)
    assert rule is not None
    meta = sizes.meta(node)
    find = lambda n: env[n] if n in env else sizes.number(n, device)  # noqa: E731
    args = torch.fx.node.map_arg(tuple(node.args), find)
    kwargs = {k: v for k, v in torch.fx.node.map_arg(dict(node.kwargs), find).items() if k not in _DROPPED}
    if rule.layout:
        filled = strides_in_memory(values[node.args[0]]) is not None
        kwargs["layout"] = sizes.filled(node.args[0]) if filled else None
    try:
        found = apply_rule(rule, args, kwargs, meta, device)
        found = rounding(found, args) if may_round(node.target, args, device) else found
        return checked(node.target, found, meta)
    except Unsupported as error:
        raise NoRule(node, str(error)) from error
    except TinsmithError as error:
        raise NoRule(node, f"the rule does not cover its arguments ({error})") from error
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NoRule(node, f"the rule failed: {type(error).__name__}: {error}") from error  # PyTorch runs the op


def strides_in_memory(t: Any) -> tuple[int, ...] | None:
    """Return the strides of a tensor of PyTorch that fills its memory; None if it does not."""
    meta = meta_of(t)
    filled = is_dense(meta.shape, meta.strides) and not t.storage_offset()
    return meta.strides if filled and t.untyped_storage().nbytes() == t.numel() * t.element_size() else None


def apply_rule(rule: AtenRule, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any, device: str) -> Any:
    """Call a rule with plain arguments, promoted as the rule requires."""
    args, more = _plain(list(args)), _plain(dict(kwargs))
    if rule.promote:
        tensors = [a for a in (*args, *more.values()) if isinstance(a, Tensor)]
        dtype = meta.dtype if rule.promote == "result" else _common((*args, *more.values()))
        if dtype is not None and tensors:
            args = [a.cast(dtype) if isinstance(a, Tensor) and a.dtype is not dtype else a for a in args]
            if rule.promote == "result" and args and isinstance(args[0], (bool, int, float)):  # as in 7 // x
                args[0] = Tensor.full((), args[0], dtype=dtype, device=device)
            more = {k: a.cast(dtype) if isinstance(a, Tensor) else a for k, a in more.items()}
    if rule.creates:
        more["device"] = device
    if rule.meta:
        more["meta"] = meta
    return rule.function(*args, **more)


def _common(args: Sequence[Any]) -> DType | None:
    """Return the dtype that PyTorch computes with on tensors and numbers of several dtypes."""
    ours = {ours: theirs for theirs, ours in DTYPES.items()}
    probes = [torch.empty((1,) * min(a.ndim, 1), dtype=ours[a.dtype]) if isinstance(a, Tensor) else type(a)()
              if type(a) in (bool, int, float) else 0 for a in args if isinstance(a, (Tensor, bool, int, float))]
    return DTYPES[torch.result_type(*probes)] if len(probes) == 2 else None


def _plain(value: Any) -> Any:
    """Return arguments with PyTorch's dtypes replaced by ours."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return DTYPES.get(value, value) if isinstance(value, torch.dtype) else value


def checked(target: Any, found: Any, meta: Any) -> Any:
    """Return results cast to PyTorch's dtypes.

    Raises:
        AssertionError: if a shape is another than PyTorch's: the rule is wrong.
    """
    if isinstance(meta, tuple):
        assert len(found) >= len(meta), f"{target}: the rule has {len(found)} results, PyTorch {len(meta)}"
        return tuple(checked(target, f, m) for f, m in zip(found, meta))
    if meta is None or found is None:
        return found
    assert tuple(found.shape) == meta.shape, f"{target}: the rule gives {found.shape}, PyTorch {meta.shape}"
    return found if found.dtype is meta.dtype else found.cast(meta.dtype)
