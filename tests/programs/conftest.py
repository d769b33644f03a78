"""Fixture that runs each program on every device, or skips with the reason."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.codegen.running import HAS_C
from tinsmith import Context, Device, Tensor
from tinsmith.core.errors import DeviceError

DEVICES = {
    "CPU": {"DEV": "CPU"}, "CPU-generic": {"DEV": "CPU", "CPU_FEATURES": "generic"},
    "CPU-avx2": {"DEV": "CPU", "CPU_FEATURES": "avx2"}, "CPU-C": {"DEV": "CPU:C"}, "PYTHON": {"DEV": "PYTHON"},
    "OPENCL": {"DEV": "OPENCL"}, "CUDA": {"DEV": "CUDA"}, "WEBGPU": {"DEV": "WEBGPU"},
}


@pytest.fixture(autouse=True, params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Set the program's default device, and a fresh random stream."""
    options = DEVICES[request.param]
    if options["DEV"] == "CPU:C" and not HAS_C:
        pytest.skip("no C compiler")
    try:
        Device.here(options["DEV"])
    except DeviceError as error:
        pytest.skip(str(error))
    with Context(**options):
        Tensor.manual_seed(0)
        yield options["DEV"]
