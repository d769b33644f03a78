"""``VERIFY=k``: compare a replay with the uncaptured call from the same state."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tinsmith.core.dtypes import DType
from tinsmith.core.errors import JitError
from tinsmith.ir import UOp
from tinsmith.jit.collect import CacheCollector
from tinsmith.jit.guards.signature import paths
from tinsmith.runtime.launch import recorders
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.create import random
from tinsmith.tensor.tensor import Tensor

_TOLERANCE = {2: 2e-2, 4: 1e-4, 8: 1e-9}  # relative, by bytes per element: a replay may be fused in another way

R = TypeVar("R")


def verified(name: str, replay: Callable[[], Any], function: Callable[[], R]) -> R:
    """Run ``replay`` and ``function`` on the same state; return the result of ``function`` if both agree.

    Outputs and written tensors are compared.

    Raises:
        JitError: naming the first output that differs.
    """
    quiet = CacheCollector()  # while it listens, no old version is written over
    recorders.append(quiet)
    try:
        tensors = list(TensorBase.live)
        before = [(t.uop, t.grad) for t in tensors]
        shares = [t._shared for t in tensors]
        wholes = [(t._shared.storage, t._shared.storage.value) for t in tensors if t._shared is not None]
        draws = random.state()
        replayed = replay()
        outputs = [(path, _value(leaf)) for path, leaf in paths(replayed)]
        states = [(t.uop, t.grad) for t in tensors]
        drawn = random.state()
        for t, (uop, grad), shared in zip(tensors, before, shares):
            t.uop, t.grad, t._shared = uop, grad, shared
        for storage, whole in wholes:
            storage.value = whole
        random.restore(draws)
        result = function()
        _compare(name, "output ", outputs, [(path, _value(leaf)) for path, leaf in paths(result)])
        if random.state() != drawn:
            raise _error(name, "the random draws", f"{drawn} after the replay, {random.state()} after the function")
        _compare_state(name, tensors, before, states)
    finally:
        recorders.remove(quiet)
    return result


def _compare_state(name: str, tensors: Sequence[Tensor], before: Sequence[tuple[UOp, Tensor | None]],
                   states: Sequence[tuple[UOp, Tensor | None]]) -> None:
    for number, (t, (old, old_grad), (new, new_grad)) in enumerate(zip(tensors, before, states)):
        what = f"state tensor {number} {t.shape} {t.dtype!r}"
        if t.uop is not old or new is not old:
            _compare(name, "", [(what, _value(Tensor(new)))], [(what, _value(Tensor(t.uop)))])
        if t.grad is not old_grad or new_grad is not old_grad:
            what = f"the gradient of {what}"
            _compare(name, "", [(what, _value(new_grad))], [(what, _value(t.grad))])


def _value(leaf: Any) -> Any:
    return (leaf._array(), leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _error(name: str, what: str, how: str) -> JitError:
    return JitError("VERIFY", f"a replay of {name} differs from the function in {what}: {how}",
                    "pass what changes between calls as an argument or keep it in a tensor")


def _compare(name: str, kind: str, replayed: list[tuple[str, Any]], wanted: list[tuple[str, Any]]) -> None:
    if [p for p, _ in replayed] != [p for p, _ in wanted]:
        raise _error(name, "the nesting of its outputs", f"{[p for p, _ in replayed]}, not {[p for p, _ in wanted]}")
    for (path, got), (_, want) in zip(replayed, wanted):
        what = f"{kind}{path}".strip() or "the value"
        if isinstance(got, tuple) and isinstance(want, tuple) and isinstance(got[0], np.ndarray):
            difference = _differs(got[0], want[0], want[1])
            if difference or got[1] is not want[1]:
                raise _error(name, what, difference or f"{got[1]!r}, not {want[1]!r}")
        elif type(got) is not type(want) or (isinstance(want, (int, float, str, bytes)) and got != want):
            raise _error(name, what, f"{got!r:.60}, not {want!r:.60}")


def _differs(got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], dtype: DType) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if not dtype.is_float:
        equal = got == want
    else:
        tolerance = _TOLERANCE[max(dtype.itemsize, 2)]
        wide, right = got.astype(np.float64), want.astype(np.float64)
        scale = np.max(np.abs(right[np.isfinite(right)]), initial=0.0)
        with np.errstate(invalid="ignore"):
            near = np.abs(wide - right) <= tolerance * (np.abs(right) + scale * 0.1)
        equal = near | (wide == right) | (np.isnan(wide) & np.isnan(right))
    if equal.all():
        return ""
    at = tuple(int(i) for i in np.argwhere(~equal)[0])
    return f"{got[at]} at {at}, not {want[at]}"
