"""The backend "tinsmith" of ``torch.compile``: PyTorch's programs, run by Tinsmith's kernels (docs/torch.md).

A model in, a model with the same results out. AOTAutograd's graphs come to ``compiler.py``; ``lowering.py`` cuts them
into parts, whose ops ``rules/`` translates, and makes each a ``program.py`` over PyTorch's memory; ``executable.py``
runs parts, ops of PyTorch and views in order; ``report.py`` counts.
"""
from __future__ import annotations

from typing import Any

import torch

from tinsmith.torch.compiler import backend
from tinsmith.torch.report import REPORT, Report

__all__ = ["Report", "backend", "compile", "report"]

if "tinsmith" not in torch._dynamo.list_backends(exclude_tags=()):  # from a checkout, without the entry point
    torch._dynamo.register_backend(backend, "tinsmith")


def compile(model: Any, *, dynamic: bool | None = None, fullgraph: bool = False, **options: Any) -> Any:
    """Return ``model``, a module or a function of PyTorch, compiled: ``torch.compile`` with this backend.

    Args:
        dynamic, fullgraph: as in ``torch.compile``.
        options: options of the backend. ``exact_random=True``: PyTorch draws all random numbers, the same bits as
            without compilation. ``exact_rounding=True``: 16-bit floats are rounded after every operation, as without
            compilation, instead of where they are stored. ``strict=True``: an error where a rule fails, instead of
            leaving the op to PyTorch.

    >>> import torch
    >>> compile(lambda x: (x * 2).sum())(torch.ones(3))
    tensor(6.)
    """
    return torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=fullgraph, options=options or None)


def report() -> Report:
    """Return the account of all graphs compiled in this process, and of the ops that PyTorch runs for them."""
    return REPORT
