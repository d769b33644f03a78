"""The Tensor: state and data movement from ``base``, and one class of methods per family."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from tinsmith.codegen.opt import Opt, OptOps
from tinsmith.core.dtypes import DTypeLike, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError, UnknownNameError, shown
from tinsmith.core.suggestions import guide, unknown
from tinsmith.tensor.base import TensorBase, check_tensors
from tinsmith.tensor.interop.protocols import Interop
from tinsmith.tensor.modes import WithModes
from tinsmith.tensor.names import ABSENT, in_place, same
from tinsmith.tensor.realize import explain_tensors, tuned_kernel

if TYPE_CHECKING:
    from tinsmith.inspect.explanation import Explanation, Plan
    from tinsmith.inspect.search.database import Tuned


def _missing(owner: type, name: str) -> Exception:
    """Return the error for an unknown attribute; for a PyTorch name it suggests the replacement."""
    if name in ABSENT:
        return UnknownNameError(owner.__name__, f"no attribute {name!r}", ABSENT[name])
    error: Exception = unknown(owner.__name__, name, dir(owner))
    return error


class _Named(WithModes):
    def __getattr__(cls, name: str) -> Any:
        raise _missing(cls, name)


class Tensor(Interop, metaclass=_Named):
    """A lazy array: methods record a graph, and values are computed when they are needed.

    >>> (Tensor([1, 2]) + 3).tolist()
    [4, 5]

    Args:
        data: a number, nested lists, a NumPy array, bytes, or another tensor.
        device: where its values live; the default device if None.
        dtype: type of its elements; taken from the data if None.
        requires_grad: False to leave it out of ``backward()``; True to have ``.grad`` filled even for a computed value.
    """

    __slots__ = ()
    __hash__ = TensorBase.__hash__

    # *** casts by name: in this class, since annotations beside a method ``float`` cannot name the type ***

    def float(self) -> Self:
        """Cast to float32.

        >>> Tensor([1, 2]).float().dtype
        dtypes.float
        """
        return self.cast(dtypes.float32)

    def half(self) -> Self:
        """Cast to float16.

        >>> Tensor([1, 2]).half().dtype
        dtypes.half
        """
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast to bfloat16.

        >>> Tensor([1, 2]).bfloat16().dtype
        dtypes.bfloat16
        """
        return self.cast(dtypes.bfloat16)

    def double(self) -> Self:
        """Cast to float64.

        >>> Tensor([1, 2]).double().dtype
        dtypes.double
        """
        return self.cast(dtypes.float64)

    def int(self) -> Self:
        """Cast to int32.

        >>> Tensor([1.5, 2.]).int().tolist()
        [1, 2]
        """
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """Cast to int64.

        >>> Tensor([1, 2]).long().dtype
        dtypes.long
        """
        return self.cast(dtypes.int64)

    def short(self) -> Self:
        """Cast to int16.

        >>> Tensor([1, 2]).short().dtype
        dtypes.short
        """
        return self.cast(dtypes.int16)

    def bool(self) -> Self:
        """Cast to bool: True where the value is not zero.

        >>> Tensor([0., 0.5]).bool().tolist()
        [False, True]
        """
        return self._copy() if self.dtype.is_bool else self.ne(0)

    def type_as(self, other: Self) -> Self:
        """Cast to the dtype of ``other``.

        >>> Tensor([1]).type_as(Tensor([1.])).dtype
        dtypes.float
        """
        check_tensors("type_as", [other])
        return self.cast(other.dtype)

    def type(self, dtype: DTypeLike | None = None) -> Any:
        """Cast to ``dtype``; without an argument, return the dtype.

        >>> Tensor([1]).type("float32").type()
        dtypes.float
        """
        return self.dtype if dtype is None else self.cast(to_dtype(dtype))

    # *** second names ***

    absolute = same("absolute", Interop.abs)
    arccos = same("arccos", Interop.acos)
    arccosh = same("arccosh", Interop.acosh)
    arcsin = same("arcsin", Interop.asin)
    arcsinh = same("arcsinh", Interop.asinh)
    arctan = same("arctan", Interop.atan)
    arctan2 = same("arctan2", Interop.atan2)
    arctanh = same("arctanh", Interop.atanh)
    bitwise_left_shift = same("bitwise_left_shift", Interop.lshift)
    bitwise_right_shift = same("bitwise_right_shift", Interop.rshift)
    concat = same("concat", Interop.cat)
    concatenate = same("concatenate", Interop.cat)
    divide = same("divide", Interop.div)
    true_divide = same("true_divide", Interop.div)
    floor_divide = same("floor_divide", Interop.idiv)
    fix = same("fix", Interop.trunc)
    ger = same("ger", Interop.outer)
    greater = same("greater", Interop.gt)
    greater_equal = same("greater_equal", Interop.ge)
    inverse = same("inverse", Interop.inv)
    less = same("less", Interop.lt)
    less_equal = same("less_equal", Interop.le)
    moveaxis = same("moveaxis", Interop.movedim)
    multiply = same("multiply", Interop.mul)
    narrow_copy = same("narrow_copy", Interop.narrow)
    negative = same("negative", Interop.neg)
    nelement = same("nelement", Interop.numel)
    not_equal = same("not_equal", Interop.ne)
    pinverse = same("pinverse", Interop.pinv)
    remainder = same("remainder", Interop.mod)
    row_stack = same("row_stack", Interop.vstack)
    sgn = same("sgn", Interop.sign)
    subtract = same("subtract", Interop.sub)
    swapdims = same("swapdims", Interop.swapaxes)
    trapz = same("trapz", Interop.trapezoid)
    binary_cross_entropy = same("binary_cross_entropy", Interop.binary_crossentropy)
    binary_cross_entropy_with_logits = same("binary_cross_entropy_with_logits", Interop.binary_crossentropy_logits)

    # *** in-place forms: x.name_(…) writes x.name(…) to the memory of x, as x += 1 does; views see it ***

    abs_ = in_place(Interop.abs)
    absolute_ = in_place(absolute)
    acos_ = in_place(Interop.acos)
    acosh_ = in_place(Interop.acosh)
    add_ = in_place(Interop.add)
    addbmm_ = in_place(Interop.addbmm)
    addcdiv_ = in_place(Interop.addcdiv)
    addcmul_ = in_place(Interop.addcmul)
    addmm_ = in_place(Interop.addmm)
    addmv_ = in_place(Interop.addmv)
    addr_ = in_place(Interop.addr)
    arccos_ = in_place(arccos)
    arccosh_ = in_place(arccosh)
    arcsin_ = in_place(arcsin)
    arcsinh_ = in_place(arcsinh)
    arctan2_ = in_place(arctan2)
    arctan_ = in_place(arctan)
    arctanh_ = in_place(arctanh)
    asin_ = in_place(Interop.asin)
    asinh_ = in_place(Interop.asinh)
    atan2_ = in_place(Interop.atan2)
    atan_ = in_place(Interop.atan)
    atanh_ = in_place(Interop.atanh)
    baddbmm_ = in_place(Interop.baddbmm)
    bitwise_and_ = in_place(Interop.bitwise_and)
    bitwise_left_shift_ = in_place(bitwise_left_shift)
    bitwise_not_ = in_place(Interop.bitwise_not)
    bitwise_or_ = in_place(Interop.bitwise_or)
    bitwise_right_shift_ = in_place(bitwise_right_shift)
    bitwise_xor_ = in_place(Interop.bitwise_xor)
    ceil_ = in_place(Interop.ceil)
    celu_ = in_place(Interop.celu, ">>> Tensor([2.0]).celu_().tolist()\n[2.0]")
    clamp_ = in_place(Interop.clamp)
    clamp_max_ = in_place(Interop.clamp_max)
    clamp_min_ = in_place(Interop.clamp_min)
    clip_ = in_place(Interop.clip)
    copysign_ = in_place(Interop.copysign)
    cos_ = in_place(Interop.cos)
    cosh_ = in_place(Interop.cosh)
    cumprod_ = in_place(Interop.cumprod)
    cumsum_ = in_place(Interop.cumsum)
    deg2rad_ = in_place(Interop.deg2rad)
    digamma_ = in_place(Interop.digamma)
    psi = same("psi", Interop.digamma)
    gammaln = same("gammaln", Interop.lgamma)
    multigammaln = same("multigammaln", Interop.mvlgamma)
    i0_ = in_place(Interop.i0)
    div_ = in_place(Interop.div, ">>> Tensor([1.0, 2.0]).div_(2).tolist()\n[0.5, 1.0]")
    divide_ = in_place(divide, ">>> Tensor([1.0, 2.0]).divide_(2).tolist()\n[0.5, 1.0]")
    elu_ = in_place(Interop.elu, ">>> Tensor([2.0]).elu_().tolist()\n[2.0]")
    erf_ = in_place(Interop.erf)
    erfc_ = in_place(Interop.erfc)
    erfinv_ = in_place(Interop.erfinv)
    exp2_ = in_place(Interop.exp2)
    exp_ = in_place(Interop.exp)
    expm1_ = in_place(Interop.expm1)
    fix_ = in_place(fix)
    float_power_ = in_place(Interop.float_power,
                             ">>> Tensor([2.0]).double().float_power_(2).tolist()\n[4.0]")
    floor_ = in_place(Interop.floor)
    floor_divide_ = in_place(floor_divide)
    fmod_ = in_place(Interop.fmod)
    frac_ = in_place(Interop.frac)
    gcd_ = in_place(Interop.gcd)
    hardtanh_ = in_place(Interop.hardtanh, ">>> Tensor([2.0]).hardtanh_().tolist()\n[1.0]")
    heaviside_ = in_place(Interop.heaviside)
    hypot_ = in_place(Interop.hypot)
    index_add_ = in_place(Interop.index_add)
    index_copy_ = in_place(Interop.index_copy)
    index_fill_ = in_place(Interop.index_fill)
    index_put_ = in_place(Interop.index_put)
    index_reduce_ = in_place(Interop.index_reduce)
    lcm_ = in_place(Interop.lcm)
    ldexp_ = in_place(Interop.ldexp)
    leaky_relu_ = in_place(Interop.leaky_relu)
    lerp_ = in_place(Interop.lerp)
    lgamma_ = in_place(Interop.lgamma)
    log10_ = in_place(Interop.log10)
    log1p_ = in_place(Interop.log1p)
    log2_ = in_place(Interop.log2)
    log_ = in_place(Interop.log)
    logit_ = in_place(Interop.logit)
    masked_fill_ = in_place(Interop.masked_fill)
    masked_scatter_ = in_place(Interop.masked_scatter)
    mul_ = in_place(Interop.mul)
    multiply_ = in_place(multiply)
    nan_to_num_ = in_place(Interop.nan_to_num)
    neg_ = in_place(Interop.neg)
    negative_ = in_place(negative)
    pow_ = in_place(Interop.pow)
    put_ = in_place(Interop.put)
    rad2deg_ = in_place(Interop.rad2deg)
    reciprocal_ = in_place(Interop.reciprocal)
    relu_ = in_place(Interop.relu)
    remainder_ = in_place(remainder)
    round_ = in_place(Interop.round)
    rsqrt_ = in_place(Interop.rsqrt)
    scatter_ = in_place(Interop.scatter)
    scatter_add_ = in_place(Interop.scatter_add)
    scatter_reduce_ = in_place(Interop.scatter_reduce)
    selu_ = in_place(Interop.selu, ">>> Tensor([0.0]).selu_().tolist()\n[0.0]")
    sgn_ = in_place(sgn)
    sigmoid_ = in_place(Interop.sigmoid)
    expit = same("expit", Interop.sigmoid)
    sign_ = in_place(Interop.sign)
    sin_ = in_place(Interop.sin)
    sinc_ = in_place(Interop.sinc)
    sinh_ = in_place(Interop.sinh)
    sqrt_ = in_place(Interop.sqrt)
    square_ = in_place(Interop.square)
    sub_ = in_place(Interop.sub)
    subtract_ = in_place(subtract)
    tan_ = in_place(Interop.tan)
    tanh_ = in_place(Interop.tanh)
    tril_ = in_place(Interop.tril)
    triu_ = in_place(Interop.triu)
    true_divide_ = in_place(true_divide, ">>> Tensor([1.0, 2.0]).true_divide_(2).tolist()\n[0.5, 1.0]")
    trunc_ = in_place(Interop.trunc)
    xlogy_ = in_place(Interop.xlogy)

    if not TYPE_CHECKING:  # type checkers would take every name for one of ours
        def __getattr__(self, name: str) -> Any:
            raise _missing(type(self), name)


guide(*Tensor.__mro__[:-1])


def explain(*tensors: Tensor, run: bool = True, why: str | None = None) -> Explanation:
    """Report kernels, opts, times and memory of computing ``tensors`` in one program; see ``Tensor.explain``.

    >>> w = Tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> loss = (Tensor([[1.0, 1.0]]) @ w).square().sum()
    >>> _ = loss.backward()
    >>> len(explain(loss, w.grad).kernels) >= 2, "backward" in str(explain(w.grad, run=False))
    (True, True)

    Args:
        run: measure the time of each kernel; False compiles only.
        why: an op, a method or a kernel's name: the text says why its values share a kernel or are stored.

    Raises:
        ArgumentError: for what is no tensor, such as the gradient of a parameter that has none.
        UnknownNameError: if the program computes nothing of the name ``why``.
    """
    for t in tensors:
        if not isinstance(t, TensorBase):
            raise ArgumentError("explain", f"{shown(t)} is no tensor",
                                "explain(*(p.grad for p in … if p.grad is not None))")
    return explain_tensors(tensors, run, why)


def plan(*tensors: Tensor, memory_budget: float | str | None = None) -> Plan:
    """Predict time, traffic and memory of computing ``tensors`` in one program; see ``Tensor.plan``.

    >>> a = Tensor([1.0, 2.0]).realize()
    >>> plan(a + 1, a * 2).kernels, str(plan(a))
    (1, 'nothing to compute: all values are in memory')

    Args:
        memory_budget: what the program may take on each device, such as ``"2GB"``.

    Raises:
        ArgumentError: for what is no tensor, such as the gradient of a parameter that has none.
    """
    for t in tensors:
        if not isinstance(t, TensorBase):
            raise ArgumentError("plan", f"{shown(t)} is no tensor",
                                "plan(*(p.grad for p in … if p.grad is not None)), or step.plan() of a captured step")
    if not tensors:
        raise ArgumentError("plan", "got no tensor", "plan(loss)")
    return tensors[0].plan(*tensors[1:], memory_budget=memory_budget)


def with_opts(tensor: Tensor, opts: Sequence[Opt] | None, kernel: int = -1, device: str | None = None) -> Tuned:
    """One kernel of the program that computes ``tensor``, under opts of your own; see docs/opts.md.

    >>> from tinsmith import Opt, OptOps
    >>> x = Tensor([[1.0, 2.0, 3.0, 4.0]] * 4)
    >>> t = with_opts(x.sum(1), [Opt(OptOps.UNROLL, 1, 4)])
    >>> t.before, t.axes, t.run().tolist()
    ((4 loop, 4 reduce), (4 loop, 4 unroll), [10.0, 10.0, 10.0, 10.0])
    >>> t.schedule[-1].opts == tuple(t.opts), t.source_c.splitlines()[0]
    (True, 'void r_4_4(float* data0, const float* data1) {')

    Args:
        opts: applied in order, instead of the optimizer's choice; None shows that choice.
        kernel: which kernel of the program, in the order in which they run; -1 is the last.
        device: write the source for this device instead of the tensor's, such as ``"CUDA"`` or ``"METAL"``.

    Raises:
        ArgumentError: if an opt is not legal, with the reason; if there is no such kernel.
        DTypeError: for what is no tensor.
    """
    check_tensors("with_opts", [tensor])
    listed = [] if opts is None else opts
    if not isinstance(listed, (list, tuple)) or not all(
            isinstance(o, Opt) and isinstance(o.op, OptOps) for o in listed):
        raise ArgumentError("with_opts", f"takes a list of opts, got {shown(opts)}", "[Opt(OptOps.UPCAST, 0, 4)]")
    return tuned_kernel(tensor, opts, kernel, device)
