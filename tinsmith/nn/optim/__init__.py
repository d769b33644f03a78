"""Optimizers. State, learning rate and bias corrections are in buffers, so all steps run one compiled program.

- ``base.py``: parameters, groups, and the step; ``adaptive.py``: the optimizers.
- ``lr_scheduler.py``: learning rate schedules.
- ``gradients.py``: gradient clipping, loss scaling for float16, moving averages of parameters.
"""
import sys

from tinsmith.core.suggestions import guide
from tinsmith.nn.optim import adaptive, base, gradients, lr_scheduler
from tinsmith.nn.optim.adaptive import LAMB, LARS, SGD, Adagrad, Adam, AdamW, Muon, NAdam, RAdam, RMSprop
from tinsmith.nn.optim.base import Optimizer, OptimizerGroup
from tinsmith.nn.optim.gradients import EMA, GradScaler

__all__ = ["EMA", "LAMB", "LARS", "SGD", "Adagrad", "Adam", "AdamW", "GradScaler", "Muon", "NAdam", "Optimizer",
           "OptimizerGroup", "RAdam", "RMSprop", "clip_grad_norm_", "clip_grad_value_", "lr_scheduler"]

guide(adaptive, base, gradients, lr_scheduler)
clip_grad_norm_, clip_grad_value_ = gradients.clip_grad_norm_, gradients.clip_grad_value_  # as guide made them

# Names of PyTorch that are not here → the replacement.
_OWN = "an optimizer of your own, in ten lines (docs/training.md)"
ABSENT = {**dict.fromkeys(("ASGD", "Adadelta", "Adafactor", "LBFGS", "Rprop"), _OWN), "Adamax": "Adam, NAdam or RAdam",
          "SparseAdam": "Adam: gradients of embeddings are dense", "Nadam": "NAdam",
          "swa_utils": "nn.optim.EMA, which averages parameters"}

guide(sys.modules[__name__])
