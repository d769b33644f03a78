"""Realization of tensors: selects the nodes to compute in one program, runs it, and updates the tensors."""
from __future__ import annotations

import contextlib
import functools
import itertools
import math
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from tinsmith.backend.memory import Buffer, copied
from tinsmith.codegen.opt import Opt
from tinsmith.core.errors import ArgumentError, OutOfMemoryError
from tinsmith.core.lazy_import import Late
from tinsmith.core.object_lifetime import WeakTable, references
from tinsmith.core.settings import Context, current
from tinsmith.ir import Ops, UOp
from tinsmith.ir.ops import FOR_GRADIENTS
from tinsmith.ir.uop import Origin, forget_dead, substitute, toposort
from tinsmith.runtime.compiled_schedule import CompiledSchedule
from tinsmith.runtime.launch import copy_from_host, is_host_copy, recorders, span_of, uncopied
from tinsmith.runtime.realize import realize
from tinsmith.runtime.thread_turns import is_read, overwriting, overwritten, state, wait_below
from tinsmith.schedule.canonical import Seen, canonical, seen
from tinsmith.schedule.passes.rewrites import note_origin
from tinsmith.tensor import storage
from tinsmith.tensor.autograd import history
from tinsmith.tensor.checks import Checks
from tinsmith.tensor.interop import files

if TYPE_CHECKING:
    from tinsmith.inspect import explanation
    from tinsmith.inspect.explanation import Explanation, Plan
    from tinsmith.inspect.search import database
    from tinsmith.inspect.search.database import Tuned
    from tinsmith.runtime import lowering
    from tinsmith.tensor.abstract import AbstractTensor
else:
    lowering = Late("tinsmith.runtime.lowering")
    explanation = Late("tinsmith.inspect.explanation")
    explanation = Late("tinsmith.inspect.explanation")
    database = Late("tinsmith.inspect.search.database")

_MAYBE_LEAVES = {Ops.SHARD, Ops.COPY, Ops.CONTIGUOUS, Ops.DETACH, Ops.BUFFER, Ops.ASSIGN}  # ops below leaves
_KEPT_VIEWS = (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.FLIP)

# Values that were read while their tensors keep their history, for backward() to find: node -> view of a buffer.
_read: WeakTable[UOp, UOp] = WeakTable()
# Data from the host that some program has read: COPY -> the BUFFER on the device. The node stays in its graphs, so that
# gradients and checks of indices still find the data.
_copied: WeakTable[UOp, UOp] = WeakTable()
# New versions in the memory of old ones: another thread may have begun to use a node that is no tensor's any more.
_written: WeakTable[UOp, UOp] = WeakTable()
_OWN: Final = references(object()) + 2  # references that a look at a node in a list makes itself
numbers = itertools.count(1)  # of leaves, clones and such versions
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _one_at_a_time(function: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(function)
    def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with state:
            return function(*args, **kwargs)

    return locked


def realize_tensors(tensors: Sequence[AbstractTensor], memory_budget: float | str | None = None) -> None:
    """Compute ``tensors`` in one program; afterwards each is a view of a buffer.

    Views of realized buffers stay views: nothing is copied. Other tensors that were made from a realized leaf, or that
    share a realized tensor's memory, refer to its buffer from then on. The graphs of the values are kept for gradients
    (``tensor/autograd/history.py``). If a value is computed from a write that is pending in another tensor (a cache, a
    parameter), that tensor is realized in the same program: the write happens once, and in place if possible. While a
    function is captured, such a value stays lazy, because the end of the capture realizes the writes.
    """
    if memory_budget is not None:
        with Context(MEMORY_BUDGET=memory_budget):
            return realize_tensors(tensors)
    with state:
        while True:
            pending: dict[int, AbstractTensor] = {}
            for t in tensors:
                if not is_realized(t.uop):
                    pending[id(t)] = t
            if not pending:
                return
            wanted = list(pending.values())
            mine = _below(wanted)
            known = seen(list(mine))
            written = _written_below(mine, known, wanted[0].live)
            if written and recorders:
                return realize_tensors([t for t in wanted if not _written_below(_below([t]), None, t.live)])
            if written:
                pending.update((id(t), t) for t in written)
                wanted += written
                mine = _below(wanted)
                known = seen(list(mine))
            if not overwritten or not wait_below(mine):
                break
        made = history.prepared(mine, wanted[0].live, known)
        free, lazy = (None, None) if recorders else _unread(wanted)  # a replay must find the old versions
        if free:
            free.difference_update(*(m.reads for m in made.values() if m is not None))
        if free and threading.active_count() > 1:
            free -= _held_versions(mine)
        if free:
            with overwriting([b.arg for b in free]), interrupt_later():
                done = _take_values(wanted, made, known, {b for b in free if not is_read(b)})
            _forget_read(free)
        else:
            done = _take_values(wanted, made, known)
        leaves = {}
        for n, view in done.items():
            if is_leaf(n):
                leaves[n] = view
        if leaves and (lazy is None or not lazy.isdisjoint(leaves)):
            others = [t for t in wanted[0].live if id(t) not in pending and t.uop.base.op is not Ops.BUFFER]
            for t, new in zip(others, substitute([t.uop for t in others], leaves)):
                t.uop = new
            storage.replaced(others, lambda uop: uop.substitute(leaves))


def _written_below(nodes: Collection[UOp], known: Seen | None, live: Iterable[AbstractTensor]) -> list[AbstractTensor]:
    """Return a tensor for each pending write that ``nodes`` are computed from and that is a live tensor's value.

    Args:
        nodes: values to compute, below their views.
        known: the analysis of these nodes.
        live: all live tensors.
    """
    if known is not None and not known.form.writes:
        return []
    writes = {n for n in toposort(list(nodes)) if n.op is Ops.ASSIGN}
    writes.difference_update(nodes)
    found: dict[UOp, AbstractTensor] = {}
    for t in live if writes else ():
        node = t.uop
        while node.op.kind == "movement":
            node = node.src[0]
        if node in writes:
            found.setdefault(node, t)
    return list(found.values())


def _below(tensors: Sequence[AbstractTensor]) -> dict[UOp, list[int]]:
    """Return the node below each tensor's views, with the ids of the tensors that are views of it."""
    mine: dict[UOp, list[int]] = {}
    for t in tensors:
        mine.setdefault(_below_views(t.uop), []).append(id(t))
    return mine


def _take_values(tensors: Sequence[AbstractTensor], made: Mapping[UOp, history.Made | None], known: Seen | None,
                 free: Collection[UOp] = ()) -> dict[UOp, UOp]:
    """Compute ``tensors`` and let them refer to the results; return ``compute``'s mapping of node to buffer view."""
    before = [t.uop for t in tensors]
    done = compute(before, [t._device for t in tensors], free, known)
    for node, view in done.items():
        history.remember(view.base, made[node], tensors[0].live)
        if free and node.op is Ops.ASSIGN and threading.active_count() > 1:
            _written[node] = view
    ours: list[AbstractTensor] = []
    shared = False
    for t, old in zip(tensors, before):
        if t.uop is old:
            found = _seen_again(old, done)
            assert found is not None, "a wanted value was not computed"
            t.uop = found
            ours.append(t)
            shared = shared or t._shared is not None
    if shared:
        storage.replaced(ours, lambda uop: _seen_again(uop, done))
    if len(ours) < len(tensors):
        mine = set(map(id, ours))
        _take_into([t for t in tensors if id(t) not in mine and not is_realized(t.uop)], done)
    return done


def _take_into(tensors: Sequence[AbstractTensor], done: dict[UOp, UOp]) -> None:
    """Substitute computed values in tensors that another thread has written in the meantime."""
    for t in tensors:
        if t._shared is None:
            (t.uop,) = substitute([t.uop], done)
        else:
            (value,) = substitute([t._shared.storage.value], done)
            t._shared.storage.become(value)


def _seen_again(uop: UOp, done: Mapping[UOp, UOp]) -> UOp | None:
    """Return ``uop``, a computed value or views of one, over the buffer that now holds it; None if not computed."""
    views: list[UOp] = []
    while uop not in done:
        if uop.op.kind != "movement":
            return None
        views.append(uop)
        uop = uop.src[0]
    return _moved(views[0], uop, done[uop]) if views else done[uop]


@contextlib.contextmanager
def interrupt_later() -> Iterator[None]:
    """Return a context manager that delays Ctrl-C to the end of the block, in which old versions are overwritten: a
    trained model stays consistent.

    A second Ctrl-C does not wait.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(*came[0])


def value_of(tensor: AbstractTensor) -> UOp:
    """Return a view of a buffer with the tensor's values, computed if necessary; the tensor keeps its history."""
    return stored_value(tensor)[0].reshape(tensor.uop.shape)


def stored_value(tensor: AbstractTensor) -> tuple[UOp, tuple[int, int] | None]:
    """Return ``value_of(tensor)`` up to a reshape, and the result of ``span_of`` for it if that is known."""
    with state:
        while overwritten and wait_below([tensor.uop]):
            pass
        uop = base = tensor.uop
        while base.op.kind == "movement":
            base = base.src[0]
        realized = base.op is Ops.BUFFER and (base.device != "NPY" or is_realized(uop))
        if realized:
            span = span_of(uop)
            if span is not None or base.arg.size <= 2 * _least(uop.size):
                return uop, span
        below = _below_views(uop)
        if below is base and not realized and base.op in _MAYBE_LEAVES and is_leaf(uop):  # a slice keeps its history
            realize_tensors([tensor])
            return stored_value(tensor)
        before = _read.entries.get(id(below))
        if before is not None:
            view = before[1]
        else:
            known = seen([below])
            if not recorders and _written_below([below], known, tensor.live):
                realize_tensors([tensor])
                return stored_value(tensor)
            view = compute([uop], [tensor._device], known=known)[below]
            if below.device is not None and not realized:  # not a constant, not written
                _read[below] = view
        return _over(uop, below, view), None


def _over(uop: UOp, below: UOp, view: UOp) -> UOp:
    """Return ``uop``, which has only movement ops above ``below``, with these ops above ``view`` instead, except
    outermost reshapes."""
    while uop is not below and uop.op is Ops.RESHAPE:
        uop = uop.src[0]
    return view if uop is below else _moved(uop, below, view)


def _moved(uop: UOp, below: UOp, view: UOp) -> UOp:
    """Return ``uop``, which has only movement ops above ``below``, with these ops above ``view`` instead."""
    above: list[UOp] = []
    while uop is not below:
        above.append(uop)
        uop = uop.src[0]
    for node in reversed(above):
        view = node.replace(src=(view,))
    return view


def known_value(uop: UOp) -> UOp | None:
    """Return the value as a view of a buffer if it was computed or read before, else None."""
    below = _below_views(uop)
    if is_realized(uop):
        return uop
    return uop.substitute({below: _read[below]}) if below in _read and not recorders else None


def _forget_read(written: Collection[UOp]) -> None:
    """Forget host values read from nodes above memory that is overwritten, because they belong to its old version."""
    nodes = [n for n, _ in _read.items()]
    above = set(written)
    for n in toposort(nodes):
        if not above.isdisjoint(n.src):
            above.add(n)
    for n in nodes:
        if n in above:
            _read.pop(n)


def _least(size: int | UOp) -> int:
    return size.vmin if isinstance(size, UOp) else size


def _held_versions(roots: Iterable[UOp]) -> set[UOp]:
    """Return the buffers below versions that code outside the graphs of ``roots`` holds.

    Another thread may have read a tensor's node, and not yet created a tensor from it. If that node is a version that a
    later write overwrites in the same program, its value is lost, and the other thread would apply the write a second
    time. Reference counts reveal such a holder; without reference counts, every version is considered held.
    """
    tops = set(roots)
    order = toposort(list(tops))
    uses = Counter(id(s) for n in order for s in n.src)
    found: set[UOp] = set()
    for n in order:
        if n.op is Ops.ASSIGN and n not in tops and not 0 <= references(n) - _OWN <= uses[id(n)]:
            node = n.src[0].base
            while node.op is Ops.ASSIGN:
                node = node.src[0].base
            found.add(node)
    return found


def _unread(pending: Sequence[AbstractTensor]) -> tuple[set[UOp], set[UOp] | None]:
    """Return buffers with old versions of ``pending`` that no other tensor's value depends on, so that they may be
    overwritten.

    The other tensors are searched only if ``pending`` contains assignments; then the nodes below unrealized tensors are
    returned, too, as far as the new versions: these are substituted in them.
    """
    old: set[UOp] = set()
    new: set[UOp] = set()
    for t in pending:
        node = t.uop.base
        if node.op is Ops.ASSIGN:
            new.add(node)
            while node.op is Ops.ASSIGN:
                node = node.src[0].base
            if node.op is Ops.BUFFER and node.arg.base is None and not node.arg.lent:
                old.add(node)
    if not old:
        return old, None
    forget_dead()
    mine = {id(t) for t in pending}
    old.difference_update(view.base for _, view in _read.items())
    old -= history.read_by_histories(old)
    lazy: set[UOp] = set()
    for t in pending[0].live:
        if id(t) not in mine:
            node = t.uop
            while node.op.kind == "movement":
                node = node.src[0]
            if node.op is not Ops.BUFFER:
                lazy.add(node)
            else:
                old.discard(node)
    below = set(toposort(lazy, lambda n: n not in new))
    old -= below
    below.update([n for m in below for n in m.src if n in new])
    below.update(lazy & new)
    for n, _ in _read.items() if old else ():  # nodes that no tensor has, and that must not be found again
        if n not in below and not old.isdisjoint(toposort(n)):
            _read.entries.pop(id(n), None)
    return old, below


def compute(uops: Sequence[UOp], devices: Sequence[str], free: Collection[UOp] = (),
            known: Seen | None = None) -> dict[UOp, UOp]:
    """Run one program for ``uops``. Return, for the node below the views of each, a view of the buffer with its value.

    Args:
        devices: the devices of values that depend on no device.
        free: BUFFERs that nothing reads afterwards.
        known: the result of an earlier analysis of these nodes, if available.
    """
    if recorders.threads:
        for recorder in recorders:
            recorder.wanted(uops)
    device = devices[0]
    try:
        targets, roots = _roots(uops, devices)
        if known is None or known.roots != roots:
            known = seen(roots)
        data: dict[UOp, Buffer] = {}
        if known is None or known.key[0].copies:
            roots, data = _with_data(roots)
        distinct = roots if len(roots) == 1 and not data else [n for n in dict.fromkeys(roots) if n not in data]
        if not distinct:
            found = []
        elif current().CHECKED:
            checks = Checks(distinct)
            found = realize([*distinct, *checks.roots], device)  # an error must leave the old versions as they are
            checks.judge(found[len(distinct) :], lambda more: realize(more, device))
        else:
            found = realize(distinct, device, free, known if known is not None and known.roots == distinct else None)
        if len(roots) > 1 or data:
            buffers = data | dict(zip(distinct, found))
            found = _apart([buffers[root] for root in roots])
    except OutOfMemoryError as error:
        if error.plan is None:
            error.plan = _plan(uops, devices, free)
        raise
    views: dict[UOp, UOp] = {}
    for target, buffer in zip(targets, found):
        views[target] = _as_view(buffer, target)
    return views


def _roots(uops: Sequence[UOp], devices: Sequence[str]) -> tuple[list[UOp], list[UOp]]:
    """Return the nodes below the views of ``uops``, and for each the root of a program that computes it.

    Roots are expressed by values that are already in buffers.
    """
    targets = dict(zip(map(_below_views, uops), devices))
    nodes = list(targets)
    if (_read.entries or _written.entries) and (known := _known_below(nodes)):
        nodes = substitute(nodes, known)
    if len(nodes) == 1:
        return list(targets), [_concrete(nodes[0])]
    return list(targets), [_concrete(n) if n.device is not None or d == devices[0] else n.copy_to(d)
                           for n, d in zip(nodes, targets.values())]  # a constant of another device


def _known_below(nodes: Sequence[UOp]) -> dict[UOp, UOp]:
    """Return the topmost nodes of graphs whose values were read before or written over others, with these values."""
    found: dict[UOp, UOp] = {}

    def is_new(node: UOp) -> bool:
        entry = _read.entries.get(id(node)) or _written.entries.get(id(node))
        if entry is None or not _is_settled(node):
            return True
        found[node] = entry[1]
        return False

    toposort(nodes, is_new)
    return found


def _with_data(roots: list[UOp]) -> tuple[list[UOp], dict[UOp, Buffer]]:
    """Copy the host data below ``roots`` to its device now; return the roots over it, and buffers of copied roots.

    A copy is made once and kept as long as its node lives. A root that is itself such data maps to its buffer, which
    the caller then owns.
    """
    new: dict[UOp, UOp] = {}
    data: dict[UOp, Buffer] = {}
    copies = [n for n in toposort(roots) if n.op is Ops.COPY]
    parts = _with_parts(roots, copies)
    for n in copies if parts is roots else toposort(parts):
        if is_host_copy(n) and _is_settled(n):
            if n not in _copied:
                _copied[n] = UOp(Ops.BUFFER, n.dtype, (), copy_from_host(n))
            new[n] = _copied[n]
    roots = parts
    for n in set(roots) & new.keys():
        data[n] = _copied.pop(n).arg
    return ([n if n in data else m for n, m in zip(roots, substitute(roots, new))] if new else roots), data


@_one_at_a_time
def plan_tensors(tensors: Sequence[AbstractTensor], memory_budget: float | str | None = None) -> Plan:
    """Return the plan of the program that ``realize_tensors`` would run now for ``tensors``."""
    if memory_budget is not None:
        with Context(MEMORY_BUDGET=memory_budget):
            return plan_tensors(tensors)
    wanted = list({id(t): t for t in tensors if not is_realized(t.uop)}.values())
    if not wanted:
        return explanation.Plan()
    made = history.prepared(_below(wanted), wanted[0].live)
    free = _unread(wanted)[0]
    free.difference_update(*(m.reads for m in made.values() if m is not None))
    return _plan([t.uop for t in wanted], [t._device for t in wanted], free)


def _plan(uops: Sequence[UOp], devices: Sequence[str], free: Collection[UOp]) -> Plan:
    """Return the plan of the program that ``compute`` would run now."""
    targets, roots = _roots(uops, devices)
    for target, root in zip(targets, roots):
        note_origin(root, target)  # a constant's, or a copy's of a value that was read before
    roots = _with_parts(roots, [n for n in toposort(roots) if n.op is Ops.COPY])
    lines: dict[int, Origin] = {}
    there: dict[UOp, UOp] = {}
    for n in toposort(roots):
        if is_host_copy(n):
            there[n] = _copied[n] if n in _copied else UOp(Ops.BUFFER, n.dtype, (), uncopied(n))
            lines |= {id(there[n].arg): o for o in n.origin}
    data = [there[n] for n in dict.fromkeys(roots) if n in there]
    distinct = [m for n, m in zip(roots, substitute(roots, there)) if n not in there]
    return explanation.plan(list(dict.fromkeys(distinct)), devices[0], free, data,
                                  lambda b: lines.get(id(b)))


def _with_parts(roots: list[UOp], nodes: Sequence[UOp]) -> list[UOp]:
    """Roots that copy the parts of mapped files that they read, where these are not all; ``nodes``: the COPYs below."""
    parts = files.of_parts(roots, [n for n in nodes if n not in _copied and is_host_copy(n)])
    return substitute(roots, parts) if parts else roots


def _is_settled(node: UOp) -> bool:
    """Return True if a cached value may replace its node. During a capture it may not: a replay recomputes the node."""
    return all(recorder.precedes(node) for recorder in recorders)


def buffer_of(tensor: AbstractTensor) -> Buffer | None:
    """Return the buffer that ``tensor`` is a view of, before pending assignments; None if it is not computed."""
    base = tensor.uop.base
    while base.op is Ops.ASSIGN:
        base = base.src[0].base
    base = _copied.get(base, base)
    return base.arg if base.op is Ops.BUFFER else None


def _apart(found: list[Buffer]) -> list[Buffer]:
    """Values with a buffer each: clones of one value, or one with and one without gradients, are computed once, and
    are two values to gradients."""
    if recorders or len({id(b) for b in found}) == len(found):
        return found
    out: dict[int, Buffer] = {}
    for n, b in enumerate(found):
        seen = any(b is other for other in out.values())
        out[n] = b if not seen or b.layout is not None else copied(b)
    return list(out.values())


@_one_at_a_time
def schedule_tensors(tensors: Sequence[AbstractTensor]) -> CompiledSchedule:
    """Return the program that computes ``tensors``, not run."""
    pending = [t for t in tensors if not is_realized(t.uop)]
    there = dict(_copied.items())
    roots = [_concrete(_below_views(t.uop)) for t in pending]
    roots = substitute(_with_parts(roots, toposort(roots)), there)
    graph, buffers, values = canonical(list(dict.fromkeys(_concrete(n) for n in roots)))
    compiled = lowering.lower(graph, pending[0]._device if pending else tensors[0]._device)
    compiled.arguments = [b.arg for b in buffers], values
    return compiled


@_one_at_a_time
def explain_tensors(tensors: Sequence[AbstractTensor], run: bool = True, why: str | None = None) -> Explanation:
    """Return the explanation of the program that computes ``tensors``, ignoring cached values."""
    roots = dict.fromkeys(_concrete(_below_views(t.uop)) for t in tensors if not is_realized(t.uop))
    if not roots:
        return explanation.Explanation(())
    device = next(t._device for t in tensors if not is_realized(t.uop))
    return explanation.explain(list(roots), device, run and why is None, why)


@_one_at_a_time
def tuned_kernel(tensor: AbstractTensor, opts: Sequence[Opt] | None, kernel: int, device: str | None) -> Tuned:
    """One kernel of a tensor's program under given opts.

    Raises:
        ArgumentError: if there is no such kernel, or an opt is not legal there.
    """
    if is_realized(tensor.uop):
        raise ArgumentError("with_opts", "the tensor holds values already, so nothing is left to compute",
                            "build the tensor anew, or detach().clone()")
    inner = _below_views(tensor.uop)
    wanted = database.Wanted(tensor.uop, inner, _concrete(inner))
    return database.with_opts(wanted, tensor._device, opts, kernel, device)


def _as_view(buffer: Buffer, target: UOp) -> UOp:
    """Return the buffer in the shape of ``target``; with a symbolic size only its beginning is used."""
    shape = target.shape
    flat = UOp(Ops.BUFFER, target.dtype, (), buffer)
    if shape == ((buffer.size,) if buffer.layout is None else buffer.shape):
        return flat
    size = math.prod(shape)
    if isinstance(size, UOp):
        return flat.shrink(((0, size.simplify()),)).reshape(shape)
    return UOp(Ops.RESHAPE, target.dtype, (flat,), shape)


def is_realized(uop: UOp) -> bool:
    """Return True if ``uop`` is a view of a buffer in device memory, or has no elements."""
    base = uop
    while base.op.kind == "movement":
        base = base.src[0]
    return (base.op is Ops.BUFFER and base.device != "NPY") or 0 in uop.shape


def is_leaf(uop: UOp) -> bool:
    """Return True if ``uop`` is made from data, not by an operation."""
    base = uop
    while base.op.kind == "movement":
        base = base.src[0]
    if base.op not in _MAYBE_LEAVES:
        return False
    while base.op in (Ops.SHARD, Ops.COPY, Ops.CONTIGUOUS):
        base = base.src[0].base
    if base.op is Ops.DETACH:
        return base.arg is not None
    return base.op is Ops.BUFFER or base.op is Ops.ASSIGN


def _below_views(uop: UOp) -> UOp:
    """Return the node below views that keep every element; for a new version the node below all views, because it is
    computed completely."""
    while uop.op in _KEPT_VIEWS:
        uop = uop.src[0]
    base = uop
    while base.op.kind == "movement":
        base = base.src[0]
    return base if base.op is Ops.ASSIGN else uop


def root_of(uop: UOp) -> UOp:
    """Return the node that a program computes for ``uop``; its buffer has the elements of ``uop`` in row-major
    order."""
    return _concrete(uop)


def _concrete(uop: UOp) -> UOp:
    """Return the node to compute for a value: itself, or CONTIGUOUS of it if it is a view or has no memory."""
    while uop.op in FOR_GRADIENTS or (uop.op is Ops.RESHAPE and _below_gradients(uop)):
        uop = uop.src[0]
    if uop.op.kind == "movement" or uop.op in (Ops.CONST, Ops.BUFFER, Ops.IOTA, Ops.BIND):
        return UOp(Ops.CONTIGUOUS, None, (uop,))
    return uop


def _below_gradients(uop: UOp) -> bool:
    """Return True if there are only reshapes and gradient markers between a reshape and a computed value. Operations in
    ``no_grad()`` leave such markers; ignoring them gives the same kernels inside and outside of ``no_grad()``."""
    while uop.op in FOR_GRADIENTS or uop.op is Ops.RESHAPE:
        if any(isinstance(s, UOp) for s in uop.shape):
            return False
        uop = uop.src[0]
    return uop.op.kind != "movement" and uop.op not in (Ops.CONST, Ops.BUFFER, Ops.IOTA, Ops.BIND)


def version(old: UOp, value: UOp) -> UOp:
    """Return the node after a write: a new version (ASSIGN) of existing memory, else the value itself."""
    if old.base.op in (Ops.BUFFER, Ops.ASSIGN, Ops.COPY) or is_leaf(old):
        return _assigned(old, value)
    if value.dtype.is_float and value.base.op in (Ops.BUFFER, Ops.ASSIGN, Ops.COPY):
        return UOp(Ops.CONTIGUOUS, None, (value,), next(numbers))  # data of another tensor: two values from now on
    return value


def _assigned(old: UOp, value: UOp, kept: bool | None = None) -> UOp:
    """Return the ASSIGN node of a new version of ``old``; a node that was computed before is not used again."""
    node = UOp(Ops.ASSIGN, None, (_memory(old), value), kept)
    if node not in _written:
        return node
    return UOp(Ops.ASSIGN, None, (_memory(old), UOp(Ops.CONTIGUOUS, None, (value,), next(numbers))), kept)


def unseen_version(old: UOp, value: UOp) -> UOp:
    """Return a new version of data, which are data again."""
    return version(old, UOp(Ops.DETACH, None, (value,)))


def kept_version(old: UOp, value: UOp) -> UOp:
    """Return a new version of a computed value, with the gradient of the old one."""
    return _assigned(old, value, True)


def _memory(old: UOp) -> UOp:
    base = old.base
    return base if base.op is Ops.BUFFER and base.shape == old.shape else old
