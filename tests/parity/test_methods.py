"""PyTorch's methods under their own names: one expression for both, values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, same, torch
from tinsmith import Tensor

F = torch.nn.functional
X, Y, V, W = random(3, 4, 5), random(3, 4, 5, seed=1), random(6), random(6, seed=1)
M, N = random(4, 5), random(5, 3, seed=2)
P = abs(X) + 0.1
U = np.clip(X, -0.9, 0.9)
SPARSE = np.where(X > 0, X, 0).astype(np.float32)
HOLES = np.where(X > 1, np.nan, X).astype(np.float32)
I = np.array([[3, 0, 2], [1, 1, 5]])
J = np.array([[12, -18, 7], [0, 9, 35]])
PLACES = np.array([2, 0, 2])
PLAIN: dict[str, tuple[Any, ...]] = {  # the same expression of methods there and here
    "movedim": (lambda x: x.movedim((0, 2), (1, 0)), X),
    "moveaxis": (lambda x: x.moveaxis(0, -1), X),
    "swapaxes": (lambda x: x.swapaxes(0, 2), X),
    "swapdims": (lambda x: x.swapdims(0, 2), X),
    "t": (lambda x: x.t(), M),
    "mT": (lambda x: x.mT, X),
    "mH": (lambda x: x.mH, X),
    "H": (lambda x: x.H, M),
    "adjoint": (lambda x: x.adjoint(), X),
    "select": (lambda x: x.select(1, -1), X),
    "narrow": (lambda x: x.narrow(2, 1, 3), X),
    "narrow_copy": (lambda x: x.narrow_copy(0, -2, 2), X),
    "unbind": (lambda x: x.unbind(1), X),
    "tensor_split": (lambda x: x.tensor_split(3, 2), X),
    "tensor_split places": (lambda x: x.tensor_split((1, 3, 9), 1), X),
    "hsplit": (lambda x: x.hsplit(2), X),
    "vsplit": (lambda x: x.vsplit(3), X),
    "dsplit": (lambda x: x.dsplit([2]), X),
    "split_with_sizes": (lambda x: x.split_with_sizes([1, 4], 2), X),
    "tile": (lambda x: x.tile(2, 3), X),
    "tile more": (lambda x: x.tile((2, 1, 1, 2)), X),
    "fliplr": (lambda x: x.fliplr(), X),
    "flipud": (lambda x: x.flipud(), X),
    "flip dims": (lambda x: x.flip(dims=(0, 2)), X),
    **{f"rot90 {k}": (lambda x, k=k: x.rot90(k, (2, 1)), X) for k in (-1, 0, 1, 2, 3)},
    "ravel": (lambda x: x.transpose(0, 1).ravel(), X),
    "reshape_as": (lambda x, y: x.reshape_as(y) * y, X, random(5, 12)),
    "view_as": (lambda x, y: x.view_as(y) + y, X, random(5, 12)),
    "sum_to_size": (lambda x: x.sum_to_size(4, 1), X),
    **{
        f"diag_embed {a}": (lambda x, a=a: x.diag_embed(*a), M)
        for a in ((), (1,), (-2,), (1, 0, 2), (1, 2, 0), (0, 1, -1))
    },
    "diagflat": (lambda x: x.diagflat(1), M),
    "diag": (lambda x: x.diag(-1), V),
    "diag matrix": (lambda x: x.diag(1), M),
    "combinations": (lambda x: torch.combinations(x) if isinstance(x, torch.Tensor) else x.combinations(), V),
    "select_scatter": (lambda x, y: x.select_scatter(y, 0, 1), M, random(5)),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 0, 5, 2), M, random(4, 3)),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y, 1), M, random(4)),
    "mm": (lambda x, y: x.mm(y), M, N),
    "bmm": (lambda x, y: x.bmm(y), X, random(3, 5, 2)),
    "mv": (lambda x, y: x.mv(y), M, random(5)),
    "addmm": (lambda z, x, y: z.addmm(x, y, beta=2, alpha=0.5), random(3), M, N),
    "addmv": (lambda z, x, y: z.addmv(x, y, alpha=3), random(4), M, random(5)),
    "addr": (lambda z, x, y: z.addr(x, y, beta=0.5), random(6, 6), V, W),
    "baddbmm": (lambda z, x, y: z.baddbmm(x, y, alpha=2), random(3, 4, 2), X, random(3, 5, 2)),
    "addbmm": (lambda z, x, y: z.addbmm(x, y), random(4, 2), X, random(3, 5, 2)),
    "inner": (lambda x, y: x.inner(y), M, X),
    "vdot": (lambda x, y: x.vdot(y), V, W),
    "ger": (lambda x, y: x.ger(y), V, W),
    "kron": (lambda x, y: x.kron(y), M, X[:2]),
    "cross": (lambda x, y: x.cross(y, dim=0), X, Y),
    "trace": (lambda x: x.trace(), M),
    "addcmul": (lambda x, y, z: x.addcmul(y, z, value=0.5), X, Y, P),
    "addcdiv": (lambda x, y, z: x.addcdiv(y, z, value=2), X, Y, P),
    "add alpha": (lambda x, y: x.add(y, alpha=3), X, Y),
    "sub alpha": (lambda x, y: x.sub(y, alpha=3), X, Y),
    "subtract": (lambda x, y: x.subtract(y), X, Y),
    "multiply": (lambda x, y: x.multiply(y), X, Y),
    "divide": (lambda x, y: x.divide(y), X, P),
    "true_divide": (lambda x, y: x.true_divide(y), X, P),
    "floor_divide": (lambda x, y: x.floor_divide(y), X, P),
    "remainder": (lambda x, y: x.remainder(y), X, P),
    "float_power": (lambda x: x.float_power(2.5), P),
    "ldexp": (lambda x, y: x.ldexp(y), X, np.full((5,), 3)),
    "frac": (lambda x: x.frac(), X),
    "heaviside": (lambda x, y: x.heaviside(y), SPARSE.ravel(), np.ones(60, np.float32) / 2),
    "deg2rad": (lambda x: x.deg2rad(), X),
    "rad2deg": (lambda x: x.rad2deg(), X),
    "atan2": (lambda x, y: x.atan2(y), X, Y),
    "arctan2": (lambda x, y: x.arctan2(y), X, Y),
    "hypot": (lambda x, y: x.hypot(y), X, Y),
    "xlogy": (lambda x, y: x.xlogy(y), SPARSE, P),
    "logit": (lambda x: x.logit(), P / 4),
    "logit eps": (lambda x: x.logit(0.2), P / 4),
    "logaddexp2": (lambda x, y: x.logaddexp2(y), X, Y),
    "sinc": (lambda x: x.sinc(), X),
    "diff": (lambda x: x.diff(2, 1), X),
    "diff more": (lambda x, y: x.diff(prepend=y, append=y), X, Y),
    "erfc": (lambda x: x.erfc(), X * 3),
    "erfinv": (lambda x: x.erfinv(), U),
    "lgamma": (lambda x: x.lgamma(), X * 4),
    "digamma": (lambda x: x.digamma(), P * 4),
    "polygamma": (lambda x: x.polygamma(1), P * 2),
    "polygamma 3": (lambda x: x.polygamma(3), P * 2),
    "mvlgamma": (lambda x: x.mvlgamma(3), P + 1),
    "amax": (lambda x: x.amax((0, 2)), X),
    "amin": (lambda x: x.amin(1, True), X),
    "aminmax": (lambda x: x.aminmax(dim=1), X),
    "count_nonzero": (lambda x: x.count_nonzero(1), SPARSE),
    "nansum": (lambda x: x.nansum(1), HOLES),
    "nanmean": (lambda x: x.nanmean((0, 1)), HOLES),
    "nanmedian": (lambda x: x.nanmedian(2), HOLES),
    "nanmedian all": (lambda x: x.nanmedian(), HOLES),
    "quantile": (lambda x: x.quantile(0.3, 1), X),
    "quantile all": (lambda x: x.quantile(0.77), X),
    "quantile nan": (lambda x: x.quantile(0.5, 2), HOLES),
    **{
        f"quantile {i}": (
            lambda x, q, i=i: x.quantile(q, 1, True, interpolation=i),
            X,
            np.array([0.1, 0.5, 0.9], np.float32),
        )
        for i in ("linear", "lower", "higher", "midpoint", "nearest")
    },
    "nanquantile": (lambda x, q: x.nanquantile(q, 0), HOLES, np.array([0.25, 0.8], np.float32)),
    "msort": (lambda x: x.msort(), X),
    "mode": (lambda x: x.mode(1)[0], I),
    "unique_consecutive": (
        lambda x: x.unique_consecutive(return_inverse=True, return_counts=True),
        np.array([1, 1, 2, 2, 2, 1]),
    ),
    "histc": (lambda x: x.histc(7, -1, 2), V),
    "histc own": (lambda x: x.histc(4), V),
    "cov": (lambda x: x.cov(correction=0), M),
    "corrcoef": (lambda x: x.corrcoef(), M),
    "dist": (lambda x, y: x.dist(y, 3), X, Y),
    "var": (lambda x: x.var(1, unbiased=False), X),
    "std": (lambda x: x.std(dim=1, unbiased=False), X),
    "cumsum dim": (lambda x: x.cumsum(dim=1), X),
    "cummax dim": (lambda x: x.cummax(dim=1), X),
    "logcumsumexp": (lambda x: x.logcumsumexp(dim=2), X),
    "take": (lambda x, i: x.take(i), X, I),
    "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), X[:2, :3], I[:, :, None] % 3),
    "put": (lambda x, i, y: x.put(i, y), M, np.array([3, -1]), V[:2]),
    "put more": (lambda x, i, y: x.put(i, y, accumulate=True), M, np.array([3, 3]), V[:2]),
    "index_add": (lambda x, i, y: x.index_add(1, i, y, alpha=2), X, PLACES, Y[:, :3]),
    "index_copy": (lambda x, i, y: x.index_copy(1, i, y), X, PLACES[:2], Y[:, :2]),
    "index_fill": (lambda x, i: x.index_fill(1, i, 2.0), X, PLACES),
    "index_reduce": (lambda x, i, y: x.index_reduce(1, i, y, "amax"), X, PLACES, Y[:, :3]),
    "index_put": (lambda x, i, j, v: x.index_put((i, j), v), M, PLACES[:2], PLACES[1:], V[:2]),
    "index_put more": (lambda x, i, j, v: x.index_put((i, j), v, accumulate=True), M, PLACES, PLACES - 1, V[:3]),
    "masked_scatter": (lambda x, m, y: x.masked_scatter(m, y), X, X > 0, Y),
    "argwhere": (lambda x: x.argwhere(), SPARSE),
    "nonzero": (lambda x: x.nonzero(as_tuple=True), SPARSE),
    "bincount": (lambda x: x.bincount(minlength=9), I.ravel()),
    "bincount weights": (lambda x, w: x.bincount(w), I.ravel(), abs(V)),
    "logical_and": (lambda x, y: x.logical_and(y), SPARSE, X > 0.5),
    "logical_or": (lambda x, y: x.logical_or(y), SPARSE, Y < 0),
    "logical_xor": (lambda x, y: x.logical_xor(y), SPARSE, Y < 0),
    "gcd": (lambda x, y: x.gcd(y), J, I * 6),
    "lcm": (lambda x, y: x.lcm(y), J, I),
    "fmax": (lambda x, y: x.fmax(y), X, Y),
    "fmin": (lambda x, y: x.fmin(y), X, Y),
    "clamp": (lambda x: x.clamp(min=-0.5, max=0.7), X),
    "clamp_min": (lambda x: x.clamp_min(0.1), X),
    "clamp_max": (lambda x: x.clamp_max(0.1), X),
    "equal": (lambda x, y: x.equal(y), X, X),
    "sgn": (lambda x: x.sgn(), X),
    "bitwise_left_shift": (lambda x, y: x.bitwise_left_shift(y), I, I),
    "fix": (lambda x: x.fix(), X * 3),
    "bitwise_right_shift": (lambda x, y: x.bitwise_right_shift(y), J, I),
    "nan_to_num": (lambda x: x.nan_to_num(1, 2, 3), HOLES),
    **{
        name: (lambda x, name=name: getattr(x, name)(), U)
        for name in (
            "absolute",
            "arccos",
            "arcsin",
            "arcsinh",
            "arctan",
            "arctanh",
            "negative",
            "positive",
            "signbit",
            "isreal",
        )
    },
    **{
        name: (lambda x, y, name=name: getattr(x, name)(y), X, X * (Y > 0))
        for name in ("greater", "greater_equal", "less", "less_equal", "not_equal")
    },
    "arccosh": (lambda x: x.arccosh(), P + 1),
    "hardshrink": (lambda x: x.hardshrink(0.3), X),
    "prelu": (lambda x, w: x.prelu(w), X, random(4)),
    "dim": (lambda x: (x.dim(), x.ndimension(), x.nelement(), x.itemsize), X),
    "is": (lambda x: (x.is_signed(), x.is_complex(), x.is_cuda, x.is_cpu, x.is_same_size(x)), X),
    "new": (lambda x: (x.new_zeros(2, 3), x.new_ones((2,)), x.new_full((2,), 3.0), x.new_tensor([1, 2])), X),
    "to": (lambda x: (x.to(x), x.cpu(), x.type_as(x), x.char(), x.byte()), np.arange(5)),
    "cholesky": (lambda x: (x @ x.mT).cholesky(), random(3, 4, 6)),
    "det": (lambda x: x.det(), random(2, 4, 4)),
    "inverse": (lambda x: x.inverse(), random(2, 4, 4)),
    "slogdet": (lambda x: x.slogdet(), random(2, 4, 4)),
    "logdet": (lambda x: (x @ x.mT).logdet(), random(3, 4)),
    "pinverse": (lambda x: x.pinverse(), random(2, 5, 3)),
    "matrix_power": (lambda x: (x.matrix_power(0), x.matrix_power(5), x.matrix_power(-2)), random(2, 3, 3)),
    "matrix_exp": (lambda x: x.matrix_exp(), random(2, 3, 3)),
    "cholesky_inverse": (lambda x: (x.tril() + x.tril().sign()).cholesky_inverse(), random(4, 4)),
    "cholesky_solve": (lambda b, x: b.cholesky_solve(x.tril() + x.tril().sign()), random(4, 2), random(4, 4)),
    "triangular_solve": (
        lambda b, x: b.triangular_solve(x.triu() + x.triu().sign(), transpose=True)[0],
        random(4, 2),
        random(4, 4),
    ),
    "svd values": (lambda x: x.svd()[1], random(2, 5, 3)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_methods(name: str) -> None:
    f, *arrays = PLAIN[name]
    same(f, f, *arrays, gradients=name not in NO_GRADIENTS_THERE)


NO_GRADIENTS_THERE = ("narrow_copy", "floor_divide", "heaviside", "bincount weights", "sgn", "quantile nan")
L = torch.linalg
PAIRS: dict[str, tuple[Any, ...]] = {  # a function there, a method here
    "hstack": (lambda x, y: x.hstack(y), lambda x, y: torch.hstack([x, y]), X, Y),
    "vstack": (lambda x, y: Tensor.vstack([x, y]), lambda x, y: torch.vstack([x, y]), V, W),
    "dstack": (lambda x, y: x.dstack(y), lambda x, y: torch.dstack([x, y]), M, M),
    "row_stack": (lambda x, y: x.row_stack(y), lambda x, y: torch.vstack([x, y]), V, W),
    "column_stack": (lambda x, y: x.column_stack(y), lambda x, y: torch.column_stack([x, y]), V, random(6, 2)),
    "concat": (lambda x, y: Tensor.concat([x, y], dim=1), lambda x, y: torch.concat([x, y], dim=1), X, Y),
    "block_diag": (lambda x, y: x.block_diag(y), torch.block_diag, M, N),
    "cartesian_prod": (lambda x, y: x.cartesian_prod(y), torch.cartesian_prod, V, W),
    "broadcast_tensors": (lambda x, y: x.broadcast_tensors(y), torch.broadcast_tensors, X, random(4, 1)),
    **{
        f"atleast_{n}d": (lambda x, n=n: getattr(x, f"atleast_{n}d")(), getattr(torch, f"atleast_{n}d"), V)
        for n in (1, 2, 3)
    },
    "tril_indices": (lambda: Tensor.tril_indices(3, 4, 1), lambda: torch.tril_indices(3, 4, 1)),
    "triu_indices": (lambda: Tensor.triu_indices(3, 4, -1), lambda: torch.triu_indices(3, 4, -1)),
    "tensordot": (
        lambda x, y: x.tensordot(y, ([1, 2], [0, 1])),
        lambda x, y: torch.tensordot(x, y, ([1, 2], [0, 1])),
        X,
        random(4, 5, 2),
    ),
    "tensordot 1": (lambda x, y: x.tensordot(y, 1), lambda x, y: torch.tensordot(x, y, 1), X, N),
    "chain_matmul": (lambda x, y, z: x.chain_matmul(y, z), lambda x, y, z: x @ y @ z, M, N, random(3, 2)),
    "vecdot": (lambda x, y: x.vecdot(y), L.vecdot, X, Y),
    "vander": (lambda x: x.vander(4), lambda x: torch.stack([x**3, x**2, x, x**0], 1), V),
    "trapezoid": (lambda x: x.trapezoid(dx=0.5, dim=1), lambda x: torch.trapezoid(x, dx=0.5, dim=1), X),
    "trapz": (lambda x, y: x.trapz(y), torch.trapz, X, random(5)),
    "rsub": (lambda x, y: x.rsub(y), torch.rsub, X, Y),
    "searchsorted": (lambda x, y: x.searchsorted(y), torch.searchsorted, np.sort(M), M),
    "searchsorted right": (
        lambda x, y: x.searchsorted(y, right=True),
        lambda x, y: torch.searchsorted(x, y, right=True),
        np.sort(V),
        np.append(V, 9).astype(np.float32),
    ),
    "bucketize": (lambda x, y: x.bucketize(y), torch.bucketize, X, np.sort(V)),
    "isin": (lambda x, y: x.isin(y), torch.isin, I, PLACES),
    "cdist": (lambda x, y: x.cdist(y), torch.cdist, M, random(3, 5, seed=4)),
    "cosine_similarity": (lambda x, y: x.cosine_similarity(y), F.cosine_similarity, X, Y),
    "pairwise_distance": (
        lambda x, y: x.pairwise_distance(y, 1),
        lambda x, y: F.pairwise_distance(x, y, 1),
        M,
        random(4, 5, seed=4),
    ),
    "glu": (lambda x: x.glu(1), lambda x: F.glu(x, 1), X),
    "threshold": (lambda x: x.threshold(0.1, 2), lambda x: F.threshold(x, 0.1, 2), X),
    "softshrink": (lambda x: x.softshrink(0.3), lambda x: F.softshrink(x, 0.3), X),
    "pixel_shuffle": (lambda x: x.pixel_shuffle(2), lambda x: F.pixel_shuffle(x, 2), random(2, 8, 3, 4)),
    "pixel_unshuffle": (lambda x: x.pixel_unshuffle(2), lambda x: F.pixel_unshuffle(x, 2), random(2, 3, 4, 6)),
    "channel_shuffle": (lambda x: x.channel_shuffle(2), lambda x: F.channel_shuffle(x, 2), random(2, 6, 3, 4)),
    **{
        f"{name} {r}": (
            lambda x, y, n=name, r=r: getattr(x, n)(y, reduction=r),
            lambda x, y, n=name, r=r: getattr(F, n)(x, y, reduction=r),
            a,
            b,
        )
        for r in ("mean", "sum", "none")
        for name, a, b in (
            ("kl_div", X, P),
            ("poisson_nll_loss", X, P),
            ("hinge_embedding_loss", X, np.sign(Y)),
            ("binary_cross_entropy_with_logits", X, np.clip(P, 0, 1)),
            ("binary_cross_entropy", np.clip(P, 0.1, 0.9), np.clip(P, 0, 1)),
        )
    },
    "soft_margin_loss": (
        lambda x: x.soft_margin_loss(Tensor(np.sign(Y))),
        lambda x: F.soft_margin_loss(x, torch.tensor(np.sign(Y))),
        X,
    ),
    "kl_div log": (
        lambda x, y: x.kl_div(y, "batchmean", True),
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
        X,
        Y,
    ),
    "poisson full": (
        lambda x, y: x.poisson_nll_loss(y, False, True),
        lambda x, y: F.poisson_nll_loss(x, y, False, True),
        P,
        P * 3,
    ),
    "gaussian_nll_loss": (
        lambda x, y, v: x.gaussian_nll_loss(y, v, True),
        lambda x, y, v: F.gaussian_nll_loss(x, y, v, True),
        X,
        Y,
        P,
    ),
    "margin_ranking_loss": (
        lambda x, y, t: x.margin_ranking_loss(y, t, 0.3),
        lambda x, y, t: F.margin_ranking_loss(x, y, t, 0.3),
        X,
        Y,
        np.sign(P - 1),
    ),
    "cosine_embedding_loss": (
        lambda x, y, t: x.cosine_embedding_loss(y, t),
        F.cosine_embedding_loss,
        M,
        random(4, 5, seed=7),
        np.sign(V[:4]),
    ),
    "triplet_margin_loss": (
        lambda x, y, z: x.triplet_margin_loss(y, z, swap=True),
        lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=True),
        M,
        random(4, 5, seed=7),
        random(4, 5, seed=8),
    ),
    "solve": (lambda x, y: x.solve(y), L.solve, random(2, 4, 4), random(2, 4, 3)),
    "solve vector": (lambda x, y: x.solve(y), L.solve, random(4, 4), random(4)),
    "solve right": (
        lambda x, y: x.solve(y, left=False),
        lambda x, y: L.solve(x, y, left=False),
        random(4, 4),
        random(2, 4),
    ),
    "solve_triangular": (
        lambda x, y: x.solve_triangular(y, upper=False, left=False),
        lambda x, y: L.solve_triangular(x, y, upper=False, left=False),
        np.tril(random(4, 4)) + 3 * np.eye(4, dtype=np.float32),
        random(2, 4),
    ),
    "lstsq": (lambda x, y: x.lstsq(y).solution, lambda x, y: L.lstsq(x, y).solution, random(2, 5, 3), random(2, 5, 2)),
    "lstsq wide": (lambda x, y: x.lstsq(y).solution, lambda x, y: L.pinv(x) @ y, random(3, 5), random(3, 2)),
    "matrix_rank": (lambda x: x.matrix_rank(), L.matrix_rank, np.outer(V, W)),
    "cond": (lambda x: x.cond(), L.cond, random(4, 3)),
    "eigvalsh": (lambda x: x.eigvalsh(), L.eigvalsh, random(2, 4, 4) + random(2, 4, 4).transpose(0, 2, 1)),
    "eigh upper": (
        lambda x: (lambda v: v[1] * v[0].unsqueeze(-2) @ v[1].mT)(x.eigh("U")),
        lambda x: (lambda v: v[1] * v[0].unsqueeze(-2) @ v[1].mT)(L.eigh(x, "U")),
        random(4, 4),
    ),
    "eigh vectors": (lambda x: x.eigh()[1].square(), lambda x: L.eigh(x)[1].square(), random(4, 4)),
    "svd vectors": (
        lambda x: (x.svd(False)[0].square(), x.svd(False)[2].square()),
        lambda x: (L.svd(x, False)[0].square(), L.svd(x, False)[2].square()),
        random(5, 3),
    ),
    "qr projection": (
        lambda x: (lambda q: q @ q.mT)(x.qr()[0]),
        lambda x: (lambda q: q @ q.mT)(L.qr(x)[0]),
        random(5, 3),
    ),
    "qr square": (lambda x: x.qr()[1].abs(), lambda x: L.qr(x)[1].abs(), random(4, 4)),
    "qr wide": (lambda x: x.qr()[1].abs(), lambda x: L.qr(x)[1].abs(), random(3, 4)),
    "svdvals": (lambda x: x.svdvals(), L.svdvals, random(3, 5)),
    "lu": (lambda x: x.lu(), L.lu, random(2, 4, 4)),
    "cholesky upper": (
        lambda x: (x @ x.mT).cholesky(upper=True),
        lambda x: L.cholesky(x @ x.mT, upper=True),
        random(3, 5),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_functions(name: str) -> None:
    ours, theirs, *arrays = PAIRS[name]
    same(ours, theirs, *arrays, rtol=1e-3 if name.startswith(("cond", "svd", "eigh", "lstsq")) else 1e-4)
