"""Parameters sharded over a mesh, by name patterns.

A rule gives, for each axis of a parameter, the axis of the mesh along which it is sharded, or None:

- along an axis in ``gathered`` ("data"), each process keeps its shard (with its gradient and optimizer state), and the
  layer gathers the full parameter when it is called: ZeRO 3;
- along another axis ("model"), each process computes with its shard: ``nn.Linear`` by outputs (column parallel) or by
  inputs (row parallel), ``nn.Embedding`` by rows (vocabulary parallel), ``Experts`` by experts (expert parallel).

Over devices of one process a parameter is one sharded tensor (``Tensor.shard_``), and any layer can use it.
"""
from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.distributed.collectives import all_reduce, gathered_along, reduced, rows_along, scattered
from tinsmith.distributed.data_parallel import part_size
from tinsmith.distributed.experts import Experts
from tinsmith.distributed.sequence import Gathered, Scattered
from tinsmith.distributed.world import (
    Mesh,
    ProcessGroup,
    Rule,
    divided,
    group_of,
    is_simulated,
    note_placement,
    placement,
    stage_of,
)
from tinsmith.nn import Embedding, Linear
from tinsmith.nn.state import get_state_dict
from tinsmith.tensor.autograd.function import Function
from tinsmith.tensor.tensor import Tensor


def shard(model: Any, mesh: Mesh, rules: Mapping[str, Rule], gathered: Collection[str] = ("data",)) -> Any:
    """Shard the parameters of a model over a mesh, in place; return the model.

    All processes must have created the same full model. Each keeps its shards, and layers communicate when they are
    called. Optimizers, ``all_reduce_gradients(optimizer, axis="data")``, ``clip_grad_norm_`` and checkpoints support
    sharded parameters.

    >>> from tinsmith import nn
    >>> from tinsmith.distributed.world import mesh
    >>> layer = shard(nn.Linear(2, 4), mesh(model=2, devices=("CPU", "CPU:1")), {"weight": ("model",), "*": ()})
    >>> layer.weight.device, layer.weight.shard_axis
    (('CPU', 'CPU:1'), 0)

    Args:
        rules: name pattern (as ``fnmatch``) → axes; the first that fits counts, and a parameter without one is whole.
        gathered: axes of the mesh along which a parameter is whole when its layer computes.

    Raises:
        ArgumentError: for an unknown axis, a rule of more axes than the parameter has, or a layer that cannot compute
            with parts.
        ShapeError: if a size is no multiple of the axis of the mesh.
    """
    made: dict[int, Tensor] = {}
    owners = {name: owner for owner, path in _layers(model) for name in path.values()}
    for name, t in get_state_dict(model).items():
        rule = _rule(name, t, mesh, rules)
        if mesh.devices:
            along = next((d for d, a in enumerate(rule) if a is not None and mesh.size(a) > 1), None)
            t.shard_(mesh.devices, axis=along)
        elif any(rule):
            if name not in owners:
                raise ArgumentError("dist.shard", f"{name} is no attribute of a layer that is called", f'"{name}": ()')
            made[id(t)] = _local(name, t, mesh, rule)
    if made:
        for layer, path in list(_layers(model)):
            _replace(layer, path, made, gathered)
    return model


def sequence_parallel(model: Any, mesh: Mesh, layers: Collection[str] = ("*",), axis: str = "model", dim: int = 1
                      ) -> Any:
    """Let layers take and give parts of the sequence, in place, after ``shard``; returns the model.

    ``Linear`` layers that are divided by outputs gather their input, those divided by inputs scatter their result.
    All others, such as norms, compute with the parts, and the gradients of their parameters are added over ``axis``.
    The value before these layers is divided by ``split_sequence``, the one after them joined by ``gather_sequence``.

    >>> from tinsmith import nn
    >>> from tinsmith.distributed.world import mesh
    >>> block = sequence_parallel(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), mesh(model=1))
    >>> block(Tensor.ones(2, 6, 4)).shape
    (2, 6, 4)

    Args:
        layers: patterns of the names of layers, as "blocks.*".
        axis: of the mesh, along which the linear layers are divided.
        dim: the axis of the sequence in activations.

    Raises:
        ArgumentError: for an unknown axis, or if no layer has such a name.
    """
    if axis not in mesh.shape:
        raise ArgumentError("dist.sequence_parallel", f"no axis {axis!r} in {mesh}", f"one of {', '.join(mesh.shape)}")
    chosen = []
    for layer, path in _layers(model):
        attribute, full = next(iter(path.items()))
        if any(fnmatchcase(full[: -len(attribute) - 1], pattern) for pattern in layers):
            chosen.append((layer, path))
    if not chosen:
        raise ArgumentError("dist.sequence_parallel", f"no layer is called {' or '.join(layers)}", 'as "blocks.*"')
    if mesh.size(axis) == 1 or mesh.devices:
        return model
    for layer, path in chosen:
        if not hasattr(layer, "_parts"):
            kind: Any = type(layer)
            layer.__class__, layer._parts = _sharded(kind), Parts({}, ())
        layer._parts.sequence = (mesh.group(axis), dim)
        layer._parts.alike = [a for a in path if axis not in layer._parts.rules.get(a, ())]
    return model


def _rule(name: str, t: Tensor, mesh: Mesh, rules: Mapping[str, Rule]) -> Rule:
    found = next((rule for pattern, rule in rules.items() if fnmatchcase(name, pattern)), ())
    if len(found) > t.ndim:
        raise ArgumentError("dist.shard", f"{name} has shape {t.shape}, its rule is {found}",
                            "an axis or None for each one")
    for axis in found:
        if axis is not None and axis not in mesh.shape:
            raise ArgumentError("dist.shard", f"{name}: no axis {axis!r} in {mesh}", f"one of {', '.join(mesh.shape)}")
    used = tuple(axis if axis is not None and mesh.size(axis) > 1 else None for axis in found)
    return used if any(used) else ()


def _local(name: str, t: Tensor, mesh: Mesh, rule: Rule) -> Tensor:
    """Return a copy of this process's shard of a parameter."""
    if is_simulated():
        sizes = [s // mesh.size(a) if a else s for s, a in zip(t.shape, (*rule, *[None] * t.ndim))]
        return _placed(Tensor.empty(*sizes, dtype=t.dtype, device=t.device, requires_grad=t.requires_grad), mesh, rule)
    values = t.detach()._array()  # cut by the host: a program for each shape would be made to run once
    for dim, axis in enumerate(rule):
        if axis is not None:
            number, count = mesh.place[axis], mesh.size(axis)
            each = part_size(t.shape, dim, count, f"dist.shard of {name}")
            values = values[(slice(None),) * dim + (slice(number * each, (number + 1) * each),)]
    return _placed(Tensor(values.copy(), dtype=t.dtype, device=t.device, requires_grad=t.requires_grad), mesh, rule)


def _placed(t: Tensor, mesh: Mesh, rule: Rule) -> Tensor:
    note_placement(t.realize(), mesh, tuple(rule))
    return t


def _layers(model: Any, prefix: str = "", seen: set[int] | None = None) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield objects that are called and hold tensors, with {attribute: name of the tensor}."""
    seen = set() if seen is None else seen
    if id(model) in seen or isinstance(model, (Tensor, str, bytes, type)):
        return
    seen.add(id(model))
    items: Any = ()
    if isinstance(model, Mapping):
        items = model.items()
    elif isinstance(model, (list, tuple)):
        items = enumerate(model)
    elif hasattr(model, "__dict__"):
        items = list(vars(model).items())
        tensors = {k: f"{prefix}{k}" for k, v in items if isinstance(v, Tensor)}
        if tensors and callable(model):
            yield model, tensors
    for key, value in items:
        yield from _layers(value, f"{prefix}{key}.", seen)


def _replace(layer: Any, names: Mapping[str, str], made: Mapping[int, Tensor], gathered: Collection[str]) -> None:
    """Give a layer its parts, and a class that computes with them."""
    rules: dict[str, Rule] = {}
    for attribute in names:
        t = made.get(id(getattr(layer, attribute)))
        if t is not None:
            setattr(layer, attribute, t)
            rules[attribute] = _mesh_and_rule(t)[1]
    if not rules:
        return
    computed = {a: tuple(axis if axis not in gathered else None for axis in rule) for a, rule in rules.items()}
    rows = computed.get("weight", (None,))
    if any(any(rule) for rule in computed.values()) and not (
            isinstance(layer, Linear) or (isinstance(layer, Embedding) and not any(rows[1:])) or (
                isinstance(layer, Experts) and len(computed) == 2 and len({rule[:1] for rule in computed.values()}) == 1
                and not any(axis for rule in computed.values() for axis in rule[1:]))):
        raise ArgumentError("dist.shard", f"{type(layer).__name__} cannot compute with a part of {', '.join(rules)}",
                            "nn.Linear, rows of nn.Embedding, dist.Experts with whole experts, or an axis in "
                            f"gathered={tuple(gathered)}")
    if isinstance(layer, Linear) and (len([a for a in rows if a]) > 1 or (layer.bias is not None and (
            computed.get("bias", (None,))[:1] or (None,)) != ((*rows, None)[:1]))):
        raise ArgumentError("dist.shard", f"weight {rows} and bias {computed.get('bias', ())} of a Linear",
                            'weight ("model",) with bias ("model",), or weight (None, "model") with bias ()')
    kind: Any = type(layer)
    layer.__class__ = _sharded(kind)
    layer._parts = Parts(rules, tuple(gathered))


def _mesh_and_rule(t: Tensor) -> tuple[Mesh, Rule]:
    found = placement(t)
    if found is None:
        raise ArgumentError("dist.shard", f"a parameter of shape {t.shape} was replaced after dist.shard",
                            "dist.shard after the model is complete; assign() to write values")
    return found


class Parts:
    """The division of a layer's parameters: for each one, the axes of the mesh.

    Attributes:
        sequence: the processes that have parts of the sequence, and its axis; None if each has the whole.
        alike: parameters that all of them have, each for its part.
    """

    def __init__(self, rules: Mapping[str, Rule], gathered: tuple[str, ...]) -> None:
        self.rules, self.gathered = dict(rules), gathered
        self.sequence: tuple[ProcessGroup, int] | None = None
        self.alike: list[str] = []

    def whole(self, layer: Any, kind: type[Any]) -> Any:
        """Return a copy of the layer, of its original class, with its parameters gathered along ``gathered``."""
        found = copy.copy(layer)
        found.__class__ = kind
        for name, rule in self.rules.items():
            t = getattr(layer, name)
            mesh, _ = _mesh_and_rule(t)
            for dim, axis in enumerate(rule):
                if axis is not None and axis in self.gathered:
                    t = _Gathered.apply(t, dim, mesh.group(axis)).realize()
            setattr(found, name, t)
        for name in self.alike:
            t = getattr(found, name)
            if self.sequence is not None and t.dtype.is_float and t.requires_grad is not False:
                setattr(found, name, _Copied.apply(t, self.sequence[0]))
        return found

    def axis(self, layer: Any, dim: int, name: str = "weight") -> ProcessGroup | None:
        """Return the processes over which the weight is divided along ``dim`` as the layer computes; None for one."""
        rule = self.rules.get(name, ())
        axis = rule[dim] if dim < len(rule) else None
        if axis is None or axis in self.gathered:
            return None
        mesh, _ = _mesh_and_rule(getattr(layer, name))
        return mesh.group(axis)


@functools.cache
def _sharded(kind: Any) -> type[Any]:
    """Return the subclass of a layer's class that computes with parts."""
    call: Callable[..., Tensor] = (
        _linear if issubclass(kind, Linear) else _embedding if issubclass(kind, Embedding) else
        _experts if issubclass(kind, Experts) else _any)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call(self, self._parts.whole(self, kind), *args, **kwargs)

    return type(f"Sharded{kind.__name__}", (kind,), {"__call__": run, "__module__": kind.__module__})


def _any(layer: Any, whole: Any, *args: Any, **kwargs: Any) -> Any:
    return whole(*args, **kwargs)


def _linear(layer: Any, whole: Any, x: Tensor) -> Tensor:
    outputs, inputs = layer._parts.axis(layer, 0), layer._parts.axis(layer, 1)
    sequence = layer._parts.sequence
    if outputs is not None:
        copied = _Copied.apply(x, outputs) if sequence is None else Gathered.apply(
            x, sequence[1] % x.ndim, outputs).realize()
        found: Tensor = whole(copied)
        return found
    if inputs is None:
        here: Tensor = whole(x)
        return here
    if x.shape[-1] != whole.weight.shape[1]:
        raise ShapeError("Linear", f"x of shape {x.shape} for a weight of which this process has the columns "
                         f"{whole.weight.shape}", "the output of a layer that is divided by outputs")
    bias, whole.bias = whole.bias, None
    if sequence is None:
        total = _Summed.apply(whole(x), inputs).realize()
    else:
        part_size(x.shape, sequence[1] % x.ndim, inputs.size, "dist.sequence_parallel")
        total = Scattered.apply(whole(x), sequence[1] % x.ndim, inputs).realize()
    return total if bias is None else total + bias


def _embedding(layer: Any, whole: Any, idx: Tensor) -> Tensor:
    group = layer._parts.axis(layer, 0)
    if group is None:
        here: Tensor = whole(idx)
        return here
    count = whole.weight.shape[0]
    place = idx - group.rank * count
    inside = (place >= 0) & (place < count)
    found = whole(inside.where(place, 0)) * inside.unsqueeze(-1).cast(whole.weight.dtype)
    return _Summed.apply(found, group).realize()


def _experts(layer: Any, whole: Any, x: Tensor, gates: Tensor) -> Tensor:
    found: Tensor = whole.run(x, gates, layer._parts.axis(layer, 0, "up"))
    return found


def vocabulary_cross_entropy(logits: Tensor, targets: Tensor, axis: str | None = None) -> Tensor:
    """Return the mean cross entropy where each process has the logits of its part of the vocabulary.

    >>> round(vocabulary_cross_entropy(Tensor([[0.0, 0.0]]), Tensor([1])).item(), 4)
    0.6931

    Args:
        logits: ``[…, part of the vocabulary]``, from a ``Linear`` that is divided by outputs.
        targets: ``[…]``, numbers in the whole vocabulary.
        axis: the axis of the mesh along which the vocabulary is divided; all processes unless given.
    """
    group = group_of("dist.vocabulary_cross_entropy", axis)
    if group.size == 1:
        return logits.sparse_categorical_crossentropy(targets)
    wide = logits.cast(dtypes.float32)
    most = all_reduce(wide.detach().max(-1, keepdim=True), "max", axis).detach()
    sums = _Summed.apply((wide - most).exp().sum(-1), group).realize()
    count = logits.shape[-1]
    place = targets - group.rank * count
    inside = (place >= 0) & (place < count)
    own = wide.gather(-1, inside.where(place, 0).unsqueeze(-1)).squeeze(-1) * inside.cast(wide.dtype)
    return (sums.log() + most.squeeze(-1) - _Summed.apply(own, group).realize()).mean()


def clip_grad_norm_(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Clip the total 2-norm of all gradients, of which processes may have parts, to ``max_norm``; return the norm.

    >>> w = Tensor([3.0, 4.0]); _ = (w * w / 2).sum().backward()
    >>> clip_grad_norm_([w], 1.0).item()
    5.0
    """
    by_axes: dict[tuple[ProcessGroup, ...], list[Tensor]] = {}
    for p in {id(p): p for p in parameters if p.grad is not None}.values():
        by_axes.setdefault(divided(p), []).append(p)
    with Tensor.no_grad():
        total = Tensor(0.0)
        for groups, members in by_axes.items():
            total = total + functools.reduce(lambda x, group: reduced(x, "sum", group), groups, _squares(members))
        stages = {mesh.group(axis) for p in parameters if (found := stage_of(p)) for mesh, axis, _ in (found,)}
        for group in stages:  # of one pipeline
            total = reduced(total, "sum", group)
        norm = total.sqrt().realize()
        factor = (max_norm / (norm + 1e-6)).minimum(1.0)
        for members in by_axes.values():
            for p in members:
                if p.grad is not None:
                    p.grad = (p.grad * factor).cast(p.grad.dtype)
    return norm


def _squares(members: Sequence[Tensor]) -> Tensor:
    """Return the sum of the squares of all gradients."""
    return Tensor.stack(*(p.grad.cast(dtypes.float32).square().sum() for p in members if p.grad is not None)).sum()


class _Copied(Function):
    """A value that processes use for different parts of a result: its gradient is the sum of theirs."""

    def forward(self, x: Tensor, group: ProcessGroup) -> Tensor:
        self.group = group
        return x

    def backward(self, gradient: Tensor) -> Any:
        return reduced(gradient, "sum", self.group), None


class _Summed(Function):
    """The sum of the processes' parts of a result that all then use alike: each part has the result's gradient."""

    def forward(self, x: Tensor, group: ProcessGroup) -> Tensor:
        return reduced(x, "sum", group)

    def backward(self, gradient: Tensor) -> Any:
        return gradient, None


class _Gathered(Function):
    """A parameter of which each process has a part: each gets the mean of the gradients of its part."""

    def forward(self, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        self.dim, self.group = dim, group
        return gathered_along(x, dim, group)

    def backward(self, gradient: Tensor) -> Any:
        return scattered(rows_along(gradient, self.dim, self.group), "mean", self.group), None, None
