"""Hashes of a tensor's bytes, computed on the host by Python's own library."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from tinsmith.core.errors import ArgumentError, ShapeError

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor

_FUNCTIONS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "sha3_224": lambda b: hashlib.sha3_224(b).digest(), "sha3_256": lambda b: hashlib.sha3_256(b).digest(),
    "sha3_384": lambda b: hashlib.sha3_384(b).digest(), "sha3_512": lambda b: hashlib.sha3_512(b).digest(),
    "shake_128": lambda b: hashlib.shake_128(b).digest(16)}
_CHUNK: Final = 1 << 20


class Hashing:
    """``keccak`` and ``hash``."""

    __slots__ = ()

    def keccak(self: Tensor, cfg: str = "sha3_256") -> Tensor:
        """The hash of each row of bytes along the last axis, as bytes; the values are computed now.

        >>> bytes(Tensor(b"Hello World!").keccak().data()).hex()[:16]
        'd0e47486bbf4c16a'

        Args:
            cfg: "sha3_224", "sha3_256", "sha3_384", "sha3_512" or "shake_128" (of 16 bytes).

        Raises:
            ArgumentError: for another function.
        """
        if cfg not in _FUNCTIONS:
            raise ArgumentError("keccak", f"unknown function {cfg!r}", f"one of {', '.join(_FUNCTIONS)}")
        if not self.ndim:
            raise ShapeError("keccak", "a 0-d tensor has no last axis", ".reshape(1)")
        rows = np.ascontiguousarray(self._array())
        lines = rows.reshape(-1, rows.shape[-1])
        digests = [np.frombuffer(_FUNCTIONS[cfg](line.tobytes()), np.uint8) for line in lines]
        size = len(_FUNCTIONS[cfg](b""))
        found = np.stack(digests) if digests else np.empty((0, size), np.uint8)
        return type(self)(found.reshape(*self.shape[:-1], size), device=self.device)

    def hash(self: Tensor) -> Tensor:
        """A hash of 16 bytes of all of the tensor's bytes; the values are computed now.

        Of a tensor beyond 1 MiB, the hashes of its parts of that size are hashed, until there is one.

        >>> Tensor(b"Hello World!").hash().shape
        (16,)
        """
        data = np.ascontiguousarray(self._array()).tobytes()
        while True:
            parts = [data[i : i + _CHUNK] for i in range(0, max(len(data), 1), _CHUNK)]
            data = b"".join(hashlib.shake_128(p.ljust(_CHUNK, b"\0")).digest(16) for p in parts)
            if len(parts) == 1:
                return type(self)(data, device=self.device)
