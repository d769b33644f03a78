"""Optimizers. State, learning rate and corrections live in buffers, so every step is the same program."""
import sys

from tinsmith.core.names import guide, unknown
from tinsmith.nn.optim import adaptive, averaging, base, gradients, lr_scheduler, momentum
from tinsmith.nn.optim.adaptive import LAMB, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from tinsmith.nn.optim.averaging import EMA
from tinsmith.nn.optim.base import Optimizer, OptimizerGroup
from tinsmith.nn.optim.gradients import GradScaler
from tinsmith.nn.optim.momentum import LARS, SGD, Muon

__all__ = ["EMA", "LAMB", "LARS", "SGD", "Adagrad", "Adam", "AdamW", "GradScaler", "Muon", "NAdam", "Optimizer",
           "OptimizerGroup", "RAdam", "RMSprop", "clip_grad_norm_", "clip_grad_value_", "lr_scheduler"]

guide(adaptive, averaging, base, gradients, lr_scheduler, momentum)
clip_grad_norm_, clip_grad_value_ = gradients.clip_grad_norm_, gradients.clip_grad_value_  # as guide made them


def __getattr__(name: str) -> object:
    raise unknown("nn.optim", name, __all__)


guide(sys.modules[__name__])
