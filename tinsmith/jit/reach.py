"""Reachability of tensors from a function: through arguments, closure, defaults and named globals, at any depth."""
from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from typing import Any

from tinsmith.backend.memory import Buffer
from tinsmith.ir import UOp
from tinsmith.jit.reads import all_names, ours
from tinsmith.jit.state import State
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

_LEAVES = (int, float, str, bytes, type(None), complex, UOp, Buffer, types.CodeType, types.FrameType,
           types.BuiltinFunctionType, State)  # the last holds whole dictionaries of globals
LIMIT = 200_000


def reachable(roots: Sequence[Any]) -> dict[int, Tensor]:
    """Return the reachable tensors, by id. Modules are entered only through the names that functions look up."""
    found: dict[int, Tensor] = {}
    seen: dict[int, Any] = {}
    stack = list(roots)
    while stack and len(seen) < LIMIT:
        value = stack.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, TensorBase):
            found[id(value)] = value  # type: ignore[assignment]
        elif isinstance(value, types.FunctionType):
            stack += value.__closure__ or ()
            stack += [value.__defaults__, value.__kwdefaults__]
            names = all_names(value.__code__)
            named = [value.__globals__[n] for n in names if n in value.__globals__]
            stack += named
            stack += [getattr(m, n) for m in named if _foreign(m) for n in names if n in vars(m)]
        elif isinstance(value, type):
            if not ours(value.__module__):
                stack += [v for v in vars(value).values() if not isinstance(v, types.GetSetDescriptorType)]
        elif not isinstance(value, types.ModuleType):
            stack += gc.get_referents(value)
            if not isinstance(value, (dict, list, tuple, set)) and not ours(type(value).__module__):
                stack.append(type(value))
    return found


def _foreign(module: Any) -> bool:
    return isinstance(module, types.ModuleType) and not ours(module.__name__)
