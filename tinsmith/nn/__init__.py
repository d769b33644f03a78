"""Layers, optimizers, and model state.

A layer is a plain object with tensors as attributes and a ``__call__`` method. Any object that holds tensors in
attributes, lists or dicts is a model; no base class is needed.
"""
import sys

from tinsmith.core.suggestions import guide
from tinsmith.nn import datasets, describe, optim, state, utils
from tinsmith.nn.data import loader
from tinsmith.nn.data.loader import DataLoader
from tinsmith.nn.describe import summary
from tinsmith.nn.layers import activations, attention, conv, layers, losses, norms, pools, recurrent
from tinsmith.nn.layers.activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Tanh,
)
from tinsmith.nn.layers.attention import (
    MultiheadAttention,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from tinsmith.nn.layers.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from tinsmith.nn.layers.layers import (
    AlphaDropout,
    Dropout,
    Dropout1d,
    Dropout2d,
    Dropout3d,
    Embedding,
    Flatten,
    Identity,
    Linear,
    Sequential,
    Upsample,
)
from tinsmith.nn.layers.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from tinsmith.nn.layers.norms import (
    BatchNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    LayerNorm2d,
    RMSNorm,
)
from tinsmith.nn.layers.pools import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from tinsmith.nn.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
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

guide(activations, attention, conv, datasets, describe, layers, loader, losses, norms, optim, pools, recurrent, state,
      utils)

for _module in (activations, attention, conv, layers, losses, norms, pools, recurrent, optim.base, optim.lr_scheduler):
    explain_members(_module)

guide(sys.modules[__name__])
