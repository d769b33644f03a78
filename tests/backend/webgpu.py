"""Whether WebGPU is here, with the reason where it is not; and the same adapter without extensions of WGSL."""
from __future__ import annotations

import functools

import pytest

from tinsmith.backend.device import Compiled, Device
from tinsmith.core.errors import DeviceError

WORDS = "WEBGPUWORDS"  # no i64, u64, f64: WGSL as every browser has it


@functools.cache
def missing() -> str:
    """Why ``WEBGPU`` cannot be opened; empty where it can."""
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
    """The best adapter, asked for no extension."""
    from tinsmith.backend.webgpu.device import WebGPUAdapter, WebGPUDevice, all_adapters

    return WebGPUDevice(name, WebGPUAdapter(all_adapters()[0], ()))
