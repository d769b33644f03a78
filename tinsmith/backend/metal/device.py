"""The name ``METAL``: sources for it are written, and opening it says what is missing to run them."""
from __future__ import annotations

import sys

from tinsmith.backend.device import Compiled
from tinsmith.codegen.render.metal import MetalRenderer
from tinsmith.core.errors import DeviceError

RENDERER = MetalRenderer


def DEVICE(name: str) -> Compiled:
    """Say why ``METAL`` does not run here.

    Raises:
        DeviceError: always, so far.
    """
    why = "running Metal kernels is not implemented yet" if sys.platform == "darwin" else "Metal exists on macOS alone"
    raise DeviceError("Device", f"there is no device 'METAL' here: {why}", "ALIAS=METAL=CPU")
