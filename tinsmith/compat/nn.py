"""tinygrad's layers, optimizers and state functions, where they differ from those of ``tinsmith.nn``.

The length of ``kernel_size`` gives the number of axes of a convolution. Optimizers accept the arguments ``device``,
``fused`` and ``classic``. State and file functions have other arguments or return values.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tinsmith import nn
from tinsmith.backend.device import Device, DeviceName
from tinsmith.core.dtypes import DType, dtypes, to_dtype
from tinsmith.core.errors import ArgumentError
from tinsmith.nn import datasets, optim, state
from tinsmith.nn.io.archives import Source
from tinsmith.nn.layers.conv import Ints
from tinsmith.tensor.tensor import Tensor


def _axes(kernel_size: Ints) -> int:
    return 2 if isinstance(kernel_size, int) else len(kernel_size)


class Conv2d(nn.Conv2d):
    """Convolution over as many axes as ``kernel_size`` has numbers; over two for one number.

    >>> from tinsmith import Tensor
    >>> Conv2d(2, 3, (3, 3, 3))(Tensor.ones(1, 2, 4, 5, 6)).shape
    (1, 3, 2, 3, 4)
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1,
                 padding: Ints | str = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True) -> None:
        self.dims = _axes(kernel_size)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)


class ConvTranspose2d(nn.ConvTranspose2d, Conv2d):
    """Transposed convolution over as many axes as ``kernel_size`` has numbers; over two for one number."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints = 0,
                 output_padding: Ints = 0, dilation: Ints = 1, groups: int = 1, bias: bool = True) -> None:
        self.dims = _axes(kernel_size)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups,
                         bias)


def _one_axis(kernel_size: Ints) -> Ints:
    return (kernel_size,) if isinstance(kernel_size, int) else kernel_size


def Conv1d(in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints | str = 0,
           dilation: Ints = 1, groups: int = 1, bias: bool = True) -> Conv2d:
    """Return a ``Conv2d`` over one axis."""
    return Conv2d(in_channels, out_channels, _one_axis(kernel_size), stride, padding, dilation, groups, bias)


def ConvTranspose1d(in_channels: int, out_channels: int, kernel_size: Ints, stride: Ints = 1, padding: Ints = 0,
                    output_padding: Ints = 0, dilation: Ints = 1, groups: int = 1,
                    bias: bool = True) -> ConvTranspose2d:
    """Return a ``ConvTranspose2d`` over one axis."""
    return ConvTranspose2d(in_channels, out_channels, _one_axis(kernel_size), stride, padding, output_padding,
                           dilation, groups, bias)


def _made(make: Callable[..., optim.Optimizer], params: Sequence[Tensor], lr: float, device: DeviceName | None,
          **arguments: Any) -> optim.Optimizer:
    """Return the optimizer that ``make`` builds; raise if ``device`` differs from the device of the parameters, where
    its state is.

    The step is always one program, as with tinygrad's ``fused``.
    """
    opt = make(params, lr, **arguments)
    _check_device(opt, device)
    return opt


def _check_device(opt: optim.Optimizer, device: DeviceName | None) -> None:
    where = opt.device if isinstance(opt.device, str) else ",".join(opt.device)
    if device is not None and Device.canonicalize(device) != where:
        raise ArgumentError("Optimizer", f"state on {device!r} for parameters on {opt.device!r}",
                            "device=None: the state lies where the parameters do; shard the parameters to spread both")


def SGD(params: Sequence[Tensor], lr: float = 0.001, momentum: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, classic: bool = False, device: DeviceName | None = None,
        fused: Any = None) -> optim.Optimizer:
    """``classic``: the learning rate is in the momentum's sum, else it scales the sum."""
    if classic:
        return _made(optim.LARS, params, lr, device, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
                     tcoef=0.0)
    return _made(optim.SGD, params, lr, device, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)


class LARS(optim.LARS):
    """Ours, with ``device`` and ``fused``."""

    def __init__(self, params: Sequence[Tensor], lr: float = 0.001, momentum: float = 0.9, weight_decay: float = 1e-4,
                 ns_steps: int = 0, ns_coefficients: Sequence[float] | None = None, nesterov: bool = False,
                 classic: bool = True, pre_wd: bool = True, tcoef: float = 0.001, device: DeviceName | None = None,
                 fused: Any = None) -> None:
        super().__init__(params, lr, momentum, weight_decay, ns_steps, ns_coefficients, nesterov, classic, pre_wd,
                         tcoef)
        _check_device(self, device)


def Muon(params: Sequence[Tensor], lr: float = 0.001, momentum: float = 0.95, weight_decay: float = 0.1,
         ns_steps: int = 5, ns_coefficients: Sequence[float] = (3.4445, -4.775, 2.0315), nesterov: bool = True,
         device: DeviceName | None = None, fused: Any = None) -> optim.Optimizer:
    """Without the scaling by the weight's sides, which ours has from PyTorch."""
    return _made(optim.Muon, params, lr, device, momentum=momentum, weight_decay=weight_decay, ns_steps=ns_steps,
                 ns_coefficients=ns_coefficients, nesterov=nesterov, adjust_lr=False)


class LAMB(optim.LAMB):
    """Ours, with ``device`` and ``fused``, and the powers of ``b1`` and ``b2`` as ``b1_t`` and ``b2_t``."""

    def __init__(self, params: Sequence[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999,
                 eps: float = 1e-6, weight_decay: float = 0.0, adam: bool = False, device: DeviceName | None = None,
                 fused: Any = None) -> None:
        super().__init__(params, lr, b1, b2, eps, weight_decay, adam)
        _check_device(self, device)

    @property
    def b1_t(self) -> Tensor:
        """``b1`` to the power of the number of steps."""
        return 1 - self.correction1

    @property
    def b2_t(self) -> Tensor:
        """``b2`` to the power of the number of steps."""
        return 1 - self.correction2


def AdamW(params: Sequence[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
          weight_decay: float = 0.01, device: DeviceName | None = None, fused: Any = None) -> LAMB:
    """As ours."""
    return LAMB(params, lr, b1, b2, eps, weight_decay, adam=True, device=device)


def Adam(params: Sequence[Tensor], lr: float = 0.001, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
         device: DeviceName | None = None, fused: Any = None) -> LAMB:
    """As ours."""
    return LAMB(params, lr, b1, b2, eps, 0.0, adam=True, device=device)

T = TypeVar("T")
ConstType = PyConst = float | int | bool
DTypeLike = str | DType
_CODES = {"BOOL": dtypes.bool, "I8": dtypes.int8, "U8": dtypes.uint8, "I16": dtypes.int16, "U16": dtypes.uint16,
          "I32": dtypes.int32, "U32": dtypes.uint32, "I64": dtypes.int64, "U64": dtypes.uint64, "F16": dtypes.float16,
          "BF16": dtypes.bfloat16, "F32": dtypes.float32, "F64": dtypes.float64, "F8_E4M3": dtypes.fp8e4m3,
          "F8_E5M2": dtypes.fp8e5m2}


def load_state_dict(model: Any, state_dict: dict[str, Tensor], strict: bool = True, verbose: bool = True,
                    consume: bool = False, realize: bool = True) -> list[Tensor]:
    """Load a state dict and return the loaded tensors (Tinsmith's returns missing names). No progress is shown."""
    own = state.get_state_dict(model)
    loaded = [own[name] for name in own if name in state_dict]
    state.load_state_dict(model, state_dict, strict, False, consume, realize)
    return loaded


def safe_load(fn: Source) -> dict[str, Tensor]:
    """Return a file, or a tensor with its bytes, which ours does not take."""
    if not isinstance(fn, Tensor):
        return state.safe_load(fn)
    t, start, header = state.safe_load_metadata(fn)
    return {name: _part(t, start, entry) for name, entry in header.items() if name != "__metadata__"}


def _part(t: Tensor, start: int, entry: dict[str, Any]) -> Tensor:
    begin, end = entry["data_offsets"]
    dtype: DType = _CODES[entry["dtype"]]
    if begin == end:
        return Tensor.empty(*entry["shape"], dtype=dtype)
    return t[start + begin : start + end].bitcast(dtype).reshape(*entry["shape"])


def safe_save(tensors: Mapping[str, Tensor], fn: str | os.PathLike[str],
              metadata: dict[str, Any] | None = None) -> None:
    """``nn.state.safe_save``, with the values of ``metadata`` converted to text."""
    state.safe_save(tensors, fn, None if metadata is None else {k: str(v) for k, v in metadata.items()})


def accept_filename(func: Callable[[Tensor], T]) -> Callable[[Source], T]:
    """Return a function of a tensor of bytes that takes a path too."""
    return lambda fn: func(fn if isinstance(fn, Tensor) else Tensor(Path(fn)))


def mnist(device: str | None = None, fashion: bool = False, *, data: str | os.PathLike[str] | None = None,
          holdout: int | None = None, offline: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (training images, labels, test images, labels), as ours."""
    return datasets.fashion_mnist(device, data) if fashion else datasets.mnist(device, data, holdout, offline)


def _from_np_dtype(npdtype: Any) -> DType:
    """Return the dtype of a NumPy type."""
    return to_dtype(np.dtype(npdtype).name)


def _to_np_dtype(dtype: DType) -> Any:
    """Return the NumPy scalar type of a dtype; None for types that NumPy does not have (bfloat16, fp8)."""
    return None if dtype.numpy.kind == "V" else np.dtype(dtype.numpy).type
