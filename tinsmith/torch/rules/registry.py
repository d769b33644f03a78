"""The table of ATen rules: for the name of an op overload, the function from Tinsmith tensors to Tinsmith tensors.

A rule gets the op's arguments with tensors replaced by Tinsmith tensors and PyTorch dtypes by ours; ``device``,
``layout``, ``pin_memory``, ``memory_format`` and ``non_blocking`` are removed. PyTorch has already inferred the shapes
and dtypes of the results: a result is cast to that dtype, and its shape is checked against PyTorch's.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
Promote = str  # "": leave the arguments; "result": cast them to the result's dtype; "common": to their common dtype


@dataclass(frozen=True)
class AtenRule:
    """The translation of one op overload.

    Attributes:
        function: from Tinsmith tensors and plain arguments to a tensor or a tuple of tensors.
        promote: "result": cast floating-point and integer tensor arguments to the result's dtype before the call;
            "common": to their common dtype (comparisons); "": leave them.
        creates: the function takes ``device``, the device of the result.
        meta: the function takes ``meta``, PyTorch's description of the results (fake tensors).
        random: the results are random numbers; their seed is drawn from PyTorch's generator at each call.
        layout: the function takes ``layout``, the strides of its first argument in PyTorch's memory; None if the
            argument does not fill that memory.
    """

    function: Callable[..., Any]
    promote: Promote = ""
    creates: bool = False
    meta: bool = False
    random: bool = False
    layout: bool = False


RULES: Final[dict[str, AtenRule]] = {}


class Unsupported(Exception):
    """Raised by a rule for arguments that it does not cover; PyTorch then runs the op. The message is the reason."""


def rule(*names: str, promote: Promote = "", creates: bool = False, meta: bool = False, random: bool = False,
         layout: bool = False) -> Callable[[_F], _F]:
    """Return a decorator that enters a function in the table under ``names``, such as "add.Tensor".

    A name without an overload means the overload ``default``.
    """
    def enter(function: _F) -> _F:
        for name in names:
            full = name if "." in name.removeprefix("prims.") else f"{name}.default"
            assert full not in RULES, f"two rules for {full}"
            RULES[full] = AtenRule(function, promote, creates, meta, random, layout)
        return function

    return enter


def rule_for(target: Any) -> AtenRule | None:
    """Return the rule of an ATen op overload; None if there is none, or ``target`` is not an ATen op."""
    name = str(target)
    return RULES.get(name[5:]) if name.startswith("aten.") else RULES.get(name) if name.startswith("prims.") else None
