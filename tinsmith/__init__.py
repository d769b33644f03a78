"""Tinsmith: a deep-learning framework and tensor compiler whose every compilation step can be inspected.

A program goes through the packages in this order; docs/design.md describes the path and the passes.

- ``tensor/``, ``nn/``: ``Tensor`` methods, layers and optimizers record a graph of ``ir/`` nodes; ``jit/`` replays it.
- ``schedule/``: the graph becomes kernels and copies; ``codegen/``: each kernel becomes source text for a ``target/``.
- ``runtime/``, ``backend/``: kernels are compiled, loaded and launched on a device.
- ``inspect/``, ``viz/``: explanations, plans, profiles, traces and drawings of all this.
- ``core/``, ``shape/``: dtypes, settings and errors; index maps. ``compat/``: tinygrad's names. ``tools/``: generators.
- ``linalg.py``, ``fft.py``, ``special.py``, ``random.py``: functions of tensors with PyTorch's names.
- ``distributed/``: programs of many processes. ``torch/``: the backend of ``torch.compile``. ``examples/``: programs to
  start from.
- ``__main__.py``: the ``tinsmith`` command; ``conformance.py``: the conformance suite of a device.
"""
import importlib
import sys
from typing import Any

from tinsmith import viz
from tinsmith.backend.device import Device
from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.counters import GlobalCounters, note_import
from tinsmith.core.dtypes import dtypes
from tinsmith.core.errors import UnknownNameError
from tinsmith.core.lazy_import import Late
from tinsmith.core.settings import Context, settings
from tinsmith.core.suggestions import guide, hint_at_gradients, unknown
from tinsmith.core.version import version
from tinsmith.jit import TinyJit
from tinsmith.runtime import inspectors
from tinsmith.runtime.launch import endings
from tinsmith.tensor.autograd.function import Function
from tinsmith.tensor.interop import protocols
from tinsmith.tensor.sizes.variable import Variable
from tinsmith.tensor.tensor import Tensor, explain, plan, with_opts

__all__ = ["Context", "Device", "Function", "GlobalCounters", "Opt", "OptOps", "Tensor", "TinyJit", "Variable",
           "dtypes", "explain", "fft", "from_dlpack", "linalg", "nn", "plan", "special", "with_opts"]

# ``random`` is not in ``__all__``: ``import *`` would hide Python's.
_LAZY = ("fft", "linalg", "nn", "random", "special")  # modules imported when first used: importing tinsmith stays fast

from_dlpack = Tensor.from_dlpack

guide(TinyJit)
hint_at_gradients()
protocols.install()
inspectors.register(search=Late("tinsmith.inspect.search.search"), trace=Late("tinsmith.inspect.trace"),
                    debug=Late("tinsmith.inspect.debug"), checked=Late("tinsmith.inspect.checked"),
                    profile=Late("tinsmith.inspect.profile"))
endings.append(lambda trace: viz.showing.finish(trace))
if settings.VIZ:
    inspectors.trace.current()  # so that a script that computes nothing is told so at its end


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version()
    if name in _LAZY:
        return importlib.import_module(f"tinsmith.{name}")
    owner = next((o for o in ("Tensor", "nn") if not name.startswith("_") and hasattr(_public(o), name)), None)
    if owner is not None:
        raise UnknownNameError("tinsmith", f"no attribute {name!r}", f"did you mean tinsmith.{owner}.{name}?")
    raise unknown("tinsmith", name, __all__)


def _public(name: str) -> Any:
    return Tensor if name == "Tensor" else importlib.import_module(f"tinsmith.{name}")


guide(sys.modules[__name__])
note_import()
