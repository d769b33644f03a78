"""Availability of CUDA and NVRTC on this machine, and helpers that skip a test without them."""
from __future__ import annotations

import functools

import pytest

from tinsmith.backend.cuda import driver
from tinsmith.backend.cuda.driver import gpu_count
from tinsmith.backend.device import Device
from tinsmith.core.errors import DeviceError


@functools.cache
def missing_nvrtc() -> str:
    """Return the reason why NVRTC cannot compile for CUDA; empty if it can."""
    try:
        driver.load_nvrtc()
    except DeviceError as error:
        return str(error)
    return ""


@functools.cache
def missing_cuda() -> str:
    """Return the reason why ``CUDA`` cannot be opened; empty if it can."""
    try:
        Device.here("CUDA")
    except DeviceError as error:
        return str(error)
    return ""


def needs_nvrtc() -> None:
    if missing_nvrtc():
        pytest.skip(missing_nvrtc())


def needs_cuda(gpus: int = 1) -> None:
    if missing_cuda():
        pytest.skip(missing_cuda())
    if gpu_count() < gpus:
        pytest.skip(f"there are {gpu_count()} GPUs, this needs {gpus}")
