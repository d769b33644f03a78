"""The observer hook of the compiler: passes and rewrite rules report their results to the current trace."""
from __future__ import annotations

from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Observer(Protocol):
    """The receiver of every pass's result and of the rewrites in it. ``seen``: old node → new node in this pass."""

    seen: dict[Any, Any]

    def passed(self, name: str, value: Any) -> None: ...

    def rewritten(self, rule: Any, before: Any, after: Any) -> None: ...


class _Observed:
    observer: Observer | None = None


observed = _Observed()


def passed(name: str, value: T) -> T:
    """Return ``value``, the result of the pass ``name``, after reporting it to the observer, if any.

    >>> passed("simplify", 3)
    3
    """
    if observed.observer is not None:
        observed.observer.passed(name, value)
    return value
