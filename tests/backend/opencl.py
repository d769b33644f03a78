"""Whether OpenCL is here, with the reason where it is not."""
from __future__ import annotations

import functools

import pytest

from tinsmith.backend.device import Device
from tinsmith.core.errors import DeviceError


@functools.cache
def missing() -> str:
    """Why ``OPENCL`` cannot be opened; empty where it can."""
    try:
        Device.here("OPENCL")
    except DeviceError as error:
        return str(error)
    return ""


def needs_opencl() -> None:
    if missing():
        pytest.skip(missing())
