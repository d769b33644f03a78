"""Autograd history of realized tensors: gradients flow through a realized value as if it were still lazy.

A realized tensor refers to a buffer. A table maps that buffer to the graph that computed its value, for as long as the
buffer and at least one tensor that the value was computed from are alive (otherwise no gradient can be requested).
``Unrolled`` substitutes these graphs for the buffers, so autograd sees the graph of a program that never realized
anything.
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
    from tinsmith.tensor.abstract import AbstractTensor

class Made:
    """The history entry of one buffer: the graph that computed its value.

    Attributes:
        kept: the computed node (strong reference); None if no gradient can be requested through it, or if it was
            dropped because histories exceeded ``HISTORY_BYTES``.
        reads: the buffers that a gradient through the graph may read.
        computed: True if an operation produced the value, False for data.
        lost: if the entry was dropped because of ``HISTORY_BYTES``, the tensors that the value was computed from.
        number: creation order of the entry; the oldest entries are dropped first.
    """

    __slots__ = ("_graph", "computed", "kept", "lost", "number", "reads")

    def __init__(self, graph: UOp) -> None:
        self._graph = weakref.ref(graph)
        self.kept: UOp | None = None
        self.reads: Collection[UOp] = ()
        self.computed, self.number = is_computed(graph), next(_numbers)
        self.lost: LiveSet[AbstractTensor] | None = None

    @property
    def graph(self) -> UOp | None:
        """The computed node while it is alive (kept here or referenced elsewhere), else None."""
        return self._graph()

    def let_go(self) -> None:
        """Drop the strong reference to the graph and the buffers it reads."""
        self.kept, self.reads = None, ()


_numbers: Final = itertools.count()
_made: Final[WeakTable[UOp, Made]] = WeakTable()  # BUFFER → its history entry
_FEW: Final = 32  # minimum number of new entries between two runs of ``look_through``
_LITTLE: Final = 1 << 16  # bytes; an entry whose reads are smaller is kept without a search through all tensors


class _Since:
    """Counters of the history since the last run of ``look_through``."""

    entries = 0  # entries added since then
    bytes = 0  # size of the buffers that these entries read
    kept = 0  # entries that the last run kept


def passed_on(node: UOp) -> Sequence[UOp]:
    """Return the sources to which a node's gradient is propagated, including those where it is always zero."""
    if node.op is Ops.ASSIGN:
        return node.src[:1] if node.arg else node.src[1:]
    if node.op is Ops.DETACH:
        return ()
    for s in node.src:
        if not s.dtype.is_float:
            return [s for s in node.src if s.dtype.is_float]
    return node.src


def sources(node: UOp) -> Sequence[UOp]:
    """Return the sources through which a nonzero gradient may flow: none if the op has no gradient rule."""
    return () if node.op.gradient is None else passed_on(node)


def made_of(node: UOp) -> UOp | None:
    """Return the graph that computed a realized value, or None if it is not kept."""
    base = node.base
    found = _made.entries.get(id(base)) if base.op is Ops.BUFFER else None
    return None if found is None else found[1].graph


def prepared(graphs: Mapping[UOp, Collection[int]], live: Iterable[AbstractTensor],
             known: Seen | None = None) -> dict[UOp, Made | None]:
    """Create the history entries of values that are about to be computed; None for values that are not floats.

    An entry keeps its graph if a live tensor may request a gradient through it. A graph that reads at most ``_LITTLE``
    bytes is kept without that search; ``look_through`` drops it later if it is not needed.

    Args:
        graphs: the node of each value → the ids of the tensors that hold it.
        live: all live tensors.
        known: the analysis of ``graphs``, in the same order, if it was done before.
    """
    found: dict[UOp, Made | None] = {}
    asked: dict[UOp, UOp] = {}  # node → its history, if a gradient may flow through it
    for graph in graphs:
        found[graph] = None
        if graph.dtype.is_float:
            history = graph if graph.op is not Ops.ASSIGN else _history(graph)
            found[graph] = Made(history)
            for s in sources(history):
                if s.op is not Ops.DETACH or s.arg is not None:
                    asked[graph] = history
                    break
    if not asked:
        return found
    if known is not None and known.plain:
        bits = dict(zip(graphs, known.key[0].reads))
        reads = _sets(known.buffers, {g: bits[g] for g, history in asked.items() if history is g})
        if len(reads) < len(asked) and (rest := [history for g, history in asked.items() if history is not g]):
            reads |= _reads(rest)
    else:
        reads = _reads(list(asked.values()))
    for graph, history in asked.items():
        made = found[graph]
        if made is not None and (read := reads.get(history)) is not None:
            little = graph.op is not Ops.ASSIGN and _bytes_of(read) <= _LITTLE
            if little or _reaches(history, _asked(live, graphs[graph])):
                made.kept, made.reads = history, read
    return found


def _bytes_of(buffers: Iterable[UOp]) -> int:
    """Return the total size of some BUFFERs."""
    total = 0
    for b in buffers:
        total += b.arg.size * b.dtype.itemsize
    return total


def _history(graph: UOp) -> UOp:
    """Return the graph to keep for a value, without the versions between the first one and the last unrecorded write.

    Values written in ``no_grad`` have no gradient. So after any number of such writes, the history of a memory's value
    is that of the first version.
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


def remember(buffer: UOp, made: Made | None, live: Iterable[AbstractTensor]) -> None:
    """Store the history entry of the value in ``buffer``; run ``look_through`` if the history has grown enough."""
    if made is None:
        return
    _made[buffer] = made
    if made.kept is not None:
        _Since.entries += 1
        _Since.bytes += _bytes_of(made.reads)
        if _Since.entries > max(_FEW, _Since.kept) or _Since.bytes > settings.HISTORY_BYTES:
            look_through(live)


_Version = tuple[weakref.ref[UOp], tuple[Any, ...]]  # an earlier node of a tensor, and the tensor's shape
_earlier: Final[WeakTable[AbstractTensor, list[_Version]]] = WeakTable()


def note_earlier(t: AbstractTensor, node: UOp) -> None:
    """Record the node of a leaf tensor before an unrecorded write, so that gradients of earlier results reach it.

    Earlier results may read the buffer, or, if made before it was realized, the graph that computed the buffer. Both
    nodes are recorded.
    """
    graph = made_of(node)
    found = _earlier.entries.get(id(t))
    noted = [] if found is None else [v for v in found[1] if v[0]() is not None]
    _earlier[t] = [*noted, *((weakref.ref(n), node.shape) for n in (node, graph) if n is not None)]


def earlier(t: AbstractTensor) -> list[UOp]:
    """Return the nodes that a leaf tensor had before unrecorded writes and that are still referenced."""
    found = _earlier.entries.get(id(t))
    if found is None:
        return []
    return [_shaped(n, shape) for ref, shape in found[1] if (n := ref()) is not None and n is not t.uop]


_origins: Final[WeakTable[AbstractTensor, tuple[weakref.ref[AbstractTensor], ...]]] = WeakTable()


def has_origins(t: AbstractTensor, value: UOp, sharing: Collection[AbstractTensor],
                live: Iterable[AbstractTensor]) -> bool:
    """Return True if a tensor's data are a copy of the present or earlier value of another live tensor.

    The origins are computed once and cached, because a value keeps its gradient after an unrecorded write. If two
    tensors have the same node, the one created first owns the data.

    Args:
        value: the value of the storage that the tensor is a view of.
        sharing: the tensors that share that storage.
        live: all live tensors, in order of creation.
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


def forget_origins(sharing: Iterable[AbstractTensor]) -> None:
    """Drop the cached origins of tensors after a recorded write, which may make their data a copy of other data."""
    if len(_origins):
        for t in sharing:
            _origins.entries.pop(id(t), None)


def _versions(t: AbstractTensor) -> list[UOp]:
    """Return the present node of a tensor, the graph that computed it, and its nodes before unrecorded writes."""
    node, graph = t.uop, made_of(t.uop) if len(_made) else None
    return [node, *(() if graph is None else (graph,)), *earlier(t)]


def _same_memory(value: UOp) -> set[UOp]:
    """Return the nodes that stand for the memory of ``value``: the chain of views below it and their histories."""
    found = {value}
    below: UOp | None = value
    while below is not None:
        found.add(below)
        below = below.src[0] if below.op.kind == "movement" else made_of(below) if below.op is Ops.BUFFER else None
    return found


def _flows_to(graph: UOp) -> set[UOp]:
    """Return the nodes that a gradient of ``graph`` reaches, ``graph`` included, through histories of buffers."""
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
    """Return the version of a value before all unrecorded writes; its gradient is that of the value."""
    while node.op is Ops.ASSIGN and node.arg:
        node = node.src[0]
    return node


def is_computed(uop: UOp) -> bool:
    """Return True if an operation produced the value; False for data, copies of data, and data after a write.

    A computed value that is overwritten completely with data counts as data.
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
    """Drop the histories of these values, which become leaves."""
    for u in uops:
        _made.entries.pop(id(u.base), None)


def read_by_histories(buffers: Collection[UOp]) -> set[UOp]:
    """Return the subset of ``buffers`` that a gradient may still read."""
    return {b for _, m in _made.items() for b in buffers if b in m.reads} if len(_made) else set()


def _asked(live: Iterable[AbstractTensor], mine: Collection[int] = ()) -> set[UOp]:
    """Return the nodes of which a gradient may be requested: present nodes of the ``live`` tensors except those with
    ids in ``mine``, their histories, and all nodes before unrecorded writes."""
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
    """Return True if a gradient of ``graph`` may reach a node of ``wanted``, also through histories of buffers."""
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
        elif found[1].lost:  # keep the graph, so that ``Unrolled.check`` reports the dropped history
            return True
    return False


def _reads(graphs: Sequence[UOp]) -> dict[UOp, Collection[UOp]]:
    """Return, for each graph that depends on float data, the buffers that it reads (not the old version that an ASSIGN
    overwrites). One walk computes all sets as bit masks; bit 0 is set if the graph depends on float data."""
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
    """Convert bit masks to sets of ``buffers``, for the graphs with bit 0 set (those that depend on float data)."""
    sets: dict[int, Collection[UOp]] = {}
    found: dict[UOp, Collection[UOp]] = {}
    for g, bits in below.items():
        if bits & 1:
            if bits not in sets:
                sets[bits] = frozenset([b for i, b in enumerate(buffers, 1) if bits >> i & 1])
            found[g] = sets[bits]
    return found


def look_through(live: Iterable[AbstractTensor]) -> None:
    """Drop histories through which no gradient can be requested, then the oldest ones until the memory that only
    histories hold is at most ``HISTORY_BYTES``."""
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
        for n in below:  # tensors below a history that was dropped before are lost for this entry, too
            if n.op is Ops.BUFFER and (found := _made.entries.get(id(n))) is not None:
                for t in found[1].lost or ():
                    made.lost.add(t)
        later = frozenset[UOp]().union(*(m.reads for m in kept[number + 1 :]))
        total -= sum(b.arg.nbytes for b in made.reads if b in held and b not in later)
        made.let_go()
    _Since.entries, _Since.bytes, _Since.kept = 0, 0, len(kept)


def _below(roots: Iterable[UOp]) -> set[UOp]:
    """Return ``roots`` and all nodes that they depend on, through histories of buffers."""
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
    """Nodes with the buffers of realized values replaced by their histories, and the inverse mapping.

    Attributes:
        nodes: the rewritten nodes, in the order of the arguments.
        order: the nodes below the first of them, sources first.
    """

    def __init__(self, nodes: Sequence[UOp]) -> None:
        self._new: dict[UOp, UOp] = {}
        self._back: dict[UOp, UOp] = {}
        self._lost: list[Made] = []
        walked = toposort(nodes)
        if _have_histories(walked):
            self.nodes = [self._of(n) for n in nodes]
            self.order = toposort(self.nodes[0])
        else:
            self.nodes = list(nodes)
            self.order = walked[: walked.index(nodes[0]) + 1]

    def node(self, uop: UOp) -> UOp:
        """Return the first version of ``uop`` in the rewritten graph."""
        found = self._new.get(uop)
        if found is None:
            graph = made_of(uop) if self._new else None
            found = uop if graph is None or graph not in self._new else self._of(uop)
        return first_version(found)

    def _of(self, root: UOp) -> UOp:
        """Return a node in the rewritten graph. A buffer that was written in place may occur in its own history: there
        it stands for its earlier version, which has none."""
        new, begun = self._new, set[UOp]()
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
            if graph in begun and graph not in new:
                graph = None
            below: Sequence[UOp] = n.src if graph is None else (graph,)
            if n.op is Ops.ASSIGN:
                below = n.src[:1] if n.arg else n.src[1:]  # the other source gets no gradient
            missing = [s for s in below if s not in new and s not in begun]
            if missing:
                begun.add(n)
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
        line = n.op is Ops.RESHAPE and n.src[0].op is Ops.BUFFER  # the history may already have this shape
        if line and src[0].op is Ops.RESHAPE and src[0].src[0].shape == n.shape:
            return src[0].src[0]
        return n.replace(src=src)

    def check(self, targets: Iterable[AbstractTensor]) -> None:
        """Check that no target is reached only through a history that was dropped because of ``HISTORY_BYTES``.

        Raises:
            GradientError: naming the setting that limits the memory of histories.
        """
        for made in self._lost:
            gone = {id(t) for t in made.lost or ()}
            for t in targets:
                if id(t) in gone:
                    raise GradientError("gradient", f"a value computed from the tensor of shape {t.shape} was realized,"
                                        f" and how it was made is beyond HISTORY_BYTES={settings.HISTORY_BYTES}",
                                        "a greater HISTORY_BYTES, or no_grad() and detach() where none is wanted")

    def rolled(self, nodes: Sequence[UOp]) -> list[UOp]:
        """Return ``nodes`` with histories replaced by the realized buffers again."""
        return substitute(nodes, self._back) if self._back else list(nodes)


def _have_histories(nodes: Iterable[UOp]) -> bool:
    """Return True if one of ``nodes`` is a buffer whose history is kept or was dropped."""
    if not _made.entries:
        return False
    for n in nodes:
        if n.op is Ops.BUFFER and (found := _made.entries.get(id(n))) is not None:
            made = found[1]
            if made.graph is not None or made.lost is not None:
                return True
    return False


def _shaped(x: UOp, shape: tuple[Any, ...]) -> UOp:
    """Return a flat buffer as a value of ``shape``, or a value as a flat buffer of ``shape``. With symbolic sizes, only
    the first elements of the buffer are in use."""
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
