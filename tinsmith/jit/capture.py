"""The capture of one call: programs that ran, state that was read, and the replay without Python."""
from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tinsmith.backend.memory import Buffer
from tinsmith.core.object_lifetime import LiveSet
from tinsmith.core.settings import settings
from tinsmith.core.terminal import bytes_text
from tinsmith.ir import Ops, UOp
from tinsmith.ir.algebra.sizes import bindings
from tinsmith.ir.uop import substitute, toposort
from tinsmith.jit.aliases import Alias, sizes_in
from tinsmith.jit.capture_hooks import CaptureProfile
from tinsmith.jit.collect import CacheCollector, Source
from tinsmith.jit.deferred_grads import SetAside
from tinsmith.jit.dynamic import RangeTrace
from tinsmith.jit.guards.signature import base_of, fresh, leaves, placed, rebuilt, view_of, writable
from tinsmith.jit.guards.sizes import RangeHistory
from tinsmith.jit.guards.state import State
from tinsmith.jit.guards.tensors import Decisions, Gradient, Group, Guards, Member, Quick, QuickSizes, TensorPath
from tinsmith.jit.memory import compute
from tinsmith.jit.merged_schedule import Returned, Template, Written, placeholder
from tinsmith.jit.reachability import reachable
from tinsmith.jit.replay import Replay
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create import random
from tinsmith.tensor.realize import is_leaf, realize_tensors
from tinsmith.tensor.storage import Looks, alone, sharing, unseen
from tinsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tinsmith.tensor.abstract import AbstractTensor


class Uncapturable(Exception):
    """Raised if a call succeeded but cannot be replayed; the message is the reason."""


class Disturbed(Uncapturable):
    """The call cannot be captured because another thread wrote its tensors, or a tensor left its shared memory.

    A later call may be captured.
    """


def compute_data(roots: Sequence[Any]) -> dict[int, Tensor]:
    """Realize leaf tensors reachable from ``roots``, and return all reachable tensors by id. The uncaptured first call
    then runs the same programs as the captured one."""
    known = reachable(roots)
    lazy = [t for t in known.values() if not placed(t.uop) and is_leaf(t.uop)]
    if lazy:
        realize_tensors(lazy)
    return known


def kept_gradients(before: Iterable[tuple[Tensor, Tensor | None]], written: Collection[int]) -> list[Tensor]:
    """Return new gradients that must be computed: requested ones that no step consumed, or that accumulate.

    Args:
        before: tensors, and the gradients that they had before the call.
        written: ids of tensors with new values.
    """
    new = [(t, t.grad, old) for t, old in before if t.grad is not old and t.grad is not None and t.requires_grad]
    below = set(toposort([grad.uop for t, grad, old in new if id(t) in written and old is not None]))
    return [grad for t, grad, old in new if id(t) not in written or (
        old is not None and old.uop in below and old.uop in toposort(grad.uop))]


class Capture(CacheCollector):
    """The recorder of one call, and afterwards its replay.

    Args:
        function, args, kwargs: the call.
        arguments: the tensors among its arguments, realized.
        roots: all other values that the function can reach.
        bound: names and values of the bound variables among the arguments.
        trace: the trace of a capture over a range of sizes.

    Attributes:
        range: the guard on the sizes of a capture over a range; else None.
        state: guards on the Python values that the call reads.
        watch: context manager to hold while the function runs.
    """

    replay: Replay
    history: RangeHistory | None = None  # of a capture over a range
    quick: Quick | QuickSizes | None = None  # fast path for calls like the latest one that met all guards

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: list[Tensor],
                 roots: Sequence[Any], bound: Sequence[tuple[str, int]] = (), trace: RangeTrace | None = None) -> None:
        super().__init__()
        self.trace, self.range = trace, None if trace is None else trace.guard
        self.state = State(function, args, kwargs)
        self.watch = CaptureProfile(self.state)
        self.guards = Guards()
        self.arguments = arguments
        self.known = compute_data(roots)
        gradients = {id(t.grad): t.grad for t in (*self.known.values(), *arguments) if t.grad is not None}
        self.unread = SetAside([g for g in gradients.values() if not placed(g.uop)])
        everything = list(TensorBase.live)
        self.before: dict[int, tuple[Tensor, UOp, Tensor | None]] = {id(t): (t, t.uop, t.grad) for t in everything}
        self.unasked = {id(t) for t in everything if t.gradient_unasked()}
        self.numbers = {id(t): n for n, t in reversed(list(enumerate(arguments)))}
        self.owner = {id(t.grad): t for t in everything if t.grad is not None}
        self.seed, self.first_draw = random.state()
        self.resets, self.forgettings = random.resets(), TensorBase.forgettings
        self.bound = {pair: n for n, pair in enumerate(bound)}
        self.decisions: dict[UOp, int] = {}
        self.wrote: LiveSet[Tensor] = LiveSet()  # tensors written, or given a gradient, in the capturing thread
        self.graded: LiveSet[Tensor] = LiveSet()
        self.replaced: set[int] = set()  # ids of tensors that were given another memory
        self.parted = False  # from views that were there before the call
        self.disturbed: LiveSet[Tensor] = LiveSet()  # what other threads write meanwhile

    def look_quickly(self, args: tuple[Any, ...], bound: Sequence[int]) -> None:
        """Build the fast path for calls like ``args``, which have just passed all guards.

        Raises:
            TypeError: if such arguments need the full guards.
        """
        if not bound:
            self.quick = Quick(self.state, self.guards, args)
            return
        quick = QuickSizes(self.state, self.guards, args, self.range)
        matched = quick.match(args)
        if matched is not None and list(matched[2]) == list(bound):
            self.quick = quick

    def timed_replay(self, found: list[Buffer], arguments: Sequence[Tensor], bound: Sequence[int]) -> Any:
        """Replay a capture over a range, and count the time for these values of its variables."""
        begin = time.perf_counter()
        result = self.replay(found, arguments, bound)
        if self.history is not None and self.history.ran(bound, time.perf_counter() - begin):
            self.quick = None  # the guards find that a capture for these sizes pays
        return result

    # *** recording ***

    def decided(self, size: UOp, value: int) -> None:
        """Record the value of a symbolic size or condition that the function's control flow depends on."""
        self.decisions[size] = value

    def replacing(self, t: Tensor) -> None:
        """Record that ``t`` is about to get another memory.

        Older views of the old memory show the call's writes to it, and share it with results. A replay cannot find such
        views. So there must be none if the call itself has views of that memory, or has written to it.
        """
        if id(t) in self.before and id(t) not in self.replaced:
            self.replaced.add(id(t))
            before = [id(m) in self.before for m in sharing(t) if m is not t]
            if not all(before) or t.uop is not self.before[id(t)][1]:
                self.guards.alone.append(self.place(t))
                self.parted |= any(before)

    def settle(self, result: Any, donate: bool = False) -> None:
        """Realize the results and changed state, then determine the source of every buffer.

        Args:
            donate: replays may overwrite the results of the previous call.

        Raises:
            Uncapturable: if the call cannot be replayed.
        """
        self.known.update((id(t), t) for t, *_ in self.state.tensors)
        if random.resets() != self.resets:
            raise Uncapturable("sets the seed of the random numbers")
        for leaf in leaves(result):
            if not isinstance(leaf, Tensor) and any(key not in self.before for key in reachable([leaf])):
                raise Uncapturable(f"returns tensors inside a {type(leaf).__name__}")
        if any(self.state.knows(c) for c in writable(result)):
            raise Uncapturable("returns a list, a dict or an object that was there before the call")
        returned = [t for t in leaves(result) if isinstance(t, Tensor)]
        if self.trace is not None:
            self.check_sizes(returned)
        self.check_disturbed()
        mine = {id(t) for t in self.wrote}  # other changes were made by other threads
        changed = [t for t, old, _ in self.before.values() if t.uop is not old and (
            id(t) in mine if placed(old) else id(t) in self.known or id(t) in self.numbers)]
        forgets = TensorBase.forgettings != self.forgettings
        got = {id(t) for t in self.graded}
        graded = [t for t, _, grad in self.before.values() if t.grad is not grad and not (
            forgets and self.is_forgotten(t)) and (id(t) in got or id(t) in self.known or id(t) in self.numbers)]
        kept = kept_gradients([(t, self.before[id(t)][2]) for t in graded], {id(t) for t in changed})
        compute(returned, [*changed, *kept])
        self.check_disturbed()
        draws = random.state()[1] - self.first_draw
        self.bind(returned, graded, forgets)
        finder = _Finder(self)
        alike = self.alike()
        for number, item in enumerate(self.items):
            item.sources = [finder.source(b) for b in item.inputs]
            finder.made |= {id(b): Source(program=number, output=k) for k, b in enumerate(item.outputs)}
        aliases = self.aliases(returned, graded)
        nesting = rebuilt(result, lambda t: self.returned(t, finder, aliases) if isinstance(t, Tensor) else fresh(t))
        written = self.written(changed, finder)
        late = [t for t in graded if t.grad is not None and not placed(t.grad.uop)]
        templates = dict(zip(map(id, late), finder.templates([t.grad.uop for t in late if t.grad is not None])))
        for t in graded:
            place = self.place(t)._replace(gradient=True)
            template = templates.get(id(t)) or (None if t.grad is None else finder.template(t.grad.uop))
            written.append(Written(place, template, id(t) in templates, sets=True))
        for node in [*(base_of(t.uop) for t in alike), *(base_of(self.before[id(t)][1]) for t in changed)]:
            if node.op is Ops.BUFFER:
                finder.source(node.arg)
        self.guards.groups = finder.groups
        self.guards.decisions = Decisions(self.decisions, self.bound)
        places = [m.place for g in finder.groups for m in g.members if not m.place.gradient]
        self.state.compile({id(p.find(self.arguments)) for p in places}, {id(t) for t in graded})
        self.replay = Replay(self.items, nesting, written, self.first_draw, draws, self.bound, donate, forgets,
                             len(finder.groups), self.added_to(graded), self.range is not None)
        if self.replay.compiled.missing:
            raise Uncapturable(f"misses memory_budget={bytes_text(settings.memory_limit)} by "
                               f"{bytes_text(self.replay.compiled.missing)} as one program")
        for item in self.items:  # drop buffers: a capture keeps programs, not values
            item.inputs, item.outputs = [], []
        self.trace = None
        self.before, self.graphs, self.arguments, self.known, self.owner = {}, {}, [], {}, {}
        self.numbers, self.decisions, self.unasked, self.replaced = {}, {}, set(), set()

    def check_sizes(self, returned: Sequence[Tensor]) -> None:
        """Refuse a capture over a range if a replay could not restore how its memory is shared.

        Raises:
            Uncapturable: for views of changing sizes, and for state that shares the memory of an argument.
        """
        assert self.trace is not None
        for t in (*returned, *self.wrote):
            if t._shared is not None and not alone(t) and sizes_in(t._shared.looks):
                raise Uncapturable("a view of changing size shares memory with another tensor")
        given = {id(real) for real, _ in self.trace.nominal.values()}
        if any(base_of(t.uop).op is Ops.BUFFER and id(base_of(t.uop).arg) in given for t in self.known.values()):
            raise Uncapturable("an argument of changing size shares memory with a tensor that the function can reach")

    def written(self, changed: list[Tensor], finder: _Finder) -> list[Written]:
        """Return the new values of state, one per group of tensors that share memory (also guarded at a replay)."""
        found: list[Written] = []
        shared: dict[int, list[Tensor]] = {}
        for t in changed:
            if id(t) in self.replaced:  # only what the call made shares its new memory
                found.append(Written(self.current(t), finder.template(t.uop), replaces=True))
            elif alone(t):
                found.append(Written(self.current(t), finder.template(t.uop)))
            else:
                assert t._shared is not None
                shared.setdefault(id(t._shared.storage), []).append(t)
        for tensors in shared.values():
            parts = [(self.current(t), t._shared) for t in tensors if t._shared is not None]
            place, (storage, looks) = parts[0]
            found.append(Written(place, finder.template(tensors[0].uop),
                                 whole=(finder.template(storage.value), looks)))
            if len(parts) > 1:
                self.guards.shared.append([(p, share.looks) for p, share in parts])
        return found

    def added_to(self, graded: list[Tensor]) -> list[TensorPath]:
        """Return the tensors to whose earlier, unrequested gradient the call added: a replay may drop the gradient."""
        new = {id(t) for t in graded}
        old = [self.before[id(t)][0] for t in self.graded if id(t) in self.before and id(t) not in new]
        return [self.place(t) for t in old if t.gradient_unasked()]

    def check_disturbed(self) -> None:
        """Refuse a call if another thread wrote memory that it reads or writes, during the call.

        Raises:
            Disturbed: if there was such a write, or the call detached a tensor from memory that it shared with views.
        """
        if self.parted:
            raise Disturbed
        mine = self.known.keys() | self.numbers.keys() | {id(t) for t in self.wrote}
        if any(id(t) in mine for t in self.disturbed):
            raise Disturbed

    def alike(self) -> list[Tensor]:
        """Return unchanged tensors whose value is the node of another tensor, and guard the unrealized ones. An
        assignment between such tensors leaves no trace in the capture, but has an effect once their values differ."""
        holders: dict[UOp, set[int]] = {}
        for t in (*self.known.values(), *self.arguments):
            if id(t) in self.before:
                for n in _buffers(self.before[id(t)][1]):
                    holders.setdefault(n, set()).add(id(t))
        found = [t for t in self.known.values() if id(t) in self.before and t.uop is self.before[id(t)][1] and any(
            len(holders[n]) > 1 for n in _buffers(t.uop))]
        guarded = {id(ref()) for ref, _ in self.guards.lazy}
        self.guards.lazy += [(weakref.ref(t), t.uop) for t in found if not placed(t.uop) and id(t) not in guarded]
        return [t for t in found if base_of(t.uop).op is Ops.BUFFER]

    def is_forgotten(self, t: Tensor) -> bool:
        """Return True if ``t`` is unreachable from the function and lost an unrequested gradient. A replay does
        not look for this tensor: it clears all such gradients."""
        return t.grad is None and t.requires_grad is None and id(t) not in self.known and id(t) not in self.numbers

    def gradient_before(self, t: Tensor) -> Tensor | None:
        return self.before[id(t)][2] if id(t) in self.before else None

    def place(self, t: Tensor) -> TensorPath:
        """Return the place where a replay finds a tensor that existed before the call."""
        if id(t) in self.numbers:
            return TensorPath(self.numbers[id(t)])
        return TensorPath(ref=weakref.ref(t))

    def current(self, t: Tensor) -> TensorPath:
        """Return the place of a tensor; a gradient is found as the current gradient of its tensor."""
        owner = self.owner.get(id(t))
        if owner is None or id(t) in self.known or id(t) in self.numbers:
            return self.place(t)
        found = id(owner) in self.known or id(owner) in self.numbers
        return self.place(owner)._replace(gradient=True) if found else self.place(t)

    def bind(self, returned: list[Tensor], graded: list[Tensor], forgets: bool) -> None:
        """Return the guards on unrealized tensors that were read, on gradients, and on the seed of earlier random
        draws."""
        seen = set(toposort([*self.graphs, *(t.uop for t in returned)]))
        returns = {id(t) for t in returned}
        for t, old, _ in self.before.values():
            if not placed(old) and id(t) not in self.numbers and (
                    old.base in seen or id(t) in returns or (id(t) in self.known and t.uop is not old)):
                self.guards.lazy.append((weakref.ref(t), old))
        touched = {id(t): t for t in graded}
        if forgets:  # existing gradients may be cleared
            touched |= {id(t): t for t in (*self.known.values(), *self.arguments)
                        if self.gradient_before(t) is not None}
        for key, t in touched.items():
            there = self.gradient_before(t) is not None
            unasked = key in self.unasked if forgets and there else None
            self.guards.gradients.append(Gradient(self.place(t), there, unasked))
        for n in seen:
            if n.op is Ops.BIND and n.src[0].arg[0] == "call" and n.src[1].arg < self.first_draw:
                self.guards.seed = self.seed

    def returned(self, t: Tensor, finder: _Finder, aliases: dict[int, Alias]) -> Returned:
        if id(t) in self.before:
            return Returned(self.current(t), None, t._device, t.requires_grad)
        alias = aliases.get(id(t))
        template = None
        if alias is None or not alias.seen:
            template = finder.template(t.uop)
        elif alias.number >= 0 and t._shared is not None:
            template = finder.template(t._shared.storage.value)
        return Returned(None, template, t._device, t.requires_grad, alias)

    def aliases(self, returned: Sequence[Tensor], graded: Sequence[Tensor]) -> dict[int, Alias]:
        """Return the alias, by id, of each result that shares memory with another result or an earlier tensor, or that
        has the strides of a view, so that a ``reshape`` of it copies."""
        made = {id(t.grad): t for t in graded if t.grad is not None}
        results = {id(t): t for t in returned if id(t) not in self.before}
        numbers: dict[int, int] = {}
        found: dict[int, Alias] = {}
        for key, t in results.items():
            if t._shared is None or alone(t):
                continue
            storage, looks = t._shared
            others = [m for m in storage.members() if id(m) in self.before or id(m) in made]
            seen = placed(storage.value)
            if others:
                found[key] = self.alias(looks, others, made)._replace(seen=seen)
            elif (unseen(t) and seen) or any(m is not t and id(m) in results for m in storage.members()):
                found[key] = Alias(looks, number=numbers.setdefault(id(storage), len(numbers)))
        return found

    def alias(self, looks: Looks, others: Sequence[AbstractTensor], made: dict[int, Tensor]) -> Alias:
        """Return an alias to the memory of one of ``others``, preferably of a tensor whose views are guarded."""
        every = list(looks)
        for m in others:
            own = list(m._shared.looks) if m._shared is not None else []
            if own == every[:len(own)]:
                more = Looks.of(every[len(own):])
                if id(m) not in self.before:
                    return Alias(more, self.place(made[id(m)])._replace(gradient=True), True, late=True)
                if id(m) in self.known or id(m) in self.numbers:
                    return Alias(more, self.current(self.before[id(m)][0]), True)
        for m in others:
            if id(m) in self.before and m._shared is not None:
                self.guards.shared.append([(self.current(self.before[id(m)][0]), m._shared.looks)])
                return Alias(looks, self.guards.shared[-1][0][0])
        raise Uncapturable("returns a view of a gradient that looks at it in another way")


def _buffers(uop: UOp) -> list[UOp]:
    return [base_of(uop)] if base_of(uop).op is Ops.BUFFER else [n for n in toposort(uop) if n.op is Ops.BUFFER]


class _Finder:
    """The resolver of buffer sources: for each buffer of a finished capture, the place where a replay finds it."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.made: dict[int, Source] = {}
        self.groups: list[Group] = []
        self.group_of: dict[int, Source] = {}
        self.arguments: dict[int, int] = {}
        for n, t in enumerate(capture.arguments):
            old = base_of(capture.before[id(t)][1])
            if old.op is Ops.BUFFER:
                self.arguments.setdefault(id(old.arg), n)
        self.holders: dict[int, list[tuple[Tensor, UOp]]] = {}
        for t, old, _ in capture.before.values():
            if (base := base_of(old)).op is Ops.BUFFER:
                self.holders.setdefault(id(base.arg), []).append((t, old))
        lazy = [uop for _, uop in capture.guards.lazy]
        self.pinned = {id(n.arg) for n in toposort(lazy) if n.op is Ops.BUFFER} if lazy else set()

    def source(self, b: Buffer) -> Source:
        if id(b) in self.made:
            return self.made[id(b)]
        if id(b) not in self.group_of:
            self.group_of[id(b)] = self.new_group(b)
        return self.group_of[id(b)]

    def new_group(self, b: Buffer) -> Source:
        argument = self.arguments.get(id(b), -1)
        members = self.members(b, argument >= 0)
        if argument < 0 and not members:
            return Source(held=b)
        trace = self.capture.trace
        size = -1 if trace is not None and any(b is most for _, most in trace.nominal.values()) else b.size
        self.groups.append(Group(size, b.dtype, b.device, argument, members, b if id(b) in self.pinned else None,
                                 b.layout))
        return Source(group=len(self.groups) - 1)

    def members(self, b: Buffer, argument: bool) -> list[Member]:
        """Return the tensors other than arguments through which the function may have read ``b``."""
        capture = self.capture
        found: list[Member] = []
        rest: list[Member] = []
        for t, old in self.holders.get(id(b), []):
            place = TensorPath(ref=weakref.ref(t)) if id(t) in capture.known else capture.current(t)
            if place.number < 0 or place.gradient:
                (found if id(t) in capture.known or place.gradient else rest).append(Member(place, view_of(old)))
        return found if found or argument else rest

    def template(self, uop: UOp) -> Template:
        return self.templates([uop])[0]

    def templates(self, uops: Sequence[UOp]) -> list[Template]:
        """Return templates of values with one common list of sources, because gradients have nearly the same
        sources."""
        nodes = toposort(uops)
        buffers = [n for n in nodes if n.op is Ops.BUFFER]
        table = {n: placeholder(k, n.arg) for k, n in enumerate(buffers)}
        sources, drawn = [self.source(n.arg) for n in buffers], bool(bindings(nodes))
        ranged = drawn and self.capture.trace is not None
        return [Template(u, sources, u.op is Ops.BUFFER, drawn, ranged) for u in substitute(uops, table)]
