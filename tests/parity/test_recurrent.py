"""Recurrent layers against PyTorch: values, gradients of inputs, states and weights, packed lengths, many steps."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import random, torch
from tinsmith import Tensor, TinyJit, nn


def same(ours: Any, theirs: Any, rtol: float = 1e-4, atol: float = 2e-5) -> None:
    np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=rtol, atol=atol)


def check(ours: Any, theirs: Any, x: Any, states: list[Any], lengths: list[int] | None = None) -> None:
    """Check outputs, last states, and every gradient of a weighted sum of them."""
    nn.state.load_state_dict(ours, theirs.state_dict())
    mine, other = [Tensor(a) for a in (x, *states)], [torch.tensor(a, requires_grad=True) for a in (x, *states)]
    packed = other[0]
    if lengths is not None:
        packed = torch.nn.utils.rnn.pack_padded_sequence(packed, torch.tensor(lengths), ours.batch_first, False)
    single = len(states) < 2
    given = (() if not states else (mine[1],) if single else (tuple(mine[1:]),))
    expected, last = theirs(packed, *(() if not states else (other[1],) if single else (tuple(other[1:]),)))
    if lengths is not None:
        expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected, ours.batch_first,
                                                             total_length=x.shape[1 if ours.batch_first else 0])
    out, end = ours(mine[0], *given, **({} if lengths is None else {"lengths": lengths}))
    wanted = [expected, *(last if isinstance(last, tuple) else [last])]
    found = [out, *(end if isinstance(end, tuple) else [end])]
    weights = [random(*w.shape, seed=n) for n, w in enumerate(wanted)]
    for f, w in zip(found, wanted, strict=True):
        assert tuple(f.shape) == tuple(w.shape)
        same(f, w)
    torch.stack([(w * torch.tensor(a)).sum() for w, a in zip(wanted, weights)]).sum().backward()
    names = [n for n, _ in theirs.named_parameters()]
    own = nn.state.get_state_dict(ours)
    total = Tensor.stack(*((f * Tensor(a)).sum() for f, a in zip(found, weights))).sum()
    got = total.gradient(*mine, *(own[n] for n in names))
    for g, t in zip(got, [*other, *(p for _, p in theirs.named_parameters())], strict=True):
        same(g, t.grad, rtol=1e-3, atol=1e-4)


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("LSTM", {}), ("GRU", {}), ("RNN", {}), ("RNN", {"nonlinearity": "relu", "bias": False}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    ("GRU", {"num_layers": 2, "bidirectional": True, "bias": False}),
    ("LSTM", {"num_layers": 2, "bidirectional": True, "proj_size": 2})]


@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_layers(name: str, options: dict[str, Any]) -> None:
    ours, theirs = getattr(nn, name)(3, 4, **options), getattr(torch.nn, name)(3, 4, **options)
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    states = [random(rows, 2, 4, seed=n + 1) for n in range(2 if name == "LSTM" else 1)]
    states[0] = states[0][..., : options.get("proj_size", 4)]
    x = random(2, 5, 3) if options.get("batch_first") else random(5, 2, 3)
    check(ours, theirs, x, states)


@pytest.mark.parametrize(("name", "width"), [("LSTM", 4), ("GRU", 4), ("LSTM", 3)], ids=str)
def test_packed_lengths(name: str, width: int) -> None:
    """Sequences of different lengths in any order, as PyTorch's packed sequences; also with a projection to
    ``width``."""
    options = {"num_layers": 2, "bidirectional": True, **({"proj_size": width} if width < 4 else {})}
    ours, theirs = getattr(nn, name)(3, 4, **options), getattr(torch.nn, name)(3, 4, **options)
    states = [random(4, 3, 4, seed=n + 1) for n in range(2 if name == "LSTM" else 1)]
    states[0] = states[0][..., :width]
    check(ours, theirs, random(6, 3, 3), states, [2, 6, 5])


def test_one_of_everything_and_no_batch() -> None:
    for shape in ((1, 1, 1), (4, 0, 1), (3, 1)):
        ours, theirs = nn.LSTM(1, 1), torch.nn.LSTM(1, 1)
        check(ours, theirs, random(*shape), [])


def test_cells() -> None:
    for name, count in (("LSTMCell", 2), ("GRUCell", 1), ("RNNCell", 1)):
        ours, theirs = getattr(nn, name)(3, 4), getattr(torch.nn, name)(3, 4)
        nn.state.load_state_dict(ours, theirs.state_dict())
        for shape in ((2,), ()):
            x, states = random(*shape, 3), [random(*shape, 4, seed=n + 1) for n in range(count)]
            pick = (lambda found: found[1]) if count == 2 else (lambda found: found)
            own, other = [[t(a) for a in states] for t in (Tensor, torch.tensor)]
            for given in ((), (tuple(own) if count == 2 else own[0],)):
                wanted = theirs(torch.tensor(x), *([tuple(other) if count == 2 else other[0]] if given else []))
                same(pick(ours(Tensor(x), *given)), pick(wanted))


def test_a_long_sequence_trains_under_capture() -> None:
    """All steps share their programs: the kernel count grows with the steps, the number of compiled programs does
    not."""
    ours, theirs = nn.LSTM(4, 8), torch.nn.LSTM(4, 8)
    nn.state.load_state_dict(ours, theirs.state_dict())
    mine, other = nn.optim.SGD(nn.state.get_parameters(ours), 0.5), torch.optim.SGD(theirs.parameters(), 0.5)
    x = random(40, 2, 4)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            mine.zero_grad()
            loss = ours(x)[0].square().mean().backward()
            mine.step()
        return loss.realize()

    for _ in range(4):
        loss = step(Tensor(x).realize())
        other.zero_grad()
        expected = theirs(torch.tensor(x))[0].square().mean()
        expected.backward()
        other.step()
        np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-4)


def test_half_precision_and_second_derivatives() -> None:
    ours, theirs = nn.GRU(3, 4), torch.nn.GRU(3, 4).to(torch.bfloat16)
    for t in nn.state.get_parameters(ours):
        t.replace(t.cast("bfloat16"))
    nn.state.load_state_dict(ours, {n: p.float().numpy() for n, p in theirs.state_dict().items()})
    x = random(5, 2, 3)
    out = ours(Tensor(x).cast("bfloat16"))[0]
    assert str(out.dtype) == "dtypes.bfloat16"
    same(out.float(), theirs(torch.tensor(x).to(torch.bfloat16))[0].float(), rtol=0.05, atol=0.03)

    single, twin = nn.LSTM(2, 3), torch.nn.LSTM(2, 3)
    nn.state.load_state_dict(single, twin.state_dict())
    mine, other = Tensor(random(3, 1, 2)), torch.tensor(random(3, 1, 2), requires_grad=True)
    first, = single(mine)[0].square().sum().gradient(mine)
    expected, = torch.autograd.grad(twin(other)[0].square().sum(), other, create_graph=True)
    same(first.square().sum().gradient(mine)[0], torch.autograd.grad(expected.square().sum(), other)[0])
