"""Layers, optimizers, and model state.

A layer is a plain object with tensors as attributes and a ``__call__`` method. Any object that holds tensors in
attributes, lists or dicts is a model; no base class is needed.

- ``layers/``: the layers; ``optim/``: optimizers and schedules; ``describe.py``: ``repr`` and ``summary`` of models,
  and PyTorch's names that are not here.
- ``state.py``: state dicts, safetensors files and checkpoints; ``io/``: other file formats; ``onnx/``: ONNX models.
- ``datasets.py``: data sets; ``data/``: ``DataLoader``; ``utils.py``: names of ``torch.nn.utils``.
"""
import sys

from tinsmith.core.suggestions import guide
from tinsmith.nn import datasets, describe, layers, optim, state, utils
from tinsmith.nn.data import loader
from tinsmith.nn.data.loader import DataLoader
from tinsmith.nn.describe import ABSENT as ABSENT
from tinsmith.nn.describe import explain_members, summary
from tinsmith.nn.layers import *  # noqa: F403  the names that nn.layers lists in __all__
from tinsmith.nn.layers import activations, attention, basic, conv, norms, recurrent

__all__ = [*layers.__all__, "DataLoader", "datasets", "optim", "state", "summary", "utils"]

guide(activations, attention, basic, conv, datasets, describe, layers, loader, norms, optim, recurrent,
      state, utils)

for _module in (activations, attention, basic, conv, norms, recurrent, optim.base, optim.lr_scheduler):
    explain_members(_module)

guide(sys.modules[__name__])
