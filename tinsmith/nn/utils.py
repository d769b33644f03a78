"""The functions of ``torch.nn.utils`` that clip gradients, re-exported from ``nn.optim``."""
from tinsmith.nn.optim import clip_grad_norm_, clip_grad_value_

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
