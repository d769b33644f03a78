"""PyTorch's call forms: its argument names, positional overloads, and scalars where vectors are accepted."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, same, torch
from tinsmith import Tensor, dtypes, nn
from tinsmith.core.errors import DTypeError, KeywordError

M, N, V = random(3, 4), random(3, 4, seed=1), random(5)
F = torch.nn.functional
KEYWORDS: dict[str, tuple[Any, ...]] = {  # the same expression there and here
    "other": (lambda x, y: x.add(other=y, alpha=2).mul(other=y).maximum(other=y), M, N),
    "exponent": (lambda x: x.abs().pow(exponent=3), M),
    "vec2": (lambda x, y: x.outer(vec2=y), V, V),
    "tensor": (lambda x, y: x.dot(tensor=y), V, V),
    "size": (lambda x: x.view(size=(4, 3)).expand(size=(2, 4, 3)).sum_to_size(size=(4, 3)), M),
    "new": (lambda x: x.new_zeros(size=(2, 3)) + x.new_ones(size=(2, 3)), M),
    "dims": (lambda x: x.permute(dims=(1, 0)).tile(dims=(2, 1)).repeat(repeats=(1, 2)), M),
    "dimension": (lambda x: x.unfold(dimension=1, size=2, step=2), M),
    "dim0": (lambda x: x.swapdims(dim0=0, dim1=1), M),
    "split": (lambda x: [*x.split(split_size=2, dim=1), *x.tensor_split(sections=2), *x.hsplit(indices=[1])], M),
    "value": (lambda x: x.scatter(0, (x * 0).long()[:1], value=2.0), M),
    "needless": (lambda x: x.to("cpu", non_blocking=True).gather(0, (x * 0).long(), sparse_grad=False), M),
    "sorted": (lambda x: x.topk(2, sorted=True)[0], M),
    "rcond": (lambda x: x.pinverse(rcond=1e-4), M),
    "dtype": (lambda x: x.mean(1, dtype=x.dtype), M),
    "unbiased": (lambda x: [*x.var_mean(1, unbiased=False), *x.std_mean(unbiased=False), x.std(False), x.var(True)], M)}


@pytest.mark.parametrize("name", KEYWORDS)
def test_keywords(name: str) -> None:
    call, *arrays = KEYWORDS[name]
    if name in ("unbiased",):  # functions there, methods here
        same(call, lambda x: [*torch.var_mean(x, 1, unbiased=False), *torch.std_mean(x, unbiased=False), x.std(False),
                              x.var(True)], *arrays)
    else:
        same(call, call, *arrays)


def test_keywords_of_makers_and_layers() -> None:
    assert Tensor.zeros(size=(2, 3), pin_memory=True).shape == (2, 3) and Tensor.arange(0, end=3).tolist() == [0, 1, 2]
    assert Tensor.full(size=(2,), fill_value=1.5).tolist() == [1.5, 1.5]
    assert nn.BatchNorm2d(num_features=3).num_features == nn.RMSNorm(normalized_shape=3).weight.shape[0] == 3
    assert nn.Embedding(num_embeddings=3, embedding_dim=2).weight.shape == (3, 2)
    for call in (lambda: Tensor(M).add(Tensor(M), other=1), lambda: Tensor.zeros(2, size=(3,)),
                 lambda: nn.BCELoss(weigth=1), lambda: nn.Linear(2, 3)(Tensor(M), other=1)):
        with pytest.raises(KeywordError):
            call()


def test_operands_of_contractions_by_name() -> None:
    x, w = Tensor.ones(1, 2, 5), Tensor.ones(3, 2, 2)
    for kind, enabled in ((dtypes.float32, False), (dtypes.bfloat16, True)):
        with Tensor.autocast("bfloat16", enabled=enabled):
            assert x.conv2d(weight=w).tolist() == x.conv2d(w, bias=None).tolist() == [[[4.0] * 4] * 3]
            assert x.conv_transpose2d(weight=w.transpose(0, 1)).shape == (1, 3, 6)
            rows = x.transpose(1, 2)
            assert rows.dot(w=w[0]).tolist() == rows.matmul(other=w[0]).tolist() == rows.matmul(w[0]).tolist(), kind
    with pytest.raises(TypeError, match="conv2d"):
        x.conv2d()  # type: ignore[call-arg]


def test_overloads_by_position() -> None:
    """A tensor or flag in the position of an axis is not taken for an axis number."""
    same(lambda x, y: [x.max(y), x.min(y), x.where(x > 0, y), x.where(x > 0, 0)],
         lambda x, y: [x.max(y), x.min(y), x.where(x > 0, y), x.where(x > 0, 0)], M, N)
    assert Tensor([3, 5]).max(Tensor([4])).tolist() == [4, 5]
    assert Tensor([True, False]).where(Tensor([False, True]), Tensor([True, True])).tolist() == [False, True]
    for call in (lambda x: x.sum(True), lambda x: x.any(x), lambda x: x.softmax(Tensor(0)), lambda x: x.cumsum(True)):
        with pytest.raises(DTypeError, match="an axis must be an integer"):
            call(Tensor(M))


NUMBERS: dict[str, Any] = {
    "gather": lambda x, i: [x.gather(0, i), x.reshape(1).gather(0, i), x.gather(0, i.reshape(1))],
    "scatter": lambda x, i: [x.scatter(0, i, 5.0), x.scatter(-1, i, x * 2), x.reshape(1).scatter_add(0, i, x)],
    "scatter_reduce": lambda x, i: [x.scatter_reduce(0, i, x * 3, r) for r in ("sum", "prod", "mean", "amax")],
    "index_add": lambda x, i: [x.index_add(0, i, x), x.index_copy(0, i, x * 2)],
    "index_fill": lambda x, i: [x.index_fill(0, i, 7.0), x.index_reduce(0, i, x * 2, "amax")],
    "index_select": lambda x, i: [x.index_select(0, i), x.reshape(1, 1).index_select(1, i)],
    "mode": lambda x, i: x.mode()}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_count_as_lines_of_one(name: str) -> None:
    same(NUMBERS[name], NUMBERS[name], np.float32(3), np.array(0))


def test_nothing_to_sum_is_a_sum() -> None:
    for shape, dim in (((0,), 0), ((2, 0, 3), 1), ((0, 3), 1)):
        x = random(*shape)
        same(lambda x, d=dim: [x.softmax(d), x.log_softmax(d), x.logsumexp(d)],
             lambda x, d=dim: [x.softmax(d), x.log_softmax(d), x.logsumexp(d)], x)


def test_operands_broadcast_first() -> None:
    same(lambda x, y: x.cosine_similarity(y, dim=1), lambda x, y: torch.cosine_similarity(x, y, dim=1), M, N[:, :1])
    same(lambda x, y: x.cosine_similarity(y, dim=-1), lambda x, y: torch.cosine_similarity(x, y, dim=-1), M, N[0])
    same(lambda x, y: x.complex(y), lambda x, y: torch.view_as_real(torch.complex(x, y)), M, N[:, :1])
    same(lambda x: x.cov(), lambda x: x.cov(), M[:1])
    same(lambda x, w: x.bincount(w), lambda x, w: x.bincount(w), np.array([0, 2, 2]), np.array([True, False, True]))
    out = Tensor([1]).atan2(Tensor([2.0]).cast("bfloat16"))
    assert out.dtype is dtypes.bfloat16


def test_singular_matrices() -> None:
    """Without a pivot the elimination skips the column, and the determinant's gradient is the cofactor matrix."""
    for rows in (np.ones((3, 3)), np.zeros((1, 1)), np.array([[0, 1], [0, 2]]), np.diag([1.0, 0, 3])):
        a = rows.astype(np.float64)
        same(lambda x: [x.det(), *x.slogdet(), *x.lu()], lambda x: [x.det(), *x.slogdet(), *torch.linalg.lu(x)], a,
             gradients=False)
        x = Tensor(a)
        minors = np.array([[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(len(a))]
                           for i in range(len(a))])
        np.testing.assert_allclose(x.det().gradient(x)[0].numpy(), minors, atol=1e-12)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("options", [{"size": 7}, {"size": (3, 8)}, {"scale_factor": 1.7}, {"scale_factor": (0.7, 2)},
                                     {"scale_factor": 1.7, "recompute_scale_factor": True}], ids=str)
def test_interpolate_by_factors(mode: str, options: dict[str, Any]) -> None:
    same(lambda x: x.interpolate(mode=mode, **options), lambda x: F.interpolate(x, mode=mode, **options),
         random(2, 1, 4, 6))
    if mode[0] == "b":
        same(lambda x: x.interpolate(mode=mode, align_corners=True, **options),
             lambda x: F.interpolate(x, mode=mode, align_corners=True, **options), random(2, 1, 4, 6))


def test_options_of_functions() -> None:
    y, w = abs(N) % 1, abs(random(4, seed=3))
    for reduction in ("mean", "sum", "none"):
        same(lambda x, y, w, r=reduction: x.binary_cross_entropy_with_logits(y, r, weight=w.detach()),
             lambda x, y, w, r=reduction: F.binary_cross_entropy_with_logits(x, y, w.detach(), reduction=r), M, y, w)
        same(lambda x, y, w, r=reduction: x.binary_cross_entropy(y, r, weight=w.detach()),
             lambda x, y, w, r=reduction: F.binary_cross_entropy(x, y, w.detach(), reduction=r), abs(M) % 1, y, w)
    same(lambda x: [x.softplus(2, threshold=1), x.pad((1, 1), value=None), x.nan_to_num(nan=None), x.norm(None)],
         lambda x: [F.softplus(x, 2, 1), F.pad(x, (1, 1), value=None), x.nan_to_num(nan=None), x.norm(None)], M)
    same(lambda x: x.avg_pool2d(2, divisor_override=3), lambda x: F.avg_pool2d(x, 2, divisor_override=3),
         random(1, 2, 4, 4))
    same(lambda i, w: i.embedding(w, padding_idx=1), lambda i, w: F.embedding(i, w, padding_idx=1),
         np.array([[1, 0], [2, 1]]), M)
