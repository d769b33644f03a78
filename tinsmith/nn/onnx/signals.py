"""Fourier transforms of parts of signals, and filters for them; complex numbers are a last axis of two."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from tinsmith.nn.onnx.values import DTYPES, axis_of, constant, number
from tinsmith.tensor.tensor import Tensor


def DFT(x: Tensor, dft_length: Any = None, axis: Any = None, inverse: int = 0, onesided: int = 0,
        opset: int = 20) -> Tensor:
    """A product with the matrix of the transform."""
    place = (1 if opset < 20 else -2) if axis is None else int(number(axis))
    at = axis_of(place, x.ndim)
    full = inverse and onesided  # half of a spectrum stands for all of it
    usual = 2 * (x.shape[at] - 1) if full else x.shape[at]
    count = usual if dft_length is None else int(number(dft_length))
    given = x.transpose(at, -2) if at != x.ndim - 2 else x
    if full:
        given = _mirrored(given, count)
    size = given.shape[-2]
    if size != count:
        cut = given.shrink(tuple((0, min(s, count)) if n == given.ndim - 2 else (0, s)
                                 for n, s in enumerate(given.shape)))
        given = cut.pad([(0, max(count - size, 0)) if n == given.ndim - 2 else (0, 0) for n in range(given.ndim)])
    angles = 2 * math.pi * (np.outer(np.arange(count), np.arange(count)) % count) / count
    cos, sin = (constant(f(angles) / (count if inverse else 1)).cast(x.dtype)
                for f in (np.cos, np.sin))
    sin = sin if inverse else -sin
    real = given[..., 0]
    if given.shape[-1] == 1:
        parts = (real @ cos, real @ sin)
    else:
        imaginary = given[..., 1]
        parts = (real @ cos - imaginary @ sin, real @ sin + imaginary @ cos)
    out = parts[0].unsqueeze(-1) if full else parts[0].stack(parts[1], dim=-1)
    out = out[..., : count // 2 + 1, :] if onesided and not inverse else out
    return out.transpose(at, -2) if at != x.ndim - 2 else out


def _mirrored(half: Tensor, count: int) -> Tensor:
    """All of a real signal's spectrum."""
    rest = half[..., 1 : count - half.shape[-2] + 1, :].flip(half.ndim - 2)
    return half.cat(rest * constant(np.array([1, -1], np.float32)), dim=-2)


def STFT(signal: Tensor, frame_step: Any, window: Tensor | None = None, frame_length: Any = None,
         onesided: int = 1) -> Tensor:
    length = window.shape[0] if window is not None else int(number(frame_length))
    step = int(number(frame_step))
    frames = signal.unfold(1, length, step).transpose(2, 3)  # [batch, frames, length, parts]
    if window is not None:
        frames = frames * window.reshape(1, 1, -1, 1)
    return DFT(frames, axis=constant(np.int64(-2)), onesided=onesided)


def MelWeightMatrix(num_mel_bins: Any, dft_length: Any, sample_rate: Any, lower_edge_hertz: Any,
                    upper_edge_hertz: Any, output_datatype: int = 1) -> Tensor:
    """Triangles that are even in mel, over the bins of a transform."""
    bins, length, rate = (int(number(v)) for v in (num_mel_bins, dft_length, sample_rate))
    low, high = (2595 * np.log10(1 + float(number(v)) / 700) for v in (lower_edge_hertz, upper_edge_hertz))
    edges = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    points = ((length + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate).astype(int)
    out = np.zeros((length // 2 + 1, bins))
    for n in range(bins):
        start, middle, end = points[n : n + 3]
        if middle == start:
            out[middle, n] = 1
        else:
            at = np.arange(start, middle + 1)
            out[at, n] = (at - start) / (middle - start)
        if end > middle:
            at = np.arange(middle, end)
            out[at, n] = (end - at) / (end - middle)
    return constant(out).cast(DTYPES[output_datatype])


