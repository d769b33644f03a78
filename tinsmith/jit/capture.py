"""TinyJit: the first call of a function runs, the second is captured, the third and later ones are replayed."""
from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tinsmith.backend.memory import Buffer
from tinsmith.core.errors import JitError, user_line
from tinsmith.core.settings import settings
from tinsmith.ir import Ops, UOp
from tinsmith.ir.uop import bindings, toposort
from tinsmith.jit.signature import leaves, rebuilt, signature
from tinsmith.schedule.compiled import CompiledSchedule
from tinsmith.schedule.execute import run
from tinsmith.schedule.record import recorders
from tinsmith.tensor import random
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.realize import alive, is_realized
from tinsmith.tensor.tensor import Tensor

R = TypeVar("R")


@dataclass(frozen=True)
class Source:
    """Where a replay takes a buffer from: an argument, an earlier run's output, a tensor's value, or itself."""

    kind: str
    number: int = 0
    output: int = 0
    held: Any = None


@dataclass
class Run:
    """One program that ran during capture."""

    compiled: CompiledSchedule
    inputs: list[Buffer]
    values: list[int]
    names: list[str]
    outputs: list[Buffer]
    sources: list[Source] = field(default_factory=list)


class Capture:
    """A recorder, and afterwards the replay, of one call."""

    def __init__(self, arguments: list[Tensor]) -> None:
        self.runs: list[Run] = []
        self.host_read: tuple[str, int] | None = None
        self.arguments = {id(t.uop.base.arg): n for n, t in reversed(list(enumerate(arguments)))}
        self.before = {id(t): (weakref.ref(t), t.uop) for t in alive(TensorBase.live)}
        self.seed, self.first_draw = random.state()
        self.draws = 0
        self.result: Any = None
        self.states: list[tuple[weakref.ref[Tensor], Source, UOp]] = []

    # *** recording ***

    def ran(self, roots: Sequence[UOp], compiled: CompiledSchedule, inputs: list[Buffer], values: list[int],
            outputs: list[Buffer]) -> None:
        names = [n.src[0].arg[0] for n in bindings(toposort(roots))]
        self.runs.append(Run(compiled, inputs, values, names, outputs))

    def read(self) -> None:
        self.host_read = self.host_read or user_line()

    def finish(self, result: Any) -> None:
        """Realize what the function returned and the state it changed, then find out where every buffer comes from."""
        returned = [t for t in leaves(result) if isinstance(t, Tensor)]
        changed = [t for ref, old in self.before.values() if (t := ref()) is not None and t.uop is not old]
        pending = [t for t in [*returned, *changed] if not is_realized(t.uop)]
        if pending:
            pending[0].realize(*pending[1:])
        self.draws = random.state()[1] - self.first_draw
        held = {id(old.base.arg): ref for ref, old in self.before.values() if old.base.op is Ops.BUFFER}
        made: dict[int, Source] = {}
        for number, r in enumerate(self.runs):
            r.sources = [self.source(b, made, held) for b in r.inputs]
            for k, b in enumerate(r.outputs):
                made[id(b)] = Source("run", number, k)

        def keep(x: Any) -> Any:
            source = self.source(x.uop.base.arg, made, held) if isinstance(x, Tensor) else None
            return x if source is None else _Returned(source, x.uop, x.requires_grad)

        self.result = rebuilt(result, keep)
        for ref, _ in self.before.values():
            t = ref()
            if t is not None and t.uop.base.op is Ops.BUFFER and id(t.uop.base.arg) in made:
                self.states.append((ref, made[id(t.uop.base.arg)], t.uop))
        self.before.clear()

    def source(self, b: Buffer, made: dict[int, Source], held: dict[int, Any]) -> Source:
        if id(b) in made:
            return made[id(b)]
        if id(b) in self.arguments:
            return Source("argument", self.arguments[id(b)])
        if id(b) in held:
            return Source("tensor", held=held[id(b)])
        return Source("constant", held=b)

    # *** replaying ***

    def usable(self) -> bool:
        """Whether every tensor that the captured call read is still there, with the same layout."""
        for r in self.runs:
            for s, b in zip(r.sources, r.inputs):
                if s.kind == "tensor":
                    t = s.held()
                    if t is None:
                        return False
                    if not is_realized(t.uop):
                        t.realize()
                    now = t.uop.base.arg
                    if now.size != b.size or now.dtype is not b.dtype or now.device != b.device:
                        return False
        return True

    def replay(self, arguments: list[Tensor], variables: dict[str, int]) -> Any:
        """Run the captured programs on today's buffers; outputs are fresh, state tensors get their new versions."""
        seed, first = random.state()
        random.advance(self.draws)
        outputs: list[list[Buffer]] = []

        def take(s: Source) -> Buffer:
            if s.kind == "argument":
                return arguments[s.number].uop.base.arg  # type: ignore[no-any-return]
            if s.kind == "run":
                return outputs[s.number][s.output]
            return s.held().uop.base.arg if s.kind == "tensor" else s.held  # type: ignore[no-any-return]

        def value(name: str, old: int) -> int:
            if name in variables:
                return variables[name]
            return random.rebound(name, old, self.first_draw, seed, first)

        for r in self.runs:
            outputs.append(run(r.compiled, [take(s) for s in r.sources],
                               [value(n, v) for n, v in zip(r.names, r.values)]))
        result = rebuilt(self.result, lambda x: x.tensor(take(x.source)) if isinstance(x, _Returned) else x)
        for ref, s, uop in self.states:
            t = ref()
            if t is not None:
                t.uop = _viewing(uop, take(s))
        return result


@dataclass
class _Returned:
    """A tensor among the results: where its buffer comes from and how it looks at it."""

    source: Source
    uop: UOp
    requires_grad: bool | None

    def tensor(self, buffer: Buffer) -> Tensor:
        t = Tensor(_viewing(self.uop, buffer))
        t.requires_grad = self.requires_grad
        return t


def _viewing(uop: UOp, buffer: Buffer) -> UOp:
    base = uop.base
    return uop.substitute({base: UOp(Ops.BUFFER, base.dtype, (), buffer)})


class TinyJit(Generic[R]):
    """Decorator: captures what a function of tensors runs, and replays it without running its Python.

    The first call runs the function; the second captures it; later calls with an equal signature (see
    ``jit.signature``) replay. Another signature is captured anew. Outputs are fresh on every call, state that the
    function assigns is updated, and random draws go on. A function that reads values on the host runs uncaptured.

    >>> @TinyJit
    ... def double(x):
    ...     return x + x
    >>> [double(Tensor([float(i)])).tolist() for i in range(4)]
    [[0.0], [2.0], [4.0], [6.0]]

    Raises:
        JitError: if one jitted function calls another while it is captured.
    """

    def __init__(self, fxn: Callable[..., R]) -> None:
        self.fxn = fxn
        self.cnt = 0
        self.captures: dict[Any, Capture | None] = {}
        functools.update_wrapper(self, fxn)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else functools.partial(self.__call__, instance)

    def reset(self) -> None:
        """Forget all captures; the next call runs the function."""
        self.cnt = 0
        self.captures.clear()

    @property
    def jit_cache(self) -> list[Run]:
        """The captured programs of the latest capture (the tutorials' name)."""
        last = [c for c in self.captures.values() if c is not None]
        return last[-1].runs if last else []

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        if not settings.JIT or settings.DEBUG >= 3 or settings.CHECKED:
            return self.fxn(*args, **kwargs)
        if recorders:
            raise JitError("TinyJit", f"{self.fxn.__name__} is called while another function is being captured",
                           "jit the outer function only")
        tensors = [t for t in leaves((args, kwargs)) if isinstance(t, Tensor)]
        for t in tensors:
            t.realize()
        self.cnt += 1
        if self.cnt == 1:
            return self.run(args, kwargs)
        key = signature(self.fxn, args, kwargs), Tensor.training, settings.code_key()
        found = self.captures.get(key)
        if found is None and key in self.captures:
            return self.fxn(*args, **kwargs)
        if found is None or not found.usable():
            return self.capture(key, tensors, args, kwargs)
        variables = {u.src[0].arg[0]: u.src[1].arg for u in leaves((args, kwargs))
                     if isinstance(u, UOp) and u.op is Ops.BIND}
        return found.replay(tensors, variables)  # type: ignore[no-any-return]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        result = self.fxn(*args, **kwargs)
        returned = [t for t in leaves(result) if isinstance(t, Tensor)]
        if returned:
            returned[0].realize(*returned[1:])
        return result

    def capture(self, key: Any, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Run the function and note what it ran."""
        if self.captures and settings.DEBUG >= 1:
            print(f"jit {self.fxn.__name__}: captured again, its arguments or surroundings have changed")
        capture = Capture(tensors)
        recorders.append(capture)
        try:
            result = self.fxn(*args, **kwargs)
            if capture.host_read is None:
                capture.finish(result)
        finally:
            recorders.remove(capture)
        if capture.host_read is not None:
            file, line = capture.host_read
            warnings.warn(f"{self.fxn.__name__} reads values on the host at {file}:{line}; it runs uncaptured",
                          stacklevel=3)
            self.captures[key] = None
            return result
        self.captures[key] = capture
        return result
