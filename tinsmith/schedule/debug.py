"""What DEBUG shows of a kernel before it runs: reason and opts (3), source (4), tree and UOps (5), assembly (7)."""
from __future__ import annotations

import os
import shutil
import sys
import textwrap

from tinsmith.backend.device import Compiled
from tinsmith.codegen.launch import KernelProgram
from tinsmith.codegen.opt import Opt
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.render.cstyle import CRenderer
from tinsmith.codegen.render.gpu import GPURenderer
from tinsmith.core.counters import WIDTH, colored
from tinsmith.core.settings import settings
from tinsmith.ir.printer import kernel_tree, uop_table
from tinsmith.schedule.items import ScheduleItem

_READABLE = CRenderer(Target("text"))


def show(item: ScheduleItem | None, kernel: KernelProgram, name: str, device: Compiled) -> None:
    """Print what the current DEBUG level asks for."""
    if settings.DEBUG >= 3 and item is not None:
        print(decisions(item, kernel, name))
    if settings.DEBUG >= 5 and item is not None and item.sink is not None:
        print(fitted(kernel_tree(item.sink)))
        print(fitted(uop_table(kernel.uops)))
    if settings.DEBUG >= 4:
        own = isinstance(device.renderer, GPURenderer)
        print(kernel.source.replace(kernel.symbol, name) if own else _READABLE.render(name, kernel.uops), end="")
    if settings.DEBUG >= 6 and not isinstance(device.renderer, CRenderer):
        print(kernel.source)
    if settings.DEBUG >= 7:
        assembly = device.compiler.disassemble(kernel.source)
        if assembly:
            print(assembly.expandtabs(8).strip("\n"))


def decisions(item: ScheduleItem, kernel: KernelProgram, name: str) -> str:
    """Why this kernel exists, which buffers it works on, what it computes of the user's program, and its opts."""
    written, read = (", ".join(map(str, part)) for part in (item.slots[: item.outputs], item.slots[item.outputs :]))
    slots = f"buffer{'s' * (item.outputs > 1)} {written}{' from ' * bool(read)}{read}"
    lines = {f"{m} ({os.path.basename(file)}:{line})": None for m, file, line in item.origin if m}
    parts = [("", f"{colored(name, 'green')}: {slots}; stored because: {item.reason}"),
             ("computes ", ", ".join(lines)), ("opts ", opts_text(kernel.opts))]
    return "\n".join(textwrap.fill(f"{'  ' if label else 'kernel '}{label}{text}", WIDTH, subsequent_indent="    ",
                                   break_long_words=False, break_on_hyphens=False) for label, text in parts if text)


def opts_text(opts: list[Opt]) -> str:
    """``UPCAST(0, 8) THREAD(0)``: what the optimizer chose, in order.

    >>> from tinsmith.codegen.opt import OptOps
    >>> opts_text([Opt(OptOps.UPCAST, 0, 8), Opt(OptOps.THREAD, 0)])
    'UPCAST(0, 8) THREAD(0)'
    """
    if not opts:
        return "none"
    values = [(o, (o.axis, o.amt, o.lanes or None)) for o in opts]
    return " ".join(f"{o.op.name}({', '.join(str(v) for v in of if v is not None)})" for o, of in values)


def fitted(text: str) -> str:
    """On a terminal, lines wider than it are folded between words; elsewhere a line stays a line."""
    if not sys.stdout.isatty():
        return text
    width = max(shutil.get_terminal_size((WIDTH, 24)).columns, 40)
    return "\n".join(_folded(line, width) for line in text.splitlines())


def _folded(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    head = len(line) - len(line.lstrip(" 0123456789┃┣┗┳━"))
    rows = textwrap.wrap(line[head:], max(width - head - 4, 20), break_long_words=False, break_on_hyphens=False)
    bars = "".join("┃" if c in "┃┣" else " " for c in line[:head])
    return "\n".join((line[:head] if i == 0 else f"{bars}    ") + row for i, row in enumerate(rows))
