"""Layers, optimizers, and model state.

A layer is a plain object with tensors as attributes and a ``__call__`` method. Any object that holds tensors in
attributes, lists or dicts is a model; no base class is needed.

- ``layers/``: the layers; ``optim/``: optimizers and schedules; ``describe.py``: ``repr`` and ``summary`` of models.
- ``state.py``: state dicts, safetensors files and checkpoints; ``io/``: other file formats; ``onnx/``: ONNX models.
- ``datasets.py``: data sets; ``data/``: ``DataLoader`` and downloads.
- ``missing.py``: PyTorch's names that are not here; ``utils.py``: names of ``torch.nn.utils``.
"""
import sys

from tinsmith.core.suggestions import guide
from tinsmith.nn import datasets, describe, layers, optim, state, utils
from tinsmith.nn.data import loader
from tinsmith.nn.data.loader import DataLoader
from tinsmith.nn.describe import summary
from tinsmith.nn.layers import (
    CELU,
    ELU,
    GELU,
    GRU,
    LSTM,
    RNN,
    SELU,
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AlphaDropout,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    BCELoss,
    BCEWithLogitsLoss,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    CrossEntropyLoss,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    Flatten,
    GroupNorm,
    GRUCell,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    HuberLoss,
    Identity,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    L1Loss,
    LayerNorm,
    LayerNorm2d,
    LeakyReLU,
    Linear,
    LogSigmoid,
    LogSoftmax,
    LSTMCell,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Mish,
    MSELoss,
    MultiheadAttention,
    NLLLoss,
    PReLU,
    ReLU,
    ReLU6,
    RMSNorm,
    RNNCell,
    Sequential,
    Sigmoid,
    SiLU,
    SmoothL1Loss,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    Upsample,
    activations,
    attention,
    basic,
    conv,
    losses,
    norms,
    pools,
    recurrent,
)
from tinsmith.nn.missing import ABSENT as ABSENT
from tinsmith.nn.missing import explain_members

__all__ = ["CELU", "ELU", "GELU", "GRU", "LSTM", "RNN", "SELU", "AdaptiveAvgPool1d", "AdaptiveAvgPool2d",
           "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AlphaDropout",
           "AvgPool1d", "AvgPool2d", "AvgPool3d", "BCELoss", "BCEWithLogitsLoss", "BatchNorm", "BatchNorm1d",
           "BatchNorm2d", "BatchNorm3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
           "ConvTranspose3d", "CrossEntropyLoss", "DataLoader", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d",
           "Embedding", "Flatten", "GRUCell", "GroupNorm", "Hardsigmoid", "Hardswish", "Hardtanh", "HuberLoss",
           "Identity", "InstanceNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "L1Loss", "LSTMCell",
           "LayerNorm", "LayerNorm2d", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss", "MaxPool1d",
           "MaxPool2d", "MaxPool3d", "Mish", "MultiheadAttention", "NLLLoss", "PReLU", "RMSNorm", "RNNCell", "ReLU",
           "ReLU6", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss", "Softmax", "Softplus", "Softsign", "Tanh",
           "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
           "Upsample", "datasets", "optim", "state", "summary", "utils"]

guide(activations, attention, basic, conv, datasets, describe, layers, loader, losses, norms, optim, pools, recurrent,
      state, utils)

for _module in (activations, attention, basic, conv, losses, norms, pools, recurrent, optim.base, optim.lr_scheduler):
    explain_members(_module)

guide(sys.modules[__name__])
