"""Memory shared with PyTorch and JAX, both ways."""
from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the parity extra (torch==2.13.0) is not installed")

from tinsmith import Tensor, TinyJit, dtypes, from_dlpack  # noqa: E402
from tinsmith.core.dtypes import to_dtype  # noqa: E402

KINDS = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool",
         "float8_e4m3fn", "float8_e5m2"]


def address(t: Tensor) -> int:
    return int(t.uop.base.arg.opaque.address + t.uop.base.arg.offset)


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_are_the_same_both_ways(kind: str) -> None:
    x = torch.tensor([[0.0, 1.0, 1.5], [1.0, 0.0, 2.0]]).to(getattr(torch, kind))
    t = from_dlpack(x)
    assert t.dtype is to_dtype(x.dtype) is to_dtype(kind) and address(t) == x.data_ptr()
    assert t.float().tolist() == x.float().tolist() == Tensor(x).float().tolist() and Tensor(x).dtype is t.dtype
    back = torch.from_dlpack(t)
    assert back.dtype is x.dtype and back.data_ptr() == x.data_ptr()
    assert Tensor.ones(2, dtype=x.dtype).dtype is t.dtype


def test_views_of_torchs() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for view in (x[1], x.permute(2, 0, 1), x[:, 1], x[..., ::2], x[:0], x[0, 0, 0], x.expand(2, 2, 3, 4)):
        assert from_dlpack(view).tolist() == view.tolist() == Tensor(view).tolist()
    assert address(from_dlpack(x[1].T, copy=False)) == x[1].data_ptr()


def test_views_of_ours() -> None:
    t = Tensor.arange(24).reshape(2, 3, 4).realize()
    for view in (t[1], t.permute(2, 0, 1), t[:, 1], t[..., ::2], t[:0], t[0, 0, 0], t.expand(2, 2, 3, 4), t + 1):
        assert torch.from_dlpack(view).tolist() == view.tolist()
    assert torch.from_dlpack(t[1]).data_ptr() == address(t) + 48


def test_torch_tensor_and_as_tensor() -> None:
    t = Tensor([[1.0, 2.0]]).realize()
    copied, shared = torch.tensor(t), torch.as_tensor(t)
    assert copied.tolist() == shared.tolist() == [[1, 2]] and copied.dtype is torch.float32
    assert copied.data_ptr() != address(t) and shared.data_ptr() == address(t)
    shared[0, 0] = 5
    assert t.tolist() == [[5, 2]] and copied.tolist() == [[1, 2]]
    assert torch.tensor(Tensor(3)).item() == 3 and torch.tensor(t.bfloat16()).dtype is torch.bfloat16


def test_parameters_of_torch() -> None:
    p = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    assert Tensor(p).dtype is dtypes.bfloat16
    with pytest.raises(BufferError, match="detach"):
        from_dlpack(p)
    assert address(from_dlpack(p.detach())) == p.data_ptr()


def test_who_dies_first() -> None:
    x = torch.arange(3.0)
    t = from_dlpack(x)
    del x
    gc.collect()
    assert t.tolist() == [0, 1, 2]
    back = torch.from_dlpack(t)
    del t
    gc.collect()
    assert [Tensor.ones(3).mul(n).sum().item() for n in range(4)] == [0, 3, 6, 9] and back.tolist() == [0, 1, 2]
    ours = Tensor([1.0, 2.0]).mul(2).realize()
    buffer = weakref.ref(ours.uop.base.arg)
    theirs = torch.from_dlpack(ours).view(2, 1)
    del ours
    gc.collect()
    assert [Tensor([1.0, 2.0]).mul(n).tolist()[0] for n in range(4)] == [0, 1, 2, 3]
    assert buffer() is not None and theirs.tolist() == [[2], [4]]
    del theirs
    gc.collect()
    _ = Tensor([1.0]).mul(2).item()
    assert buffer() is None


def test_a_capture_reads_torchs_memory() -> None:
    double = TinyJit(lambda x: x * 2)
    x = torch.zeros(3)
    found = []
    for n in range(5):
        x.fill_(n)
        found.append(double(from_dlpack(x)).tolist()[0])
    assert found == [0, 2, 4, 6, 8] and double.replays == 3


def test_what_has_no_counterpart() -> None:
    with pytest.raises(TypeError, match="complex of 64 bits"):
        from_dlpack(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="there is no dtype torch"):
        Tensor([1]).cast(torch.complex64)


def test_jax() -> None:
    jnp: Any = pytest.importorskip("jax.numpy", reason="the parity extra (jax) is not installed")
    x = jnp.arange(4.0) + 1
    t = from_dlpack(x)
    assert address(t) == x.unsafe_buffer_pointer() and t.tolist() == [1, 2, 3, 4]
    t += 1
    assert t.tolist() == [2, 3, 4, 5] and x.tolist() == [1, 2, 3, 4]
    ours = (Tensor([1.0, 2.0]) * 3).realize()
    back = jnp.from_dlpack(ours)
    assert back.tolist() == [3, 6] and Tensor(x).tolist() == [1, 2, 3, 4]
    half = from_dlpack(jnp.ones(3, jnp.bfloat16))
    assert half.dtype is dtypes.bfloat16 and jnp.from_dlpack(half).dtype == jnp.bfloat16
    assert Tensor.ones(1, dtype=jnp.float16).dtype is dtypes.float16
    del ours
    gc.collect()
    assert np.asarray(back).tolist() == [3, 6]
