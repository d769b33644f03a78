"""tinygrad's optimizers: those of ``nn.optim`` with the arguments ``device``, ``fused`` and ``classic``."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinsmith.backend.device import Device, DeviceName
from tinsmith.core.errors import ArgumentError
from tinsmith.nn import optim
from tinsmith.tensor.tensor import Tensor


def _made(make: Callable[..., optim.Optimizer], params: Sequence[Tensor], lr: float, device: DeviceName | None,
          **arguments: Any) -> optim.Optimizer:
    """Return the optimizer that ``make`` builds; raise if ``device`` is not the parameters': its state is there.

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
