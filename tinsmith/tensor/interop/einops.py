"""einops backend for tensors (``einops._backends.AbstractBackend``), registered when einops is imported.

einops finds backends among the subclasses of that class, which exists only after einops is imported. An import hook
registers the backend at that time, whichever package is imported first, and costs nothing without einops.
"""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

MODULE: Final = "einops._backends"
_made: Final[list[type]] = []  # einops itself holds its subclasses weakly


class Backend:
    """The framework operations that einops requires of a backend."""

    framework_name = "tinsmith"

    def __init__(self) -> None:
        self.tensor: type[Tensor] = sys.modules["tinsmith.tensor.tensor"].Tensor

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, self.tensor)

    def from_numpy(self, x: Any) -> Tensor:
        return self.tensor(x)

    def to_numpy(self, x: Tensor) -> Any:
        return x.numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return self.tensor.arange(start, stop)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        return x.reshape(tuple(shape))

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def reduce(self, x: Tensor, operation: str, axes: Sequence[int]) -> Tensor:
        reduced: Tensor = getattr(x, operation)(axis=tuple(axes))
        return reduced

    def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.tensor.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        """Return ``x`` with new axes at the dict's keys, broadcast to the sizes that are its values, without a copy."""
        kept = iter(x.shape)
        wide = tuple(pos2len[n] if n in pos2len else next(kept) for n in range(n_axes))
        for n in sorted(pos2len):
            x = x.unsqueeze(n)
        return x.expand(wide)

    def tile(self, x: Tensor, repeats: Sequence[int]) -> Tensor:
        return x.repeat(tuple(repeats))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        return self.tensor.cat(tensors, dim=axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.is_float

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return self.tensor.einsum(pattern, *x)


def _add_to(backends: ModuleType) -> None:
    base = getattr(backends, "AbstractBackend", None)
    if base is not None and not _made:
        _made.append(type("TinsmithBackend", (Backend, base), {}))


class _Finder:
    """Import hook that registers the backend when einops is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader: Any = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _add_to(module)

            loader.exec_module = exec_module
        return spec


def install() -> None:
    """Register the backend with einops, now or when it is imported."""
    if MODULE in sys.modules:
        _add_to(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _Finder())
