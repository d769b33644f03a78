"""The replay of a capture with values over several devices: its programs one after the other, each on fresh memory."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.ir import UOp
from tinsmith.jit.collect import JitItem, Source
from tinsmith.jit.replay import Replay, Value
from tinsmith.jit.signature import leaves, rebuilt
from tinsmith.jit.templates import Returned, Template, Written
from tinsmith.schedule.execute import run
from tinsmith.tensor import random
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

Made = list[list[Buffer]]  # outputs of the programs so far


class SpreadReplay(Replay):
    """What a replay does, apart from its guards; for the arguments see ``Replay``."""

    def __init__(self, items: Sequence[JitItem], result: Any, written: Sequence[Written], first_draw: int, draws: int,
                 names: dict[tuple[str, int], int]) -> None:
        self.result, self.first_draw, self.draws, self.names = result, first_draw, draws, names
        self.returned = [r for r in leaves(result) if isinstance(r, Returned)]
        self.written = list(written)
        self.programs = [(i.compiled, i.sources, list(zip(i.names, i.values))) for i in items]
        self.direct = None

    def __call__(self, found: list[Buffer], arguments: Sequence[Tensor], bound: Sequence[int]) -> Any:
        """Run on today's buffers; outputs are fresh, state tensors get their new versions."""
        value = self._value(bound)
        made: Made = []
        for compiled, sources, values in self.programs:
            inputs = [_taken(s, found, made) for s in sources]
            made.append(run(compiled, inputs, [value(*v) for v in values]))
        if self.draws:
            random.advance(self.draws)
        entries: Any = made
        if self.written:
            self._write(found, entries, arguments, value)
        return rebuilt(self.result, lambda r: self._output(r, found, entries, arguments, value)
                       if isinstance(r, Returned) else r)

    def _node(self, template: Template, found: list[Buffer], entries: Any, value: Value) -> UOp:
        return template.fill(self._buffers(template, found, entries), value)

    def _buffers(self, template: Template, found: list[Buffer], entries: Any) -> list[Buffer]:
        return [_taken(s, found, entries) for s in template.sources]

    def _output(self, r: Returned, found: list[Buffer], entries: Any, arguments: Sequence[Tensor],
                value: Value) -> Tensor | None:
        if r.template is None:
            assert r.place is not None
            return r.place.find(arguments)
        t: Tensor = object.__new__(Tensor)
        t.uop = self._node(r.template, found, entries, value)
        t._device, t.grad, t.requires_grad = r.device, None, r.requires_grad
        TensorBase.live.add(t)
        return t


def _taken(source: Source, found: list[Buffer], made: Made) -> Buffer:
    if source.group >= 0:
        return found[source.group]
    held: Buffer = source.held
    return made[source.program][source.output] if source.program >= 0 else held
