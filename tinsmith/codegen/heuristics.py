"""The analytic model that chooses opts."""
from __future__ import annotations

from tinsmith.codegen.kernel import Kernel
from tinsmith.codegen.render.base import Target


def choose_opts(kernel: Kernel, target: Target) -> None:
    """Apply the opts that the model expects to be fastest on ``target``."""
