"""Recurrent layers: ``LSTM``, ``GRU``, ``RNN`` and their cells.

The input projections of all steps are one matmul. A step is two kernels: the matmul of the state, and a fused pointwise
kernel; so is its backward step, whose formula is derived once by autograd. A step reads its index from memory, so all
steps run the same two programs with other arguments.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tinsmith.core.errors import ArgumentError, ShapeError
from tinsmith.ir import UOp
from tinsmith.ir.uop import toposort
from tinsmith.nn.describe import Layer, arguments
from tinsmith.tensor.arguments import choice, flag, number, size
from tinsmith.tensor.autograd.function import Function
from tinsmith.tensor.base import check_tensors
from tinsmith.tensor.tensor import Tensor

Parts = Sequence[Tensor]
_ONE_KERNEL: Final = 16
_FEWEST_STEPS: Final = 16  # of a time loop over a symbolic length


class CellKind(NamedTuple):
    """The definition of a recurrent cell (LSTM, GRU or RNN).

    Attributes:
        gates: number of gate values. Gates that the input contributes to come first, those of the state last.
        blocks: rows of the weights, in multiples of the hidden size.
        shift: number of blocks by which the input weights are rotated into the order of the gates.
        states: number of state values; the first is the output.
        update: pointwise function (gates, state) → new state.
    """

    gates: int
    blocks: int
    shift: int
    states: int
    update: Callable[[Parts, Parts], list[Tensor]]


def _lstm(gates: Parts, state: Parts) -> list[Tensor]:
    i, f, g, o = gates
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


def _gru(gates: Parts, state: Parts) -> list[Tensor]:
    of_input, r, z, of_state = gates
    new, z = (of_input + r.sigmoid() * of_state).tanh(), z.sigmoid()
    return [new + z * (state[0] - new)]


def _tanh(gates: Parts, state: Parts) -> list[Tensor]:
    return [gates[0].tanh()]


def _relu(gates: Parts, state: Parts) -> list[Tensor]:
    return [gates[0].relu()]


_LSTM, _GRU = CellKind(4, 4, 0, 2, _lstm), CellKind(4, 3, 1, 1, _gru)
_RNN = {"tanh": CellKind(1, 1, 0, 1, _tanh), "relu": CellKind(1, 1, 0, 1, _relu)}


def _product(kind: CellKind, x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | int) -> Tensor:
    """Return the state's projection ``[D, N, blocks, H]``, plus the input's for gates that have both."""
    alone = kind.gates - kind.blocks
    shared = x[..., alone:, :].pad((*[None] * (x.ndim - 2), (0, alone), None)) if alone else x
    return (state.matmul(weight) + bias).reshape(shared.shape) + shared


def _gates(kind: CellKind, x: Tensor, product: Tensor) -> list[Tensor]:
    return [*_parts(x)[: kind.gates - kind.blocks], *_parts(product)]


def _joined(parts: Parts) -> Tensor:
    """Stack parts ``[…, H]`` to ``[…, parts, H]`` by selects: one kernel shares their common subexpressions."""
    shape = (*parts[0].shape[:-1], len(parts), parts[0].shape[-1])
    place = Tensor.arange(len(parts), device=parts[0].device).reshape(-1, 1)
    wide = [p.unsqueeze(-2).expand(shape) for p in parts]
    out = wide[-1]
    for n in reversed(range(len(parts) - 1)):
        out = (place == n).where(wide[n], out)
    return out.contiguous()


@functools.cache
def _numbers(count: int, device: str | tuple[str, ...]) -> list[Tensor]:
    """Return the step indices as realized tensors: as constants, each step would compile to its own program."""
    found = [Tensor(np.array([n], np.int32), requires_grad=False).to(device) for n in range(count)]
    Tensor.realize(*found)
    return found


def _rows(t: Tensor) -> Callable[[int], Tensor]:
    """Return the function ``step → t[step]`` that reads the step index from memory."""
    numbers, flat = _numbers(t.shape[0], t.device), t.contiguous().flatten(1)
    return lambda step: numbers[step].embedding(flat).reshape(t.shape[1:])


def _stacked(parts: Parts) -> Tensor:
    """Return ``Tensor.stack(*parts)``, realized by kernels that read at most ``_ONE_KERNEL`` parts each."""
    if len(parts) <= _ONE_KERNEL:
        return Tensor.stack(*parts).contiguous()
    whole = [*parts, *[parts[-1]] * (-len(parts) % _ONE_KERNEL)]
    rows = [_stacked(whole[n : n + _ONE_KERNEL]) for n in range(0, len(whole), _ONE_KERNEL)]
    return _stacked(rows).flatten(0, 1)[: len(parts)]


class _Steps(Function):
    """The time loop of a layer: ``x [T, D, N, blocks, H], state [D, N, states, H], weight [D, H, blocks * H], bias
    [D, 1, blocks * H] → states [T, D, N, states, H]`` for D directions. ``keep [T, D, N, 1]`` (or None) is the mask
    of valid steps; elsewhere the state is unchanged."""

    kind: CellKind

    def forward(self, kind: CellKind, x: Tensor, state: Tensor, weight: Tensor, bias: Tensor,
                keep: Tensor | None) -> Tensor:
        self.kind = kind
        weight, of_x, kept = weight.contiguous(), _rows(x), None if keep is None else _rows(keep)
        products, states = [], [state.contiguous()]
        for step in range(x.shape[0]):
            state = states[-1]
            product = _product(kind, of_x(step), state[:, :, 0], weight, bias).contiguous()
            gates = _gates(kind, of_x(step), product)
            states.append(_joined(self._new_state(gates, _parts(state), None if kept is None else kept(step))))
            products.append(product)
        self.save_for_backward(x, weight, *([] if keep is None else [keep]), *products, *states)
        return _stacked(states[1:])

    def _new_state(self, gates: Parts, state: Parts, keep: Tensor | None) -> list[Tensor]:
        new = self.kind.update(gates, state)
        return new if keep is None else [keep.where(a, b) for a, b in zip(new, state)]

    def backward(self, gradient: Tensor) -> Any:
        kind, count = self.kind, gradient.shape[0]
        x, weight = self.saved_tensors[:2]
        keep = self.saved_tensors[2] if len(self.saved_tensors) > 2 * count + 3 else None
        products, states = self.saved_tensors[-2 * count - 1 : -count - 1], self.saved_tensors[-count - 1 :]
        derived, reads_first = self._derived(gradient[0], keep)
        rows, of_x, kept = _rows(gradient), _rows(x), None if keep is None else _rows(keep)
        back = weight.transpose(-1, -2).contiguous()
        first, found = kind.gates - kind.blocks, []
        ahead = [t * 0 for t in _parts(gradient[0])]
        for step in reversed(range(count)):
            incoming = [a + b for a, b in zip(_parts(rows(step)), ahead)]
            incoming[0] = incoming[0].contiguous()
            gates = _gates(kind, of_x(step), products[step])
            given = [*gates, *_parts(states[step]), *_parts(states[step + 1]), *incoming,
                     *([] if kept is None else [kept(step)])]
            found.append(derived(given))
            of_state = found[-1][:, :, first : kind.gates].flatten(2)
            ahead = [of_state.matmul(back), *_parts(found[-1][:, :, kind.gates :])]
            if reads_first:
                ahead[:2] = [ahead[0] + ahead[1]]
        every = _stacked(found[::-1])
        of_input, of_products = every[..., : kind.blocks, :], every[..., first : kind.gates, :].flatten(3)
        before = _stacked([s[:, :, 0] for s in states[:-1]]).permute(1, 3, 0, 2).flatten(2)
        of_weight = before.matmul(of_products.permute(1, 0, 2, 3).flatten(1, 2))
        of_bias = of_products.sum((0, 2)).unsqueeze(1)
        return of_input, Tensor.stack(*ahead, dim=2), of_weight, of_bias, *([] if keep is None else [None])

    def _derived(self, like: Tensor, keep: Tensor | None) -> tuple[Callable[[Parts], Tensor], bool]:
        """Derive the backward formula of a step once; return (function, True if the formula reads the first state).

        The function takes (gates, state, new state, incoming gradient, keep) and returns the stacked gradients of the
        gates and of the states that the formula reads. It reuses the stored new state instead of recomputing it.
        """
        def leaves(count: int) -> list[Tensor]:
            shape = (*like.shape[:2], like.shape[-1])
            return [Tensor.empty(*shape, dtype=like.dtype, device=like.device) for _ in range(count)]
        gates, state, incoming = leaves(self.kind.gates), leaves(self.kind.states), leaves(self.kind.states)
        kept = [] if keep is None else [Tensor.empty(*keep.shape[1:], dtype=keep.dtype, device=keep.device)]
        new = self._new_state(gates, state, kept[0] if kept else None)
        total = sum(((a * b).sum() for a, b in zip(new, incoming)), Tensor(0.0, dtype=like.dtype, device=like.device))
        known = set(toposort(total.uop))
        template = _joined(total.gradient(*gates, *(s for s in state if s.uop in known))).uop
        places = [t.uop for t in (*gates, *state, *new, *incoming, *kept)]

        def derived(given: Parts) -> Tensor:
            return like._new(template.substitute(dict(zip(places, (t.uop for t in given)))))

        return derived, state[0].uop in known


def _parts(state: Tensor) -> list[Tensor]:
    """Split ``[…, parts, H]`` into its parts ``[…, H]``."""
    return [state[..., n, :] for n in range(state.shape[-2])]


def _drawn(kind: CellKind, input_size: int, hidden_size: int, bias: bool, proj_size: int = 0) -> list[Tensor | None]:
    """Return PyTorch-initialized weights of input and state, their biases, and the projection weight."""
    bound, rows = 1 / math.sqrt(hidden_size), kind.blocks * hidden_size

    def drawn(*shape: int) -> Tensor:
        return Tensor.uniform(*shape, low=-bound, high=bound)

    weights = [drawn(rows, input_size), drawn(rows, proj_size or hidden_size)]
    return [*weights, *(drawn(rows) if bias else None for _ in weights),
            drawn(proj_size, hidden_size) if proj_size else None]


def _shifted(kind: CellKind, t: Tensor | None) -> Tensor | None:
    """Rotate the rows of the input's weight or bias into the order of the gates."""
    return t if t is None or not kind.shift else t.roll(kind.shift * (t.shape[0] // kind.blocks), 0)


def _of_input(kind: CellKind, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the input projection ``[…, blocks, H]``."""
    wide: Any = _shifted(kind, weight)
    product = x.linear(wide.transpose(), _shifted(kind, bias))
    return product.reshape(*x.shape[:-1], kind.blocks, weight.shape[0] // kind.blocks)


class _CellLayer(Layer):
    """The base of the cells: one step of a recurrent layer."""

    kind: CellKind

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        op = type(self).__name__
        self.input_size = size(op, "input_size", input_size)
        self.hidden_size = size(op, "hidden_size", hidden_size, 1)
        found = _drawn(self.kind, self.input_size, self.hidden_size, flag(op, "bias", bias))
        self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh = found[:4]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + (", bias=False" if self.bias_ih is None else "")

    def _step(self, x: Tensor, state: Sequence[Tensor] | None) -> list[Tensor]:
        op = type(self).__name__
        check_tensors(op, [x] if state is None else [x, *state])
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(op, f"input {x.shape}", f"an input [N, {self.input_size}]")
        if state is None:
            zeros = Tensor.zeros(*x.shape[:-1], self.hidden_size, dtype=x.dtype, device=x.device)
            state = [zeros] * self.kind.states
        assert self.weight_ih is not None and self.weight_hh is not None
        weight, bias = self.weight_hh.transpose(), 0 if self.bias_hh is None else self.bias_hh
        of_input = _of_input(self.kind, x, self.weight_ih, self.bias_ih)
        product = _product(self.kind, of_input, state[0], weight, bias)
        return self.kind.update(_gates(self.kind, of_input, product), state)


class LSTMCell(_CellLayer):
    """One step of an LSTM: ``x, (h, c) → h, c``, gates in the order input, forget, cell, output.

    >>> from tinsmith import nn
    >>> h, c = nn.LSTMCell(3, 5)(Tensor.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 5), (2, 5))
    """

    kind = _LSTM

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._step(x, hc)
        return h, c


class GRUCell(_CellLayer):
    """One step of a GRU: ``x, h → h``, gates in the order reset, update, new.

    >>> from tinsmith import nn
    >>> nn.GRUCell(3, 5)(Tensor.ones(2, 3)).shape
    (2, 5)
    """

    kind = _GRU

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self._step(x, None if h is None else [h])[0]


class RNNCell(_CellLayer):
    """One step of a plain recurrent layer: ``x, h → tanh(W x + U h)``, or ``relu``.

    >>> from tinsmith import nn
    >>> nn.RNNCell(3, 5)(Tensor.ones(2, 3)).shape
    (2, 5)
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        self.kind = _RNN[choice("RNNCell", "nonlinearity", nonlinearity, _RNN)]
        super().__init__(input_size, hidden_size, bias)

    def __call__(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        return self._step(x, None if h is None else [h])[0]


def _padded(x: Tensor, lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor | Sequence[int]]:
    """Return an input ``[T, N, in]`` of a symbolic length padded to a fixed number of steps, and the lengths of its
    sequences: the time loop runs in Python. Steps beyond the length leave the state unchanged.

    The steps are 16, 64, 256, …; the condition on the length becomes a guard of a capture.
    """
    count, steps = x.shape[0], _FEWEST_STEPS
    while not count < steps + 1:
        steps *= 4
    if lengths is None:
        lengths = Tensor.full((x.shape[1],), count, device=x.device)
    return x.pad(((0, steps - count), None, None)), lengths


class _Layers(Layer):
    """The base of ``LSTM``, ``GRU`` and ``RNN``: stacked recurrent layers in one or both directions."""

    kind: CellKind

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
                 proj_size: int = 0) -> None:
        op = type(self).__name__
        self.input_size = size(op, "input_size", input_size)
        self.hidden_size = size(op, "hidden_size", hidden_size, 1)
        self.num_layers = size(op, "num_layers", num_layers, 1)
        self.bias, self.batch_first = flag(op, "bias", bias), flag(op, "batch_first", batch_first)
        self.dropout = number(op, "dropout", dropout, 0, 1)
        self.bidirectional = flag(op, "bidirectional", bidirectional)
        self.proj_size = size(op, "proj_size", proj_size)
        if self.proj_size >= self.hidden_size:
            raise ArgumentError(op, f"proj_size={proj_size} of hidden_size={hidden_size}", "a smaller one; 0 for none")
        self._directions = ("", "_reverse") if self.bidirectional else ("",)
        self._widths = [self.proj_size or self.hidden_size, *[self.hidden_size] * (self.kind.states - 1)]
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else self._widths[0] * len(self._directions)
            for direction in self._directions:
                found = _drawn(self.kind, width, self.hidden_size, self.bias, self.proj_size)
                for name, t in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"), found):
                    setattr(self, f"{name}_l{layer}{direction}", t)

    def extra_repr(self) -> str:
        options = {"proj_size": self.proj_size, "num_layers": self.num_layers if self.num_layers != 1 else 0,
                   "batch_first": self.batch_first, "dropout": self.dropout, "bidirectional": self.bidirectional}
        given = arguments(**{name: value for name, value in options.items() if value})
        return ", ".join(filter(None, [f"{self.input_size}, {self.hidden_size}", "" if self.bias else "bias=False",
                                       given]))

    def _run(self, x: Tensor, state: Sequence[Tensor] | None,
             lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, list[Tensor]]:
        """Return (outputs of the last layer, final value of each state ``[layers * directions, N, H]``)."""
        op, many = type(self).__name__, len(self._directions)
        check_tensors(op, [x, *(state or ())])
        flat, wanted = x.ndim == 2, f"[{'N, T' if self.batch_first else 'T, N'}, {self.input_size}]"
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ShapeError(op, f"input {x.shape}", f"an input {wanted}, or [T, {self.input_size}] without a batch")
        x = x.unsqueeze(1) if flat else x.transpose(0, 1) if self.batch_first else x
        if not x.shape[0]:
            raise ShapeError(op, f"input {x.shape} has no steps", "a sequence of one step or more")
        count = x.shape[0]
        if isinstance(count, UOp):
            x, lengths = _padded(x, lengths)
        whole = [(self.num_layers * many, x.shape[1], width) for width in self._widths]
        if state is None:
            state = [Tensor.zeros(*shape, dtype=x.dtype, device=x.device) for shape in whole]
        state = [s.unsqueeze(1) if flat and s.ndim == 2 else s for s in state]
        if [s.shape for s in state] != whole:
            raise ShapeError(op, f"states {[s.shape for s in state]} for the input {x.shape} (time first)", f"{whole}")
        keep, last = self._kept(x, lengths), []
        for layer in range(self.num_layers):
            if layer:
                x = x.dropout(self.dropout)
            run = self._projected if self.proj_size else self._layer
            outputs, ends = run(layer, x, [s[layer * many : (layer + 1) * many] for s in state], keep)
            last.append(ends)
            out = outputs if keep is None else keep.where(outputs, 0)
            x = Tensor.cat(*(out[:, n].flip(0) if n else out[:, n] for n in range(many)), dim=-1)
        x = x[:count] if isinstance(count, UOp) else x
        x = x.squeeze(1) if flat else x.transpose(0, 1) if self.batch_first else x
        found = [Tensor.cat(*(ends[n] for ends in last)) for n in range(self.kind.states)]
        return x, [e.squeeze(1) for e in found] if flat else found

    def _layer(self, layer: int, x: Tensor, state: Parts, keep: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return (outputs ``[T, directions, N, H]``, final states) of one layer."""
        products, weight, bias = self._weighted(layer, x)
        states = self._steps(products, state, weight, bias, keep)
        return states[..., 0, :], _parts(states[-1])

    def _steps(self, products: Tensor, state: Parts, weight: Tensor, bias: Tensor, keep: Tensor | None) -> Tensor:
        """Return the states of a layer after every step, ``[T, directions, N, states, H]``."""
        begin = Tensor.stack(*state, dim=2).cast(products.dtype)
        return _Steps.apply(self.kind, products, begin, weight, bias, keep)

    def _projected(self, layer: int, x: Tensor, state: Parts, keep: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Return the same as ``_layer`` for a projected output ``h = P m``. The time loop carries ``m``, with the
        combined weight ``W P``: all steps' projection is one matmul. ``W h`` of the first state joins the input."""
        products, weight, bias = self._weighted(layer, x)
        down = Tensor.stack(*(getattr(self, f"weight_hr_l{layer}{d}").transpose() for d in self._directions))
        first = state[0].matmul(weight).reshape(products.shape[1:])
        number = Tensor.arange(x.shape[0], device=x.device).reshape(-1, 1, 1, 1)
        begins = number == 0 if keep is None else number == x.shape[0] - keep.sum(0, keepdim=True)
        if keep is not None:  # direction 0 starts at step 0, the other at its sequence's end
            begins = (Tensor.arange(keep.shape[1], device=x.device).reshape(-1, 1, 1) == 0).where(number == 0, begins)
        products = begins.unsqueeze(-1).where(products + first, products)
        begin = [Tensor.zeros(*state[1].shape, dtype=x.dtype, device=x.device), state[1]]
        states = self._steps(products, begin, down.matmul(weight), bias, keep)
        outputs, end = states[..., 0, :].matmul(down), _parts(states[-1])
        last = end[0].matmul(down)
        return outputs, [last if keep is None else keep.max(0).where(last, state[0]), end[1]]

    def _weighted(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (input projections ``[T, directions, N, blocks, H]``, state weight, state bias) of all steps; the
        second direction is reversed in time."""
        weights = [[getattr(self, f"{name}_l{layer}{direction}") for direction in self._directions]
                   for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        seen = [_of_input(self.kind, x, w, b) for w, b in zip(weights[0], weights[2])]
        products = Tensor.stack(*(t.flip(0) if n else t for n, t in enumerate(seen)), dim=1)
        weight = Tensor.stack(*(w.transpose() for w in weights[1]))
        if self.bias:
            bias = Tensor.stack(*weights[3]).unsqueeze(1)
        else:
            bias = Tensor.zeros(len(seen), 1, weight.shape[-1], dtype=weight.dtype, device=weight.device)
        return products, weight, bias

    def _kept(self, x: Tensor, lengths: Tensor | Sequence[int] | None) -> Tensor | None:
        """Return the mask of valid steps ``[T, directions, N, 1]``; None without ``lengths``."""
        if lengths is None:
            return None
        op = type(self).__name__
        given = lengths if isinstance(lengths, Tensor) else Tensor(np.asarray(lengths), device=x.device)
        if given.shape != (x.shape[1],):
            raise ShapeError(op, f"lengths {given.shape} for {x.shape[1]} sequences", f"shape {(x.shape[1],)}")
        if not given.dtype.is_int:
            raise ArgumentError(op, f"lengths of dtype {given.dtype!r}", "integers")
        seen = Tensor.arange(x.shape[0], device=x.device).reshape(-1, 1, 1) < given.reshape(1, -1, 1)
        return Tensor.stack(*(seen.flip(0) if n else seen for n in range(len(self._directions))), dim=1)


class LSTM(_Layers):
    """Stacked LSTM layers: ``x [T, N, in], (h, c) → y [T, N, H * directions], (h, c)``.

    Parameters have PyTorch's names and initialization.

    Args:
        num_layers: number of stacked layers.
        batch_first: ``x`` and ``y`` are ``[N, T, …]``.
        dropout: dropout probability between layers, in training.
        bidirectional: a second set of weights runs backwards in time; outputs are concatenated.
        proj_size: project outputs and ``h`` to this width (Sak et al., 2014). The time loop uses the product of both
            weights: a small projection makes the state small, not the step.

    A call takes initial states ``[layers * directions, N, H]`` (default zeros), and ``lengths [N]`` of the sequences:
    after a sequence's end its outputs are zero and its state is unchanged; the backward direction starts at the end.

    >>> from tinsmith import nn
    >>> y, (h, c) = nn.LSTM(3, 4, num_layers=2, bidirectional=True)(Tensor.ones(5, 2, 3), lengths=[5, 3])
    >>> y.shape, h.shape, c.shape
    ((5, 2, 8), (4, 2, 4), (4, 2, 4))
    """

    kind = _LSTM

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None,
                 lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        out, (h, c) = self._run(x, hc, lengths)
        return out, (h, c)


class GRU(_Layers):
    """Stacked GRU layers: ``x [T, N, in], h → y [T, N, H * directions], h``; arguments as for ``LSTM``.

    >>> from tinsmith import nn
    >>> y, h = nn.GRU(3, 4, batch_first=True)(Tensor.ones(2, 5, 3))
    >>> y.shape, h.shape
    ((2, 5, 4), (1, 2, 4))
    """

    kind = _GRU

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
                 batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False) -> None:
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def __call__(self, x: Tensor, h: Tensor | None = None,
                 lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        out, (last,) = self._run(x, None if h is None else [h], lengths)
        return out, last


class RNN(_Layers):
    """Stacked plain recurrent layers, ``tanh(W x + U h)`` or ``relu``; called like ``GRU``.

    >>> from tinsmith import nn
    >>> nn.RNN(3, 4, nonlinearity="relu")(Tensor.ones(5, 2, 3))[0].shape
    (5, 2, 4)
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
                 bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
                 bidirectional: bool = False) -> None:
        self.kind = _RNN[choice("RNN", "nonlinearity", nonlinearity, _RNN)]
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def __call__(self, x: Tensor, h: Tensor | None = None,
                 lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        out, (last,) = self._run(x, None if h is None else [h], lengths)
        return out, last
