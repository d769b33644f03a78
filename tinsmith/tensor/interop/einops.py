"""einops on tensors: the backend that its ``_backends.AbstractBackend`` describes, added when einops is imported.

einops finds the frameworks among the subclasses of that class, which exists once einops is there: a finder notices the
import, whichever of the two packages comes first, and costs nothing as long as nobody imports einops.
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
    """What einops asks of a framework."""

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
        """New axes at the keys, as long as the values: without a copy."""
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
    """Adds the backend when einops is imported."""

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
    """Let einops know tensors, now or when it is imported."""
    if MODULE in sys.modules:
        _add_to(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _Finder())
