"""What realized values were made of: gradients flow through them as if they had never been computed.

A realized tensor refers to a buffer. Beside it stands the graph that it was computed by, for as long as the buffer and
some tensor that the value was computed from live, so that somebody can ask for a gradient. ``Unrolled`` puts those
graphs back in the place of the buffers: what autograd sees is the graph of a program that never realized anything.
"""
from __future__ import annotations

import itertools
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tinsmith.core.errors import GradientError
from tinsmith.core.object_lifetime import LiveSet, WeakTable
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import substitute, toposort
from tinsmith.schedule.canonical import Seen

if TYPE_CHECKING:
    from tinsmith.tensor.base import TensorBase


class Made:
    """How a buffer's value was made.

    Attributes:
        kept: the node that was computed; None if nobody can ask for it, or if it was let go for lack of memory.
        reads: the buffers that a gradient through it may read.
        computed: whether an operation made it, and not data.
        lost: if it was let go for lack of memory, the tensors that it was computed from.
    """

    __slots__ = ("_graph", "computed", "kept", "lost", "number", "reads")

    def __init__(self, graph: UOp) -> None:
        self._graph = weakref.ref(graph)
        self.kept: UOp | None = None
        self.reads: Collection[UOp] = ()
        self.computed, self.number = is_computed(graph), next(_numbers)
        self.lost: LiveSet[TensorBase] | None = None

    @property
    def graph(self) -> UOp | None:
        """The node that was computed, as long as it is kept or anything else refers to it: then both are one value."""
        return self._graph()

    def let_go(self) -> None:
        """Keep it no longer."""
        self.kept, self.reads = None, ()


_numbers: Final = itertools.count()
_made: Final[WeakTable[UOp, Made]] = WeakTable()  # BUFFER → how its value was made
_FEW: Final = 32  # entries that may come before the next look at which of them are still wanted
_LITTLE: Final = 1 << 16  # bytes that an entry may read without a look


class _Since:
    """What has come since the last look."""

    entries = 0
    bytes = 0
    kept = 0  # entries that were left


def passed_on(node: UOp) -> Sequence[UOp]:
    """The sources that a node's gradient goes to, be it zero everywhere."""
    if node.op is Ops.ASSIGN:
        return node.src[:1] if node.arg else node.src[1:]
    return () if node.op is Ops.DETACH else [s for s in node.src if s.dtype.is_float]


def sources(node: UOp) -> Sequence[UOp]:
    """The sources through which a gradient may flow."""
    return () if node.op.gradient is None else passed_on(node)


def made_of(node: UOp) -> UOp | None:
    """The graph that a realized value was computed by, if it is kept."""
    base = node.base
    found = _made.entries.get(id(base)) if base.op is Ops.BUFFER else None
    return None if found is None else found[1].graph


def prepared(graphs: Mapping[UOp, Collection[int]], live: Iterable[TensorBase],
             known: Seen | None = None) -> dict[UOp, Made | None]:
    """What is to be kept of values that are about to be computed: the graphs that a gradient may be asked for through.

    Where little is read, a graph is kept without a look at all tensors; ``look_through`` comes later.

    Args:
        graphs: of each value, with the ids of the tensors that hold this very value.
        live: every tensor.
        known: of the graphs, in their order, if they were looked at before.
    """
    histories = {g: _history(g) for g in graphs if g.dtype.is_float}
    found = {g: Made(histories[g]) if g in histories else None for g in graphs}
    asked = [g for g, history in histories.items()
             if any(s.op is not Ops.DETACH or s.arg is not None for s in sources(history))]
    if known is not None and known.plain:
        bits = dict(zip(graphs, known.form.reads))
        reads = _sets(known.buffers, {g: bits[g] for g in asked if histories[g] is g})
        reads |= _reads([histories[g] for g in asked if histories[g] is not g])
    else:
        reads = _reads([histories[g] for g in asked])
    for graph in asked:
        history, made = histories[graph], found[graph]
        if made is not None and (read := reads.get(history)) is not None:
            little = graph.op is not Ops.ASSIGN and sum([b.arg.nbytes for b in read]) <= _LITTLE
            if little or _reaches(history, _asked(live, graphs[graph])):
                made.kept, made.reads = history, read
    return found


def _history(graph: UOp) -> UOp:
    """What is remembered of a value: the graph, without the versions between the first one and the last unseen write.

    The value that was written has no gradient, and those written before it neither: however often memory is written
    in ``no_grad``, the history of its value is that of the first one.
    """
    first = first_version(graph)
    if first is graph:
        return graph
    while first.op is Ops.BUFFER or (first.op is Ops.RESHAPE and first.src[0].op is Ops.BUFFER):
        made = made_of(first)
        if made is None or made.shape != first.shape:
            break
        first = first_version(made)
    unseen = UOp.const(graph.dtype, 0).expand_to(graph.shape)
    return UOp(Ops.ASSIGN, None, (first, UOp(Ops.DETACH, None, (unseen,), -next(_numbers))), True)


def remember(buffer: UOp, made: Made | None, live: Iterable[TensorBase]) -> None:
    """Keep how the value in ``buffer`` was made."""
    if made is None:
        return
    _made[buffer] = made
    if made.kept is not None:
        _Since.entries += 1
        _Since.bytes += sum([b.arg.nbytes for b in made.reads])
        if _Since.entries > max(_FEW, _Since.kept) or _Since.bytes > settings.HISTORY_BYTES:
            look_through(live)


_Version = tuple[weakref.ref[UOp], tuple[Any, ...]]  # a node, and the shape that it was seen in
_earlier: Final[WeakTable[TensorBase, list[_Version]]] = WeakTable()


def note_earlier(t: TensorBase, node: UOp) -> None:
    """Note what a tensor of data was before it was written unseen: results computed from that are still its results.

    Some may have been computed from its buffer, and some, before it had one, from what the buffer was made of.
    """
    graph = made_of(node)
    found = _earlier.entries.get(id(t))
    noted = [] if found is None else [v for v in found[1] if v[0]() is not None]
    _earlier[t] = [*noted, *((weakref.ref(n), node.shape) for n in (node, graph) if n is not None)]


def earlier(t: TensorBase) -> list[UOp]:
    """What a tensor of data was before writes that were not recorded, as far as anything refers to that."""
    found = _earlier.entries.get(id(t))
    if found is None:
        return []
    return [_shaped(n, shape) for ref, shape in found[1] if (n := ref()) is not None and n is not t.uop]


_origins: Final[WeakTable[TensorBase, tuple[weakref.ref[TensorBase], ...]]] = WeakTable()


def has_origins(t: TensorBase, value: UOp, sharing: Collection[TensorBase], live: Iterable[TensorBase]) -> bool:
    """Whether data of a tensor are a copy of those that another living tensor is, or was, and not data of its own.

    Which tensors these are is looked up once, since a value that is written unseen keeps the gradient that it had.
    Of two tensors that are one node, the one that came first has the data.

    Args:
        value: of all the memory that the tensor shows.
        sharing: the tensors that show that memory.
        live: every tensor, in the order in which they came.
    """
    found = _origins.entries.get(id(t))
    if found is None:
        below, mine = _flows_to(value), {id(s) for s in sharing}
        others, refs = below, []
        for other in live:
            if id(other) in mine:
                others = below - _same_memory(value)
            elif not others.isdisjoint(_versions(other)):
                refs.append(weakref.ref(other))
        for s in sharing:
            _origins[s] = tuple(refs)
        return bool(refs)
    return any(ref() is not None for ref in found[1])


def forget_origins(sharing: Iterable[TensorBase]) -> None:
    """After a write that gradients flow through, the data of the tensors that show it may be another one's."""
    if len(_origins):
        for t in sharing:
            _origins.entries.pop(id(t), None)


def _versions(t: TensorBase) -> list[UOp]:
    """The nodes that a tensor is, or was before writes unseen, with what they were computed by."""
    node, graph = t.uop, made_of(t.uop) if len(_made) else None
    return [node, *(() if graph is None else (graph,)), *earlier(t)]


def _same_memory(value: UOp) -> set[UOp]:
    """A value, what it is a view of, and what that was computed by."""
    found = {value}
    below: UOp | None = value
    while below is not None:
        found.add(below)
        below = below.src[0] if below.op.kind == "movement" else made_of(below) if below.op is Ops.BUFFER else None
    return found


def _flows_to(graph: UOp) -> set[UOp]:
    """A node and all that a gradient which enters it reaches, through histories."""
    seen: set[UOp] = set()
    stack = [graph]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            below = made_of(n) if n.op is Ops.BUFFER else None
            stack += sources(n) if below is None else (below,)
    return seen


def first_version(node: UOp) -> UOp:
    """What a value was before all writes that were not recorded: its gradient is that one's."""
    while node.op is Ops.ASSIGN and node.arg:
        node = node.src[0]
    return node


def is_computed(uop: UOp) -> bool:
    """Whether an operation made a value: not data, copies of it, or new versions of its memory.

    Data written over all of what was computed are data: a lazy value is replaced by them without a trace.
    """
    base = uop.base
    while base.op in (Ops.SHARD, Ops.COPY, Ops.CONTIGUOUS, Ops.ASSIGN):
        if base.op is Ops.ASSIGN and not base.arg and not is_computed(base.src[1]):
            return False
        base = base.src[0].base
    if base.op is Ops.BUFFER:
        found = _made.entries.get(id(base))
        return found is not None and found[1].computed
    return base.op is not Ops.DETACH or base.arg is None


def forget(uops: Iterable[UOp]) -> None:
    """Let go of how these values were made: they are leaves from now on."""
    for u in uops:
        _made.entries.pop(id(u.base), None)


def read_by_histories(buffers: Collection[UOp]) -> set[UOp]:
    """Those of ``buffers`` that a gradient may still read."""
    return {b for _, m in _made.items() for b in buffers if b in m.reads} if len(_made) else set()


def _asked(live: Iterable[TensorBase], mine: Collection[int] = ()) -> set[UOp]:
    """The nodes that tensors are, or were before writes unseen, other than those with ids in ``mine``."""
    found = set()
    for t in live:
        if id(t) not in mine:
            u = t.uop
            found.add(u)
            if len(_made) and (graph := made_of(u)) is not None:
                found.add(graph)
    for t, _ in _earlier.items():
        found.update(earlier(t))
    return found


def _reaches(graph: UOp, wanted: set[UOp]) -> bool:
    """Whether a gradient that enters ``graph`` may reach one of the nodes asked for, through histories too."""
    seen: set[UOp] = set()
    stack = list(sources(graph))
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        if n in wanted:
            return True
        seen.add(n)
        found = _made.entries.get(id(n)) if n.op is Ops.BUFFER else None
        if found is None:
            stack += sources(n)
        elif (below := found[1].graph) is not None:
            stack.append(below)
        elif found[1].lost:  # who asks must be told
            return True
    return False


def _reads(graphs: Sequence[UOp]) -> dict[UOp, Collection[UOp]]:
    """For each node below which there is float data, the buffers there (the old version that an ASSIGN names is not
    read): one walk for all of them, on which a number stands for a set. Its last bit says whether there is data."""
    buffers: list[UOp] = []
    below: dict[UOp, int] = {}
    for n in toposort(graphs):
        if n.op is Ops.BUFFER:
            buffers.append(n)
            below[n] = 1 << len(buffers) | n.dtype.is_float
            continue
        bits = int(n.op is Ops.DETACH and n.arg is not None)
        for s in n.src[1:] if n.op is Ops.ASSIGN and not n.arg else n.src:
            bits |= below[s]
        below[n] = bits
    return _sets(buffers, {g: below[g] for g in graphs})


def _sets(buffers: Sequence[UOp], below: Mapping[UOp, int]) -> dict[UOp, Collection[UOp]]:
    """The sets that numbers stand for, of the graphs below which there is data."""
    sets = {bits: frozenset([b for i, b in enumerate(buffers, 1) if bits >> i & 1]) for bits in set(below.values())}
    return {g: sets[bits] for g, bits in below.items() if bits & 1}


def look_through(live: Iterable[TensorBase]) -> None:
    """Let go of histories that nobody can ask for any more, and of the oldest ones beyond ``HISTORY_BYTES``."""
    tensors = list(live)
    wanted = _asked(tensors)
    kept: list[Made] = []
    for _, made in sorted(_made.items(), key=lambda e: e[1].number):
        if made.kept is not None and _reaches(made.kept, wanted):
            kept.append(made)
        else:
            made.let_go()
    shown = {t.uop.base for t in tensors}
    held = {b: None for m in kept for b in m.reads if b not in shown}
    total = sum(b.arg.nbytes for b in held)
    for number, made in enumerate(kept):
        if total <= settings.HISTORY_BYTES:
            break
        assert made.kept is not None
        below, made.lost = _below([made.kept]), LiveSet()
        for t in tensors:
            if t.uop in below or (made_of(t.uop) or t.uop) in below:
                made.lost.add(t)
        for n in below:  # what was let go before is below this as well
            if n.op is Ops.BUFFER and (found := _made.entries.get(id(n))) is not None:
                for t in found[1].lost or ():
                    made.lost.add(t)
        later = frozenset[UOp]().union(*(m.reads for m in kept[number + 1 :]))
        total -= sum(b.arg.nbytes for b in made.reads if b in held and b not in later)
        made.let_go()
    _Since.entries, _Since.bytes, _Since.kept = 0, 0, len(kept)


def _below(roots: Iterable[UOp]) -> set[UOp]:
    """All nodes below some, through histories."""
    seen: set[UOp] = set()
    stack = list(roots)
    while stack:
        n = stack.pop()
        if n not in seen:
            seen.add(n)
            graph = made_of(n) if n.op is Ops.BUFFER else None
            stack += n.src if graph is None else (graph,)
    return seen


class Unrolled:
    """Nodes with the graphs that realized values were made of in their place, and the way back.

    Attributes:
        nodes: in the order of the arguments.
    """

    def __init__(self, nodes: Sequence[UOp]) -> None:
        self._new: dict[UOp, UOp] = {}
        self._back: dict[UOp, UOp] = {}
        self._lost: list[Made] = []
        self.nodes = [self._of(n) for n in nodes] if _have_histories(nodes) else list(nodes)

    def node(self, uop: UOp) -> UOp:
        """What the first version of a node is among ``nodes`` and those below them."""
        found = self._new.get(uop)
        if found is None:
            graph = made_of(uop) if self._new else None
            found = uop if graph is None or graph not in self._new else self._of(uop)
        return first_version(found)

    def _of(self, root: UOp) -> UOp:
        new = self._new
        stack = [root]
        while stack:
            n = stack[-1]
            if n in new:
                stack.pop()
                continue
            graph = None
            if n.op is Ops.BUFFER and (made := _made.entries.get(id(n))) is not None:
                graph = made[1].graph
                if graph is None and made[1].lost is not None:
                    self._lost.append(made[1])
            below: Sequence[UOp] = n.src if graph is None else (graph,)
            if n.op is Ops.ASSIGN:
                below = n.src[:1] if n.arg else n.src[1:]  # the other one is no part of the gradient
            missing = [s for s in below if s not in new]
            if missing:
                stack += missing
                continue
            new[n] = self._rebuilt(n, graph)
            stack.pop()
        return new[root]

    def _rebuilt(self, n: UOp, graph: UOp | None) -> UOp:
        new = self._new
        if graph is not None:
            whole = new[graph]
            self._back[whole] = _shaped(n, whole.shape)
            return _shaped(whole, n.shape)
        src = tuple([new.get(s, s) for s in n.src])
        if src == n.src:
            return n
        line = n.op is Ops.RESHAPE and n.src[0].op is Ops.BUFFER  # what was computed may have had this very shape
        if line and src[0].op is Ops.RESHAPE and src[0].src[0].shape == n.shape:
            return src[0].src[0]
        return n.replace(src=src)

    def check(self, targets: Iterable[TensorBase]) -> None:
        """Refuse targets that a value was computed from whose history was let go.

        Raises:
            GradientError: naming the setting that says how much memory histories may hold.
        """
        for made in self._lost:
            gone = {id(t) for t in made.lost or ()}
            for t in targets:
                if id(t) in gone:
                    raise GradientError("gradient", f"a value computed from the tensor of shape {t.shape} was realized,"
                                        f" and how it was made is beyond HISTORY_BYTES={settings.HISTORY_BYTES}",
                                        "a greater HISTORY_BYTES, or no_grad() and detach() where none is wanted")

    def rolled(self, nodes: Sequence[UOp]) -> list[UOp]:
        """Nodes in terms of the realized values again."""
        return substitute(nodes, self._back) if self._back else list(nodes)


def _have_histories(nodes: Sequence[UOp]) -> bool:
    """Whether a value below was computed by a graph that is kept, or was let go."""
    if not len(_made):
        return False
    found = [_made.entries.get(id(n)) for n in toposort(nodes) if n.op is Ops.BUFFER]
    return any(f is not None and (f[1].graph is not None or f[1].lost is not None) for f in found)


def _shaped(x: UOp, shape: tuple[Any, ...]) -> UOp:
    """A buffer's line of elements as a value of ``shape``, or the other way; of a symbolic size only the beginning."""
    if x.shape == shape:
        return x
    size = x.size
    if not isinstance(size, UOp) and not any(isinstance(s, UOp) for s in shape):
        return x.reshape(shape)
    if x.op is Ops.BUFFER:
        total: Any = 1
        for s in shape:
            total = total * s
        return x.shrink(((0, total.simplify() if isinstance(total, UOp) else total),)).reshape(shape)
    used = size.simplify() if isinstance(size, UOp) else size
    return x.reshape((used,)).pad(((0, shape[0] - used),))
