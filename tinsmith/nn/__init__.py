"""Layers, optimizers, and a model's state.

A layer is a plain object: tensors as attributes, and ``__call__``. Whatever holds tensors in attributes, lists or
dicts is a model.
"""
from tinsmith.core.names import guide, unknown
from tinsmith.nn import conv, datasets, layers, norms, optim, recurrent, state
from tinsmith.nn.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from tinsmith.nn.layers import Dropout, Embedding, Linear
from tinsmith.nn.norms import (
    BatchNorm,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from tinsmith.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = ["GRU", "LSTM", "RNN", "BatchNorm", "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d", "ConvTranspose1d",
           "ConvTranspose2d", "Dropout", "Embedding", "GRUCell", "GroupNorm", "InstanceNorm", "LSTMCell", "LayerNorm",
           "LayerNorm2d", "Linear", "RMSNorm", "RNNCell", "datasets", "optim", "state"]

guide(conv, datasets, layers, norms, optim, recurrent, state)


def __getattr__(name: str) -> object:
    raise unknown("nn", name, __all__)
