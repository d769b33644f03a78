"""TinyJit: the first call of a function runs, the second is captured, the third and later ones are replayed."""
from __future__ import annotations

import contextlib
import functools
import sys
import time
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import JitError, is_from_handler, place, user_line
from tinsmith.core.lazy_import import Late
from tinsmith.core.object_lifetime import LiveSet, WhileAlive
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show
from tinsmith.core.timeline import GUARDS, RECORDING, phase
from tinsmith.ir.algebra.sizes import watchers
from tinsmith.jit.collect import JitItem
from tinsmith.jit.guards.signature import Bound, difference, leaves, placed, signature, surroundings
from tinsmith.jit.guards.sizes import RangeHistory, Sizes, marked, separated
from tinsmith.jit.memory import compute, settle
from tinsmith.runtime.launch import recorders
from tinsmith.runtime.thread_turns import let_go, overwritten, state, take, wait_for
from tinsmith.schedule.passes.dynamic_sizes import TooSmall
from tinsmith.tensor.autograd import history
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tinsmith.inspect import trace
    from tinsmith.inspect.explanation import Plan
    from tinsmith.jit import capture as capturing
    from tinsmith.jit import dynamic, verify
    from tinsmith.jit.capture import Capture
    from tinsmith.jit.dynamic import RangeTrace
else:  # most of this package is only for calls
    trace = Late("tinsmith.inspect.trace")
    capturing = Late("tinsmith.jit.capture")
    dynamic = Late("tinsmith.jit.dynamic")
    verify = Late("tinsmith.jit.verify")

R = TypeVar("R")

MOST_SIGNATURES: Final = 64
MOST_VARIANTS: Final = 16


class SignatureEntry:
    """The captures of one signature, newest first. It is dead once any object in the signature has died."""

    def __init__(self, held: list[Any]) -> None:
        self._kept: WhileAlive[list[WhileAlive[Capture]]] = WhileAlive([], held)
        self.alive = self._kept.left  # empty when dead
        self.uncapturable = False

    @property
    def kept(self) -> list[WhileAlive[Capture]]:
        """Return the live captures; each lives as long as all objects that it refers to."""
        every = self._kept.get()
        if every is None:
            return []
        every[:] = [k for k in every if k.left]
        return every

    @property
    def captures(self) -> list[Capture]:
        """The captures; none if an object has died."""
        return [c for k in self.kept if (c := k.get()) is not None]


class TinyJit(Generic[R]):
    """Decorator that captures the programs of a tensor function and replays them without running its Python.

    The first call runs the function; the second captures it. A later call is replayed if its signature
    (``guards/signature.py``) is equal, and the Python state (``guards/state.py``) and earlier tensors
    (``guards/tensors.py``) that the function reads are unchanged; otherwise it is captured again. Outputs are new
    tensors at every call, assigned state is updated, and random draws continue. A function that reads values on the
    host, the clock or a file runs uncaptured. docs/jit.md has the rules.

    Args:
        donate: a call may overwrite the results of the previous one.
        dynamic: sizes of tensor arguments that change become variables (docs/symbolic.md); False: never. ``{0: (1,)}``:
            from the first capture on, axis 1 of argument 0.

    >>> @TinyJit
    ... def double(x):
    ...     return x + x
    >>> [double(Tensor([float(i)])).tolist() for i in range(4)]
    [[0.0], [2.0], [4.0], [6.0]]

    Raises:
        JitError: if one jitted function calls another while it is captured, or ``VERIFY`` finds a wrong replay.
    """

    changes_state: ClassVar[bool] = False  # what a call changes of what it reads is left as it is by replays

    def __init__(self, fxn: Callable[..., R], donate: bool = False,
                 dynamic: bool | Mapping[int, Sequence[int]] = True) -> None:
        self.fxn, self.donate, self.dynamic = fxn, donate, dynamic
        functools.update_wrapper(self, fxn, updated=())
        self.__name__: str = getattr(fxn, "__name__", type(fxn).__name__)
        self.reset()

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle without captures: the loaded function captures again. A decorated function is pickled by its name."""
        found: Any = sys.modules.get(getattr(self, "__module__", ""))
        name = getattr(self, "__qualname__", "")
        for part in name.split("."):
            found = getattr(found, part, None)
        return name if found is self else (TinyJit, (self.fxn, self.donate, self.dynamic))

    def reset(self) -> None:
        """Forget all captures; the next call runs the function."""
        self.cnt = 0
        self.replays = 0
        self.captures: OrderedDict[Any, SignatureEntry] = OrderedDict()
        self._last: Capture | None = None
        self._quick: dict[str, Capture] | None = None  # of the latest replay, empty when it is dead
        self._warned: set[str] = set()
        self._ranges: OrderedDict[Any, RangeHistory] = OrderedDict()  # by the form of a signature

    @property
    def jit_cache(self) -> list[JitItem]:
        """The programs of the most recently made or replayed capture."""
        return [] if self._last is None else self._last.items

    def plan(self) -> Plan:
        """Return time, memory traffic and memory of a replay of the latest capture; see docs/plan.md.

        >>> @TinyJit
        ... def scaled(x):
        ...     return (x * 2).exp()
        >>> for _ in range(2):
        ...     _ = scaled(Tensor([1.0, 2.0]).realize())
        >>> scaled.plan().kernels, scaled.plan().memory["CPU"].results
        (1, 8)

        Raises:
            JitError: before the second call, which captures, and if the function runs uncaptured.
        """
        if self._last is None:
            raise JitError("TinyJit.plan", f"{self.__name__} is not captured: its second call is",
                           "call it twice first, or plan(*tensors) for what a call returns")
        return self._last.replay.plan()

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        with state:
            while self._quick is not None and not kwargs and not recorders:
                capture = self._quick.get("value")
                matched = None if capture is None or capture.quick is None else capture.quick.match(args)
                if capture is None or matched is None:
                    break
                found, tensors, bound = matched
                if not overwritten or not wait_for(found):
                    self.cnt += 1
                    self.replays += 1
                    replay: Any = capture.replay if capture.history is None else capture.timed_replay
                    direct: Any = capture.replay.direct
                    result: R = replay(found, tensors, bound) if direct is None else direct(found)
                    return result
            self._quick = None
            if settings.JIT and settings.DEBUG < 3 and not settings.CHECKED:
                with phase(GUARDS):
                    return self._call(args, kwargs)
        return self._run(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if recorders:
            raise JitError("TinyJit", f"{self.__name__} is called while another function is being captured",
                           "jit the outer function only")
        values = leaves((args, kwargs) if kwargs else args)
        tensors = [v for v in values if isinstance(v, Tensor)]
        for t in tensors:
            if t._shared is not None or not placed(t.uop):
                settle(t)
        self.cnt += 1
        if self.cnt == 1:
            capturing.compute_data(self._roots(args, kwargs))
            history = self._history(self._key(args, kwargs)[0], args)
            begin = time.perf_counter()
            result = self._run(args, kwargs)
            if history is not None:
                history.seconds = time.perf_counter() - begin
            return result
        key, variables = self._key(args, kwargs)
        entry = self.captures.get(key)
        if entry is not None and entry.alive:
            if entry.uncapturable:
                return self._run(args, kwargs)
            self.captures.move_to_end(key)
            replay = self._replay(entry.kept, tensors, args, kwargs, [value for _, value in variables])
            return replay() if replay is not None else self._capture(key, tensors, args, kwargs)
        history = self._history(key, args)
        if history is None:
            return self._capture(key, tensors, args, kwargs)
        entry = self.captures.get(history.key)
        if entry is not None and entry.alive:
            self.captures.move_to_end(history.key)
            replay = self._replay(entry.kept, tensors, args, kwargs, (), history.samples[-1])
            if replay is not None:
                return replay()
        return self._capture_range(key, history, tensors, args, kwargs)

    def _replay(self, kept: list[WhileAlive[Capture]], tensors: list[Tensor], args: tuple[Any, ...],
                kwargs: dict[str, Any], bound: Sequence[int], sizes: Sizes = ()) -> Callable[[], R] | None:
        """Return the replay of the first capture whose guards hold for a call; None if there is none.

        Args:
            kept: the captures, which are put in order of their use.
            bound: values of the bound variables among the arguments.
            sizes: the sizes of the arguments, for captures over ranges.
        """
        seed = random.state()[0]
        for n, one in enumerate(kept):
            capture = one.get()
            if capture is None:
                continue
            if capture.range is not None:
                values = capture.range.values(sizes)
                if values is None or (capture.history is not None and capture.history.stays(values)):
                    continue
                bound = values
            if capture.state.change(args, kwargs) is not None:
                continue
            found = capture.guards.find(tensors, seed, bound)
            if found is not None and wait_for(found):
                return functools.partial(self._call, args, kwargs)
            if found is not None:
                kept.insert(0, kept.pop(n))
                self._last = capture
                self.replays += 1
                if settings.VERIFY and self.replays % settings.VERIFY == 0:
                    replay = functools.partial(capture.replay, found, tensors, bound)
                    return functools.partial(verify.verified, self.__name__, replay,
                                             functools.partial(self._run, args, kwargs))
                if not kwargs and not settings.VERIFY and not settings.one_by_one:
                    with contextlib.suppress(TypeError):
                        capture.look_quickly(args, bound)
                        self._quick = one.left
                return functools.partial(capture.replay if capture.history is None else capture.timed_replay, found,
                                         tensors, bound)
        return None

    def _history(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> RangeHistory | None:
        """Return the history of the calls that differ from this one in sizes only, this call included; None if its
        sizes cannot change."""
        found = separated(key[0]) if settings.DYNAMIC and self.dynamic else None
        if found is None:
            return None
        form = "sizes", found[0], *key[1:]
        history = self._ranges.get(form)
        if history is None:
            history = self._ranges[form] = RangeHistory(form)
            while len(self._ranges) > MOST_SIGNATURES:
                self._ranges.popitem(last=False)
        self._ranges.move_to_end(form)
        if isinstance(self.dynamic, Mapping) and not history.samples:
            history.proven = True
            tensors = dict.fromkeys(id(v) for v in leaves(args) if isinstance(v, Tensor))
            numbers = {key: n for n, key in enumerate(tensors)}
            given = {n: numbers.get(id(args[n]), -1) for n in self.dynamic if n < len(args)}
            axes = {given[n]: a for n, a in self.dynamic.items() if given.get(n, -1) >= 0}
            other = separated(marked(key[0], axes))
            if other is not None:
                history.add(other[1])
        history.add(found[1])
        return history

    def _capture_range(self, key: Any, history: RangeHistory, tensors: list[Tensor], args: tuple[Any, ...],
                       kwargs: dict[str, Any]) -> R:
        """Capture a call for a range of sizes if earlier calls differ from it in sizes only; else for its sizes."""
        reason, for_ever = "", True
        stays = self._is_served(history, history.samples[-1])
        for factor in (4, 1) if history.may_change and not stays else ():
            undo = dynamic.Undo()
            try:
                trace = dynamic.RangeTrace(dynamic.guard_for(history, factor), key[0], tensors)
                with trace.running():
                    return self._capture(key, tensors, args, kwargs, history, trace)
            except Exception as error:
                if is_from_handler(error):
                    raise
                undo()
                reason, for_ever = str(error), not isinstance(error, TooSmall)
        begin = time.perf_counter()
        result = self._capture(key, tensors, args, kwargs, history)
        history.seconds = max(history.seconds, time.perf_counter() - begin)
        if reason:
            history.refuse(reason, self.__name__, for_ever)
        return result

    def _is_served(self, history: RangeHistory, sizes: Sizes) -> bool:
        """Return True if a capture over a range has served these sizes so often that one for them alone pays."""
        entry = self.captures.get(history.key)
        ranges = [c.range for c in entry.captures] if entry is not None else []
        values = [v for r in ranges if r is not None and (v := r.values(sizes)) is not None]
        return any(map(history.stays, values))

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any],
             held: list[Any] | None = None) -> tuple[tuple[Any, ...], Bound]:
        described, bound = signature(args, kwargs, held)
        return (described, Tensor.training, Tensor.recording, Tensor.autocast_dtype, settings.DEV, settings.program_key,
                dtypes.default_float, dtypes.default_int), bound

    def _roots(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return all values that the function can read, except tensor arguments."""
        return [*surroundings(self.fxn), self.fxn, *(
            v for v in leaves((args, kwargs)) if not isinstance(v, TensorBase))]

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any],
             watch: contextlib.AbstractContextManager[Any] | None = None,
             finish: Callable[[R], bool] | None = None) -> R:
        """Run the function; realize its results, the tensors that it writes, and gradients, as a replay does.

        None of these tensors keeps a history for gradients.

        Args:
            watch: context manager to hold while the function runs.
            finish: a function that may realize these tensors in another way.
        """
        before = [(t, t.grad) for t in TensorBase.live]
        written: LiveSet[Tensor] = LiveSet()
        TensorBase.watchers.append(written)
        saved: list[Any] = []
        try:
            let_go(saved)
            with watch or contextlib.nullcontext(), phase(RECORDING):
                result = self.fxn(*args, **kwargs)
        finally:
            if saved:
                take(saved[0])
            TensorBase.watchers.remove(written)
        changed = {id(t) for t in written}
        results = [t for t in leaves(result) if isinstance(t, Tensor)]
        changes = [*written, *capturing.kept_gradients(before, changed)]
        made = [*results, *changes]
        if not (finish is not None and finish(result)) and made:
            compute(results, changes)
        kept = {t.uop.base for t, _ in before if id(t) not in changed}
        history.forget(t.uop for t in made if t.uop.base not in kept)
        return result

    def _capture(self, key: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any],
                 history: RangeHistory | None = None, ranged: RangeTrace | None = None) -> R:
        """Run the function and record the programs that it runs.

        Args:
            history: the history of the form of its arguments.
            ranged: the trace that has given them variables for sizes.
        """
        if settings.DEBUG >= 1 and ranged is not None:
            show(f"jit {self.__name__}: captured for a range of sizes: {ranged.guard.text()}")
        elif self.captures and settings.DEBUG >= 1:
            show(f"jit {self.__name__}: captured again; changed: {self._change(key, args, kwargs)}")
        held: list[Any] = []
        bound = list(self._key(args, kwargs, held)[1]) if ranged is None else ranged.bound
        reason, disturbed = "", False
        capture = capturing.Capture(self.fxn, args, kwargs, tensors, self._roots(args, kwargs), bound, ranged)

        def finish(result: R) -> bool:
            nonlocal reason, disturbed
            try:
                if capture.host_read is not None:
                    reason = f"reads values on the host at {place(*capture.host_read)}"
                else:
                    reason = capture.watch.reason()
                if not reason:
                    capture.settle(result, self.donate)
            except capturing.Disturbed:
                disturbed = True
            except capturing.Uncapturable as why:
                reason = str(why)
            return not reason and not disturbed

        recorders.append(capture)
        watchers.append(capture.decided)
        if ranged is not None:
            watchers.append(ranged.pins)
        TensorBase._sharers.append(capture.wrote)
        TensorBase._disturbed.append(capture.disturbed)
        TensorBase._graders.append(capture.graded)
        TensorBase._replacers.append(capture)
        try:
            result = self._run(args, kwargs, capture.watch, finish)
        finally:
            recorders.remove(capture)
            watchers.remove(capture.decided)
            if ranged is not None:
                watchers.remove(ranged.pins)
            TensorBase._sharers.remove(capture.wrote)
            TensorBase._disturbed.remove(capture.disturbed)
            TensorBase._graders.remove(capture.graded)
            TensorBase._replacers.remove(capture)
            capture.unread.end()
        if disturbed:
            return result
        if ranged is not None and history is not None:
            self._keep_range(held, capture, ranged, history, reason)
            return result
        if not reason and (self._key(args, kwargs)[0] != key or not self._holds(capture, args, kwargs)):
            self._warn(f"changes Python values that it also reads ({self._changed(capture, args, kwargs)}); count and "
                       "collect outside of it, from what it returns, or keep a number in a tensor (self.n.add_(1))")
            return result
        if settings.recorded and not reason:
            trace.current().captured(self.__name__, [item.compiled for item in capture.items])
        self._keep(key, held, capture if not reason else None)
        if reason:
            self._warn(reason)
        elif history is not None:
            history.proven = True
        return result

    def _keep_range(self, held: list[Any], capture: Capture, trace: RangeTrace, history: RangeHistory,
                    reason: str) -> None:
        """Store a capture over a range, unless a size decided the control flow or the call cannot be captured so."""
        if trace.pins.found:
            history.pinned |= trace.pins.numbers(trace.guard)
            history.refuse(trace.pins.text(), self.__name__, for_ever=False)
        elif reason:
            history.refuse(reason, self.__name__)
        else:
            capture.history = history
            self._keep(history.key, held, capture)
            history.ranges += 1

    def _holds(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return True if the Python values that a captured call read are unchanged, except those that may change."""
        return capture.state.change(args, kwargs) is None or (
            self.changes_state and capture.state.let_change(args, kwargs))

    def _keep(self, key: Any, held: list[Any], capture: Capture | None) -> None:
        """Store a capture, or the fact that this signature cannot be captured."""
        entry = self.captures.get(key)
        if entry is None or not entry.alive:
            entry = self.captures[key] = SignatureEntry(held)
        self.captures.move_to_end(key)
        if capture is None:
            entry.uncapturable = True
            return
        kept = entry.kept
        kept.insert(0, WhileAlive(capture, [*held, *capture.state.held]))
        capture.state.held, capture.state.body = [], []
        del kept[MOST_VARIANTS:]
        self._last = capture
        for old in [k for k, e in self.captures.items() if not e.alive]:
            del self.captures[old]
        while len(self.captures) > MOST_SIGNATURES:
            self.captures.popitem(last=False)

    def _change(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the reason why no capture fits a call: the first difference from the latest signature."""
        latest = next((k for k in reversed(self.captures) if k[0] != "sizes"), key)
        if key in self.captures:
            captures = self.captures[key].captures
            return (captures[0].state.change(args, kwargs) if captures else None) or (
                "a tensor that it reads besides its arguments: it is gone, shared, or seen in another way; "
                "or a size that it went by")
        modes = ("Tensor.training", "Tensor.no_grad", "Tensor.autocast", "DEV", "a setting that changes code",
                 "the default float", "the default int")
        return next((name for name, a, b in zip(modes, latest[1:], key[1:]) if a != b),
                    None) or difference(latest[0], key[0])

    def _changed(self, capture: Capture, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the Python value that a captured call has changed, and the first source line that names it."""
        path = capture.state.change(args, kwargs)
        if path is None:
            return "an argument"
        name = path.partition("[")[0].rpartition(".")[2]
        return f"{path} at {place(*capture.state.line(name))}"

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn_explicit(f"{self.__name__} {reason}; it runs uncaptured", UserWarning, *user_line())
