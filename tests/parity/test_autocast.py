"""Dtypes inside ``autocast`` are those of PyTorch's autocast for CUDA, whose rules need no GPU with fake tensors."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.parity.helpers import torch
from tinsmith import Tensor, dtypes, nn
from tinsmith.tensor.math.table import ELEMENTWISE, FUNCTIONS, REDUCTIONS

F = torch.nn.functional
NARROW, WIDE = torch.bfloat16, torch.float32
DTYPES: Final = {NARROW: dtypes.bfloat16, WIDE: dtypes.float32, torch.bool: dtypes.bool, torch.int64: dtypes.int64}
Call = Callable[..., Any]


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Enter PyTorch's autocast for CUDA, with tensors that have no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_autocast_dtype("cuda", NARROW)
        torch.set_autocast_enabled("cuda", True)
        try:
            with FakeTensorMode():
                yield
        finally:
            torch.set_autocast_enabled("cuda", False)


def theirs(call: Call, kinds: Sequence[Any]) -> Any:
    with fake_cuda():
        return DTYPES[call(*(torch.empty(4, 4, device="cuda", dtype=kind) for kind in kinds)).dtype]


def ours(call: Call, kinds: Sequence[Any]) -> Any:
    operands = [Tensor.ones(4, 4, dtype=DTYPES[kind]) * 0.5 for kind in kinds]
    with Tensor.autocast("bfloat16"):
        return call(*operands).dtype


def function_of(name: str) -> Call:
    """Return PyTorch's function of a method, wherever it is."""
    for owner in (F, torch, torch.special, torch.Tensor):
        if (found := getattr(owner, name.removeprefix("special."), None)) is not None:
            return found  # type: ignore[no-any-return]
    raise AttributeError(name)


ROWS: Final = {
    **{name: (1, row.torch or name) for name, row in (*FUNCTIONS.items(), *REDUCTIONS.items())},
    **{name: (row.operands, name) for name, row in ELEMENTWISE.items() if row.operands < 3 and "f" in row.takes}}


@pytest.mark.parametrize("name", ROWS)
def test_methods_of_the_table(name: str) -> None:
    count, spelled = ROWS[name]
    args = (-1,) if name == "logsumexp" else ()
    call = function_of(spelled)
    for kinds in ((NARROW,), (WIDE,)) if count == 1 else ((NARROW, NARROW), (NARROW, WIDE), (WIDE, NARROW)):
        want = theirs(lambda *t: call(*t, *args), kinds)
        assert ours(lambda x, *t: getattr(x, name)(*t, *args), kinds) is want, kinds


def image(x: Any) -> Any:
    return x.reshape(1, 1, 4, 4)


def row(x: Any) -> Any:
    return x.reshape(16)[:4] if isinstance(x, Tensor) else x.reshape(16).as_strided((4,), (1,))


def trained(layer: Call) -> Call:
    def call(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            return layer()(x)  # type: ignore[no-any-return]
    return call


OTHERS: Final[dict[str, tuple[Call, Call]]] = {  # PyTorch's call and ours, of two matrices
    "square by **": (lambda x, _: x**2, lambda x, _: x**2), "power of 2": (lambda x, _: 2**x, lambda x, _: 2**x),
    "1 / x": (lambda x, _: 1 / x, lambda x, _: 1 / x), "x / 2": (lambda x, _: x / 2, lambda x, _: x / 2),
    "x / y": (lambda x, y: x / y, lambda x, y: x / y), "x + y": (lambda x, y: x + y, lambda x, y: x + y),
    "x @ y": (lambda x, y: x @ y, lambda x, y: x @ y), "x @ row": (lambda x, y: x @ row(y), lambda x, y: x @ row(y)),
    "row @ row": (lambda x, y: row(x) @ row(y), lambda x, y: row(x) @ row(y)),
    "outer": (lambda x, y: torch.outer(row(x), row(y)), lambda x, y: row(x).outer(row(y))),
    "addmm": (lambda x, y: torch.addmm(x, x, y), lambda x, y: x.addmm(x, y)),
    "addmv": (lambda x, y: torch.addmv(row(x), x, row(y)), lambda x, y: row(x).addmv(x, row(y))),
    "addr": (lambda x, y: torch.addr(x, row(x), row(y)), lambda x, y: x.addr(row(x), row(y))),
    "baddbmm": (lambda x, y: torch.baddbmm(*(t.unsqueeze(0) for t in (x, x, y))),
                lambda x, y: x.unsqueeze(0).baddbmm(x.unsqueeze(0), y.unsqueeze(0))),
    "addbmm": (lambda x, y: torch.addbmm(x, x.unsqueeze(0), y.unsqueeze(0)),
               lambda x, y: x.addbmm(x.unsqueeze(0), y.unsqueeze(0))),
    "mm": (lambda x, y: torch.mm(x, y), lambda x, y: x.mm(y)),
    "vecdot": (lambda x, y: torch.linalg.vecdot(x, y), lambda x, y: x.vecdot(y)),
    "bmm": (lambda x, y: torch.bmm(x.unsqueeze(0), y.unsqueeze(0)), lambda x, y: x.unsqueeze(0).bmm(y.unsqueeze(0))),
    "linear": (lambda x, y: F.linear(x, y, row(y)), lambda x, y: x.linear(y.T, row(y))),
    "conv2d": (lambda x, y: F.conv2d(image(x), y.reshape(4, 1, 2, 2), row(y)),
               lambda x, y: image(x).conv2d(y.reshape(4, 1, 2, 2), row(y))),
    "conv_transpose2d": (lambda x, y: F.conv_transpose2d(image(x), y.reshape(1, 4, 2, 2), row(y)),
                         lambda x, y: image(x).conv_transpose2d(y.reshape(1, 4, 2, 2), row(y))),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), lambda x, y: Tensor.einsum("ij,jk->ik", x, y)),
    "attention": (lambda x, y: F.scaled_dot_product_attention(*(t.unsqueeze(0) for t in (x, y, y))),
                  lambda x, y: x.unsqueeze(0).scaled_dot_product_attention(y.unsqueeze(0), y.unsqueeze(0))),
    "prelu": (lambda x, y: F.prelu(x, row(y)), lambda x, y: nn.PReLU(4)(x)),
    **{name: (lambda x, _, name=name: function_of(name)(x, -1), lambda x, _, name=name: getattr(x, name)(-1))
       for name in ("softmax", "log_softmax", "softmin", "cumsum", "cumprod", "logcumsumexp")},
    **{name: (lambda x, _, name=name: function_of(name)(x), lambda x, _, name=name: getattr(x, name)())
       for name in ("std", "var", "norm", "normalize", "glu", "trapezoid", "median")},
    **{name: (lambda x, y, name=name: function_of(name)(x, y), lambda x, y, name=name: getattr(x, name)(y))
       for name in ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "kl_div", "poisson_nll_loss",
                    "soft_margin_loss", "hinge_embedding_loss", "cosine_similarity", "pairwise_distance", "cdist",
                    "dist", "binary_cross_entropy_with_logits")},
    **{name: (lambda x, y, name=name: function_of(name)(x, y, y), lambda x, y, name=name: getattr(x, name)(y, y))
       for name in ("margin_ranking_loss", "triplet_margin_loss")},
    "cross_entropy": (lambda x, _: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64, device="cuda")),
                      lambda x, _: x.cross_entropy(Tensor([0] * 4))),
    "nll_loss": (lambda x, _: F.nll_loss(x, torch.zeros(4, dtype=torch.int64, device="cuda")),
                 lambda x, _: x.nll_loss(Tensor([0] * 4))),
    "batch norm": (lambda x, y: F.batch_norm(x, None, None, row(y).float(), row(y).float(), training=True),
                   trained(lambda: nn.BatchNorm2d(4))),
    "batch norm, evaluation": (lambda x, y: F.batch_norm(x, *[row(y).float()] * 4), lambda x, _: nn.BatchNorm2d(4)(x)),
    "instance norm": (lambda x, y: F.instance_norm(x.unsqueeze(0), None, None, row(y).float(), row(y).float()),
                      lambda x, _: nn.InstanceNorm1d(4, affine=True)(x.unsqueeze(0))),
    "layer norm": (lambda x, y: F.layer_norm(x, (4,), row(y), row(y)), lambda x, _: nn.LayerNorm(4)(x)),
    "group norm": (lambda x, y: F.group_norm(x, 2, row(y), row(y)), lambda x, _: nn.GroupNorm(2, 4)(x)),
    "rms norm": (lambda x, y: F.rms_norm(x, (4,), row(y)), lambda x, _: nn.RMSNorm(4)(x)),
    "cat": (lambda x, y: torch.cat([x, y]), lambda x, y: x.cat(y)),
    "max pool": (lambda x, _: F.max_pool2d(image(x), 2), lambda x, _: image(x).max_pool2d(2)),
    "mean pool": (lambda x, _: F.avg_pool2d(image(x), 2), lambda x, _: image(x).avg_pool2d(2)),
    **{mode: (lambda x, _, mode=mode: F.interpolate(image(x), scale_factor=2, mode=mode),
              lambda x, _, mode=mode: image(x).interpolate(scale_factor=2, mode=mode))
       for mode in ("bilinear", "nearest", "bicubic")},
    "dropout": (lambda x, _: F.dropout(x, 0.5), trained(lambda: nn.Dropout(0.5)))}


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_and_layers(name: str) -> None:
    their_call, our_call = OTHERS[name]
    for kinds in ((NARROW, NARROW), (NARROW, WIDE), (WIDE, WIDE)):
        assert ours(our_call, kinds) is theirs(their_call, kinds), kinds


def test_gradients_inside_and_outside_of_the_block() -> None:
    """A backward pass computes the same inside of the block, where its own sums and powers are not widened again."""
    x, w = Tensor.ones(3, 4) * 0.3, Tensor.ones(4, 5) * 0.7
    found = []
    for inside in (False, True):
        with Tensor.autocast("bfloat16"):
            y = (x @ w).softplus().tanh().gelu() @ w.T
            loss = y.log_softmax().square().mean() + y.sigmoid().var()
            if inside:
                found.append(loss.gradient(x, w))
        if not inside:
            found.append(loss.gradient(x, w))
    assert all(a.dtype is b.dtype is dtypes.float32 and a.tolist() == b.tolist() for a, b in zip(*found))


def test_a_residual_network_trains_as_with_pytorch() -> None:
    """Ten steps of convolutions, batch norms and sums of residual blocks, from the same weights: the losses are near,
    and what lies between convolutions has 16 bits."""
    torch.manual_seed(0)
    theirs_layers, our_layers = ([m.Conv2d(3, 16, 3, padding=1), m.BatchNorm2d(16), m.Conv2d(16, 16, 3, padding=1),
                                  m.BatchNorm2d(16), m.Linear(16, 5)] for m in (torch.nn, nn))
    for a, b in zip(theirs_layers, our_layers):
        b.weight.assign(Tensor(a.weight.detach().numpy())).realize()
        b.bias.assign(Tensor(a.bias.detach().numpy())).realize()
    x, y = torch.randn(8, 3, 12, 12), torch.randint(5, (8,))
    their_opt = torch.optim.SGD([p for m in theirs_layers for p in m.parameters()], 0.2)
    our_opt = nn.optim.SGD([p for m in our_layers for p in (m.weight, m.bias)], 0.2)

    def logits(layers: Sequence[Any], z: Any) -> tuple[Any, Any]:
        first, norm, second, last, head = layers
        z = norm(first(z)).relu()
        z = (z + last(second(z))).relu()
        return z, head(z.mean((2, 3)))

    found = []
    for _ in range(10):
        with torch.autocast("cpu", torch.bfloat16):
            z, out = logits(theirs_layers, x)
            loss = F.cross_entropy(out, y)
        their_opt.zero_grad()
        loss.backward()
        their_opt.step()
        with Tensor.train():
            our_opt.zero_grad()
            with Tensor.autocast("bfloat16"):
                ours_z, ours_out = logits(our_layers, Tensor(x.numpy()))
                our_loss = ours_out.cross_entropy(Tensor(y.numpy()))
            our_loss.backward()
            our_opt.step()
        assert z.dtype is NARROW and ours_z.dtype is dtypes.bfloat16 and our_loss.dtype is dtypes.float32
        found.append((float(loss.detach()), our_loss.item()))
    assert found[-1][0] < 0.85 * found[0][0]
    for theirs_loss, ours_loss in found:
        assert abs(theirs_loss - ours_loss) <= 0.01 * theirs_loss
