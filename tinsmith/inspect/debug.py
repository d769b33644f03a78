"""DEBUG output of kernels, and the listing of a script's sources (``python -m tinsmith source script.py``).

Before a kernel runs, DEBUG prints its reason and opts (3), source (4), tree and UOps (5), and assembly (7). The nodes
of random number generation are always the same and many, so below DEBUG=6 one line replaces them.
"""
from __future__ import annotations

import contextlib
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TextIO

from tinsmith.backend.device import Compiled, Device
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.render.cstyle import ReadableRenderer
from tinsmith.codegen.render.gpu import GPURenderer
from tinsmith.core.errors import place
from tinsmith.core.origin import layers_of, layers_text
from tinsmith.core.settings import settings
from tinsmith.core.terminal import colored, cut, show, show_whole, width
from tinsmith.ir import Ops, UOp
from tinsmith.ir.graphs import cipher_nodes, draws
from tinsmith.ir.text.printer import kernel_tree, table_rows
from tinsmith.ir.uop import toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import lowered
from tinsmith.runtime.step import Step
from tinsmith.schedule.schedule_item import ScheduleItem

READABLE = ReadableRenderer()
_BELOW = "DEBUG=6 shows them"


def show_kernel(item: ScheduleItem | None, kernel: KernelProgram, name: str, device: Compiled) -> None:
    """Print the output of the current DEBUG level."""
    if item is not None and settings.DEBUG < 6 and kernel.kernel.is_random:
        if settings.DEBUG >= 3:
            show(random_line(item, name))
        return
    if settings.DEBUG >= 3 and item is not None:
        show(decisions(item, kernel, name))
    if settings.DEBUG >= 5 and item is not None and item.sink is not None:
        show(tree(item.sink, kernel))
        show(table(kernel.uops))
    own = isinstance(device.renderer, GPURenderer)
    if settings.DEBUG >= 4:
        if own:
            show_whole(kernel.source.replace(kernel.symbol, name).rstrip("\n"))
        else:
            show(READABLE.render(name, kernel.uops))
    if settings.DEBUG >= 6 and not own:
        show(kernel.source)
    if settings.DEBUG >= 7:
        assembly = device.compiler.disassemble(kernel.source)
        if assembly:
            show(assembly.expandtabs(8).strip("\n"))


def decisions(item: ScheduleItem, kernel: KernelProgram, name: str) -> str:
    """Return the reason for this kernel, its buffers, the model layers and the user's methods that it computes, and its
    opts."""
    layers = layers_text(layers_of(item.origin), len(item.origin))
    parts = [("", f"{colored(name, 'green')}: {_slots(item)}; stored because: {item.reason}"),
             ("layers ", layers), ("computes ", ", ".join(lines_of(item))), ("opts ", opts_text(kernel.opts))]
    return "\n".join(textwrap.fill(f"{'  ' if label else 'kernel '}{label}{text}", width(), subsequent_indent="    ",
                                   break_long_words=False, break_on_hyphens=False) for label, text in parts if text)


def random_line(item: ScheduleItem, name: str) -> str:
    """Return the line for a kernel that only makes random numbers."""
    where = ", ".join(lines_of(item))
    text = f"kernel {name}: {_slots(item)}; random numbers for {where}"
    return f"{cut(text, width() - len(_BELOW) - 2)}; {_BELOW}".replace(name, colored(name, "green"), 1)


def _slots(item: ScheduleItem) -> str:
    written, read = (", ".join(map(str, part)) for part in (item.slots[: item.outputs], item.slots[item.outputs :]))
    return f"buffer{'s' * (item.outputs > 1)} {written}{' from ' * bool(read)}{read}"


def lines_of(item: ScheduleItem) -> list[str]:
    """Return the methods that an item computes, each with the user's line."""
    return list(dict.fromkeys(f"{m} ({place(file, line)})" for m, file, line in item.origin if m))


def opts_text(opts: list[Opt]) -> str:
    """Return opts as text, in order, with the arguments that ``Opt`` takes after the op: ``UPCAST(0, 8) THREAD(0)``.

    >>> from tinsmith.codegen.opt import OptOps
    >>> opts_text([Opt(OptOps.UPCAST, 0, 8), Opt(OptOps.THREAD, 0)])
    'UPCAST(0, 8) THREAD(0)'
    >>> opts_text([Opt(OptOps.STAGE, 1, (0,), lanes=16, copies=2), Opt(OptOps.ORDER, amt=(1, 0))])
    'STAGE(1, (0,), 16, copies=2) ORDER(amt=(1, 0))'
    """
    return " ".join(f"{o.op.name}({', '.join(_arguments(o))})" for o in opts) or "none"


def _arguments(opt: Opt) -> Iterator[str]:
    """Yield the arguments that differ from their defaults: by position up to the first default, then by name."""
    by_position = True
    for field in fields(opt)[1:]:
        value = getattr(opt, field.name)
        if value != field.default:
            yield repr(value) if by_position else f"{field.name}={value!r}"
        else:
            by_position = False


def tree(sink: UOp, kernel: KernelProgram) -> str:
    """Return the kernel's tree; sums of products that are computed by MULADD are marked."""
    return kernel_tree(sink, dict.fromkeys(_multiplied_and_added(sink, kernel), "by MULADD"), _random_parts(sink))


def _multiplied_and_added(sink: UOp, kernel: KernelProgram) -> list[UOp]:
    if not any(u.op is Ops.MULADD for u in kernel.uops):
        return []
    sums = [n for n in toposort(sink) if n.op is Ops.REDUCE and n.arg[0] is Ops.ADD and n.dtype.is_float
            and _below_views(n.src[0]).op is Ops.MUL]
    made = [n for n in kernel.kernel.folds if n.arg is Ops.ADD and n.src[0].op is Ops.MUL and n.dtype.is_float]
    return sums if len(made) >= len(sums) else []


def _below_views(node: UOp) -> UOp:
    while node.op.kind == "movement":
        node = node.src[0]
    return node


def _random_parts(sink: UOp) -> dict[UOp, str]:
    """Return the roots of random subgraphs, each with the text that replaces it in the tree."""
    if settings.DEBUG >= 6:
        return {}
    order = toposort(sink)
    drawn = _drawn(order, (Ops.PARAM, Ops.BUFFER, Ops.REDUCE, Ops.SINK))
    tops = {_below_views(s) for n in order if n not in drawn for s in n.src if s in drawn}
    return {n: f"RANDOM {n.dtype!r} ({len(toposort(n))} nodes of random number generation: {_BELOW})" for n in tops}


def _drawn(order: Sequence[UOp], barriers: Sequence[object]) -> set[UOp]:
    """Return the nodes that depend on random words and on no op in ``barriers``."""
    if not draws(order):
        return set()
    drawn: set[UOp] = set()
    stopped: set[UOp] = set()
    for n in order:
        if n.op in barriers or any(s in stopped for s in n.src):
            stopped.add(n)
        elif any(s in drawn for s in n.src) or draws((n,)):
            drawn.add(n)
    return drawn


def table(uops: Sequence[UOp]) -> str:
    """Return the program's table of UOps; consecutive rows of random number generation become one row."""
    return "\n".join(_rows(uops))


def _rows(uops: Sequence[UOp]) -> Iterator[str]:
    drawn: set[UOp] = set()
    if settings.DEBUG < 6:
        drawn = _drawn(uops, (Ops.LOAD, Ops.DEFINE_ACC, Ops.STORE)) | cipher_nodes(uops)
    hidden = 0
    for node, text in table_rows(uops):
        if node in drawn and node.src:
            hidden += 1
            continue
        if hidden:
            yield f"     … {hidden} rows of random number generation: {_BELOW}"
            hidden = 0
        yield text


class SourceList:
    """An observer that writes the kernels of every lowered program, each kernel once.

    Args:
        out: the file to write to.
    """

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.seen: set[tuple[str, str]] = set()
        self.names: Counter[str] = Counter()

    def __call__(self, compiled: CompiledSchedule) -> None:
        for step in compiled.steps:
            kernel = step.shown
            if isinstance(kernel, KernelProgram) and (step.device, kernel.symbol) not in self.seen:
                self.seen.add((step.device, kernel.symbol))
                self.write(step, kernel)

    def write(self, step: Step, kernel: KernelProgram) -> None:
        """Write one kernel, with a comment that says which methods it computes and how it is launched."""
        name = kernel.name + (f"n{self.names[kernel.name]}" if self.names[kernel.name] else "")
        self.names[kernel.name] += 1
        of = ", ".join(lines_of(step.item)) if step.item is not None else ""
        sizes = [f"{what} {'x'.join(map(str, size))}" for what, size in (("grid", kernel.grid), ("block", kernel.block))
                 if size]
        mark = Device[step.device].renderer.comment
        text = f"{mark} {name} for {step.device}{': ' if of else ''}{of}{''.join(f'; {s}' for s in sizes)}\n"
        show_whole(f"{text}{kernel.source.replace(kernel.symbol, name).rstrip()}\n", self.out)


@contextlib.contextmanager
def listing(out: TextIO, device: str) -> Iterator[SourceList]:
    """In this block, write sources to ``out``; a device that this machine lacks is replaced by a stand-in."""
    found, before = SourceList(out), (Device.shows_source, settings.DEV)
    lowered.append(found)
    # class attribute and global setting, so that they also apply to the script's threads
    Device.shows_source, settings.DEV = True, device
    try:
        Device[device]
        yield found
    finally:
        Device.shows_source, settings.DEV = before
        lowered.remove(found)
