"""PyTorch's place of functions that work on gradients: they are those of ``nn.optim``."""
from tinsmith.nn.optim import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
