"""The name ``HIP``: sources for AMD's GPUs are written, and opening it says why they do not run."""
from __future__ import annotations

from tinsmith.backend.device import Compiled
from tinsmith.codegen.render.hip import HIPRenderer
from tinsmith.core.errors import DeviceError

RENDERER = HIPRenderer


def DEVICE(name: str) -> Compiled:
    """Say why ``HIP`` does not run here.

    Raises:
        DeviceError: always, so far.
    """
    raise DeviceError("Device", "there is no device 'HIP': nothing runs its kernels yet",
                      "DEV=OPENCL or DEV=WEBGPU")
