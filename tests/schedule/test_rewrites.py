"""Float conversions move below views: stored once for all views, in 16 bits, over their own axes."""
from __future__ import annotations

import numpy as np

from tests.schedule.helpers import given, kernels
from tinsmith import Context, Tensor, dtypes
from tinsmith.ir import Ops
from tinsmith.ir.uop import toposort


def heads(x: Tensor) -> Tensor:
    """Return a product and its concatenated heads: the input of the layer after attention."""
    return (x * 2).transpose(1, 2).reshape(2, 6, 32)


def test_a_rounded_view_is_stored_over_its_own_axes() -> None:
    x, w = given(2, 4, 6, 8), given(32, 40)
    out = heads(x).cast("bfloat16").dot(w.cast("bfloat16"), dtype="float32")
    wanted = (x.numpy() * 2).transpose(0, 2, 1, 3).reshape(2, 6, 32)
    rounded, weight = (v.astype(dtypes.bfloat16.numpy).astype(np.float32) for v in (wanted, w.numpy()))
    np.testing.assert_allclose(out.numpy(), rounded @ weight, rtol=1e-4, atol=1e-4)


def stored(*tensors: Tensor) -> list[tuple[object, tuple[object, ...]]]:
    """Return the dtype and axes of each kernel's stored value."""
    return [(i.sink.src[0].dtype, tuple(i.sink.src[0].shape)) for i in kernels(*tensors) if i.sink is not None]


def test_what_several_contractions_read_is_narrow_and_has_its_axes() -> None:
    x, w, v = given(2, 4, 96, 8), given(32, 512), given(32, 512, seed=1)
    y = (x.exp() * 2).sin().transpose(1, 2).reshape(2, 96, 32)
    with Tensor.autocast("bfloat16"):
        both = y @ w, y @ v
    assert (dtypes.bfloat16, (2, 4, 96, 8)) in stored(*both)
    with Context(NOOPT=1):
        assert (dtypes.bfloat16, (2, 4, 96, 8)) not in stored(*both)


def test_what_is_computed_itself_keeps_its_form() -> None:
    x = given(4, 6)
    for view in (x.T, x.reshape(3, 8), x.reshape(4, 1, 6).expand(4, 5, 6), x.flip(0)):
        assert view.cast("bfloat16").tolist() == view.numpy().astype(dtypes.bfloat16.numpy).tolist()
        assert (view + 1).cast("float16").float().tolist() == (view.numpy() + 1).astype(np.float16).tolist()


def test_gradients_of_what_several_contractions_read_are_contractions() -> None:
    """Two contractions (a gate and its operand) read the same rows: a sum over the sum of two products would be no
    contraction."""
    x, gate, up = given(64, 48), given(80, 48, seed=1), given(80, 48, seed=2)
    for t in (x, gate, up):
        t.requires_grad = True
    a, b = x @ gate.T, x @ up.T
    (grad,) = (a.silu() * b).sum().gradient(x)
    sums = [n for i in kernels(grad) if i.sink is not None for n in toposort(i.sink) if n.op is Ops.REDUCE]
    assert sums and all(n.src[0].op is Ops.MUL for n in sums if n.src[0].ndim == 3)
    va, vb, vx = (t.numpy().astype(np.float64) for t in (gate, up, x))
    p, q = vx @ va.T, vx @ vb.T
    s = 1 / (1 + np.exp(-p))
    want = (q * (s + p * s * (1 - s))) @ va + (p * s) @ vb
    np.testing.assert_allclose(grad.numpy(), want, rtol=1e-3, atol=1e-3)
