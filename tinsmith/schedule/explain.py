"""What DEBUG shows of a kernel before it runs: reason and opts (3), source (4), tree and UOps (5), assembly (7)."""
from __future__ import annotations

from tinsmith.backend.device import Compiled
from tinsmith.codegen.program import KernelProgram
from tinsmith.codegen.render.base import Target
from tinsmith.codegen.render.cstyle import CRenderer
from tinsmith.core.settings import settings
from tinsmith.ir.printer import kernel_tree, uop_table
from tinsmith.schedule.items import ScheduleItem

_READABLE = CRenderer(Target("text"))


def show(item: ScheduleItem | None, kernel: KernelProgram, name: str, device: Compiled) -> None:
    """Print what the current DEBUG level asks for."""
    if settings.DEBUG >= 3 and item is not None:
        print(f"kernel {name}: memory of its own because: {item.reason}; opts: {kernel.opts or 'none'}")
    if settings.DEBUG >= 5 and item is not None and item.sink is not None:
        print(kernel_tree(item.sink))
        print(uop_table(kernel.uops))
    if settings.DEBUG >= 4:
        print(_READABLE.render(name, kernel.uops), end="")
    if settings.DEBUG >= 6:
        print(kernel.source)
    if settings.DEBUG >= 7:
        print(device.compiler.disassemble(kernel.source))
