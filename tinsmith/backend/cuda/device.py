"""The name ``CUDA``: sources for it are written and compiled, and opening it says what is missing to run them."""
from __future__ import annotations

import ctypes.util

from tinsmith.backend.cuda.nvrtc import NVRTCCompiler
from tinsmith.backend.device import Compiled
from tinsmith.codegen.render.cuda import CUDARenderer
from tinsmith.core.errors import DeviceError

RENDERER = CUDARenderer


def DEVICE(name: str) -> Compiled:
    """Say why ``CUDA`` does not run here.

    Raises:
        DeviceError: always, so far.
    """
    compiler = NVRTCCompiler()
    driver = ctypes.util.find_library("cuda")
    why = "no NVIDIA driver (libcuda) is installed" if driver is None else "launching kernels is not implemented yet"
    raise DeviceError("Device", f"there is no device 'CUDA' here: {compiler.path} compiles for it, but {why}",
                      "ALIAS=CUDA=CPU")
