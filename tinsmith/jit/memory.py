"""Realization of tensors such that aliases stay views of one buffer, which guards and replays compare."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tinsmith.jit.guards.signature import base_of, placed
from tinsmith.tensor.realize import realize_tensors
from tinsmith.tensor.storage import NO_LOOKS, Share, alone
from tinsmith.tensor.tensor import Tensor


def whole(t: Tensor) -> Tensor | None:
    """Return a tensor of the complete storage that ``t`` shares, if it is not realized yet; else None."""
    if t._shared is None or alone(t) or placed(t._shared.storage.value):
        return None
    found = Tensor(t._shared.storage.value)
    found._device, found._shared = t._device, Share(t._shared.storage, NO_LOOKS)
    t._shared.storage.add(found)
    return found


def settle(t: Tensor) -> None:
    """Realize a tensor such that all tensors that share its memory are views of one buffer."""
    if t._shared is None:
        if not placed(t.uop):
            t.realize()
        return
    stand_in = whole(t)
    if stand_in is not None:
        stand_in.realize()
    if t._shared is None:
        return settle(t)
    if base_of(t.uop) is not base_of(t._shared.storage.value):  # it was computed alone
        t.uop = t._shared.seen()


def compute(results: Sequence[Tensor], written: Sequence[Tensor]) -> None:
    """Realize the results and the written tensors; if several share memory, realize their complete storage once."""
    counts = Counter(id(t._shared.storage) for t in {id(t): t for t in results}.values() if t._shared is not None)
    several = [t for t in results if t._shared is not None and counts[id(t._shared.storage)] > 1]
    wholes: dict[int, Tensor] = {}
    for t in (*several, *written):
        if t._shared is not None and id(t._shared.storage) not in wholes and (found := whole(t)) is not None:
            wholes[id(t._shared.storage)] = found
    pending = [t for t in (*results, *written) if not placed(t.uop) and (
        t._shared is None or id(t._shared.storage) not in wholes)]
    if pending or wholes:
        realize_tensors([*pending, *wholes.values()])
