"""Random programs on 2 to 8 threads that share tensors: the results equal those of some serial order of the steps.

A step is one call: a write in place, a read, a realization, a replay. What a thread does comes in its order; steps of
different threads may come in any. The order is searched for, and what was read tells it.
"""
from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.properties.runner import FEW
from tinsmith import Tensor, TinyJit

MOST = 200_000  # states that the search looks at; it needs some dozens
State = tuple[np.ndarray[Any, Any], ...]
Step = tuple[str, Callable[[list[Any]], Any], Callable[[State], tuple[State, Any]]]  # text, what a thread does, NumPy


class Program:
    """Shared tensors, and a list of steps for each thread."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = self.random.choice([3, 17, 40_000])  # the last one is written where it lies
        begin = np.arange(self.size, dtype=np.int32)
        base = Tensor(begin.copy()) if self.random.random() < 0.5 else Tensor(begin.copy()).realize()
        self.shared: list[Any] = [base, base[1:3], (Tensor(begin.copy()) + 1).realize()]
        self.state: State = (begin.copy(), begin + 1)
        self.replayed = _captured(self.shared[2])
        count = self.random.choice([2, 2, 2, 3, 3, 4, 6, 8])
        most = {2: 6, 3: 4, 4: 3, 6: 2, 8: 2}[count]
        self.threads = [[self.step() for _ in range(self.random.randint(1, most))] for _ in range(count)]

    def step(self) -> Step:
        n, k = self.random.choice([0, 0, 1]), self.random.randint(1, 9)
        made: dict[str, Callable[[int, int], Step]] = {
            "add": _add, "mul": _mul, "part": _part, "item": _item, "fill": _fill, "read": _read,
            "part read": _read_part, "realize": _realize, "computed": _computed, "replayed": self.replay}
        weights = [4, 3, 2, 2, 1, 5, 2, 3, 3, 2]
        return made[self.random.choices(list(made), weights)[0]](n, k)

    def replay(self, n: int, k: int) -> Step:
        return "f()", lambda _: self.replayed(), lambda s: ((s[0], s[1] * 3), None)

    def __str__(self) -> str:
        return f"size {self.size}\n" + "\n".join(f"thread {n}: " + "; ".join(text for text, *_ in steps)
                                                 for n, steps in enumerate(self.threads))

    def run(self) -> list[list[Any]]:
        """Run all threads and return the results of each thread's steps."""
        found: list[list[Any]] = [[] for _ in self.threads]
        errors: list[BaseException] = []
        barrier = threading.Barrier(len(self.threads))

        def work(n: int) -> None:
            try:
                barrier.wait()
                for _, step, _ in self.threads[n]:
                    found[n].append(step(self.shared))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(self.threads))]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
            assert not t.is_alive(), "a thread waits for ever"
        if errors:
            raise errors[0]
        return found


def _at(n: int) -> int:
    """Return the index of the shared tensor that holds entry ``n`` of the state."""
    return 2 * n


def _change(n: int, change: Callable[[Any], Any], text: str, step: Callable[[list[Any]], Any]) -> Step:
    return text, step, lambda s: (tuple(change(a) if m == n else a for m, a in enumerate(s)), None)


def _add(n: int, k: int) -> Step:
    def step(shared: list[Any]) -> None:
        shared[_at(n)].add_(k)

    return _change(n, lambda a: a + k, f"t{n}.add_({k})", step)


def _mul(n: int, k: int) -> Step:
    def step(shared: list[Any]) -> None:
        t = shared[_at(n)]
        t *= k

    return _change(n, lambda a: a * k, f"t{n} *= {k}", step)


def _part(n: int, k: int) -> Step:
    def change(a: Any) -> Any:
        b = a.copy()
        b[1:3] += k
        return b

    def step(shared: list[Any]) -> None:
        shared[1].add_(k)

    return _change(0, change, f"t0[1:3].add_({k})", step)


def _item(n: int, k: int) -> Step:
    def change(a: Any) -> Any:
        b = a.copy()
        b[k % 3] = k
        return b

    def step(shared: list[Any]) -> None:
        shared[_at(n)][k % 3] = k

    return _change(n, change, f"t{n}[{k % 3}] = {k}", step)


def _fill(n: int, k: int) -> Step:
    def step(shared: list[Any]) -> None:
        shared[_at(n)].assign(Tensor.full(shared[_at(n)].shape, k, dtype=shared[_at(n)].dtype))

    return _change(n, lambda a: np.full_like(a, k), f"t{n}.assign({k})", step)


def _read(n: int, k: int) -> Step:
    return f"t{n}.numpy()", lambda shared: shared[_at(n)].numpy(), lambda s: (s, s[n])


def _read_part(n: int, k: int) -> Step:
    return "t0[1:3].numpy()", lambda shared: shared[1].numpy(), lambda s: (s, s[0][1:3])


def _realize(n: int, k: int) -> Step:
    def step(shared: list[Any]) -> None:
        shared[_at(n)].realize()

    return f"t{n}.realize()", step, lambda s: (s, None)


def _computed(n: int, k: int) -> Step:
    """A lazy product: it has the value of its operand at the time of recording."""
    return (f"(t{n} * {k}).numpy()", lambda shared: (shared[_at(n)] * k).numpy(), lambda s: (s, s[n] * k))


def _captured(t: Any) -> Any:
    @TinyJit
    def f() -> Any:
        t.mul_(3)
        return t.detach()

    before = t.tolist()
    for _ in range(3):
        f()
    t.assign(Tensor(before, dtype=t.dtype)).realize()
    return f


def check(seed: int) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(random.Random(seed).choice([1e-6, 1e-5, 1e-4, before]))
    try:
        program = Program(seed)
        found = program.run()
    finally:
        sys.setswitchinterval(before)
    reads = [step(program.shared) for _, step, _ in LAST]
    assert explained(program, found, reads), f"no order of these steps gives {found}, {reads}\n{program}"


LAST = [_read(0, 0), _read(1, 0), _read_part(0, 0)]  # when all threads have ended


def explained(program: Program, found: list[list[Any]], reads: list[Any]) -> bool:
    """Return True if some serial order of the steps explains their results and the final reads."""
    begin = (0,) * len(program.threads)
    waiting: list[tuple[tuple[int, ...], State]] = [(begin, program.state)]
    seen: set[Any] = set()
    while waiting:
        at, state = waiting.pop()
        ready = [(t, steps[n]) for t, (n, steps) in enumerate(zip(at, program.threads)) if n < len(steps)]
        if not ready and all(np.array_equal(meaning(state)[1], r) for (_, _, meaning), r in zip(LAST, reads)):
            return True
        for t, (_, _, meaning) in ready:
            new, want = meaning(state)
            if want is not None and not np.array_equal(want, found[t][at[t]]):
                continue
            then = tuple(n + (m == t) for m, n in enumerate(at))
            key = then, tuple(a[:4].tobytes() for a in new)
            if key not in seen:
                assert len(seen) < MOST, "too many orders"
                seen.add(key)
                waiting.append((then, new))
    return False


@pytest.mark.parametrize("seed", range(FEW))
def test_threads(seed: int) -> None:
    check(seed)
