"""The device name ``HIP``: it has a renderer for AMD GPUs; opening it raises an error, since nothing runs its
kernels."""
from __future__ import annotations

from tinsmith.backend.device import Compiled
from tinsmith.codegen.render.hip import HIPRenderer
from tinsmith.core.errors import DeviceError

RENDERER = HIPRenderer


def DEVICE(name: str) -> Compiled:
    """Raise the error that says why ``HIP`` does not run.

    Raises:
        DeviceError: always.
    """
    raise DeviceError("Device", "there is no device 'HIP': nothing runs its kernels yet",
                      "DEV=OPENCL or DEV=WEBGPU")
