"""Availability of WebGPU on this machine, and a device on the same adapter without WGSL extensions."""
from __future__ import annotations

import functools

import pytest

from tinsmith.backend.device import Compiled, Device
from tinsmith.core.errors import DeviceError

WORDS = "WEBGPUWORDS"  # no i64, u64, f64: WGSL as every browser has it


@functools.cache
def missing() -> str:
    """Return the reason why ``WEBGPU`` cannot be opened; empty if it can."""
    try:
        Device.here("WEBGPU")
    except DeviceError as error:
        return str(error)
    return ""


def needs_webgpu() -> None:
    if missing():
        pytest.skip(missing())
    Device.register(WORDS, of_words)


def of_words(name: str) -> Compiled:
    """Return a device on the best adapter with no optional feature requested."""
    from tinsmith.backend.webgpu.device import WebGPUAdapter, WebGPUDevice, all_adapters

    return WebGPUDevice(name, WebGPUAdapter(all_adapters()[0], ()))
