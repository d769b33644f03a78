"""Who watches how programs are made: a trace is the observer, and passes and rules tell it what they made."""
from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Observer(Protocol):
    """Told of every pass, after the rewrites that it made. ``seen``: what nodes became in this pass."""

    seen: dict[Any, Any]

    def passed(self, name: str, value: Any) -> None: ...

    def rewritten(self, rule: Any, before: Any, after: Any) -> None: ...


class _Observed:
    observer: Observer | None = None


observed = _Observed()


def passed(name: str, value: T) -> T:
    """``value``, which the pass ``name`` made: the observer sees it if there is one.

    >>> passed("simplify", 3)
    3
    """
    if observed.observer is not None:
        observed.observer.passed(name, value)
    return value
