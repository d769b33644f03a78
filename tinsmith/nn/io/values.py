"""JSON form of the parts of a checkpoint that are not tensors: plain values and random generator states."""
from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from tinsmith.core.errors import ArgumentError
from tinsmith.tensor.arguments import shown
from tinsmith.tensor.create import random as streams
from tinsmith.tensor.tensor import Tensor


def is_value(part: Any) -> bool:
    """Return True if ``part`` is saved as JSON: a plain value or a random generator (or a list or dict of these)."""
    if isinstance(part, (list, tuple)):
        return all(map(is_value, part))
    if isinstance(part, Mapping):
        return all(isinstance(k, str) for k in part) and all(map(is_value, part.values()))
    return part is None or isinstance(part, (bool, int, float, str, np.generic)) or part is Tensor or isinstance(
        part, (np.random.Generator, np.random.RandomState, random.Random))


def plain(part: Any) -> Any:
    """Return a plain value, or a random generator's state, as JSON-compatible data."""
    if isinstance(part, (list, tuple)):
        return [plain(p) for p in part]
    if isinstance(part, Mapping):
        return {k: plain(p) for k, p in part.items()}
    if isinstance(part, np.generic):
        return part.item()
    if part is Tensor:
        return dict(zip(("seed", "calls"), streams.state()))
    if isinstance(part, np.random.Generator):
        return _listed(part.bit_generator.state)
    if isinstance(part, np.random.RandomState):
        return _listed(part.get_state(legacy=False))
    return part.getstate() if isinstance(part, random.Random) else part


def _listed(state: Any) -> Any:
    """Return the state of a NumPy generator with arrays converted to lists."""
    if isinstance(state, Mapping):
        return {k: _listed(v) for k, v in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state


def restored(name: str, part: Any, value: Any) -> Any:
    """Set a random generator (or those in a list or dict) to the saved state; return a plain value from the file."""
    if isinstance(part, (list, tuple)) and isinstance(value, list) and len(part) == len(value):
        return [restored(name, p, v) for p, v in zip(part, value)]
    if isinstance(part, Mapping) and isinstance(value, dict) and part.keys() == value.keys():
        return {k: restored(name, part[k], v) for k, v in value.items()}
    try:
        if part is Tensor:
            streams.restore((value["seed"], value["calls"]))
        elif isinstance(part, np.random.Generator):
            part.bit_generator.state = _with_array(value)
        elif isinstance(part, np.random.RandomState):
            part.set_state(_with_array(value))
        elif isinstance(part, random.Random):
            part.setstate((value[0], tuple(value[1]), value[2]))
        else:
            return value
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ArgumentError("load", f"the file's {name} is not a state of {shown(part)}: {error}",
                            "the stream that was saved") from None
    return part


def _with_array(state: Any) -> Any:
    """Return a saved NumPy generator state in the form NumPy accepts: the key of a Mersenne twister as an array."""
    inner = state.get("state")
    if not isinstance(inner, dict) or not isinstance(inner.get("key"), list):
        return state
    return {**state, "state": {**inner, "key": np.array(inner["key"], np.uint32)}}
