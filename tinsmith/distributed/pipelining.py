"""Pipeline parallelism: each process runs a part of the layers on one microbatch after the other.

GPipe (Huang et al. 2019) runs all forward passes, then all backward passes. 1F1B (PipeDream-Flush, Narayanan et al.
2021) alternates them as soon as it can: as fast, but a stage keeps the activations of at most as many microbatches as
there are stages after it.

A step is one program in each process. Messages are its commands, each of which depends on the one before, so they run
in the order of ``passes``. A receive waits for a pass that comes earlier in the partial order of all passes (forward:
the stage before; backward: the stage after), which each process's order extends: there is always a process that can go
on, as long as a send does not wait. By MPI it does not. By NCCL, in the stream of a GPU, it waits until the receiver
takes the message; so a send to a process from which the next message comes is one call with that receive, as in
Megatron-LM (Narayanan et al. 2021). NCCL's messages need no tags: those between two
processes in one direction are all activations, or all gradients, and come in the order of the microbatches.

Collectives run when they are called. Where layers or the loss call them (tensor parallelism), each pass is a program,
or several, which run as they are made, in the same order.
"""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tinsmith.backend.device import Device
from tinsmith.core.dtypes import DType, dtypes
from tinsmith.core.errors import ArgumentError, DTypeError, ShapeError, shown, user_line
from tinsmith.distributed import watch
from tinsmith.distributed.transport import nccl
from tinsmith.distributed.transport.commands import NOT_IN, value
from tinsmith.distributed.world import Mesh, divided, note_stage, world
from tinsmith.nn.state import get_parameters, get_state_dict
from tinsmith.tensor.arguments import integer
from tinsmith.tensor.create import random
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.tensor import Tensor

SCHEDULES: Final = ("1f1b", "gpipe")
_FORWARD, _BACKWARD, _PLAN = 0, 1, 2  # tags of messages

Layer = Callable[[Tensor], Tensor]


class Pass(NamedTuple):
    """A pass of a microbatch through a stage."""

    backward: bool
    microbatch: int


def passes(schedule: str, stage: int, stages: int, microbatches: int) -> list[Pass]:
    """Return the passes of a stage in the order in which it runs them.

    >>> " ".join(f"{'FB'[p.backward]}{p.microbatch}" for p in passes("1f1b", 0, 2, 4))
    'F0 F1 B0 F2 B1 F3 B2 B3'
    >>> " ".join(f"{'FB'[p.backward]}{p.microbatch}" for p in passes("gpipe", 0, 2, 4))
    'F0 F1 F2 F3 B0 B1 B2 B3'
    """
    ahead = microbatches if schedule == "gpipe" else min(stages - stage, microbatches)
    found = [Pass(False, k) for k in range(ahead)]
    for k in range(microbatches):
        found.append(Pass(True, k))
        if ahead + k < microbatches:
            found.append(Pass(False, ahead + k))
    return found


def pipeline(layers: Sequence[Layer], mesh: Mesh, axis: str = "stage", *, loss: Callable[[Tensor, Any], Tensor],
             microbatches: int = 1, schedule: str = "1f1b", split: Sequence[int] | None = None,
             reduction: str = "mean", communicates: bool | None = None) -> Pipeline:
    """Divide layers, which are called one after the other, among the processes along an axis of a mesh.

    All processes make all layers alike; each keeps the parameters of its own, and gives them to its optimizer. Along
    the other axes of the mesh, gradients are reduced as usual: ``all_reduce_gradients(optimizer, axis="data")``.

    >>> from tinsmith import nn
    >>> from tinsmith.distributed.world import mesh
    >>> model = pipeline([nn.Linear(4, 8), Tensor.relu, nn.Linear(8, 2)], mesh(stage=1), microbatches=2,
    ...                  loss=Tensor.sparse_categorical_crossentropy)
    >>> optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)
    >>> loss = model.step(Tensor.ones(6, 4), Tensor([0, 1, 0, 1, 0, 1]))  # forward and backward
    >>> optimizer.step()
    >>> loss.shape, model(Tensor.ones(6, 4)).shape
    ((), (6, 2))

    Args:
        layers: functions of one tensor that return one; between two processes it must be of floats.
        loss: a function of the last layer's result and the targets that returns a scalar.
        microbatches: parts of a batch, along its first axis; of nearly equal size.
        schedule: "1f1b" or "gpipe".
        split: the number of layers of each process; as equal as possible unless given.
        reduction: "mean" if the loss is a mean over rows, "sum" if it is a sum.
        communicates: True if layers or the loss call collectives themselves. Unless given: if ``shard`` has divided
            parameters.

    Raises:
        ArgumentError: for an unknown axis or schedule, a split that does not fit, or a parameter of layers in several
            processes.
    """
    if schedule not in SCHEDULES:
        raise ArgumentError("dist.pipeline", f"schedule={schedule!r}", f"one of {', '.join(SCHEDULES)}")
    if reduction not in ("mean", "sum"):
        raise ArgumentError("dist.pipeline", f"reduction={reduction!r}", 'reduction="mean" or "sum"')
    group = mesh.group(axis)
    bounds = _bounds(len(layers), group.size, split)
    _check_ties(layers, bounds)
    return Pipeline(layers, mesh, axis, bounds, loss, integer("dist.pipeline", "microbatches", microbatches, least=1),
                    schedule, reduction, _communicates(layers) if communicates is None else communicates)


class _Value(NamedTuple):
    """Shape and dtype of a message."""

    shape: tuple[int, ...]
    dtype: DType


class _Plan:
    """Facts of a step for one set of shapes, that processes tell each other the first time.

    Attributes:
        inputs, outputs: of this stage, for each microbatch.
        results: of the last stage, for each microbatch.
        draws: layer → number of its first random draw in a step; random draws of one microbatch.
        total: random draws of a step.
    """

    def __init__(self) -> None:
        self.inputs: list[_Value] = []
        self.outputs: list[_Value] = []
        self.results: list[tuple[tuple[int, ...], str]] = []
        self.draws: dict[int, tuple[int, int]] = {}
        self.total = 0
        self.complete = False


class Pipeline:
    """Layers in stages; made by ``pipeline``.

    Attributes:
        layers: this process's layers, by number.
    """

    def __init__(self, layers: Sequence[Layer], mesh: Mesh, axis: str, bounds: Sequence[int],
                 loss: Callable[[Tensor, Any], Tensor], microbatches: int, schedule: str, reduction: str,
                 communicates: bool) -> None:
        self._group = mesh.group(axis)
        self._at_once = communicates and self._group.size > 1
        stage = self._group.rank
        self.layers = {n: layers[n] for n in range(bounds[stage], bounds[stage + 1])}
        self._loss, self._microbatches, self._schedule = loss, microbatches, schedule
        self._mean = reduction == "mean"
        self._plans: dict[Any, _Plan] = {}
        own = list(get_state_dict(self.layers).values())
        realize_tensors(own)
        self._gpu = nccl.gpu_of(self._group)  # the device of messages by NCCL
        self._device = next((t.device for t in own if isinstance(t.device, str)), Device.DEFAULT)
        _note_stages(self, layers, mesh, axis)

    @property
    def stage(self) -> int:
        """The number of this process along the axis."""
        return self._group.rank

    def __repr__(self) -> str:
        return f"<stage {self.stage + 1} of {self._group.size}: layers {', '.join(map(str, self.layers))}>"

    def step(self, x: Tensor | Sequence[Tensor], y: Any) -> Tensor:
        """Compute the loss of a batch and add its gradients to ``.grad`` of this process's parameters.

        All processes along the axis give the same batch; the first one reads ``x``, the last one ``y``.

        Args:
            x, y: batch and targets, which are cut into microbatches along the first axis, or lists of microbatches,
                whose shapes may differ.

        Returns:
            The loss, a float32 scalar, in all processes.

        Raises:
            ShapeError: if there are fewer rows than microbatches, or the loss is no scalar.
            DTypeError: if a stage's result is no tensor of floats.
        """
        xs, ys = _cut(x, self._microbatches, "x"), _cut(y, self._microbatches, "y")
        # no gradient of targets: computed later, it would send and receive the messages again
        ys = [t.detach() if isinstance(t, Tensor) else t for t in ys]
        if len(xs) != len(ys):
            raise ArgumentError("Pipeline.step", f"{len(xs)} microbatches of x, {len(ys)} of y", "as many of both")
        run = _Run(self, xs)
        rows = [float(t.shape[0]) for t in xs]
        weights = [r / sum(rows) if self._mean else 1.0 for r in rows]
        total: Tensor | None = None
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        for is_backward, k in passes(self._schedule, self.stage, self._group.size, len(xs)):
            if is_backward:
                run.backward(k, *kept.pop(k))
                continue
            own, out = run.forward(k, xs[k])
            if run.is_last:
                with run.building():
                    out = self._loss(out, ys[k]) * weights[k]
                if out.shape != ():
                    raise ShapeError("Pipeline.step", f"the loss has shape {out.shape}", "a scalar: .mean() or .sum()")
                part = out.detach().cast(dtypes.float32)
                total = part if total is None else total + part
                run.after.append(part)  # the forward pass is computed before the next message
            else:
                run.send(out, self.stage + 1, _FORWARD)
            kept[k] = own, out
        run.flush()
        found = run.shared(total)
        realize_tensors([found, *(t.grad for t in run.parameters if t.grad is not None), *run.state])
        return found

    @Tensor.no_grad()
    def __call__(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the result of all layers, in all processes, without gradients.

        Args:
            x: a batch, which is cut into microbatches if it has as many rows, or a list of microbatches.
        """
        xs = _cut(x, min(self._microbatches, x.shape[0]) if isinstance(x, Tensor) else 1, "x")
        run, found = _Run(self, xs), []
        for k, own in enumerate(xs):
            _, out = run.forward(k, own)
            if run.is_last:
                found.append(out)
            else:
                run.send(out, self.stage + 1, _FORWARD)
        run.flush()
        run.agree()
        like = found or [Tensor.zeros(*shape, dtype=dtype, device=self._device) for shape, dtype in run.plan.results]
        outputs = [run.broadcast(t) for t in like]
        realize_tensors([*outputs, *run.state])
        return outputs[0] if len(outputs) == 1 else outputs[0].cat(*outputs[1:]).realize()


class _Run:
    """A step under construction: the graph, and the last command, on which the next one depends."""

    def __init__(self, pipe: Pipeline, xs: Sequence[Tensor]) -> None:
        self.pipe, self.group = pipe, pipe._group
        self.is_last = self.group.rank == self.group.size - 1
        key = (Tensor.training, *((tuple(t.shape), t.dtype) for t in xs))
        self.plan = pipe._plans.setdefault(key, _Plan())
        self.count, self.base = len(xs), random.state()[1]
        self.seed = random.state()[0]
        self.state = list({id(t): t for t in get_state_dict(pipe.layers).values()}.values())
        self.parameters = [t for t in self.state if t.dtype.is_float and t.requires_grad is not False]
        self.token = Tensor.zeros(1, dtype=dtypes.float32, device=pipe._gpu or "CPU").contiguous()
        self.after: list[Tensor] = []
        self.unsent: tuple[Tensor, int] | None = None  # a message of NCCL and its receiver, for the next command
        self.told: list[Any] = []  # MPI's requests
        self.prefix = 0  # random draws of the layers before this stage

    # *** passes ***

    def forward(self, k: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input and the result of this stage for microbatch ``k``."""
        if self.group.rank:
            self.flush(self.group.rank - 1)  # ahead of the next microbatch's shape, for which the host waits
            x = self.received(self.expected(k), self.group.rank - 1, _FORWARD)
            x.requires_grad = True
        else:
            x = x.detach()
        out = x
        prefix = self.prefix
        for n, layer in self.pipe.layers.items():
            first, each = self.plan.draws.get(n, (prefix, -1))
            random.restore((self.seed, self.base + first + k * max(each, 0)))
            begin = random.state()[1]
            with self.building():
                out = layer(out)
            drawn = random.state()[1] - begin
            if each not in (-1, drawn):
                raise ArgumentError("dist.pipeline", f"layer {n} draws {drawn} random tensors for microbatch {k}, "
                                    f"{each} for others before", "layers that draw alike for all microbatches")
            self.plan.draws[n] = first, drawn
            prefix = first + self.count * drawn
            if not isinstance(out, Tensor):
                raise DTypeError("dist.pipeline", f"layer {n} returns {shown(out)}", "one tensor")
        self.tell(k, out, prefix)
        return x, out

    def backward(self, k: int, x: Tensor, out: Tensor) -> None:
        """Add the gradients of microbatch ``k``."""
        if self.is_last:
            out.backward()
        else:
            out.backward(self.received(_Value(tuple(out.shape), out.dtype), self.group.rank + 1, _BACKWARD))
        gradients = [t.grad for t in self.parameters if t.grad is not None]
        if self.pipe._at_once:  # in one program with that of the input
            self.after += gradients
        if self.group.rank:
            self.send(x.grad if x.grad is not None else x.zeros_like(), self.group.rank - 1, _BACKWARD)
        elif self.pipe._at_once:
            realize_tensors(gradients)
        # gradients are computed before the next message: else all microbatches' activations would be kept
        self.after += gradients

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Refuse collectives: they would run at once, and with them the messages before, which run again later."""
        before = list(NOT_IN)
        NOT_IN[:] = [] if self.pipe._at_once or self.group.size == 1 else ["a layer or the loss of a dist.pipeline"]
        try:
            yield
        finally:
            NOT_IN[:] = before

    # *** commands ***

    def command(self, kind: str, shape: tuple[int, ...], x: Tensor, *options: int | str) -> Tensor:
        """Return the result of a command that comes after all others."""
        gpu = self.pipe._gpu
        x = x.to(gpu) if gpu else x
        found = value(kind, self.group, shape, x, *options, after=[self.token, *self.after], by_host=gpu is None)
        if self.pipe._at_once:
            realize_tensors([found, *self.after])
        self.after, self.token = [], found
        return found

    def send(self, x: Tensor, target: int, tag: int) -> None:
        """Send a message, after the commands before; by NCCL with the next receive, or before the next command."""
        if self.pipe._at_once:
            self.after.append(x)  # which then has memory of its own
        if self.pipe._gpu is None:
            self.command("post", (1,), x.detach(), target, tag)
        else:
            self.flush()
            self.unsent = x.detach(), target

    def flush(self, unless: int = -1) -> None:
        """Send the message that waits for the next command, if its receiver is not ``unless``."""
        if self.unsent is not None and self.unsent[1] != unless:
            (x, target), self.unsent = self.unsent, None
            self.command("send", (1,), x, target, 0)

    def received(self, what: _Value, source: int, tag: int) -> Tensor:
        """Return a message, received after the commands before, on the device of this stage's layers."""
        self.flush(source)
        if self.unsent is not None:
            (x, _), self.unsent = self.unsent, None
            if x.dtype is not what.dtype:
                raise DTypeError("dist.pipeline", f"a stage gives {x.dtype!r} for one microbatch, {what.dtype!r} for "
                                 "another", "layers that return one dtype")
            found = self.command("exchange", what.shape, x, source, 0)
        else:
            like = Tensor.zeros(1, dtype=what.dtype, device=self.pipe._gpu or "CPU").contiguous()
            found = self.command("receive", what.shape, like, source, 0 if self.pipe._gpu else tag)
        return found.to(self.pipe._device)

    def shared(self, total: Tensor | None) -> Tensor:
        """Return the loss of the last stage in all processes. With it all messages of the step have arrived."""
        self.agree()
        device = self.pipe._device
        found = Tensor.zeros(1, dtype=dtypes.float32, device=device) if total is None else total.reshape(1)
        if self.group.size > 1:
            found = self.command("all_reduce", (1,), found, "sum")
        return found.reshape(()).detach()

    def broadcast(self, x: Tensor) -> Tensor:
        """Return a result of the last stage in all processes."""
        if self.group.size == 1:
            return x
        return self.command("broadcast", tuple(x.shape), x, self.group.size - 1)

    # *** what processes tell each other the first time ***

    def expected(self, k: int) -> _Value:
        """Return the shape and dtype of microbatch ``k`` as the stage before gives it."""
        if k == len(self.plan.inputs):
            shape, dtype, prefix = self._hear(self.group.rank - 1)
            self.plan.inputs.append(_Value(tuple(shape), getattr(dtypes, dtype)))
            self.prefix = prefix
        return self.plan.inputs[k]

    def tell(self, k: int, out: Tensor, prefix: int) -> None:
        """Tell the next stage the shape of a result; check later ones."""
        found = _Value(tuple(out.shape), out.dtype)
        if not self.is_last and not out.dtype.is_float:
            raise DTypeError("dist.pipeline", f"layer {max(self.pipe.layers)} returns {out.dtype!r} to the next stage",
                             "a split after a layer that returns floats")
        if k < len(self.plan.outputs):
            if self.plan.outputs[k] != found:
                raise ShapeError("dist.pipeline", f"microbatch {k} leaves the stage as {found}, before as "
                                 f"{self.plan.outputs[k]}", "shapes that depend only on shapes")
            return
        self.plan.outputs.append(found)
        if not self.is_last:
            with world().turn:
                message = (found.shape, found.dtype.name, prefix)  # pickled, but only once for each shape
                self.told.append(self.group.checks.isend(message, self.group.rank + 1, _PLAN))
        else:
            self.plan.results.append((found.shape, found.dtype.name))
            self.plan.total = prefix

    def _hear(self, source: int) -> Any:
        call = watch.Waiting("receive", self.group.name, self.group.ranks, (self.group.ranks[source],),
                             self.group.calls + 1, "pipeline", _PLAN, user_line(), time.monotonic())
        with world().turn, watch.waiting(call):
            return self.group.checks.recv(source=source, tag=_PLAN)

    def agree(self) -> None:
        """Let all stages know the results and the random draws of the last one; the stream goes on after them."""
        if not self.plan.complete and self.group.size > 1:
            call = watch.Waiting("receive", self.group.name, self.group.ranks, (self.group.ranks[-1],),
                                 self.group.calls + 1, "pipeline", _PLAN, user_line(), time.monotonic())
            with world().turn, watch.waiting(call):
                found = (self.plan.results, self.plan.total)
                self.plan.results, self.plan.total = self.group.checks.bcast(found, self.group.size - 1)
                world().mpi.Request.Waitall(self.told)
        self.plan.complete = True
        random.restore((self.seed, self.base + self.plan.total))


# *** layers and batches ***


def _communicates(layers: Sequence[Layer]) -> bool:
    """Return True if ``shard`` has divided parameters of layers."""
    return any(divided(t) for t in get_parameters(list(layers)))


def _note_stages(pipe: Pipeline, layers: Sequence[Layer], mesh: Mesh, axis: str) -> None:
    """Note which tensors are in this stage, and their numbers in an optimizer of all layers, for checkpoints."""
    if mesh.size(axis) == 1:
        return
    own = {id(t) for t in get_parameters(pipe.layers)}
    counts = {True: 0, False: 0}
    for t in get_parameters(list(layers)):
        trained = t.dtype.is_float and t.requires_grad is not False
        if id(t) in own:
            note_stage(t, mesh, axis, counts[trained])
        counts[trained] += 1


def _bounds(count: int, stages: int, split: Sequence[int] | None) -> list[int]:
    """Return the number of the first layer of each stage, and the number of layers.

    >>> _bounds(5, 2, None), _bounds(5, 2, [1, 4])
    ([0, 3, 5], [0, 1, 5])
    """
    if count < stages:
        raise ArgumentError("dist.pipeline", f"{count} layers for {stages} processes", "a layer for each process")
    sizes = [count // stages + (n < count % stages) for n in range(stages)] if split is None else list(split)
    if len(sizes) != stages or sum(sizes) != count or min(sizes) < 1:
        raise ArgumentError("dist.pipeline", f"split={sizes} of {count} layers among {stages} processes",
                            f"{stages} positive numbers whose sum is {count}")
    return [sum(sizes[:n]) for n in range(stages + 1)]


def _check_ties(layers: Sequence[Any], bounds: Sequence[int]) -> None:
    """Check that no tensor belongs to layers of two stages, of which each would train its own copy."""
    owners: dict[int, tuple[int, str]] = {}
    for stage, (begin, end) in enumerate(pairwise(bounds)):
        for n in range(begin, end):
            for name, t in get_state_dict({str(n): layers[n]}).items():
                other, first = owners.setdefault(id(t), (stage, name))
                if other != stage:
                    raise ArgumentError("dist.pipeline", f"{first} and {name} are one tensor, in stages {other} and "
                                        f"{stage}", "both layers in one stage, or a parameter for each")


def _cut(x: Any, count: int, name: str) -> list[Any]:
    """Return the microbatches of a batch.

    Raises:
        ShapeError: if it has fewer rows.
    """
    if isinstance(x, (list, tuple)):
        return list(x)
    if x.ndim == 0 or x.shape[0] < count:
        raise ShapeError("Pipeline.step", f"{name} of shape {x.shape} for {count} microbatches",
                         f"{count} or more rows")
    each, rest = divmod(x.shape[0], count)
    ends = [k * each + min(k, rest) for k in range(count + 1)]
    return [x[begin:end] for begin, end in pairwise(ends)]
