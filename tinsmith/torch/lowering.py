"""From a part of an FX graph to a program: rules applied node by node, results checked against PyTorch's shapes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tinsmith.core.dtypes import DType
from tinsmith.core.errors import TinsmithError
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor
from tinsmith.torch.dtypes import DTYPES
from tinsmith.torch.layout import Meta, meta_of, placeholder
from tinsmith.torch.partition import is_getitem
from tinsmith.torch.program import TorchProgram, result_of
from tinsmith.torch.rules import AtenRule, Unsupported, rule_for

_DROPPED = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "requires_grad")


class NoRule(Exception):
    """A rule does not cover the arguments of ``node``; ``reason`` says why."""

    def __init__(self, node: Any, reason: str) -> None:
        super().__init__(f"{node.target}: {reason}")
        self.node, self.reason = node, reason


def build(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], values: Mapping[Any, Any],
          device: str) -> TorchProgram:
    """Return the program of a part.

    Args:
        nodes: the part's nodes, in order.
        inputs: nodes whose tensors it reads, with the layouts in ``values``.
        outputs: nodes whose tensors it returns.
        values: node → fake tensor, nested tuple of them, or number.

    Raises:
        NoRule: naming the node that PyTorch must run.
    """
    stream = random.state()
    random.restore((0, 0))  # a program's draws are numbered from 0; its calls bring the seed
    try:
        return _built(nodes, inputs, outputs, values, device)
    finally:
        random.restore(stream)


def _built(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], values: Mapping[Any, Any],
           device: str) -> TorchProgram:
    env: dict[Any, Any] = {}
    buffers = []
    for n in inputs:
        meta = meta_of(values[n])
        if 0 in meta.shape:
            env[n] = Tensor.zeros(*meta.shape, dtype=meta.dtype, device=device)
            buffers.append(placeholder(Meta((1,), (1,), meta.dtype), device)[1])
        else:
            env[n], buffer = placeholder(meta, device)
            buffers.append(buffer)
    for n in nodes:
        env[n] = env[n.args[0]][n.args[1]] if is_getitem(n) else _applied(n, env, values, device)
    tensors, results = [], []
    for n in outputs:
        tensor, result = result_of(env[n], meta_of(values[n]), values[n].dtype)
        tensors.append(tensor)
        results.append(result)
    return TorchProgram(device, buffers, tensors, results)


def _applied(node: Any, env: Mapping[Any, Any], values: Mapping[Any, Any], device: str) -> Any:
    """Return the value of one node by its rule, in PyTorch's dtypes and shapes."""
    rule = rule_for(node.target)
    assert rule is not None
    meta = meta_of(values[node])
    find = lambda n: env[n] if n in env else values[n]  # noqa: E731
    args = torch.fx.node.map_arg(tuple(node.args), find)
    kwargs = {k: v for k, v in torch.fx.node.map_arg(dict(node.kwargs), find).items() if k not in _DROPPED}
    try:
        found = apply_rule(rule, args, kwargs, meta, device)
    except Unsupported as error:
        raise NoRule(node, str(error)) from error
    except TinsmithError as error:
        raise NoRule(node, f"the rule does not cover its arguments ({error})") from error
    return checked(node.target, found, meta)


def apply_rule(rule: AtenRule, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any, device: str) -> Any:
    """Call a rule with plain arguments, promoted as it asks for."""
    args, more = _plain(list(args)), _plain(dict(kwargs))
    if rule.promote:
        tensors = [a for a in (*args, *more.values()) if isinstance(a, Tensor)]
        dtype = meta.dtype if rule.promote == "result" else _common((*args, *more.values()))
        if dtype is not None and tensors:
            args = [a.cast(dtype) if isinstance(a, Tensor) and a.dtype is not dtype else a for a in args]
            more = {k: a.cast(dtype) if isinstance(a, Tensor) else a for k, a in more.items()}
    if rule.creates:
        more["device"] = device
    if rule.meta:
        more["meta"] = meta
    return rule.function(*args, **more)


def _common(args: Sequence[Any]) -> DType | None:
    """Return the dtype that PyTorch computes with on tensors and numbers of several dtypes."""
    ours = {ours: theirs for theirs, ours in DTYPES.items()}
    probes = [torch.empty((1,) * min(a.ndim, 1), dtype=ours[a.dtype]) if isinstance(a, Tensor) else a for a in args
              if isinstance(a, (Tensor, bool, int, float))]
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
