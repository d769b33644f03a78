"""The unary functions of floats: one row per function has the facts that tests, error messages and backends ask for.

A function is a method of ``functions.py`` (formula, documentation; the gradient follows from the formula, or is given
to ``with_slopes``) and a row of ``FUNCTIONS``. From the rows come:

- the tests: values in every float dtype, special values, zeros, integers, empty shapes, gradients and devices against
  the reference (``tests/tensor``); values and gradients against PyTorch (``tests/parity``);
- the rules of the backend of ``torch.compile`` (``torch/rules/elementwise.py``);
- the errors for names of PyTorch that are in ``MISSING``.

CONTRIBUTING.md adds a function step by step.
"""
from __future__ import annotations

from typing import Final, NamedTuple


class FunctionRow(NamedTuple):
    """One unary function.

    Attributes:
        reference: NumPy's or SciPy's functions that give the values, applied from left to right.
        low, high: tests draw arguments between them; the function is smooth there.
        torch: PyTorch's function below ``torch``, where it is not the method's name.
        zero: near 0 the function is proportional to its argument: relative accuracy there, and -0 gives -0.
        edges: special values (infinities, NaN, zeros, ends of the domain) give what the reference gives.
        error: relative error beside float32's rounding, in units of 1e-6, for arguments between ``low`` and ``high``.
    """

    reference: str
    low: float
    high: float
    torch: str = ""
    zero: bool = False
    edges: bool = True
    error: float = 9


FUNCTIONS: Final = {
    "reciprocal": FunctionRow("numpy.reciprocal", 0.2, 9),
    "sqrt": FunctionRow("numpy.sqrt", 0.1, 9),
    "rsqrt": FunctionRow("numpy.sqrt numpy.reciprocal", 0.1, 9),
    "exp": FunctionRow("numpy.exp", -4, 4),
    "exp2": FunctionRow("numpy.exp2", -4, 4),
    "expm1": FunctionRow("numpy.expm1", -4, 4, zero=True),
    "log": FunctionRow("numpy.log", 0.01, 9),
    "log2": FunctionRow("numpy.log2", 0.01, 9),
    "log10": FunctionRow("numpy.log10", 0.01, 9),
    "log1p": FunctionRow("numpy.log1p", -0.9, 9, zero=True),
    "sin": FunctionRow("numpy.sin", -9, 9, zero=True),
    "cos": FunctionRow("numpy.cos", -9, 9),
    "tan": FunctionRow("numpy.tan", -1.4, 1.4, zero=True),
    "asin": FunctionRow("numpy.arcsin", -0.99, 0.99, zero=True),
    "acos": FunctionRow("numpy.arccos", -0.99, 0.99),
    "atan": FunctionRow("numpy.arctan", -9, 9, zero=True),
    "sinh": FunctionRow("numpy.sinh", -4, 4, zero=True),
    "cosh": FunctionRow("numpy.cosh", -4, 4),
    "tanh": FunctionRow("numpy.tanh", -4, 4, zero=True),
    "asinh": FunctionRow("numpy.arcsinh", -9, 9, zero=True),
    "acosh": FunctionRow("numpy.arccosh", 1.1, 9),
    "atanh": FunctionRow("numpy.arctanh", -0.99, 0.99, zero=True),
    "sigmoid": FunctionRow("scipy.special.expit", -9, 9),
    "erf": FunctionRow("scipy.special.erf", -3, 3, zero=True),
    "erfc": FunctionRow("scipy.special.erfc", -3, 3),
    "erfcx": FunctionRow("scipy.special.erfcx", -3, 9, "special.erfcx"),
    "erfinv": FunctionRow("scipy.special.erfinv", -0.99, 0.99, zero=True),
    "sinc": FunctionRow("numpy.sinc", -4, 4, edges=False),
    "lgamma": FunctionRow("scipy.special.gammaln", 2.5, 40, edges=False),
    "digamma": FunctionRow("scipy.special.psi", 2, 40, edges=False),
    "i0": FunctionRow("scipy.special.i0", -4, 4, edges=False),
    "i0e": FunctionRow("scipy.special.i0e", -60, 60, "special.i0e"),
    "i1": FunctionRow("scipy.special.i1", -4, 4, "special.i1", edges=False),
    "i1e": FunctionRow("scipy.special.i1e", -60, 60, "special.i1e"),
    "ndtr": FunctionRow("scipy.special.ndtr", -3, 3, "special.ndtr"),
    "log_ndtr": FunctionRow("scipy.special.log_ndtr", -60, 3, "special.log_ndtr"),
    "entr": FunctionRow("scipy.special.entr", 0.1, 50, "special.entr"),
}
# Functions of torch.special that are not here; the error says what is.
MISSING: Final = (
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "gammainc", "gammaincc", "ndtri", "zeta",
    "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p")
