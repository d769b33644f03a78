"""The table of tensor methods: one row per method has the facts that tests, error messages and backends ask for.

``FUNCTIONS`` has the functions of one float argument, ``ELEMENTWISE`` all other methods that compute each element from
one or two operands (arithmetic, rounding, activations, comparisons, bits), ``REDUCTIONS`` those that combine the
elements along axes. A method has its formula and documentation in its class; its gradient follows from the formula, or
is given to ``with_slopes``. From the rows come:

- the tests: values in every dtype, special values, zeros, empty shapes, gradients and devices against the reference
  (``tests/tensor``); values and gradients against PyTorch (``tests/parity``);
- the rules of the backend of ``torch.compile`` (``torch/rules``), and the operators of ONNX (``nn/onnx``);
- the errors for names of PyTorch that are in ``MISSING``.

CONTRIBUTING.md adds a function step by step.
"""
from __future__ import annotations

from typing import Any, Final, NamedTuple


class FunctionRow(NamedTuple):
    """One unary function.

    Attributes:
        reference: NumPy's or SciPy's functions that give the values, applied from left to right.
        low, high: tests draw arguments between them; the function is smooth there.
        torch: PyTorch's function below ``torch``, where it is not the method's name.
        onnx: ONNX's operator.
        zero: near 0 the function is proportional to its argument: relative accuracy there, and -0 gives -0.
        edges: special values (infinities, NaN, zeros, ends of the domain) give what the reference gives.
        error: relative error beside float32's rounding, in units of 1e-6, for arguments between ``low`` and ``high``.
    """

    reference: str
    low: float
    high: float
    torch: str = ""
    onnx: str = ""
    zero: bool = False
    edges: bool = True
    error: float = 9


FUNCTIONS: Final = {
    "reciprocal": FunctionRow("numpy.reciprocal", 0.2, 9, onnx="Reciprocal"),
    "sqrt": FunctionRow("numpy.sqrt", 0.1, 9, onnx="Sqrt"),
    "rsqrt": FunctionRow("numpy.sqrt numpy.reciprocal", 0.1, 9),
    "exp": FunctionRow("numpy.exp", -4, 4, onnx="Exp"),
    "exp2": FunctionRow("numpy.exp2", -4, 4),
    "expm1": FunctionRow("numpy.expm1", -4, 4, zero=True),
    "log": FunctionRow("numpy.log", 0.01, 9, onnx="Log"),
    "log2": FunctionRow("numpy.log2", 0.01, 9),
    "log10": FunctionRow("numpy.log10", 0.01, 9),
    "log1p": FunctionRow("numpy.log1p", -0.9, 9, zero=True),
    "sin": FunctionRow("numpy.sin", -9, 9, onnx="Sin", zero=True),
    "cos": FunctionRow("numpy.cos", -9, 9, onnx="Cos"),
    "tan": FunctionRow("numpy.tan", -1.4, 1.4, onnx="Tan", zero=True),
    "asin": FunctionRow("numpy.arcsin", -0.99, 0.99, onnx="Asin", zero=True),
    "acos": FunctionRow("numpy.arccos", -0.99, 0.99, onnx="Acos"),
    "atan": FunctionRow("numpy.arctan", -9, 9, onnx="Atan", zero=True),
    "sinh": FunctionRow("numpy.sinh", -4, 4, onnx="Sinh", zero=True),
    "cosh": FunctionRow("numpy.cosh", -4, 4, onnx="Cosh"),
    "tanh": FunctionRow("numpy.tanh", -4, 4, onnx="Tanh", zero=True),
    "asinh": FunctionRow("numpy.arcsinh", -9, 9, onnx="Asinh", zero=True),
    "acosh": FunctionRow("numpy.arccosh", 1.1, 9, onnx="Acosh"),
    "atanh": FunctionRow("numpy.arctanh", -0.99, 0.99, onnx="Atanh", zero=True),
    "sigmoid": FunctionRow("scipy.special.expit", -9, 9, onnx="Sigmoid"),
    "erf": FunctionRow("scipy.special.erf", -3, 3, onnx="Erf", zero=True),
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


class ElementwiseRow(NamedTuple):
    """One method that computes each element from the elements of one or two operands.

    Attributes:
        operands: their number, 1 or 2.
        takes: the kinds of dtypes: "b" bools, "i" integers, "f" floats.
        reference: NumPy's or SciPy's function; "" where they have none.
        torch: PyTorch's function below ``torch``, where it is not the method's name.
        aten: the overloads of PyTorch whose rule in the backend of ``torch.compile`` is the method itself.
        promote: the conversion of these rules' arguments (``torch/rules/registry.py``).
        onnx: ONNX's operators.
        gives: "same" as the operands' dtype, or "bool".
        low, high: tests draw floats between them; the gradient is tested there, kinks apart.
        edges: special values (infinities, NaN, zeros) give what the references give.
        exact: the result is the reference's, rounded once.
        gradient: it has one.
        torch_nan: PyTorch gives NaN for NaN, as NumPy and the method do.
    """

    operands: int
    takes: str
    reference: str = ""
    torch: str = ""
    aten: str = ""
    promote: str = "result"
    onnx: str = ""
    gives: str = "same"
    low: float = -9
    high: float = 9
    edges: bool = True
    exact: bool = True
    gradient: bool = True
    torch_nan: bool = True


def _activation(torch: str, **facts: Any) -> ElementwiseRow:
    return ElementwiseRow(1, "f", torch=f"nn.functional.{torch}", **facts)


def _comparison(reference: str, name: str, onnx: str = "") -> ElementwiseRow:
    return ElementwiseRow(2, "if", reference, "", f"{name}.Tensor {name}.Scalar", "common", onnx, "bool")


def _bits(name: str, scalar: str, onnx: str = "", operator: str = "") -> ElementwiseRow:
    names = f"{name}.Tensor {name}.{scalar}" + (f" {operator}.Tensor {operator}.Scalar" if operator else "")
    return ElementwiseRow(2, "i", "" if "shift" in name else f"numpy.{name}", "", names, onnx=onnx)


ELEMENTWISE: Final = {
    "neg": ElementwiseRow(1, "if", "numpy.negative", aten="neg", onnx="Neg"),
    "abs": ElementwiseRow(1, "if", "numpy.abs", aten="abs", onnx="Abs"),
    "square": ElementwiseRow(1, "if", "numpy.square", aten="square"),
    "sign": ElementwiseRow(1, "if", "numpy.sign", aten="sign sgn", onnx="Sign", torch_nan=False),
    "floor": ElementwiseRow(1, "if", "numpy.floor", aten="floor", onnx="Floor"),
    "ceil": ElementwiseRow(1, "if", "numpy.ceil", aten="ceil", onnx="Ceil"),
    "trunc": ElementwiseRow(1, "if", "numpy.trunc", aten="trunc"),
    "round": ElementwiseRow(1, "if", "numpy.round", onnx="Round"),
    "frac": ElementwiseRow(1, "f", aten="frac", edges=False),
    "deg2rad": ElementwiseRow(1, "f", "numpy.deg2rad", aten="deg2rad", exact=False),
    "rad2deg": ElementwiseRow(1, "f", "numpy.rad2deg", aten="rad2deg", exact=False),
    "isnan": ElementwiseRow(1, "if", "numpy.isnan", aten="isnan", promote="", onnx="IsNaN", gives="bool"),
    "isinf": ElementwiseRow(1, "if", "numpy.isinf", aten="isinf", promote="", gives="bool"),
    "isfinite": ElementwiseRow(1, "if", "numpy.isfinite", aten="isfinite", promote="", gives="bool"),
    "isposinf": ElementwiseRow(1, "f", "numpy.isposinf", aten="isposinf", promote="", gives="bool"),
    "isneginf": ElementwiseRow(1, "f", "numpy.isneginf", aten="isneginf", promote="", gives="bool"),
    "signbit": ElementwiseRow(1, "f", "numpy.signbit", aten="signbit", promote="", gives="bool"),
    "logical_not": ElementwiseRow(1, "if", "numpy.logical_not", aten="logical_not", promote="", onnx="Not",
                                  gives="bool"),
    "bitwise_not": ElementwiseRow(1, "i", "numpy.bitwise_not", onnx="BitwiseNot"),
    "relu": _activation("relu", aten="relu", onnx="Relu"),
    "relu6": _activation("relu6", aten="relu6"),
    "silu": _activation("silu", aten="silu", edges=False),
    "mish": _activation("mish", aten="mish", onnx="Mish", edges=False),
    "hardswish": _activation("hardswish", aten="hardswish", onnx="HardSwish", edges=False),
    "hardsigmoid": _activation("hardsigmoid", aten="hardsigmoid"),
    "hardtanh": _activation("hardtanh"),
    "leaky_relu": _activation("leaky_relu"),
    "elu": _activation("elu", edges=False),
    "celu": _activation("celu", edges=False),
    "selu": _activation("selu", edges=False),
    "gelu": _activation("gelu", edges=False),
    "softplus": _activation("softplus", onnx="Softplus"),
    "softsign": _activation("softsign", onnx="Softsign", edges=False),
    "tanhshrink": _activation("tanhshrink", edges=False),
    "logsigmoid": _activation("logsigmoid"),
    "hardshrink": _activation("hardshrink"),
    "softshrink": _activation("softshrink"),
    "add": ElementwiseRow(2, "if", "numpy.add"),
    "sub": ElementwiseRow(2, "if", "numpy.subtract"),
    "mul": ElementwiseRow(2, "if", "numpy.multiply"),
    "div": ElementwiseRow(2, "f", "numpy.divide", low=0.2),
    "fmod": ElementwiseRow(2, "f", "numpy.fmod", aten="fmod.Tensor fmod.Scalar", low=0.2),
    "remainder": ElementwiseRow(2, "f", "numpy.remainder", aten="remainder.Tensor remainder.Scalar", low=0.2,
                                edges=False),
    "maximum": ElementwiseRow(2, "if", "numpy.maximum", aten="maximum"),
    "minimum": ElementwiseRow(2, "if", "numpy.minimum", aten="minimum"),
    "fmax": ElementwiseRow(2, "f", "numpy.fmax", aten="fmax"),
    "fmin": ElementwiseRow(2, "f", "numpy.fmin", aten="fmin"),
    "copysign": ElementwiseRow(2, "f", "numpy.copysign", aten="copysign.Tensor copysign.Scalar"),
    "heaviside": ElementwiseRow(2, "f", "numpy.heaviside", aten="heaviside", gradient=False, torch_nan=False),
    "atan2": ElementwiseRow(2, "f", "numpy.arctan2", aten="atan2", exact=False),
    "hypot": ElementwiseRow(2, "f", "numpy.hypot", aten="hypot", exact=False),
    "logaddexp": ElementwiseRow(2, "f", "numpy.logaddexp", aten="logaddexp", exact=False),
    "logaddexp2": ElementwiseRow(2, "f", "numpy.logaddexp2", aten="logaddexp2", exact=False),
    "xlogy": ElementwiseRow(2, "f", "scipy.special.xlogy", aten="xlogy.Tensor", low=0.2, exact=False),
    "gcd": ElementwiseRow(2, "i", "numpy.gcd", aten="gcd", edges=False),
    "lcm": ElementwiseRow(2, "i", "numpy.lcm", aten="lcm", edges=False),
    "eq": _comparison("numpy.equal", "eq"),
    "ne": _comparison("numpy.not_equal", "ne"),
    "lt": _comparison("numpy.less", "lt", "Less"),
    "le": _comparison("numpy.less_equal", "le", "LessOrEqual"),
    "gt": _comparison("numpy.greater", "gt", "Greater"),
    "ge": _comparison("numpy.greater_equal", "ge", "GreaterOrEqual"),
    "bitwise_and": _bits("bitwise_and", "Scalar", "BitwiseAnd And", "__and__"),
    "bitwise_or": _bits("bitwise_or", "Scalar", "BitwiseOr Or", "__or__"),
    "bitwise_xor": _bits("bitwise_xor", "Scalar", "BitwiseXor Xor", "__xor__"),
    "bitwise_left_shift": _bits("bitwise_left_shift", "Tensor_Scalar"),
    "bitwise_right_shift": _bits("bitwise_right_shift", "Tensor_Scalar"),
}


class ReductionRow(NamedTuple):
    """One method that combines the elements along axes: ``method(axis, keepdim)``.

    Attributes:
        takes: the kinds of dtypes: "b" bools, "i" integers, "f" floats.
        reference: NumPy's or SciPy's function.
        torch: PyTorch's function below ``torch``, where it is not the method's name.
        aten: the overloads whose rule in the backend of ``torch.compile`` is the method.
        onnx: ONNX's operator.
        empty: ONNX's result of no elements: "least" or "greatest" of the dtype, or "-inf"; "" if it is the method's.
        gives: "same" as the operand's dtype, "sum" (integers of at least 32 bits), "float", or "bool".
    """

    takes: str
    reference: str
    torch: str = ""
    aten: str = ""
    onnx: str = ""
    empty: str = ""
    gives: str = "same"


REDUCTIONS: Final = {
    "sum": ReductionRow("bif", "numpy.sum", aten="sum sum.dim_IntList", onnx="ReduceSum", gives="sum"),
    "prod": ReductionRow("bif", "numpy.prod", aten="prod prod.dim_int", onnx="ReduceProd", gives="sum"),
    "mean": ReductionRow("bif", "numpy.mean", aten="mean mean.dim", onnx="ReduceMean", gives="float"),
    "max": ReductionRow("bif", "numpy.max", "amax", "amax max", "ReduceMax", "least"),
    "min": ReductionRow("bif", "numpy.min", "amin", "amin min", "ReduceMin", "greatest"),
    "any": ReductionRow("bif", "numpy.any", gives="bool"),
    "all": ReductionRow("bif", "numpy.all", gives="bool"),
    "logsumexp": ReductionRow("f", "scipy.special.logsumexp", onnx="ReduceLogSumExp", empty="-inf"),
}


def onnx_methods() -> dict[str, str]:
    """Return the names of the elementwise methods by ONNX's names.

    >>> onnx_methods()["BitwiseNot"]
    'bitwise_not'
    """
    return {**{row.onnx: name for name, row in FUNCTIONS.items() if row.onnx},
            **{operator: name for name, row in ELEMENTWISE.items() for operator in row.onnx.split()}}


# Functions of torch.special that are not here; the error says what is.
MISSING: Final = (
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "gammainc", "gammaincc", "ndtri", "zeta",
    "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1",
    "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p")
