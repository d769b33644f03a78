"""TinyJit: the first call of a function runs, the second is captured, the third and later ones are replayed."""
from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import JitError, place, user_line
from tinsmith.core.lazy_import import Late
from tinsmith.core.object_lifetime import LiveSet, WhileAlive
from tinsmith.core.settings import settings
from tinsmith.core.terminal import show
from tinsmith.core.timeline import GUARDS, RECORDING, phase
from tinsmith.ir.algebra.sizes import watchers
from tinsmith.jit.collect import JitItem
from tinsmith.jit.guards.signature import Bound, difference, leaves, placed, signature, surroundings
from tinsmith.jit.memory import compute, settle
from tinsmith.runtime.launch import recorders
from tinsmith.runtime.thread_turns import let_go, overwritten, state, take, wait_for
from tinsmith.tensor.autograd import history
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tinsmith.inspect import trace
    from tinsmith.inspect.explanation import Plan
    from tinsmith.jit import capture as capturing
    from tinsmith.jit import verify
    from tinsmith.jit.capture import Capture
else:  # most of this package is only for calls
    trace = Late("tinsmith.inspect.trace")
    capturing = Late("tinsmith.jit.capture")
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

    >>> @TinyJit
    ... def double(x):
    ...     return x + x
    >>> [double(Tensor([float(i)])).tolist() for i in range(4)]
    [[0.0], [2.0], [4.0], [6.0]]

    Raises:
        JitError: if one jitted function calls another while it is captured, or ``VERIFY`` finds a wrong replay.
    """

    changes_state: ClassVar[bool] = False  # what a call changes of what it reads is left as it is by replays

    def __init__(self, fxn: Callable[..., R], donate: bool = False) -> None:
        self.fxn, self.donate = fxn, donate
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
        return name if found is self else (TinyJit, (self.fxn, self.donate))

    def reset(self) -> None:
        """Forget all captures; the next call runs the function."""
        self.cnt = 0
        self.replays = 0
        self.captures: OrderedDict[Any, SignatureEntry] = OrderedDict()
        self._last: Capture | None = None
        self._quick: dict[str, Capture] | None = None  # of the latest replay, empty when it is dead
        self._warned: set[str] = set()

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
                found, tensors = matched
                if not overwritten or not wait_for(found):
                    self.cnt += 1
                    self.replays += 1
                    replay = capture.replay
                    if replay.direct is not None:
                        return replay.direct(found)  # type: ignore[return-value]
                    return replay(found, tensors, ())  # type: ignore[no-any-return]
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
            return self._run(args, kwargs)
        key, variables = self._key(args, kwargs)
        entry = self.captures.get(key)
        if entry is None or not entry.alive:
            return self._capture(key, tensors, args, kwargs)
        bound = [value for _, value in variables]
        if entry.uncapturable:
            return self._run(args, kwargs)
        self.captures.move_to_end(key)
        seed = random.state()[0]
        kept = entry.kept
        for n, one in enumerate(kept):
            capture = one.get()
            if capture is None or capture.state.change(args, kwargs) is not None:
                continue
            found = capture.guards.find(tensors, seed, bound)
            if found is not None and wait_for(found):
                return self._call(args, kwargs)
            if found is not None:
                kept.insert(0, kept.pop(n))
                self._last = capture
                self.replays += 1
                if settings.VERIFY and self.replays % settings.VERIFY == 0:
                    replay = functools.partial(capture.replay, found, tensors, bound)
                    return verify.verified(  # type: ignore[no-any-return]
                        self.__name__, replay, functools.partial(self._run, args, kwargs))
                if not kwargs and not settings.VERIFY and not settings.one_by_one:
                    with contextlib.suppress(TypeError):
                        capture.look_quickly(args)
                        self._quick = one.left
                return capture.replay(found, tensors, bound)  # type: ignore[no-any-return]
        return self._capture(key, tensors, args, kwargs)

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

    def _capture(self, key: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Run the function and record the programs that it runs."""
        if self.captures and settings.DEBUG >= 1:
            show(f"jit {self.__name__}: captured again; changed: {self._change(key, args, kwargs)}")
        held: list[Any] = []
        bound = self._key(args, kwargs, held)[1]
        reason, disturbed = "", False
        capture = capturing.Capture(self.fxn, args, kwargs, tensors, self._roots(args, kwargs), list(bound))

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
        TensorBase._sharers.append(capture.wrote)
        TensorBase._disturbed.append(capture.disturbed)
        TensorBase._graders.append(capture.graded)
        TensorBase._replacers.append(capture)
        try:
            result = self._run(args, kwargs, capture.watch, finish)
        finally:
            recorders.remove(capture)
            watchers.remove(capture.decided)
            TensorBase._sharers.remove(capture.wrote)
            TensorBase._disturbed.remove(capture.disturbed)
            TensorBase._graders.remove(capture.graded)
            TensorBase._replacers.remove(capture)
            capture.unread.end()
        if disturbed:
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
        return result

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
        latest = next(reversed(self.captures))
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
