"""Float conversions move below views: stored once for all views, in 16 bits, over their own axes."""
from __future__ import annotations

import numpy as np
from hypothesis import given as given_drawn
from hypothesis import settings
from hypothesis import strategies as st

from tests.schedule.helpers import given, kernels
from tinsmith import Context, Tensor, dtypes
from tinsmith.ir import Ops
from tinsmith.ir.uop import toposort
from tinsmith.schedule.passes.rewrites import gather_first, sum_copies


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


def projected(x: Tensor, w: Tensor, b: Tensor, heads: int) -> list[Tensor]:
    """Return queries, keys and values ``[batch, heads, length, width]`` of one projection, as views of it."""
    batch, length, width = x.shape
    joined = x.linear(w, b).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    return [t[0] for t in joined.chunk(3)]


@settings(max_examples=12, deadline=None)
@given_drawn(st.integers(1, 3), st.sampled_from((1, 3, 7, 13, 37)), st.sampled_from((1, 2, 4)),
             st.sampled_from((8, 16)), st.booleans(), st.booleans())
def test_attention_on_parts_of_a_projection(batch: int, length: int, heads: int, width: int, half: bool,
                                            causal: bool) -> None:
    """The three parts of a projection are rounded together."""
    total = heads * width
    x, w, b = given(batch, length, total), given(total, 3 * total, seed=1) * 0.3, given(3 * total, seed=2)
    if half:
        x, w, b = (t.cast("bfloat16").realize() for t in (x, w, b))
    with Tensor.autocast("bfloat16", enabled=not half):
        q, k, v = projected(x, w, b, heads)
        out = q.scaled_dot_product_attention(k, v, is_causal=causal)
    parts = [found for found in stored(out) if found[1] == q.shape and found[0] is not out.dtype]
    if length > 1:  # other lengths: no other value has the shape of a part
        assert not parts, "a part of the projection is copied"
    a, s, c = (t.float().numpy().astype(np.float64) for t in (x, w, b))
    rows = (a @ s + c).reshape(batch, length, 3, heads, width).transpose(2, 0, 3, 1, 4)
    scores = rows[0] @ rows[1].swapaxes(-1, -2) / np.sqrt(width)
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ rows[2]
    np.testing.assert_allclose(out.float().numpy(), want, rtol=0.05, atol=0.05 * max(abs(want).max(), 1))


def test_a_single_part_is_stored_alone() -> None:
    x, w = given(64, 32), given(32, 512, seed=1)
    with Tensor.autocast("bfloat16"):
        part = (x @ w)[:, :64]
        out = part @ given(64, 48, seed=2)
    assert (dtypes.bfloat16, (64, 512)) not in stored(out)
    np.testing.assert_allclose(out.numpy(), (x.numpy() @ w.numpy())[:, :64] @ given(64, 48, seed=2).numpy(), atol=2.0)


@settings(max_examples=40, deadline=None)
@given_drawn(st.data())
def test_sums_read_the_copy_of_a_product(data: st.DataObject) -> None:
    """Σ RESHAPE(x) becomes RESHAPE(Σ x) over the axes below, and a copy that is made anyway is read."""
    below = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4), "shape"))
    above = data.draw(st.sampled_from((below, (int(np.prod(below)),), (*below[:1], int(np.prod(below[1:]))),
                                       (int(np.prod(below[:-1])), below[-1]), (1, *below))), "reshaped")
    axes = tuple(a for a in range(len(above)) if data.draw(st.booleans(), f"axis {a} reduced")) or (0,)
    x = given(*below)
    value = x.exp().permute(*reversed(range(x.ndim))).permute(*reversed(range(x.ndim)))
    copy = value.contiguous().uop
    total = value.reshape(above).uop.reduce("ADD", axes)
    found = sum_copies([copy, total])[1]
    assert found.shape == total.shape
    assert any(n.op is Ops.CONTIGUOUS for n in toposort(found))
    want = np.exp(x.numpy()).reshape(above).sum(axis=axes, keepdims=True)
    np.testing.assert_allclose(value._new(found).numpy().reshape(want.shape), want, rtol=1e-5)


def test_the_gradient_of_a_bias_is_rounded_as_that_of_its_product() -> None:
    """As in PyTorch, where the result of a linear layer has 16 bits under autocast."""
    x, w, b, g = given(24, 16), given(16, 8, seed=1), given(8, seed=2), given(24, 8, seed=3)
    b.requires_grad = True
    with Tensor.autocast("bfloat16"):
        out = x.linear(w, b)
    (grad,) = out.gradient(b, gradient=g)
    want = g.numpy().astype(dtypes.bfloat16.numpy).astype(np.float64).sum(0)
    np.testing.assert_allclose(grad.numpy(), want, rtol=1e-6, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given_drawn(st.data())
def test_gathers_of_few_elements_compute_these_alone(data: st.DataObject) -> None:
    """GATHER(f(a, b), i) is f of gathered elements, and 0 where i is out of range; views lie between the ops."""
    rows, columns = data.draw(st.integers(1, 5), "rows"), data.draw(st.integers(2, 7), "columns")
    axis = data.draw(st.integers(0, 1), "axis")
    a, b, c = given(columns, rows), given(rows, seed=1), given(rows, columns, seed=2)
    x = ((a.T.exp() - b.reshape(rows, 1) * 3).flip(1) + 2).maximum(c) + c.sum(1, keepdim=True)
    values = (np.exp(a.numpy().T) - b.numpy()[:, None] * 3)[:, ::-1] + 2
    values = np.maximum(values, c.numpy()) + c.numpy().sum(1, keepdims=True)
    if whole := data.draw(st.booleans(), "of all elements in one row"):
        x, values, axis = x.reshape(-1), values.reshape(-1), 0
    count = max(int(x.shape[axis] * 0.5), 1)
    shape = tuple(count if n == axis else s for n, s in enumerate(x.shape))
    index = np.random.default_rng(data.draw(st.integers(0, 99), "seed")).integers(-2, x.shape[axis] + 2, shape)
    gathered = x.uop.gather(Tensor(index.astype(np.int32)).uop, axis)
    (found,) = gather_first([gathered])
    sources = [n.src[0].base.op for n in toposort(found) if n.op is Ops.GATHER]
    few = whole or 2 * count <= x.shape[axis]
    assert not few or (sources and all(op in (Ops.BUFFER, Ops.REDUCE) for op in sources))
    inside = (index >= 0) & (index < x.shape[axis])
    want = np.where(inside, np.take_along_axis(values, np.where(inside, index, 0), axis), 0)
    np.testing.assert_allclose(x._new(found).numpy(), want, rtol=1e-5, atol=1e-5)


def test_a_gathered_result_that_is_stored_is_read() -> None:
    x = given(64, 96)
    y = x.exp() + 1
    picked = y.gather(1, Tensor(np.arange(64, dtype=np.int32).reshape(64, 1)))
    both = [i.sink for i in kernels(y, picked) if i.sink is not None]
    assert [any(n.op is Ops.EXP for n in toposort(sink)) for sink in both] == [True, False]
    assert len(kernels(picked)) == 1
