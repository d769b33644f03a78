"""ONNX operators on images and signals.

Images: Resize, Upsample, GridSample, RoiAlign, DeformConv, and box selection (NonMaxSuppression). Signals: Fourier
transforms, windows and filters; complex numbers are a last axis of two.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tinsmith.core.dtypes import dtypes
from tinsmith.nn.onnx.values import DTYPES, axis_of, constant, ints, known, number
from tinsmith.tensor.tensor import Tensor

Array = np.ndarray[Any, Any]


def Upsample(x: Tensor, scales: Any = None, mode: str = "nearest") -> Tensor:
    return Resize(x, None, scales, None, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


def Resize(x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None, antialias: int = 0, axes: Any = None,
           coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75, exclude_outside: int = 0,
           extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
           nearest_mode: str = "round_prefer_floor", opset: int = 19) -> Tensor:
    """ONNX ``Resize``: one axis after the other, by a product with a matrix of interpolation weights, or, for
    "nearest", by indexing."""
    if opset < 11:  # the second input is the scales
        scales, coordinate_transformation_mode = roi, "asymmetric"
        nearest_mode = "floor"
    over = list(range(x.ndim)) if axes is None else [axis_of(a, x.ndim) for a in ints(axes)]
    given = None if scales is None or not math.prod(scales.shape) else [float(s) for s in known(scales)]
    if given is None:
        wanted = ints(sizes)
        factors = [w / x.shape[a] for w, a in zip(wanted, over)]
        if keep_aspect_ratio_policy != "stretch":
            one = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            wanted = [math.floor(one * x.shape[a] + 0.5) for a in over]
            factors = [one] * len(over)
    else:
        factors = given
        wanted = [math.floor(x.shape[a] * f) for a, f in zip(over, factors)]
    region = None if roi is None or coordinate_transformation_mode != "tf_crop_and_resize" else known(roi)
    wide, dtype = (x.float() if x.dtype.itemsize < 4 or not x.dtype.is_float else x), x.dtype
    outside: Any = None
    for n, (a, size, factor) in enumerate(zip(over, wanted, factors)):
        if size == x.shape[a] and factor == 1 and region is None:
            continue
        ends = None if region is None else (float(region[n]), float(region[len(over) + n]))
        at = _origins(x.shape[a], size, factor, coordinate_transformation_mode, ends)
        if region is not None:
            out_here = constant((at < 0) | (at > x.shape[a] - 1)).reshape(*[-1 if k == a else 1 for k in range(x.ndim)])
            outside = out_here if outside is None else outside | out_here
        if mode == "nearest":
            wide = wide[(slice(None),) * a + (constant(_nearest(at, x.shape[a], nearest_mode)),)]
        else:
            weights = _weights(at, x.shape[a], mode, cubic_coeff_a, bool(exclude_outside),
                               min(factor, 1.0) if antialias else 1.0)
            wide = wide.transpose(a, -1).matmul(constant(weights.astype(np.float32)).T.cast(wide.dtype))
            wide = wide.transpose(a, -1)
    if outside is not None:
        wide = outside.where(extrapolation_value, wide)
    return wide.round().clip(dtype.min, dtype.max).cast(dtype) if dtype.is_int else wide.cast(dtype)


def _origins(old: int, new: int, factor: float, mode: str, region: tuple[float, float] | None) -> Array:
    """Return the source coordinate of each element of a resized axis."""
    at = np.arange(new, dtype=np.float64)
    if mode == "align_corners":
        return at * ((old - 1) / (new - 1)) if new > 1 else at * 0
    if mode == "asymmetric":
        return at / factor
    if mode == "pytorch_half_pixel":
        return (at + 0.5) / factor - 0.5 if new > 1 else at * 0
    if mode == "half_pixel_symmetric":
        exact = old * factor
        return old / 2 * (1 - new / exact) + (at + 0.5) / factor - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / factor
    if mode == "tf_crop_and_resize":
        assert region is not None
        start, end = region
        step = (end - start) * (old - 1) / (new - 1) if new > 1 else 0
        return start * (old - 1) + at * step if new > 1 else at * 0 + 0.5 * (start + end) * (old - 1)
    return (at + 0.5) / factor - 0.5


def _nearest(at: Array, size: int, mode: str) -> Array:
    rounding: dict[str, Callable[[Array], Array]] = {
        "floor": np.floor, "ceil": np.ceil, "round_prefer_floor": lambda a: np.ceil(a - 0.5),
        "round_prefer_ceil": lambda a: np.floor(a + 0.5)}
    return np.clip(rounding[mode](at), 0, size - 1).astype(np.int64)


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _weights(at: Array, size: int, mode: str, a: float, exclude: bool, scale: float) -> Array:
    """Return the interpolation weight matrix ``[new, old]``; a ``scale`` below 1 widens the filter (anti-aliasing)."""
    reach = math.ceil((2 if mode == "cubic" else 1) / scale)
    first = np.floor(at).astype(np.int64)
    places = first[:, None] + np.arange(-reach + 1, reach + 1)
    distance = (places - at[:, None]) * scale
    values = _cubic(distance, a) if mode == "cubic" else np.maximum(1 - np.abs(distance), 0)
    inside = (places >= 0) & (places < size)
    if exclude:
        values = values * inside
    if exclude or scale < 1:
        values = values / values.sum(1, keepdims=True)
    out = np.zeros((len(at), size))
    np.add.at(out, (np.arange(len(at))[:, None], np.clip(places, 0, size - 1)), values)
    return out


def _sampled(x: Tensor, places: list[Tensor], zeros: bool) -> Tensor:
    """Return the elements of images ``[n, c, …]`` at integer positions ``[n, k]`` per axis; positions outside give
    zeros, or the nearest element."""
    n, c, *sizes = x.shape
    flat: Any = 0
    inside: Any = None
    for place, size in zip(places, sizes):
        here = (place >= 0) & (place < size)
        inside = here if inside is None else inside & here
        flat = flat * size + place.clip(0, size - 1)
    flat = flat.cast(dtypes.int32)
    rows = x.reshape(n, c, -1)
    out = rows.gather(2, flat.unsqueeze(1).expand(n, c, flat.shape[-1]))
    found: Tensor = inside.unsqueeze(1).where(out, 0) if zeros else out
    return found


def _interpolated(x: Tensor, at: list[Tensor], mode: str, padding: str, a: float = -0.75,
                  mirrored: Callable[[Tensor, int], Tensor] | None = None) -> Tensor:
    """Return the values of images ``[n, c, …]`` at fractional positions, ``at`` per spatial axis, each ``[n, k]``.

    Args:
        mode: "nearest", "linear" or "cubic" (with the coefficient ``a``).
        padding: "zeros": elements outside the image are 0; otherwise the border is repeated.
        mirrored: maps positions outside an axis of a given size back into it.
    """
    def picked(places: list[Tensor]) -> Tensor:
        if mirrored is not None:
            places = [mirrored(p, s) for p, s in zip(places, x.shape[2:])]
        return _sampled(x, places, padding == "zeros")

    if mode == "nearest":
        return picked([p.round() for p in at])
    lows = [p.floor() for p in at]
    if mode == "cubic":
        offsets = range(-1, 3)
        shares = [[_cubic_tensor(p - low - k, a) for k in offsets] for p, low in zip(at, lows)]
    else:
        offsets = range(2)
        shares = [[1 - (p - low), p - low] for p, low in zip(at, lows)]
    out: Any = 0
    for corner in np.ndindex(*[len(offsets)] * len(at)):
        share: Any = 1
        for axis, k in enumerate(corner):
            share = share * shares[axis][k]
        out = out + picked([low + offsets[k] for low, k in zip(lows, corner)]) * share.unsqueeze(1)
    found: Tensor = out
    return found


def _cubic_tensor(distance: Tensor, a: float) -> Tensor:
    d = distance.abs()
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return (d <= 1).where(near, (d < 2).where(far, 0))


def GridSample(x: Tensor, grid: Tensor, align_corners: int = 0, mode: str = "linear",
               padding_mode: str = "zeros") -> Tensor:
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    n, sizes, places = x.shape[0], x.shape[2:], grid.shape[1:-1]
    at = []
    for axis, size in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - axis].reshape(n, -1)
        at.append((g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2)

    def reflected(p: Tensor, size: int) -> Tensor:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if not span:
            return p * 0
        d = (p - low).abs()
        turns = (d / span).floor()
        rest = d - turns * span
        even = (turns - (turns / 2).floor() * 2).eq(0)
        return (even.where(rest, span - rest) + low).clip(0, size - 1)

    mirrored = None
    if padding_mode == "reflection":
        mirrored = reflected
        if kind != "cubic":
            at, mirrored = [reflected(p, s) for p, s in zip(at, sizes)], None
    elif padding_mode == "border" and kind != "cubic":
        at = [p.clip(0, s - 1) for p, s in zip(at, sizes)]
    out = _interpolated(x, at, kind, padding_mode, mirrored=mirrored)
    return out.reshape(n, x.shape[1], *places)


def RoiAlign(x: Tensor, rois: Tensor, batch_indices: Tensor, coordinate_transformation_mode: str = "half_pixel",
             mode: str = "avg", output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
             spatial_scale: float = 1.0) -> Tensor:
    """Boxes are read on the host where the number of samples depends on their size."""
    shift = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    boxes, images, outs = known(rois) * spatial_scale - shift, known(batch_indices), []
    for (x1, y1, x2, y2), image in zip(boxes, images):
        height, width = y2 - y1, x2 - x1
        if not shift:
            height, width = max(height, 1.0), max(width, 1.0)
        counts = [sampling_ratio or math.ceil(s / o) for s, o in ((height, output_height), (width, output_width))]
        rows, columns = (start + (np.arange(o * k) + 0.5) * (s / (o * k)) for start, s, o, k in (
            (y1, height, output_height, counts[0]), (x1, width, output_width, counts[1])))
        h, w = x.shape[2:]
        lost = ((rows < -1) | (rows > h))[:, None] | ((columns < -1) | (columns > w))[None]
        at = [constant(np.clip(v, 0, s - 1).reshape(1, -1).astype(np.float32)) for v, s in zip(
            (g.reshape(-1) for g in np.meshgrid(rows, columns, indexing="ij")), (h, w))]
        n = int(image)
        picked = _corners(x[n : n + 1], at, mode)
        picked = constant(lost.reshape(1, 1, -1)).where(0, picked)
        cells = picked.reshape(x.shape[1], output_height, counts[0], output_width, counts[1])
        outs.append(cells.max((2, 4)) if mode == "max" else cells.mean((2, 4)))
    return outs[0].stack(*outs[1:])


def _corners(x: Tensor, at: list[Tensor], mode: str) -> Tensor:
    """Samples between four elements; for a maximum, the greatest of their weighted values."""
    if mode != "max":
        return _interpolated(x, at, "linear", "border")
    parts = []
    lows = [p.floor() for p in at]
    for corner in np.ndindex(2, 2):
        share: Any = 1
        for axis, k in enumerate(corner):
            part = at[axis] - lows[axis]
            share = share * (part if k else 1 - part)
        parts.append(_sampled(x, [low + k for low, k in zip(lows, corner)], False) * share.unsqueeze(1))
    out: Tensor = functools.reduce(Tensor.maximum, parts)
    return out


def DeformConv(x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None,
               dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1,
               pads: Any = None, strides: Any = None) -> Tensor:
    kernel = kernel_shape or list(w.shape[2:])
    by, gap, edges = strides or [1, 1], dilations or [1, 1], pads or [0] * 4
    n, c = x.shape[:2]
    size = offset.shape[2:]
    moved = offset.reshape(n, offset_group, math.prod(kernel), 2, *size)
    columns = []
    for g in range(offset_group):
        part = x[:, g * c // offset_group : (g + 1) * c // offset_group]
        taps = []
        for tap, place in enumerate(np.ndindex(*kernel)):
            at = []
            for axis in range(2):
                base = np.arange(size[axis]) * by[axis] - edges[axis] + place[axis] * gap[axis]
                base = base.reshape(-1, 1) if axis == 0 else base
                at.append((moved[:, g, tap, axis] + constant(base.astype(np.float32))).reshape(n, -1))
            values = _interpolated(part, at, "linear", "zeros").reshape(n, -1, *size)
            if mask is not None:
                values = values * mask.reshape(n, offset_group, -1, *size)[:, g, tap].unsqueeze(1)
            taps.append(values)
        columns.append(taps[0].stack(*taps[1:], dim=2))
    seen = columns[0].cat(*columns[1:], dim=1).reshape(n, group, -1, math.prod(size))
    weights = w.reshape(group, w.shape[0] // group, -1)
    out = weights.unsqueeze(0).matmul(seen).reshape(n, w.shape[0], *size)
    return out if b is None else out + b.reshape(1, -1, 1, 1)


def NonMaxSuppression(boxes: Tensor, scores: Tensor, max_output_boxes_per_class: Any = None,
                      iou_threshold: Any = None, score_threshold: Any = None, center_point_box: int = 0) -> Tensor:
    """ONNX ``NonMaxSuppression``, on the host, because the number of boxes kept depends on the values."""
    most = 0 if max_output_boxes_per_class is None else int(number(max_output_boxes_per_class))
    overlap = 0.0 if iou_threshold is None else float(number(iou_threshold))
    least = -math.inf if score_threshold is None else float(number(score_threshold))
    places, values, kept = known(boxes), known(scores), []
    if center_point_box:
        centers, sizes = places[..., :2], places[..., 2:] / 2
        places = np.concatenate([centers - sizes, centers + sizes], -1)
    low, high = np.minimum(places[..., :2], places[..., 2:]), np.maximum(places[..., :2], places[..., 2:])
    area = (high - low).prod(-1)
    for n, kind in np.ndindex(*values.shape[:2]):
        score = values[n, kind]
        order = [int(i) for i in np.argsort(-score, kind="stable") if score[i] > least]
        taken: list[int] = []
        while order and len(taken) < most:
            best, *order = order
            taken.append(best)
            rest = np.array(order, np.int64)
            common = np.maximum(np.minimum(high[n, best], high[n, rest]) - np.maximum(low[n, best], low[n, rest]),
                                0).prod(-1)
            share = common / np.maximum(area[n, best] + area[n, rest] - common, 1e-30)
            order = [i for i, s in zip(order, share) if s <= overlap]
        kept += [(n, kind, i) for i in taken]
    return constant(np.array(kept, np.int64).reshape(-1, 3))


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
