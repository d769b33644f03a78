"""Batch normalization over the batches of all processes.

Each process computes mean and variance of its part; parts are combined as in T. F. Chan, G. H. Golub, R. J. LeVeque:
Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979).
"""
from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from tinsmith.core.errors import ArgumentError
from tinsmith.distributed.collectives import all_gather
from tinsmith.distributed.world import group_of
from tinsmith.nn import BatchNorm
from tinsmith.tensor.tensor import Tensor


def sync_batch_norm(model: Any, axis: str | None = None) -> Any:
    """Let all ``BatchNorm`` layers of a model use the statistics of all processes' batches in training, in place;
    return the model.

    Processes must give batches of one shape. Without it each process normalizes by its own batch, and running
    statistics differ between processes: they are part of checkpoints, where those of rank 0 are saved.

    >>> from tinsmith import nn
    >>> model = sync_batch_norm([nn.Conv2d(1, 2, 3), nn.BatchNorm(2)])  # nothing changes in one process
    >>> type(model[1]).__name__
    'BatchNorm'

    Args:
        axis: an axis of the mesh, along which processes have different rows; all processes unless given.

    Raises:
        ArgumentError: if the model has no such layer.
    """
    layers = list(_batch_norms(model, set()))
    if not layers:
        raise ArgumentError("dist.sync_batch_norm", "no BatchNorm in the model", "nn.BatchNorm")
    for layer in layers if group_of("dist.sync_batch_norm", axis).size > 1 else ():
        kind: Any = type(layer)
        layer.__class__ = _synced(kind)
        layer._axis = axis
    return model


def _batch_norms(model: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the batch normalizations of a model, each once."""
    if id(model) in seen or isinstance(model, (Tensor, str, bytes, type)):
        return
    seen.add(id(model))
    if isinstance(model, BatchNorm):
        yield model
    items = model.values() if isinstance(model, Mapping) else model if isinstance(model, (list, tuple)) else vars(
        model).values() if hasattr(model, "__dict__") else ()
    for value in list(items):
        yield from _batch_norms(value, seen)


@functools.cache
def _synced(kind: Any) -> type[Any]:
    """Return the subclass of a batch normalization's class that combines the statistics of processes."""

    def moments(self: Any, x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, int]:
        mean, _, variance = x._statistics(axes)
        every = all_gather(mean.stack(variance).unsqueeze(0), 0, self._axis)
        means = every[:, 0]
        mean = means.mean(0)
        variance = (every[:, 1] + (means - mean) * (means - mean)).mean(0)
        return mean, x - mean, variance, every.shape[0]

    return kind if hasattr(kind, "_axis") else type(f"Synced{kind.__name__}", (kind,), {
        "_moments": moments, "_axis": None, "__module__": kind.__module__})
