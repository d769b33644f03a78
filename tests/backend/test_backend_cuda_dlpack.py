"""DLPack: tensors that share GPU memory with PyTorch's."""
from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from tests.backend.gpus import needs_cuda
from tinsmith import Tensor, TinyJit, dtypes
from tinsmith.core.errors import ArgumentError

pytestmark = pytest.mark.cuda


@pytest.fixture(name="torch")
def _torch() -> Any:
    needs_cuda()
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    return torch


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int64", "uint8", "float64"])
def test_one_memory_both_ways(torch: Any, name: str) -> None:
    x = torch.arange(12, device="cuda").reshape(3, 4).to(getattr(torch, name))
    t = Tensor.from_dlpack(x, copy=False)
    assert t.device == "CUDA" and t.shape == (3, 4) and t.dtype is getattr(dtypes, name)
    assert torch.from_dlpack(t).data_ptr() == x.data_ptr()
    x += 1
    np.testing.assert_array_equal((t * 2).float().numpy(), (2 * np.arange(12) + 2).reshape(3, 4))


def test_what_is_computed_is_shown_and_may_be_written_by_the_other(torch: Any) -> None:
    t = (Tensor.arange(1000, device="CUDA") * 3).float()
    seen = torch.from_dlpack(t)
    assert seen.device.type == "cuda" and seen.sum().item() == 3 * 999 * 500
    assert torch.from_dlpack(t).data_ptr() == seen.data_ptr()
    seen[0] = 7
    torch.cuda.synchronize()
    assert t[0].item() == 7


def test_memory_lives_as_long_as_either(torch: Any) -> None:
    x = torch.full((1 << 20,), 3.0, device="cuda")
    t = Tensor.from_dlpack(x)
    del x
    y = torch.from_dlpack((Tensor.ones(1 << 20, device="CUDA") * 5).contiguous())
    gc.collect()
    others = [torch.zeros(1 << 20, device="cuda") for _ in range(4)], [
        Tensor.zeros(1 << 20, device="CUDA").contiguous().realize() for _ in range(4)]
    assert t.sum().item() == 3 << 20 and y.sum().item() == 5 << 20
    del others


def test_streams_wait_for_each_other(torch: Any) -> None:
    """Each side's kernels are still running when the other side begins to read."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for n in range(5):
            x = torch.ones(4096, 1024, device="cuda")
            for _ in range(20):
                x = x * 1.0 + 1
            t = Tensor.from_dlpack(x)
            for _ in range(3):
                t = (t + n).contiguous()
            assert torch.from_dlpack(t).sum(dtype=torch.float64).item() == (21 + 3 * n) * 4096 * 1024


def test_what_lies_otherwise_is_copied(torch: Any) -> None:
    x = torch.arange(12, device="cuda", dtype=torch.float32).reshape(3, 4)[:, ::2]
    with pytest.raises(ArgumentError, match="copy=False"):
        Tensor.from_dlpack(x, copy=False)
    with pytest.raises(ArgumentError, match=r"do not lie one after the other.*x\.clone\(\)"):
        Tensor.from_dlpack(x)
    np.testing.assert_array_equal(Tensor.from_dlpack(x.contiguous()).numpy(), x.cpu().numpy())
    t = Tensor.arange(12, device="CUDA").reshape(3, 4)
    np.testing.assert_array_equal(torch.from_dlpack(t.T).cpu().numpy(), np.arange(12).reshape(3, 4).T)


def test_a_captured_function_takes_what_the_other_made(torch: Any) -> None:
    step = TinyJit(lambda x: (x * 2).sum(1))
    for n in range(5):
        x = torch.full((8, 16), float(n), device="cuda")
        np.testing.assert_array_equal(step(Tensor.from_dlpack(x)).numpy(), np.full(8, 32.0 * n))
