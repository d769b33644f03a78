"""Special functions with PyTorch's names: ``tinsmith.special.erfcx(x)`` is ``torch.special.erfcx(x)``.

Each is elementwise and differentiable, and takes integers as the default float dtype.

>>> from tinsmith import special
>>> special.expit(Tensor([0.0])).tolist()
[0.5]
"""
from __future__ import annotations

import sys

from tinsmith.core.dtypes import DTypeLike
from tinsmith.core.suggestions import guide
from tinsmith.tensor.math.table import MISSING
from tinsmith.tensor.tensor import Tensor

ABSENT = dict.fromkeys(MISSING, "scipy.special on x.numpy()")

__all__ = ["digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammaln", "i0", "i0e", "i1",
           "i1e", "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "polygamma", "psi",
           "round", "sinc", "softmax", "xlog1py", "xlogy"]


def digamma(input: Tensor) -> Tensor:
    """Return the derivative of ``gammaln``.

    >>> digamma(Tensor([1.0])).numpy().round(4).tolist()
    [-0.5771999955177307]
    """
    return input.digamma()


def psi(input: Tensor) -> Tensor:
    """Return the same as ``digamma``.

    >>> psi(Tensor([1.0])).numpy().round(4).tolist()
    [-0.5771999955177307]
    """
    return input.digamma()


def entr(input: Tensor) -> Tensor:
    """Return ``-x * log(x)``: 0 at 0, minus infinity for negative x.

    >>> entr(Tensor([0.0, 2.0])).numpy().round(4).tolist()
    [0.0, -1.386299967765808]
    """
    return input.entr()


def erf(input: Tensor) -> Tensor:
    """Return the error function.

    >>> erf(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.0, 0.8427000045776367]
    """
    return input.erf()


def erfc(input: Tensor) -> Tensor:
    """Return ``1 - erf(x)``, accurate where the result is small.

    >>> erfc(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [1.0, 0.15729999542236328]
    """
    return input.erfc()


def erfcx(input: Tensor) -> Tensor:
    """Return ``exp(x²) * erfc(x)``, which neither overflows nor underflows for positive x.

    >>> erfcx(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [1.0, 0.4275999963283539]
    """
    return input.erfcx()


def erfinv(input: Tensor) -> Tensor:
    """Return the inverse of ``erf``.

    >>> erfinv(Tensor([0.0, 0.5])).numpy().round(4).tolist()
    [0.0, 0.47690001130104065]
    """
    return input.erfinv()


def exp2(input: Tensor) -> Tensor:
    """Return 2 raised to the value.

    >>> exp2(Tensor([0.0, 3.0])).numpy().round(4).tolist()
    [1.0, 8.0]
    """
    return input.exp2()


def expm1(input: Tensor) -> Tensor:
    """Return ``exp(x) - 1``, accurate near 0.

    >>> expm1(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.0, 1.7182999849319458]
    """
    return input.expm1()


def expit(input: Tensor) -> Tensor:
    """Return the logistic sigmoid, ``1 / (1 + exp(-x))``.

    >>> expit(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.5, 0.7311000227928162]
    """
    return input.sigmoid()


def log1p(input: Tensor) -> Tensor:
    """Return ``log(1 + x)``, accurate near 0.

    >>> log1p(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.0, 0.6930999755859375]
    """
    return input.log1p()


def gammaln(input: Tensor) -> Tensor:
    """Return the logarithm of the magnitude of the gamma function.

    >>> gammaln(Tensor([1.0, 5.0])).numpy().round(4).tolist()
    [0.0, 3.178100109100342]
    """
    return input.lgamma()


def i0(input: Tensor) -> Tensor:
    """Return the modified Bessel function of the first kind, of order 0.

    >>> i0(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [1.0, 1.2661000490188599]
    """
    return input.i0()


def i0e(input: Tensor) -> Tensor:
    """Return ``i0(x) * exp(-abs(x))``, without overflow.

    >>> i0e(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [1.0, 0.4657999873161316]
    """
    return input.i0e()


def i1(input: Tensor) -> Tensor:
    """Return the modified Bessel function of the first kind, of order 1.

    >>> i1(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.0, 0.5651999711990356]
    """
    return input.i1()


def i1e(input: Tensor) -> Tensor:
    """Return ``i1(x) * exp(-abs(x))``, without overflow.

    >>> i1e(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.0, 0.2079000025987625]
    """
    return input.i1e()


def ndtr(input: Tensor) -> Tensor:
    """Return the standard normal cumulative distribution function.

    >>> ndtr(Tensor([0.0, 1.0])).numpy().round(4).tolist()
    [0.5, 0.8413000106811523]
    """
    return input.ndtr()


def log_ndtr(input: Tensor) -> Tensor:
    """Return ``log(ndtr(x))``, accurate where ``ndtr(x)`` underflows.

    >>> log_ndtr(Tensor([0.0, -40.0])).numpy().round(4).tolist()
    [-0.6930999755859375, -804.6083984375]
    """
    return input.log_ndtr()


def sinc(input: Tensor) -> Tensor:
    """Return ``sin(pi x) / (pi x)``; 1 at 0.

    >>> sinc(Tensor([0.0, 0.5])).numpy().round(4).tolist()
    [1.0, 0.6366000175476074]
    """
    return input.sinc()


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """Return ``log(x / (1 - x))``; with ``eps``, x is first clamped to ``[eps, 1 - eps]``.

    >>> logit(Tensor([0.5, 0.75])).numpy().round(4).tolist()
    [0.0, 1.0986000299453735]
    """
    return input.logit(eps)


def multigammaln(input: Tensor, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function of dimension ``p``.

    >>> multigammaln(Tensor([3.0]), 2).numpy().round(4).tolist()
    [1.5501999855041504]
    """
    return input.mvlgamma(p)


def polygamma(n: int, input: Tensor) -> Tensor:
    """Return the ``n``-th derivative of ``digamma``.

    >>> polygamma(1, Tensor([1.0])).numpy().round(4).tolist()
    [1.6448999643325806]
    """
    return input.polygamma(n)


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Return the values rounded to ``decimals`` digits; halves to even.

    >>> round(Tensor([0.5, 1.5, 2.25])).tolist()
    [0.0, 2.0, 2.0]
    """
    return input.round(decimals)


def xlogy(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Return ``input * log(other)``; 0 where ``input`` is 0 and ``other`` is not NaN.

    >>> xlogy(Tensor([0.0, 2.0]), Tensor([0.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    return _tensor(input, other).xlogy(other)


def xlog1py(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Return ``input * log1p(other)``; 0 where ``input`` is 0 and ``other`` is not NaN.

    >>> xlog1py(Tensor([0.0, 2.0]), Tensor([-1.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    return _tensor(input, other).xlog1py(other)


def logsumexp(input: Tensor, dim: int | tuple[int, ...], keepdim: bool = False) -> Tensor:
    """Return ``log(sum(exp(x)))`` along axes, without overflow.

    >>> logsumexp(Tensor([[0.0, 0.0]]), 1).numpy().round(4).tolist()
    [0.6930999755859375]
    """
    return input.logsumexp(dim, keepdim)


def softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Return ``exp(x)`` divided by its sum along ``dim``.

    >>> softmax(Tensor([[0.0, 0.0]]), 1).tolist()
    [[0.5, 0.5]]
    """
    return input.softmax(dim, dtype)


def log_softmax(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Return the logarithm of ``softmax``, accurate where that underflows.

    >>> log_softmax(Tensor([[0.0, 0.0]]), 1).numpy().round(4).tolist()
    [[-0.6930999755859375, -0.6930999755859375]]
    """
    return input.log_softmax(dim, dtype)


def _tensor(first: Tensor | float, second: Tensor | float) -> Tensor:
    """Return the first operand as a tensor; of a number, one on the second operand's device."""
    if isinstance(first, Tensor):
        return first
    return second._new(second.uop.const_like(first)) if isinstance(second, Tensor) else Tensor(first)


guide(sys.modules[__name__])
