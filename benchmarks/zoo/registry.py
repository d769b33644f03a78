"""The table of models: name, family, and a function that builds a model with its inputs for a size."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Size = str  # "small": seconds to compile, for correctness; "full": the usual model and batch
FAMILIES: Final = ("convolutional", "vision", "language", "audio", "other", "libraries")


def _projected(output: Any) -> Any:
    """Return the mean of a result's floating-point tensors times fixed waves: a loss for models without a target.

    Their mean square would not do: after a layer norm it is a constant, and all gradients are rounding errors.
    """
    import torch

    total: Any = 0.0
    for t in torch.utils._pytree.tree_leaves(output):
        if isinstance(t, torch.Tensor) and t.is_floating_point():
            t = wide(t)
            waves = torch.cos(torch.arange(t.numel(), device=t.device, dtype=t.dtype)).view(t.shape)
            total = total + (t * waves).mean() + t.square().mean()
    return total


def wide(t: Any) -> Any:
    """Return a floating-point tensor in float32, or as it is if it is float64."""
    import torch

    return t if t.dtype is torch.float64 else t.float()


@dataclass(frozen=True)
class Example:
    """A model with random weights, and a batch.

    Attributes:
        module: the ``torch.nn.Module``.
        inputs: its arguments.
        targets: arguments of ``loss`` after the model's result.
        loss: from the model's result and ``targets`` to a scalar.
    """

    module: Any
    inputs: tuple[Any, ...]
    targets: tuple[Any, ...] = ()
    loss: Callable[..., Any] = _projected


@dataclass(frozen=True)
class Model:
    """An entry of the zoo; ``needs`` names the packages without which it cannot be built."""

    name: str
    family: str
    build: Callable[[Size], Example]
    needs: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


MODELS: Final[dict[str, Model]] = {}


def model(name: str, family: str, *needs: str) -> Callable[[Callable[[Size], Example]], Callable[[Size], Example]]:
    """Return a decorator that enters a function from a size to an ``Example`` under ``name``."""

    def enter(build: Callable[[Size], Example]) -> Callable[[Size], Example]:
        assert name not in MODELS, f"two models {name}"
        MODELS[name] = Model(name, family, build, needs)
        return build

    return enter


def models() -> dict[str, Model]:
    """Return all models by name."""
    for family in FAMILIES:
        importlib.import_module(f"benchmarks.zoo.models_{family}")
    return MODELS


def classified(module: Any, x: Any, classes: int) -> Example:
    """Return an example of a classifier with random labels."""
    import torch

    return Example(module, (x,), (torch.randint(classes, (x.shape[0],)),), torch.nn.functional.cross_entropy)


_DECLARED: Final[list[Any]] = []  # a library's declarations last as long as it does


def declare_ops() -> None:
    """Declare the ops of torchvision, if it is installed in a build that cannot load them beside this PyTorch.

    Its wheel for CUDA cannot beside PyTorch for the CPU. No model here calls one of these ops, but timm and
    transformers import the package, which needs their schemas.
    """
    import torch

    if importlib.util.find_spec("torchvision") is None or _DECLARED:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        ops = ("nms", "qnms", "roi_align", "qroi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
        for name in (text for op in ops for text in (op, f"_{op}_backward")):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor x) -> Tensor")
        _DECLARED.append(library)
