"""Tensor methods for sizes, devices, realization and its prediction, gradients, and mixed precision."""
from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tinsmith import viz
from tinsmith.backend.device import Device, DeviceName, members
from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.core.errors import DTypeError, GradientError, ShapeError
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import normal_size
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.thread_turns import state, writing
from tinsmith.schedule.multi.sharding import place_of
from tinsmith.tensor import storage
from tinsmith.tensor.arguments import flag
from tinsmith.tensor.autograd.backward import dense, gradients, leaves_among, summed, where_they_are, with_slopes
from tinsmith.tensor.autograd.history import Unrolled, earlier, first_version, is_computed, note_earlier, passed_on
from tinsmith.tensor.base import TensorBase, check_tensors, device_name
from tinsmith.tensor.helpers import axis_and_size, axis_of, product
from tinsmith.tensor.host_data import TinygradRules
from tinsmith.tensor.interop import files
from tinsmith.tensor.modes import Mode
from tinsmith.tensor.placement import parts
from tinsmith.tensor.realize import (
    explain_tensors,
    numbers,
    plan_tensors,
    realize_tensors,
    schedule_tensors,
    unseen_version,
)
from tinsmith.tensor.sizes.traced import shown, traces

if TYPE_CHECKING:
    from tinsmith.inspect.explanation import Explanation, Plan
    from tinsmith.viz.drawing import Drawing
    from tinsmith.viz.showing import ServedPage

T = TypeVar("T", bound="Execution")


class Execution(TensorBase):
    """Methods for sizes, devices, realization, gradients and mixed precision."""

    __slots__ = ()

    # *** sizes ***

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one axis.

        >>> Tensor([[1, 2, 3]]).size(), Tensor([[1, 2, 3]]).size(1)
        ((1, 3), 3)
        """
        found = self.shape if dim is None else axis_and_size("size", self, dim)[1]
        return found if not traces.threads else shown(found, sys._getframe(1))

    def numel(self) -> int:
        """Number of elements.

        >>> Tensor([[1, 2]]).numel()
        2
        """
        count: int = normal_size(self.uop.size)
        if traces.threads:
            count = shown(count, sys._getframe(1))
        return count

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The shape with every size of a variable at its greatest.

        >>> from tinsmith import Variable
        >>> Tensor([1, 2, 3])[: Variable("n", 1, 3).bind(2)].max_shape
        (3,)
        """
        return tuple(int(s.bounds[1]) if isinstance(s, UOp) else s for s in self.shape)

    def max_numel(self) -> int:
        """Number of elements of ``max_shape``.

        >>> Tensor([[1, 2]]).max_numel()
        2
        """
        return int(product(self.max_shape))

    def nbytes(self) -> int:
        """Bytes of all elements.

        >>> Tensor([1.0, 2.0]).nbytes()
        8
        """
        return self.numel() * self.dtype.itemsize

    def element_size(self) -> int:
        """Bytes of one element.

        >>> Tensor([1.0]).element_size()
        4
        """
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Return True if the dtype is floating point.

        >>> Tensor([1.0]).is_floating_point()
        True
        """
        return self.dtype.is_float

    # *** devices ***

    def to(self, device: DeviceName | DType | Self | None = None, dtype: DType | str | bool | None = None,
           non_blocking: bool = False, copy: bool = False) -> Self:
        """Return the values on another device, or replicated on several devices; shards are gathered.

        >>> Tensor([1, 2]).to("CPU").device, Tensor([1]).to(dtypes.float32).dtype
        ('CPU', dtypes.float)

        Args:
            device: a device; as in PyTorch, also a dtype to cast to, or a tensor whose dtype and device to take.
            dtype: cast to it, too. Behind a dtype or a tensor, ``non_blocking`` and ``copy`` come next, as in PyTorch.
            non_blocking: of PyTorch's; copies never block here.
            copy: return a copy even if neither device nor dtype changes.
        """
        if isinstance(dtype, bool):
            return self.to(device, None, dtype, non_blocking or copy)
        if isinstance(device, TensorBase):
            return self.to(device._device, device.dtype, non_blocking, copy)
        if isinstance(device, DType):
            device, dtype = self._device, device
        elif device is None and dtype is not None:
            device = self._device
        moved = self._moved(device_name(device))
        if dtype is not None and to_dtype(dtype) is not self.dtype:
            return moved._new(moved.uop.cast(to_dtype(dtype)))
        return moved.clone() if copy and moved is self else moved

    def to_(self, device: DeviceName | None) -> Self:
        """Move this tensor to another device in place.

        >>> Tensor([1, 2]).to_("CPU").tolist()
        [1, 2]
        """
        return self._take_place(self._moved(device_name(device), alone=True))

    def _moved(self, target: str, alone: bool = False) -> Self:
        """Return the values on another device or group; for ``alone`` see ``_on_host``."""
        if target == self._device:
            return self
        if files.on_disk(target) or files.on_disk(self._device):
            return type(self)._wrap(files.moved(self, target), target)
        source = self._on_host(alone)
        moved = self.uop.copy_to(target) if source is None else source.base.copy_to(target).reshape(self.shape)
        out = type(self)._wrap(moved, target)
        out.requires_grad = self.requires_grad
        return out

    def _on_host(self, alone: bool = False) -> UOp | None:
        """Return the tensor's host data if it was not copied to a device yet, else None.

        Moving the tensor to another device then takes one copy instead of two.

        Args:
            alone: True if this tensor is moved. Otherwise it stays, and its gradient must flow back from the other
                device, so the result is None for tensors that need a gradient.
        """
        node = self.uop
        if files.on_disk(self._device):
            return files.on_host(self)
        if not alone and self.requires_grad is not False and self.dtype.is_float:
            return None
        if node.op is Ops.DETACH and node.arg is not None:
            node = node.src[0]
        while node.op is Ops.RESHAPE:
            node = node.src[0]
        host = node.src[0] if node.op is Ops.COPY else node
        if host is node or host.op is not Ops.BUFFER or host.arg.layout is not None:
            return None
        return None if Device[host.arg.device].has_programs else host.reshape(self.shape)

    def clone(self, device: DeviceName | None = None) -> Self:
        """Return a copy of the values in new memory, on ``device`` if given.

        >>> Tensor([1, 2]).clone().tolist()
        [1, 2]
        """
        there = self if device is None else self.to(device)
        return there._new(UOp(Ops.CONTIGUOUS, None, (there.uop,), next(numbers)))

    # *** shards ***

    def shard(self, devices: DeviceName | Sequence[str], axis: int | None = None) -> Self:
        """Return the values sharded over several devices along ``axis``, or replicated on each if ``axis`` is None.

        Every operation accepts sharded tensors and returns the same values as on one device. If the size is not
        divisible, the first shards are one element longer.

        >>> x = Tensor([1, 2, 3, 4]).shard(("CPU:0", "CPU:1"), axis=0)
        >>> x.device, x.shape, x.sum().item()
        (('CPU', 'CPU:1'), (4,), 10)

        Raises:
            DeviceError: for a device that does not exist, or is named twice.
            ShapeError: if the axis is shorter than there are devices, or symbolic.
        """
        return self._sharded(devices, axis)

    def shard_(self, devices: DeviceName | Sequence[str], axis: int | None = None) -> Self:
        """Spread this tensor over several devices in place.

        >>> a = Tensor([1., 2., 3., 4.]).shard_(("CPU:0", "CPU:1"), axis=0)
        >>> b = Tensor([5., 6., 7., 8.]).shard_(("CPU:0", "CPU:1"), axis=0)
        >>> a.dot(b).item()
        70.0
        """
        return self._take_place(self._sharded(devices, axis, alone=True))

    def _sharded(self, devices: DeviceName | Sequence[str], axis: int | None, alone: bool = False) -> Self:
        wanted: Any = tuple(devices) if isinstance(devices, list) else devices
        name = device_name(wanted)
        if axis is None or len(members(name)) == 1:
            return self._moved(name, alone)
        d = axis_of("shard", self, axis)
        host = self._on_host(alone)
        made = self._new(parts(self.uop if host is None else host, d, name, on_host=host is not None))
        made.requires_grad = self.requires_grad
        return made

    def shard_like(self, other: Self) -> Self:
        """Return the values placed like ``other``, of the same shape: on its device, or sharded in the same way.

        >>> x = Tensor.ones(4, 2).shard(("CPU:0", "CPU:1"), axis=1)
        >>> Tensor.zeros(4, 2).shard_like(x).shard_axis
        1

        Raises:
            ShapeError: if the shapes differ.
        """
        check_tensors("shard_like", [other])
        if len(members(other._device)) == 1 or other.shard_axis is None:
            return self.to(other._device)
        if self.shape != other.shape:
            raise ShapeError("shard_like", f"{self.shape} cannot lie like {other.shape}", "equal shapes")
        _, axis, bounds = place_of(other.uop)
        assert axis is not None
        if place_of(self.uop) == place_of(other.uop):
            return self
        made = self._new(parts(self.uop, axis, other._device, bounds))
        made.requires_grad = self.requires_grad
        return made

    @property
    def shard_axis(self) -> int | None:
        """The axis along which the values are sharded over several devices; None if they are not sharded.

        >>> x = Tensor.ones(4, 2).shard(("CPU:0", "CPU:1"), axis=1)
        >>> x.shard_axis, x.T.shard_axis, x.sum(1).shard_axis
        (1, 0, None)
        """
        return place_of(self.uop)[1]

    # *** realization ***

    def realize(self, *others: Self, memory_budget: float | str | None = None) -> Self:
        """Compute this tensor (and ``others``, in one program) now; returns self.

        Nothing but time and memory depends on when a value is computed: gradients flow through it all the same.

        >>> (Tensor([1, 2]) + 1).realize().tolist()
        [2, 3]

        Args:
            memory_budget: what the program may take on each device, such as ``"2GB"``; what does not fit is computed
                again instead of stored. docs/plan.md has the rules.

        Raises:
            OutOfMemoryError: if memory does not suffice, with the plan; of a budget, by how much.
        """
        realize_tensors([self, *others], memory_budget)
        return self

    def plan(self, *others: Self, memory_budget: float | str | None = None) -> Plan:
        """Predict time, traffic and memory of computing this tensor (and ``others``, in one program), with the values
        that take the most memory. Nothing is compiled, run or changed; docs/plan.md reads one aloud.

        >>> x = Tensor.ones(4, 8).contiguous().realize()
        >>> p = (x.exp().sum(0, keepdim=True) * x).plan()
        >>> p.kernels, p.memory["CPU"].inputs, p.memory["CPU"].results
        (1, 128, 128)

        Args:
            memory_budget: as for ``realize``.
        """
        check_tensors("plan", others)
        return plan_tensors([self, *others], memory_budget)

    def schedule(self, *others: Self) -> CompiledSchedule:
        """Return the program that computes this tensor (and ``others``), not run: a list of items that print one line
        each.

        >>> [(item.name, item.reason) for item in (Tensor([1, 2]) + 1).sum().schedule()]
        [('copy 8, CPU <- NPY', 'copy'), ('r_2', 'output')]
        """
        return schedule_tensors([self, *others])

    def explain(self, *others: Self, run: bool = True, why: str | None = None) -> Explanation:
        """Report kernels, opts, times and memory of computing this tensor (and ``others``, in one program).

        Nothing is changed: the program is compiled again and runs on separate memory, and a lazy tensor stays lazy.
        ``tinsmith.explain(loss, *gradients)`` does the same for a backward pass; docs/explain.md explains the output.

        >>> e = (Tensor([1.0, 2.0]) * 3).sum().explain()
        >>> len(e.kernels), e.kernels[0].reason, str(e).splitlines()[0].split(":")[0]
        (1, 'output', '1 kernel and 1 copy')
        >>> str(Tensor([1.0, 2.0]).realize().square().sum().explain(why="SUM")).splitlines()[0]
        'SUM is in kernel 1, r_2, because'

        Args:
            run: measure the time of each kernel; False compiles only.
            why: an op (``"SUM"``), a method of the program (``"softmax"``) or a kernel's name: the text says why its
                values share a kernel or are stored, and nothing is measured.

        Raises:
            UnknownNameError: if the program computes nothing of the name ``why``.
        """
        check_tensors("explain", others)
        return explain_tensors([self, *others], run, why)

    def graph(self, *others: Self) -> Drawing:
        """Return a picture of the graph of this tensor (and ``others``): data, stored and fused values, and views.

        A notebook displays it; ``svg()`` and ``dot()`` return its text. Nothing is computed. See docs/viz.md.

        >>> picture = Tensor([1, 2]).dot(Tensor([3, 4])).graph()
        >>> [box.lines[0] for box in picture.boxes]
        ['BUFFER buffer 0 on NPY', 'COPY CPU', 'BUFFER buffer 1 on NPY', 'COPY CPU', 'MUL', 'REDUCE (ADD, (0,))']
        """
        check_tensors("graph", others)
        return viz.showing.graph(lambda: schedule_tensors([self, *others]), [t.uop for t in (self, *others)])

    def viz(self, *others: Self, run: bool = True) -> ServedPage:
        """Return a page in this machine's browser: how this tensor (and ``others``) would be computed, from the graph
        to machine code. Nothing is changed, as with ``explain``; docs/viz.md describes the page.

        >>> with Tensor([1, 2]).dot(Tensor([3, 4])).viz(run=False) as view:  # doctest: +ELLIPSIS
        ...     "<!doctype html>" in view.html
        viz: http://127.0.0.1:...
        True

        Args:
            run: measure the time of each kernel; False compiles only.
        """
        check_tensors("viz", others)
        return viz.showing.view(lambda: schedule_tensors([self, *others]), run)

    # *** gradients ***

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set ``requires_grad``; returns self.

        >>> Tensor([1.0]).requires_grad_().requires_grad
        True
        """
        self.requires_grad = bool(requires_grad)
        return self

    def retain_grad(self) -> None:
        """Make ``backward`` fill ``.grad`` of this computed tensor, too; same as ``requires_grad_()``.

        >>> x = Tensor([2.0]); y = x * x; y.retain_grad(); _ = (y * 3).sum().backward(); y.grad.tolist()
        [3.0]
        """
        self.requires_grad = True

    def contiguous_backward(self) -> Self:
        """Return this tensor; in the backward pass, its gradient is made contiguous.

        >>> x = Tensor([1.0, 2.0]); (x.contiguous_backward() * 3).sum().gradient(x)[0].tolist()
        [3.0, 3.0]
        """
        return with_slopes(self, dense, self)

    def gradient(self, *targets: Self, gradient: Self | None = None) -> list[Self]:
        """Return the derivatives of this tensor with respect to ``targets``; they can be differentiated again.

        Args:
            gradient: derivative of the final value with respect to this tensor; 1 for a scalar.

        >>> x = Tensor([1.0, 2.0]); [g.tolist() for g in (x * x).sum().gradient(x)]
        [[2.0, 4.0]]

        Raises:
            GradientError: if this is no scalar and no gradient is given, or a target does not influence it.
        """
        check_tensors("gradient", targets if gradient is None else [*targets, gradient])
        choices = [[t.uop, *earlier(t)] for t in targets]
        unrolled = Unrolled([self.uop, *itertools.chain(*choices)])
        unrolled.check(targets)
        output, nodes, order = unrolled.nodes[0], iter(unrolled.nodes[1:]), unrolled.order
        inside: set[UOp] = set()
        wanted = []
        for among in choices:
            versions = list(dict.fromkeys(map(first_version, itertools.islice(nodes, len(among)))))
            if len(versions) > 1:
                inside = inside or set(order)
                versions = [n for n in versions if n in inside] or versions[:1]
            wanted.append(versions)
        seed = None if gradient is None else gradient.uop
        found = iter(unrolled.rolled(gradients(output, list(itertools.chain(*wanted)), seed, order=order)))
        sums = [summed(found, len(versions)) for versions in wanted]
        return [t._new(g) for t, g in zip(targets, where_they_are(targets, sums))]

    def backward(self, gradient: Self | None = None, create_graph: bool = False,
                 retain_graph: bool | None = None) -> Self:
        """Fill ``.grad`` of every float tensor that this one was computed from and that was not made by an operation.

        Tensors made with ``requires_grad=False`` are skipped; computed tensors with ``requires_grad=True`` are
        included. Gradients accumulate over calls, in the memory of ``.grad``.

        >>> x = Tensor([1.0, 2.0]); _ = (x * x).sum().backward(); x.grad.tolist()
        [2.0, 4.0]

        Args:
            gradient: derivative of the final value with respect to this tensor; 1 for a scalar.
            create_graph: let gradients be differentiated again, as those of ``gradient()`` are.
            retain_graph: accepted for users of PyTorch; the graph always stays.

        Raises:
            GradientError: if this is no scalar and no gradient is given, or if it was not computed: it is data, or the
                result of a function that ``TinyJit`` captures.
        """
        check_tensors("backward", () if gradient is None else [gradient])
        if self.uop.op is Ops.DETACH and self.uop.arg is None:
            raise GradientError("backward", "the tensor was detached, or computed in no_grad(): no gradient flows",
                                "the tensor that it was made of")
        unrolled = Unrolled([self.uop])
        order = unrolled.order
        unrolled.check(t for t in TensorBase.live if t.requires_grad is not False)
        wanted = self._wanted(order, unrolled)
        found = gradients(unrolled.nodes[0], [node for nodes in wanted.values() for node in nodes],
                          None if gradient is None else gradient.uop, missing_ok=True, order=order)
        if not wanted and not self.requires_grad and not is_computed(unrolled.nodes[0]):
            raise GradientError("backward", "the tensor is data, or the result of a function that TinyJit captures, "
                                "which has no history", "backward() inside the function that TinyJit captures")
        rest = iter(unrolled.rolled(found))
        sums = [summed(rest, len(nodes)) for nodes in wanted.values()]
        with state:  # gradients of other threads add up with these
            for t, g in zip(wanted, where_they_are(list(wanted), sums)):
                new = t._new(g)
                t.note_gradient()
                if t.grad is None or create_graph:
                    total = new if t.grad is None else t.grad + new
                    t.grad = total if create_graph else total._new(UOp(Ops.DETACH, None, (total.uop,)))
                else:
                    t.grad._accumulate(new)
        TensorBase._losses[:] = [r for r in TensorBase._losses if r() is not None]
        TensorBase._losses.append(weakref.ref(self))
        return self

    def _accumulate(self, new: Self) -> None:
        """Add ``new`` to this gradient in place, so that every tensor that shares its memory sees the sum."""
        with writing(self):
            old, sharing = self.uop, storage.sharing(self)
            total = (self + new).uop
            if total.dtype is not self.dtype or total.shape != self.shape:
                raise GradientError("backward", f".grad has shape {self.shape} and {self.dtype!r}, the new gradient "
                                    f"{new.shape} and {new.dtype!r}", "another .grad, or None")
            storage.write(self, total, unseen_version)
            note_earlier(self, old)
            self._note_write(sharing)

    def _wanted(self, order: Sequence[UOp], unrolled: Unrolled) -> dict[Self, list[UOp]]:
        """Return the tensors whose ``.grad`` a backward pass fills, with their nodes in ``order``: the present node and
        those before unrecorded writes."""
        inside = {order[-1]}
        for n in reversed(order):  # what a gradient flows to, be it zero
            if n in inside:
                inside.update(passed_on(n))
        found: dict[Self, list[UOp]] = {}
        computed: dict[Self, list[UOp]] = {}
        for t in TensorBase.live:
            if t.requires_grad is not False and t.dtype.is_float and t is not self:
                nodes = [n for u in (t.uop, *earlier(t)) if (n := unrolled.node(u)) in inside]
                if nodes:
                    leaf = t.requires_grad or not is_computed(t.uop)
                    (found if leaf else computed)[t] = list(dict.fromkeys(nodes))
        return found | leaves_among(computed, found, order) if TinygradRules.on else found

    def note_gradient(self) -> None:
        """Record that this tensor is about to get a gradient; without ``requires_grad``, ``forget_gradients`` drops it.

        >>> x = Tensor([1.0]); x.note_gradient(); x.grad = Tensor([2.0]); Tensor.forget_gradients(); x.grad is None
        True
        """
        for graded in TensorBase._graders:
            graded.add(self)
        if self.requires_grad is None:
            TensorBase._unasked[self] = None

    def gradient_unasked(self) -> bool:
        """Return True if ``requires_grad`` is None and the tensor has a gradient that ``forget_gradients`` will drop.

        >>> x = Tensor([1.0]); _ = (x * x).sum().backward(); x.gradient_unasked()
        True
        """
        return self.requires_grad is None and self in TensorBase._unasked

    @staticmethod
    def no_grad() -> Mode:
        """Return a context manager (and decorator) in which results and writes are not recorded for gradients.

        >>> w = Tensor([1.0, 2.0])
        >>> with Tensor.no_grad():
        ...     y = w * 3
        >>> ((w + y) * w).sum().gradient(w)[0].tolist()
        [5.0, 10.0]
        """
        return Mode("recording", False)

    @staticmethod
    def take_losses() -> list[T]:
        """Return the tensors whose ``backward`` ran since the last call, so that an optimizer step realizes them, too.

        >>> x = Tensor([1.0]); y = (x * x).sum().backward(); Tensor.take_losses()[-1] is y
        True
        """
        found = [t for r in TensorBase._losses if (t := r()) is not None]
        TensorBase._losses.clear()
        return found

    @staticmethod
    def forget_gradients() -> None:
        """Set ``.grad`` to None on leaves made without ``requires_grad``, which would accumulate over all steps.

        >>> x = Tensor([1.0]); _ = (x * x).sum().backward(); Tensor.forget_gradients(); x.grad is None
        True
        """
        for t, _ in TensorBase._unasked.items():
            if t.gradient_unasked():
                t.grad = None
        TensorBase._unasked.clear()
        TensorBase.forgettings += 1

    # *** mixed precision ***

    @staticmethod
    def autocast(dtype: DType | str = "bfloat16", enabled: bool = True) -> Mode:
        """Return a context manager (and decorator) in which contractions cast their float operands to 16 bits.

        Contractions are matrix products, ``einsum``, convolutions and attention: the operations that matrix units
        accelerate. They accumulate in float32, round the result once, and return 16-bit tensors; so do their gradients.
        Exponentials, logarithms, powers, sums, softmax, layer norms and losses cast 16-bit operands to float32 and
        return float32; all other operations keep the dtype of their operands. Parameters stay float32. These are
        PyTorch's rules for CUDA, on every device. With float16, scale the loss with a ``nn.optim.GradScaler``.

        >>> x = Tensor([[1.0, 2.0**-9]])
        >>> with Tensor.autocast("bfloat16"):
        ...     y = (x + 2.0**-9) @ x.T
        ...     loss = y.sum()
        >>> (x @ x.T).item(), y.item(), y.dtype, loss.dtype
        (1.0000038146972656, 1.0, dtypes.bfloat16, dtypes.float)

        Args:
            dtype: ``bfloat16`` or ``float16``.
            enabled: False computes in float32 inside an enclosing ``autocast`` block.

        Raises:
            DTypeError: for another dtype.
        """
        kind = to_dtype(dtype)
        if kind not in (dtypes.bfloat16, dtypes.float16):
            raise DTypeError("autocast", f"contractions in {kind!r}", "bfloat16 or float16")
        return Mode("autocast_dtype", kind if flag("autocast", "enabled", enabled) else None)
