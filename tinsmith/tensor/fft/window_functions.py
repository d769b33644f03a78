"""Constants of signals: window functions, and the frequencies that a transform's values stand for."""
# mypy: disable-error-code=misc
# ``self`` is the Tensor that this class is mixed into.
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinsmith.backend.device import DeviceName
from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.tensor.arguments import flag, integer

if TYPE_CHECKING:
    from tinsmith.tensor.tensor import Tensor


class WindowFunctions:
    """``hann_window fftfreq`` and their like: constants that the host computes."""

    __slots__ = ()

    @classmethod
    def fftfreq(cls: type[Tensor], n: int, d: float = 1.0, *, dtype: DType | str | None = None,
                device: DeviceName | None = None) -> Tensor:
        """The frequencies of ``fft``'s n values, in cycles per unit of the distance ``d`` of samples.

        >>> Tensor.fftfreq(4).tolist()
        [0.0, 0.25, -0.5, -0.25]
        """
        values = np.fft.fftfreq(integer("fftfreq", "n", n, least=1), d)
        return constant(cls, values, dtypes.default_float if dtype is None else to_dtype(dtype), device)

    @classmethod
    def rfftfreq(cls: type[Tensor], n: int, d: float = 1.0, *, dtype: DType | str | None = None,
                 device: DeviceName | None = None) -> Tensor:
        """The frequencies of ``rfft``'s values.

        >>> Tensor.rfftfreq(4).tolist()
        [0.0, 0.25, 0.5]
        """
        values = np.fft.rfftfreq(integer("rfftfreq", "n", n, least=1), d)
        return constant(cls, values, dtypes.default_float if dtype is None else to_dtype(dtype), device)

    @classmethod
    def hann_window(cls: type[Tensor], window_length: int, periodic: bool = True, *, dtype: DType | str | None = None,
                    device: DeviceName | None = None) -> Tensor:
        """``0.5 - 0.5 cos(2 pi k / n)``, where n is the length, or one less if not ``periodic``.

        >>> Tensor.hann_window(4).numpy().round(4).tolist()
        [0.0, 0.5, 1.0, 0.5]
        """
        return _cosines(cls, "hann_window", (0.5, 0.5), window_length, periodic, dtype, device)

    @classmethod
    def hamming_window(cls: type[Tensor], window_length: int, periodic: bool = True, alpha: float = 0.54,
                       beta: float = 0.46, *, dtype: DType | str | None = None,
                       device: DeviceName | None = None) -> Tensor:
        """``alpha - beta cos(2 pi k / n)``.

        >>> Tensor.hamming_window(4).numpy().round(2).tolist()
        [0.07999999821186066, 0.5400000214576721, 1.0, 0.5400000214576721]
        """
        return _cosines(cls, "hamming_window", (alpha, beta), window_length, periodic, dtype, device)

    @classmethod
    def blackman_window(cls: type[Tensor], window_length: int, periodic: bool = True, *,
                        dtype: DType | str | None = None, device: DeviceName | None = None) -> Tensor:
        """``0.42 - 0.5 cos(2 pi k / n) + 0.08 cos(4 pi k / n)``.

        >>> Tensor.blackman_window(4).abs().numpy().round(2).tolist()
        [0.0, 0.3400000035762787, 1.0, 0.3400000035762787]
        """
        return _cosines(cls, "blackman_window", (0.42, 0.5, 0.08), window_length, periodic, dtype, device)

    @classmethod
    def bartlett_window(cls: type[Tensor], window_length: int, periodic: bool = True, *,
                        dtype: DType | str | None = None, device: DeviceName | None = None) -> Tensor:
        """Return the Bartlett (triangular) window: linear from 0 to 1 and back.

        >>> Tensor.bartlett_window(4).tolist()
        [0.0, 0.5, 1.0, 0.5]
        """
        count = integer("bartlett_window", "window_length", window_length, least=0)
        places = _places(count, flag("bartlett_window", "periodic", periodic))
        kind = dtypes.default_float if dtype is None else to_dtype(dtype)
        return constant(cls, 1 - np.abs(2 * places - 1) if count != 1 else np.ones(1), kind, device)


def _places(count: int, periodic: bool) -> np.ndarray[Any, Any]:
    """Return the positions of the samples of a window between 0 and 1."""
    return np.arange(count) / max(count - (not periodic), 1)


def _cosines(cls: type[Tensor], op: str, weights: Sequence[float], count: int, periodic: bool,
             dtype: DType | str | None, device: DeviceName | None) -> Tensor:
    count = integer(op, "window_length", count, least=0)
    turn = 2 * np.pi * _places(count, flag(op, "periodic", periodic))
    values = sum((-1) ** k * w * np.cos(k * turn) for k, w in enumerate(weights)) if count != 1 else np.ones(1)
    return constant(cls, np.asarray(values), dtypes.default_float if dtype is None else to_dtype(dtype), device)


def constant(cls: type[Tensor], values: np.ndarray[Any, Any], dtype: DType, device: DeviceName | None) -> Tensor:
    return cls(values.astype(dtype.numpy), device=device, requires_grad=False)
