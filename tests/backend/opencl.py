"""Availability of OpenCL on this machine, and a helper that skips a test without it."""
from __future__ import annotations

import functools

import pytest

from tinsmith.backend.device import Device
from tinsmith.core.errors import DeviceError


@functools.cache
def missing() -> str:
    """Return the reason why ``OPENCL`` cannot be opened; empty if it can."""
    try:
        Device.here("OPENCL")
    except DeviceError as error:
        return str(error)
    return ""


def needs_opencl() -> None:
    if missing():
        pytest.skip(missing())
