"""A schedule as users read it: a list of items, each printed as one line."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.core.dtypes import DType
from tinsmith.core.errors import UnknownNameError, place
from tinsmith.core.origin import layers_of, layers_text
from tinsmith.core.suggestions import unknown
from tinsmith.core.terminal import cut, fitted, width
from tinsmith.ir import Ops, UOp
from tinsmith.ir.text.node import argument_text
from tinsmith.ir.uop import Origin, toposort
from tinsmith.runtime import inspectors
from tinsmith.runtime.step import Step
from tinsmith.schedule.schedule_item import Slot

_LEAST = 16  # minimum columns of a part that is cut off
# Attributes of a schedule item in tinygrad and its tutorials, and the equivalents here.
_THERE = {
    "ast": ".sink, the kernel's graph; .tree() prints it",
    "bufs": ".written and .read, the buffers that it works on",
    "rawbufs": ".written and .read; CommandQueue(schedule)() runs the schedule and gives the results",
    "inputs": ".read", "outputs": ".written", "in_bufs": ".read", "out": ".written[0]",
    "metadata": ".origin, the methods and lines that it computes",
    "prg": ".step.program, loaded, or .step.launch with its source and UOps",
    "run": "CommandQueue(schedule)() runs the whole schedule",
    "lower": "kernels are compiled already: .step.launch has the source and the UOps",
    "var_vals": "Tensor.schedule_with_vars() gives the schedule and the variables' values",
    "fixedvars": "Tensor.schedule_with_vars() gives the schedule and the variables' values",
    "variables": "Tensor.schedule_with_vars() gives the schedule and the variables' values",
    "assign_preloads": ".read: an assigned tensor is a new version with its own buffer",
}


@dataclass(frozen=True)
class ListedBuffer:
    """A buffer of an item: its number in the schedule, and the dtype, shape and device with which the item uses it."""

    number: int
    dtype: DType
    shape: tuple[object, ...]
    device: str

    def __str__(self) -> str:
        return f"{self.number} {repr(self.dtype).removeprefix('dtypes.')}{argument_text(self.shape)}"


@dataclass(frozen=True, repr=False)
class ScheduledItem:
    """One kernel or copy of a schedule; printing it gives one line, and ``tree()`` gives the kernel's graph.

    Attributes:
        name: the name in ``DEBUG=2`` output.
        opts: the chosen opts.
        written, read: the buffers it works on.
        reason: the reason why its result is stored.
        origin: methods and lines of the user's program that it computes.
        sink: the kernel's graph; None for a copy.
    """

    device: str
    name: str
    opts: tuple[Opt, ...]
    written: tuple[ListedBuffer, ...]
    read: tuple[ListedBuffer, ...]
    reason: str
    origin: tuple[Origin, ...]
    sink: UOp | None
    step: Step

    def tree(self) -> str:
        """Return the kernel's tree, folded as ``DEBUG=5`` prints it; for a copy its line.

        >>> print(Tensor([1, 2]).sum().schedule()[-1].tree()[:42])
          0 ━┳ STORE MemBuffer(idx=0, dtype=dtypes
        """
        if self.sink is None or not isinstance(self.step.shown, KernelProgram):
            return repr(self)
        return fitted(inspectors.debug.tree(self.sink, self.step.shown))

    def __getattr__(self, name: str) -> Any:
        meant = _THERE.get(name)
        if meant is None:
            raise unknown("ScheduledItem", name, (*type(self).__dataclass_fields__, "tree", "where", "layers"))
        raise UnknownNameError("ScheduledItem", f"no attribute {name!r}", meant)

    def __repr__(self) -> str:
        """Return one line, no wider than the terminal: long parts are cut off.

        Labels of layers are never truncated, so that they can be searched for; labels that do not fit are omitted.
        """
        opts = "" if self.sink is None else f"opts {inspectors.debug.opts_text(list(self.opts))}"
        buffers = f"{_list(self.written)}{' from ' * bool(self.read)}{_list(self.read)}"
        reason = f"reason: {self.reason}" if self.reason else ""
        parts = [p for p in (f"{self.device} {self.name}", self.layers, opts, buffers, reason, self.where) if p]
        over = sum(map(len, parts)) + 2 * (len(parts) - 1) - width()
        for part in [*sorted((opts, reason), key=len, reverse=True), buffers]:
            if over > 0 and part:
                parts[parts.index(part)] = short = cut(part, max(len(part) - over, _LEAST))
                over -= len(part) - len(short)
        if over > 0 and self.layers:
            parts.remove(self.layers)
        return cut("; ".join(parts), width())

    @property
    def layers(self) -> str:
        """The labels of the model's layers that it computes, such as ``layers.0 Conv2d``; empty outside of a model."""
        return layers_text(layers_of(self.origin), 2)

    @property
    def where(self) -> str:
        """The last of the user's lines that it computes."""
        lines = list(dict.fromkeys(f"{m} ({place(f, n)})".strip() for m, f, n in self.origin))
        return f"{'…, ' * (len(lines) > 1)}{lines[-1]}" if lines else ""


def item_of(slots: Sequence[Slot], step: Step) -> ScheduledItem:
    """Return the readable item of a step on buffers ``slots``."""
    item = step.item
    shapes = _shapes(item.sink) if item is not None and item.sink is not None else {}
    of = item.slots if item is not None else step.slots
    memories = [ListedBuffer(s, slots[s].dtype, shapes.get(n, (slots[s].size,)), slots[s].device) for n,
                s in enumerate(of)]
    count = item.outputs if item is not None else len(step.written)
    opts = tuple(step.shown.opts) if isinstance(step.shown, KernelProgram) else ()
    return ScheduledItem(step.device, step.name, opts, tuple(memories[:count]), tuple(memories[count:]),
                         "" if item is None else item.reason, tuple(step.origin), None if item is None else item.sink,
                         step)


def _shapes(sink: UOp) -> dict[int, tuple[object, ...]]:
    """Return the shapes of a kernel's buffers by number: outputs as computed, inputs in the shape of their first use.

    A buffer is 1-D; the shape of its tensor is that of the reshape above it.
    """
    found = {n: value.shape for n, value in enumerate(sink.src)}
    for n in toposort(sink):
        if n.op is Ops.PARAM:
            found.setdefault(n.arg[0], n.shape)
        elif n.op is Ops.RESHAPE and n.src[0].op is Ops.PARAM and found.get(n.src[0].arg[0]) == n.src[0].shape:
            found[n.src[0].arg[0]] = n.shape
    return found


def _list(buffers: Sequence[ListedBuffer]) -> str:
    return ", ".join(map(str, buffers))
