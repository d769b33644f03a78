"""The replay of a capture: one schedule on the current buffers, with recycled output memory.

Outputs are fresh: results of earlier calls are never overwritten. Outputs up to a size limit reuse the memory of an
earlier result once reference counts show that it is dead, so a replay in a loop allocates no memory and no nodes.
Without reference counts, memory is always new.
"""
from __future__ import annotations

import contextlib
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tinsmith.backend.memory import Buffer
from tinsmith.backend.shards import Shards, flattened
from tinsmith.core.counters import GlobalCounters
from tinsmith.core.errors import OutOfMemoryError
from tinsmith.core.lazy_import import Late
from tinsmith.core.object_lifetime import references
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import toposort
from tinsmith.jit.aliases import share, sizes_in
from tinsmith.jit.collect import JitItem, Source
from tinsmith.jit.guards.signature import fresh, leaves, rebuilt
from tinsmith.jit.guards.tensors import TensorPath
from tinsmith.jit.late_gradients import LateGradients, unread
from tinsmith.jit.merged_schedule import WHOLE, Joined, Returned, Template, Written, join
from tinsmith.jit.reachability import COUNTED, is_sole
from tinsmith.runtime.launch import failed, launch
from tinsmith.runtime.thread_turns import let_go, overwriting, take, under_way
from tinsmith.schedule.schedule_item import Slot
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create import random
from tinsmith.tensor.execution import Execution
from tinsmith.tensor.realize import interrupt_later
from tinsmith.tensor.storage import Storage
from tinsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tinsmith.inspect import explanation
    from tinsmith.inspect.explanation import Plan
else:
    explanation = Late("tinsmith.inspect.explanation")

SMALL: Final = 1 << 16  # bytes of an output, or of temporaries, that a capture keeps between calls
LARGER: Final = 8 << 20  # bytes of all larger outputs that it keeps: to find new memory costs as much as to fill a MB
MOST_KEPT: Final = 4  # kept buffers per output
MOST_LARGER: Final = 2  # kept buffers per larger output: the latest result's and the next one's
_new: Final = object.__new__
_live: Final = TensorBase.live.add

Value = Callable[[str, int], int]


class OutputMemory:
    """Memory for one output, and the nodes of the results that are views of it.

    Attributes:
        whole: the sharded buffer that the memory is a part of, if it is reused from a value on several devices.
    """

    __slots__ = ("buffer", "held", "idle", "nodes", "whole")

    def __init__(self, buffer: Buffer, templates: Sequence[Template]) -> None:
        self.buffer = buffer
        self.nodes = [t.fill([buffer], no_values) for t in templates]
        inner = [n for n in toposort(self.nodes) if n.op is Ops.BUFFER or n.op.kind == "movement"]
        self.held: tuple[Any, ...] = (buffer, *inner)
        self.idle: list[int] = []
        self.whole: Buffer | None = None

    def rest(self) -> None:
        """Record the idle reference counts; call it while nothing else refers to the buffer or its nodes."""
        self.idle = list(map(references, self.held))

    def is_idle(self, others: int = 0) -> bool:
        """Return True if nothing but ``others`` references to the buffer refers to it or its nodes, by reference
        counts."""
        return list(map(references, self.held)) == [self.idle[0] + others, *self.idle[1:]]


class Same:
    """An ``OutputMemory`` whose memory and nodes stay the same for all calls."""

    __slots__ = ("buffer", "nodes", "whole")

    def __init__(self, buffer: Buffer, nodes: list[UOp]) -> None:
        self.buffer = self.whole = buffer
        self.nodes = nodes


class Output:
    """An output of the schedule: its recycled buffers, and the results that are views of it.

    Attributes:
        donated: every call may overwrite the results of the previous one.
        poisoned: fill reused memory like fresh memory, for debugging.
        same: a new version written in place keeps its nodes.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.templates: list[Template] = []
        self.entries: list[OutputMemory] = []
        self.nbytes = slot.size * slot.dtype.itemsize
        self.small = self.nbytes <= SMALL
        self.keeps = MOST_KEPT if self.small else 0  # buffers kept between calls
        self.donated = self.same = False
        self.poisoned = bool(settings.POISON)

    def take(self, inputs: Sequence[Buffer], values: Sequence[int] | None = None) -> OutputMemory:
        """Return a recycled entry without references, or a new one; for a changing size, that at ``values``."""
        if values is not None and self.slot.terms is not None:
            return self.over(Buffer(self.slot.device, self.slot.elements(values), self.slot.dtype))
        for entry in self.entries:
            if list(map(references, entry.held)) == entry.idle or (
                    self.donated and not any(entry.buffer is b for b in inputs)):
                return entry
        entry = self.over(Buffer(self.slot.device, self.slot.size, self.slot.dtype))
        if len(self.entries) < (MOST_KEPT if self.donated else self.keeps) and (COUNTED or self.donated):
            self.entries.append(entry)
            entry.rest()
        return entry

    def over(self, buffer: Buffer) -> OutputMemory:
        return OutputMemory(buffer, self.templates)

    def taken_over(self, seen: list[UOp], whole: Buffer, part: int) -> OutputMemory | Same:
        """Return the memory of an old value for its new version, which overwrites it.

        The new version is a view through the same nodes: equal nodes are one object.

        Args:
            seen: the node of the value, and the node of its storage if it has one.
            whole: the memory.
            part: the number of the part, if the memory is on several devices.
        """
        if self.same:
            return Same(whole, seen)
        entry = self.over(_part(whole, part))
        entry.whole = whole
        same = entry.buffer is whole and len(entry.nodes) == len(seen)
        self.same = same and all(map(operator.is_, entry.nodes, seen))
        return entry


def no_values(name: str, old: int) -> int:
    raise AssertionError(f"{name} has no value here")


@dataclass(slots=True)
class _Making:
    """The construction of a result's value: node ``index`` of output ``output``'s entry, or a template."""

    output: int
    index: int
    template: Template | None = None


# new version of a tensor, the tensor's entry of the guards, (output, part of the tensor)
_InPlace = tuple[Written, int, list[tuple[int, int]]]


class Replay:
    """The replay of a capture, without its guards.

    Args:
        result: the nesting of the results, with ``Returned`` for tensors.
        first_draw, draws: number of the first random draw during capture, and the number of draws.
        names: (name, value) of a bound variable among the arguments at capture → its number among the variables of a
            call.
        donate: results may be overwritten by the next call.
        forgets: unrequested gradients are cleared.
        groups: the number of buffers that the guards find, including buffers that no program reads.
        added_to: tensors whose unrequested gradient, if present, is accumulated.
        ranged: the sizes change from call to call: memory is allocated for the sizes of each call.
    """

    def __init__(self, items: Sequence[JitItem], result: Any, written: Sequence[Written], first_draw: int, draws: int,
                 names: dict[tuple[str, int], int], donate: bool, forgets: bool, groups: int,
                 added_to: Sequence[TensorPath] = (), ranged: bool = False) -> None:
        self.ranged = ranged
        self.forgets, self.added_to = forgets, added_to
        self.result, self.first_draw, self.draws, self.names = result, first_draw, draws, names
        self.returned = [r for r in leaves(result) if isinstance(r, Returned)]
        wholes = [w.whole[0] for w in written if w.whole is not None]
        templates = [t for t in [*(r.template for r in self.returned), *(w.template for w in written), *wholes]
                     if t is not None]
        joined = join(items, dict.fromkeys(s.made for t in templates for s in t.sources if s.program >= 0))
        self.results = joined.results
        self.compiled = joined.compiled
        self.bound = joined.compiled.bound
        self.outputs = [Output(slot) for slot in self.bound.outputs]
        self.layouts = joined.layouts
        self.inputs = [(s.group, s.held, part) for s, part in joined.inputs]
        self.plain_inputs = joined.inputs == [(Source(n), WHOLE) for n in range(groups)]
        self.values = joined.values
        numbers = [names.get(v) for v in self.values]
        self.numbers = [n for n in numbers if n is not None]  # of the call's variables, if the programs read no others
        self.only_bound = len(self.numbers) == len(numbers)
        self.needs_values = not self.only_bound or any(t.drawn for t in templates) or any(
            r.alias is not None and sizes_in(r.alias.looks) for r in self.returned)
        self.keeps_blocks = sum(size for _, size in self.bound.blocks) <= SMALL
        self.blocks: list[Buffer] | None = None
        self.unread: dict[int, LateGradients] = {}  # of the last call, by the id of their source list
        self.making = {id(t): self._making(t) for t in templates}
        lone = isinstance(result, Returned) and result.template is not None and result.alias is None
        self.lone = result if lone else None
        self.written = list(written)
        self.in_place = self._in_place(joined, templates)
        if settings.memory_limit:  # what is kept for later calls would come on top
            for output in self.outputs:
                output.keeps = 0
        else:
            self._keep_larger()
        self.direct = self._direct()
        if donate:
            kept = {s for w in written if w.template is not None for s in w.template.sources}
            for r in self.returned:
                if r.alias is None and r.template is not None and not r.template.drawn and (
                        not kept.intersection(r.template.sources)):
                    for s in r.template.sources:
                        for n in self.results.get(s.made, ()):
                            self.outputs[n].donated = True

    def _making(self, t: Template) -> _Making:
        simple = _is_view(t.uop) and not (t.drawn or t.ranged) and len(t.sources) == 1 and t.sources[0].program >= 0
        if not simple or t.sources[0].made in self.layouts:
            return _Making(-1, -1, t)
        (number,) = self.results[t.sources[0].made]
        self.outputs[number].templates.append(t)
        return _Making(number, len(self.outputs[number].templates) - 1)

    def _in_place(self, joined: Joined, templates: Sequence[Template]) -> list[_InPlace]:
        """Return large new versions of state that may be written in place of the old version. Unread gradients need the
        old version of others: their memory alternates."""
        found = []
        read = {s.group for t in templates for s in t.sources}
        late = {s.group for w in self.written if w.late and w.template is not None for s in w.template.sources}
        for w in self.written:
            if w.template is None or w.place.gradient or w.template.drawn or len(w.template.sources) != 1:
                continue
            numbers = self.results.get(w.template.sources[0].made, [])
            over: dict[int, list[tuple[int, int]]] = {}
            for number, given in self.bound.in_place:
                source, part = joined.inputs[given]
                small = self.outputs[number].small and not settings.memory_limit
                if number in numbers and not small and source.group >= 0:
                    over.setdefault(source.group, []).append((number, part))
            found += [(w, group, parts) for group, parts in over.items() if group not in read]
            if COUNTED and not settings.memory_limit:
                for number in (n for group in over.keys() & late for n, _ in over[group]):
                    self.outputs[number].keeps = max(self.outputs[number].keeps, MOST_LARGER)
        return found

    def _keep_larger(self) -> None:
        """Keep memory of larger outputs, except in-place state, within the ``LARGER`` budget."""
        state = {number for _, _, parts in self.in_place for number, _ in parts}
        room = LARGER
        for n, output in enumerate(self.outputs):
            if not output.small and n not in state and not output.keeps:
                output.keeps = min(MOST_LARGER, room // output.nbytes)
                room -= output.keeps * output.nbytes

    def __call__(self, found: list[Buffer], arguments: Sequence[Tensor], bound: Sequence[int]) -> Any:
        """Run on the current buffers; outputs are new, and state tensors get their new versions.

        Args:
            found: the buffers that the guards found.
            arguments: the tensors among the arguments.
            bound: values of the bound variables among the arguments.
        """
        if not self.written or (not self.in_place and threading.active_count() == 1):
            return self._run(found, arguments, bound)
        with overwriting(self._given_up(found, arguments)):  # other threads see the update of state as atomic
            return self._run(found, arguments, bound)

    def _given_up(self, found: list[Buffer], arguments: Sequence[Tensor]) -> Iterator[Buffer]:
        """Yield the buffers of the old versions of state."""
        yield from (found[group] for _, group, _ in self.in_place)
        for w in self.written:
            t = None if w.sets else w.place.find(arguments)
            if t is not None and t.uop.base.op is Ops.BUFFER:
                yield t.uop.base.arg

    def _run(self, found: list[Buffer], arguments: Sequence[Tensor], bound: Sequence[int]) -> Any:
        released = self._give_up_gradients(arguments)
        try:
            return self._run_over(released, found, arguments, bound)
        finally:
            for gradients in released.values():
                gradients.end()

    def _run_over(self, released: dict[int, LateGradients], found: list[Buffer], arguments: Sequence[Tensor],
                  bound: Sequence[int]) -> Any:
        """Run; ``released``: the gradients whose memory may be written, by the ``id`` of their source list."""
        entries: list[Any] = [None] * len(self.outputs)
        overwrites = False
        for w, group, parts in self.in_place:
            t = w.place.find(arguments)
            if t is not None and t.uop.base.arg is found[group] and is_sole(t) and w.fits(t):
                seen = [t.uop] if t._shared is None else [t.uop, t._shared.storage.value]
                for number, part in parts:
                    entries[number] = self.outputs[number].taken_over(seen, found[group], part)
                overwrites = True
        given = flattened(found) if self.layouts else found
        value = self._value(bound) if self.needs_values else no_values
        values = [bound[n] for n in self.numbers] if self.only_bound else [value(*v) for v in self.values]
        ready = self.compiled.bound_for(values) if self.ranged else self.bound
        inputs = found if self.plain_inputs else [_part(held if g < 0 else found[g], p) for g, held, p in self.inputs]
        try:
            taken = [n for n, entry in enumerate(entries) if entry is None]
            for n in taken:
                entries[n] = self.outputs[n].take(given, values if self.ranged else None)
            with interrupt_later() if overwrites else contextlib.nullcontext():
                blocks = ready.new_blocks() if self.ranged else self.blocks_now()
                for gradients in released.values():
                    gradients.overwritten = True
                for n in taken:
                    if self.outputs[n].poisoned:
                        entries[n].buffer.poison()
                launch(ready, inputs, [e.buffer for e in entries], values, blocks)
                if not self.ranged:
                    self.keep_blocks(blocks)
        except BaseException as error:
            self.forget()
            if isinstance(error, OutOfMemoryError):
                error.plan = self.plan()
            raise
        if self.draws:
            random.advance(self.draws)
        if self.forgets:
            Execution.forget_gradients()
        sharing: list[tuple[Tensor, Tensor | None, Returned]] = []
        # before another gradient takes a returned one's place
        result = self._results(found, entries, arguments, value, sharing)
        if self.written:
            self._write(found, entries, arguments, value, released)
            for place in self.added_to:
                if (t := place.find(arguments)) is not None:
                    t.note_gradient()
        if sharing:
            self._share(sharing, found, entries, arguments, value)
        return result

    def _give_up_gradients(self, arguments: Sequence[Tensor]) -> dict[int, LateGradients]:
        """Release what the last call's unread gradients are computed from, if this call replaces them; the outputs'
        memory among it is used again."""
        left, self.unread = self.unread, {}
        if not left or not COUNTED:
            return {}
        replaced = {unread(w.place.owner(arguments)) for w in self.written if w.sets}
        return {number: gradients for number, gradients in left.items() if gradients.give_up(replaced)}

    def _results(self, found: list[Buffer], entries: list[OutputMemory], arguments: Sequence[Tensor], value: Value,
                 sharing: list[tuple[Tensor, Tensor | None, Returned]]) -> Any:
        """Return the call's result; append results that must share memory, and their partners, to ``sharing``."""
        if self.lone is not None:
            return self._output(self.lone, found, entries, arguments, value, sharing)
        if not self.returned:
            return rebuilt(self.result, fresh)
        return rebuilt(self.result, lambda r: self._output(r, found, entries, arguments, value, sharing)
                       if isinstance(r, Returned) else fresh(r))

    def _share(self, sharing: list[tuple[Tensor, Tensor | None, Returned]], found: list[Buffer],
               entries: list[OutputMemory],
               arguments: Sequence[Tensor], value: Value) -> None:
        """Attach aliased results to their shared memory, after the call's writes."""
        storages: dict[int, Storage] = {}
        for t, other, r in sharing:
            alias, storage = r.alias, None
            assert alias is not None
            if alias.number >= 0 and r.template is not None:
                storage = storages.get(alias.number)
                if storage is None:
                    storage = storages[alias.number] = Storage(self._node(r.template, found, entries, value))
            elif alias.late and alias.place is not None:
                other = alias.place.find(arguments)
            share(t, other, alias, storage, value)

    def _direct(self) -> Direct | None:
        """Return the fast path if the replay only launches one part and wraps one output; else None."""
        simple = self.lone is not None and self.plain_inputs and self.bound.inputs == list(range(len(self.inputs)))
        simple = simple and self.keeps_blocks and not (self.values or self.ranged or self.needs_values)
        simple = simple and not (self.written or self.draws or self.forgets or settings.POISON)
        simple = simple and len(self.bound.parts) == len(self.outputs) == 1 and len(self.outputs[0].templates) == 1
        return Direct(self) if simple and self.bound.parts[0].graph is not None else None

    def blocks_now(self) -> list[Buffer]:
        """Take the kept memory for the temporaries of one call, or allocate it."""
        blocks, self.blocks = self.blocks, None
        if blocks is None:
            blocks = self.bound.new_blocks()
        elif settings.POISON:
            for b in blocks:
                b.poison()
        return blocks

    def keep_blocks(self, blocks: list[Buffer]) -> None:
        """Keep the temporaries' memory of a finished call, if it is small."""
        if self.keeps_blocks:
            self.blocks = blocks

    def plan(self) -> Plan:
        """Return the time, memory traffic and memory of one replay."""
        in_place = {n for _, _, parts in self.in_place for n, _ in parts}
        kept = Counter({b.device: b.nbytes for b in self.blocks or ()})
        late = Counter(id(entry) for gradients in self.unread.values() for entry in gradients.held)
        for n, output in enumerate(self.outputs):
            if n not in in_place and any(e.is_idle(late[id(e)]) for e in output.entries):
                kept[output.slot.device] += output.nbytes
        return explanation.of_compiled(self.compiled, {self.outputs[n].slot.number for n in in_place}, kept)

    def forget(self) -> None:
        """Free all kept memory."""
        self.blocks = None
        for output in self.outputs:
            output.entries.clear()

    def _value(self, bound: Sequence[int]) -> Value:
        """Return the function (name, value at capture) → current value of a variable."""
        seed, first = random.state()

        def value(name: str, old: int) -> int:
            number = self.names.get((name, old))
            if number is not None:
                return bound[number]
            if name == "call" and old < self.first_draw:
                return old
            return random.rebound(name, old, self.first_draw, seed, first)

        return value

    def _node(self, template: Template, found: list[Buffer], entries: list[OutputMemory], value: Value) -> UOp:
        making = self.making[id(template)]
        if making.template is None:
            return entries[making.output].nodes[making.index]
        return template.fill(self._buffers(template, found, entries), value)

    def _buffers(self, template: Template, found: list[Buffer], entries: list[OutputMemory]) -> list[Buffer]:
        return [found[s.group] if s.group >= 0 else self._result(s, entries) if s.program >= 0 else s.held
                for s in template.sources]

    def _result(self, s: Source, entries: list[OutputMemory]) -> Buffer:
        """Return a program's output: one buffer, or the parts on several devices."""
        first, *others = (entries[n] for n in self.results[s.made])
        layout = self.layouts.get(s.made)
        if layout is None:
            return first.buffer
        if first.whole is not None and all(e.whole is first.whole for e in others):
            return first.whole
        return Shards([first.buffer, *(e.buffer for e in others)], layout)

    def _write(self, found: list[Buffer], entries: list[OutputMemory], arguments: Sequence[Tensor],
               value: Value, released: dict[int, LateGradients]) -> None:
        owners = [w.place.owner(arguments) if w.sets else w.place.find(arguments) for w in self.written]
        late: dict[int, LateGradients] = {}  # by the id of the source list, which late gradients share
        for w, t in zip(self.written, owners):
            if t is None:
                continue
            if not w.sets:
                self._write_state(t, w, found, entries, value)
                continue
            if w.template is None:
                t.grad = None
                continue
            t.note_gradient()
            if w.late:
                gradients = late.get(id(w.template.sources))
                if gradients is None:
                    gradients = late[id(w.template.sources)] = self._late(w.template, found, entries, value)
                t.grad = gradients.add(w.template, t._device)
            else:
                t.grad = t._new(self._node(w.template, found, entries, value))
        for number, before in released.items():
            before.next = late.get(number)
        self.unread = late

    def _late(self, template: Template, found: list[Buffer], entries: list[OutputMemory],
              value: Value) -> LateGradients:
        kept = {id(e.buffer): e for output in self.outputs for e in output.entries}
        return LateGradients(self._buffers(template, found, entries), kept, value)

    def _write_state(self, t: Tensor, w: Written, found: list[Buffer], entries: list[OutputMemory],
                     value: Value) -> None:
        """Write a tensor's new value, visible to all tensors that share its memory."""
        assert w.template is not None
        if w.replaces:
            t._shared = None
        elif t._shared is not None:
            t._shared.storage.let_copies_go()
        shared = t._shared
        if shared is None:
            t.uop = self._node(w.template, found, entries, value)
        elif w.whole is not None and w.whole[1] == shared.looks:
            shared.storage.become(self._node(w.whole[0], found, entries, value))
        elif w.whole is None and not shared.looks:
            shared.storage.become(self._node(w.template, found, entries, value))
        else:  # it shares memory in another way than when it was captured
            t._write(self._node(w.template, found, entries, value))

    def _output(self, r: Returned, found: list[Buffer], entries: list[OutputMemory], arguments: Sequence[Tensor],
                value: Value, sharing: list[tuple[Tensor, Tensor | None, Returned]]) -> Tensor | None:
        if r.place is not None:
            return r.place.find(arguments)
        t: Tensor = _new(Tensor)
        if r.template is not None:
            making = self.making[id(r.template)]
            t.uop = (entries[making.output].nodes[making.index] if making.template is None else
                     self._node(r.template, found, entries, value))
        t._device, t.grad, t._requires_grad, t._shared = r.device, None, r.requires_grad, None
        if r.alias is None:
            _live(t)
        else:
            place = r.alias.place
            sharing.append((t, None if place is None or r.alias.late else place.find(arguments), r))
        return t


class Direct:
    """The fast path of ``Replay``: launches one part on the input buffers in order, and wraps its one output.

    It has the effect of ``Replay`` with a minimum of Python code, as long as nothing is timed.
    """

    __slots__ = ("_blocks", "_bytes", "_device", "_graph", "_kernels", "_ops", "_replay", "_requires_grad", "_take",
                 "_turn")

    def __init__(self, replay: Replay) -> None:
        (part,) = replay.bound.parts
        assert replay.lone is not None and part.graph is not None
        self._replay, self._graph, self._take = replay, part.graph, replay.outputs[0].take
        self._turn = part.turn
        self._blocks = bool(replay.bound.blocks)
        self._kernels, self._ops, self._bytes = len(part.steps), part.ops, part.bytes
        self._device, self._requires_grad = replay.lone.device, replay.lone.requires_grad

    def __call__(self, found: list[Buffer]) -> Tensor:
        """Return the output, computed from buffers that have passed the guards."""
        entry = self._take(found)
        found.append(entry.buffer)
        blocks = self._replay.blocks_now() if self._blocks else None
        if blocks is not None:
            found += blocks
        under_way[id(found)] = found
        saved: list[Any] = []
        try:
            try:
                let_go(saved)
                if self._turn is None:
                    self._graph(found, ())
                else:
                    with self._turn:
                        self._graph(found, ())
            finally:
                if saved:
                    take(saved[0])
        except BaseException as error:
            self._failed(found, entry, error)
            raise
        finally:
            del under_way[id(found)]
        if blocks is not None:
            self._replay.keep_blocks(blocks)
        counters = GlobalCounters
        counters.kernel_count += self._kernels
        counters.global_ops += self._ops
        counters.global_mem += self._bytes
        t: Tensor = _new(Tensor)
        t.uop, t._device, t.grad, t._requires_grad = entry.nodes[0], self._device, None, self._requires_grad
        t._shared = None
        _live(t)
        return t

    def _failed(self, found: list[Buffer], entry: OutputMemory, error: BaseException) -> None:
        replay = self._replay
        if isinstance(error, OutOfMemoryError):
            error.plan = replay.plan()
        replay.forget()
        failed(replay.bound, found[: len(replay.inputs)], [entry.buffer], replay.bound.parts[0].steps, error)


def _is_view(uop: UOp) -> bool:
    """Return True if a value is a view of a buffer through movement ops only. Other nodes are rebuilt per result, since
    state read from them is keyed by node."""
    return uop.base.op is Ops.BUFFER


def _part(b: Buffer, number: int) -> Buffer:
    return b.parts[number] if isinstance(b, Shards) else b
