"""Layers against PyTorch's of the same name and state: values, gradients of inputs and weights, edges."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.parity.helpers import compare, random, table, torch
from tinsmith import Tensor, nn

F = torch.nn.functional


def check(name: str, arguments: tuple[Any, ...], options: dict[str, Any], *inputs: Any, rtol: float = 1e-4,
          call: dict[str, Any] | None = None) -> None:
    """Check a layer against PyTorch's with the same state: equal outputs, and equal gradients of inputs and
    parameters."""
    ours, theirs = getattr(nn, name)(*arguments, **options), getattr(torch.nn, name)(*arguments, **options)
    assert nn.state.load_state_dict(ours, theirs.state_dict()) == []
    names = [n for n, _ in theirs.named_parameters()]
    given = {k: (Tensor(v), torch.tensor(v)) if isinstance(v, np.ndarray) else (v, v) for k, v in (call or {}).items()}

    def first(out: Any) -> Any:
        return out[0] if isinstance(out, tuple) else out

    def mine(*x: Tensor) -> Tensor:
        state = nn.state.get_state_dict(ours)
        for n, w in zip(names, x[len(inputs) :]):
            state[n].replace(w)
        return first(ours(*x[: len(inputs)], **{k: v[0] for k, v in given.items()}))

    def other(*x: Any) -> Any:
        weights = dict(zip(names, x[len(inputs) :]))
        return first(torch.func.functional_call(theirs, weights, x[: len(inputs)],
                                                {k: v[1] for k, v in given.items()}))

    values = [p.detach().numpy() for _, p in theirs.named_parameters()]
    compare(mine, other, *inputs, *values, rtol=rtol, atol=2e-5)


CONVOLUTIONS: list[tuple[str, int, dict[str, Any]]] = [
    *((f"Conv{d}d", d, {"padding": 1, "padding_mode": m}) for d, m in enumerate(("reflect", "circular", "zeros"), 1)),
    ("Conv1d", 1, {"padding": 2, "padding_mode": "circular", "stride": 2}),
    ("Conv2d", 2, {"padding": "same", "padding_mode": "replicate", "dilation": 2}),
    ("Conv2d", 2, {"padding": (1, 2), "padding_mode": "reflect", "bias": False}),
    ("Conv3d", 3, {"padding": 1, "padding_mode": "replicate", "groups": 2}),
    ("Conv3d", 3, {"padding": "same", "padding_mode": "circular"}),
    *((f"ConvTranspose{d}d", d, {"stride": 2, "padding": 1, "output_padding": 1}) for d in (1, 2, 3)),
    ("ConvTranspose3d", 3, {"groups": 2, "dilation": 2, "bias": False})]


@pytest.mark.parametrize(("name", "dims", "options"), CONVOLUTIONS, ids=str)
def test_convolutions(name: str, dims: int, options: dict[str, Any]) -> None:
    check(name, (2, 4, (3, 2, 3)[:dims]), options, random(2, 2, *(6, 5, 4)[:dims]), rtol=1e-3)


def test_convolutions_of_one_and_of_none() -> None:
    for name in ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d"):
        dims = int(name[-2])
        for batch in (0, 1):
            check(name, (1, 1, 1), {}, random(batch, 1, *[1] * dims))
    with pytest.raises(ValueError, match="reflect padding"):
        nn.Conv1d(1, 1, 3, padding=4, padding_mode="reflect")(Tensor.ones(1, 1, 4))


@pytest.mark.parametrize("dims", [0, 1, 2, 3])
def test_norms_of_any_rank(dims: int) -> None:
    x = random(3, 4, *(5, 2, 3)[:dims])
    if dims:
        check(f"InstanceNorm{dims}d", (4,), {"affine": True}, x, rtol=1e-3)
        check(f"InstanceNorm{dims}d", (4,), {}, x, rtol=1e-3)
    check("GroupNorm", (2, 4), {}, x, rtol=1e-3)
    check("GroupNorm", (1, 4), {"affine": False}, x, rtol=1e-3)
    name = f"BatchNorm{max(dims, 1)}d"
    with Tensor.train():
        check(name, (4,), {}, x, rtol=1e-3)


@pytest.mark.parametrize("dims", [1, 2])
def test_running_statistics_of_instances(dims: int) -> None:
    made: dict[str, Any] = {"momentum": 0.3, "affine": True, "track_running_stats": True}
    ours = getattr(nn, f"InstanceNorm{dims}d")(4, **made)
    theirs = getattr(torch.nn, f"InstanceNorm{dims}d")(4, **made)
    assert nn.state.load_state_dict(ours, theirs.state_dict()) == []
    x = random(3, 4, *(5, 2)[:dims])
    with Tensor.train():
        for seed in range(2):
            y = x + seed
            np.testing.assert_allclose(ours(Tensor(y)).numpy(), theirs(torch.tensor(y)).detach().numpy(), rtol=1e-3,
                                       atol=1e-5)
    for mine, other in ((ours.running_mean, theirs.running_mean), (ours.running_var, theirs.running_var)):
        np.testing.assert_allclose(mine.numpy(), other, rtol=1e-5)
    assert ours.num_batches_tracked.item() == 2  # PyTorch has the name, and does not count
    compare(ours, theirs.eval(), x, rtol=1e-3)


def test_norms_without_shift() -> None:
    for name, arguments in (("GroupNorm", (2, 4)), ("BatchNorm1d", (4,)), ("InstanceNorm1d", (4,))):
        with Tensor.train():
            check(name, arguments, {"affine": True, "bias": False}, random(3, 4, 5), rtol=1e-3)


def test_rms_norm_of_several_axes() -> None:
    for shape in ((4,), (3, 4), (1,)):
        check("RMSNorm", (shape,), {"eps": 1e-6}, random(2, *(3, 4)[: 2 - len(shape)], *shape))
    check("RMSNorm", (5,), {"eps": 1e-6}, random(0, 5))


def test_embedding_with_padding_index() -> None:
    ours, theirs = nn.Embedding(5, 3, padding_idx=-2), torch.nn.Embedding(5, 3, padding_idx=-2)
    assert ours.padding_idx == theirs.padding_idx and ours.weight[3].tolist() == [0.0] * 3
    index = np.array([[0, 3, 3], [3, 4, 0]])
    ours.weight = Tensor(random(5, 3))
    weight = torch.tensor(random(5, 3), requires_grad=True)
    out, expected = ours(Tensor(index)), F.embedding(torch.tensor(index), weight, 3)
    np.testing.assert_array_equal(out.numpy(), expected.detach().numpy())
    expected.square().sum().backward()
    np.testing.assert_allclose(out.square().sum().gradient(ours.weight)[0].numpy(), weight.grad.numpy())
    assert nn.Embedding(5, 3, padding_idx=0)(Tensor(np.zeros((0, 2), np.int32))).shape == (0, 2, 3)


POOLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((f"{kind}Pool{d}d", (2,), {}) for kind in ("Max", "Avg") for d in (1, 2, 3)),
    ("AvgPool3d", (2,), {"divisor_override": 3, "ceil_mode": True}),
    ("MaxPool2d", (2, 2, 1), {"ceil_mode": True}), ("AvgPool2d", (3,), {"stride": 2, "count_include_pad": False}),
    *((f"Adaptive{k}Pool{d}d", (size,), {}) for k in ("Max", "Avg") for d, size in ((1, 1), (1, 9), (2, 4), (3, 2))),
    *((f"Adaptive{kind}Pool2d", ((None, 3),), {}) for kind in ("Max", "Avg"))]


@pytest.mark.parametrize(("name", "arguments", "options"), POOLS, ids=str)
def test_pools(name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
    dims = int(name[-2])
    check(name, arguments, options, random(2, 3, *(6, 7, 5)[-dims:]))
    if "Adaptive" in name and None not in np.ravel(arguments[0]):
        check(name, arguments, options, random(1, *[1] * dims))
        assert getattr(nn, name)(*arguments)(Tensor.ones(0, 2, *[3] * dims)).shape[:2] == (0, 2)


@pytest.mark.parametrize(("name", "size"), [("AdaptiveMaxPool1d", 3), ("AdaptiveMaxPool2d", (3, None)),
                                            ("AdaptiveMaxPool2d", (2, 3)), ("AdaptiveMaxPool3d", (2, 3, 4))], ids=str)
def test_places_of_adaptive_pools(name: str, size: Any) -> None:
    """Indices of adaptive max-pooling: the first of equal values; sizes that divide the input's, and others."""
    x = np.random.default_rng(0).integers(0, 4, (2, 3, *(4, 7, 5)[-int(name[-2]) :])).astype(np.float32)
    values, places = getattr(nn, name)(size, return_indices=True)(Tensor(x))
    expected, chosen = getattr(torch.nn, name)(size, return_indices=True)(torch.tensor(x))
    np.testing.assert_array_equal(values.numpy(), expected.numpy())
    np.testing.assert_array_equal(places.numpy(), chosen.numpy())


@pytest.mark.parametrize("kernel, stride, padding, dilation", [(3, 2, 1, 1), (2, 2, 1, 1), (3, 1, 1, 2), (3, 3, 1, 2)])
@pytest.mark.parametrize("fill", [-np.inf, np.nan, 0])
def test_places_of_maxima_among_special_values(kernel: int, stride: int, padding: int, dilation: int,
                                               fill: float) -> None:
    """Planes of one value, of infinities next to padding, of NaN: the first of equal values, the last NaN."""
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 9, 8)).astype(np.float32)
    x[0, 0], x[1, 1, 2:6, ::2] = fill, fill
    values, places = Tensor(x).max_pool2d(kernel, stride, dilation=dilation, padding=padding, return_indices=True)
    want, chosen = torch.nn.functional.max_pool2d(torch.tensor(x), kernel, stride, padding, dilation,
                                                  return_indices=True)
    np.testing.assert_array_equal(values.numpy(), want.numpy())
    np.testing.assert_array_equal(places.numpy(), chosen.numpy())


ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {f"{n}{o or ''}": (n, o) for n, o in (
    *((n, {}) for n in ("ReLU", "ReLU6", "SELU", "SiLU", "Mish", "Hardswish", "Hardsigmoid", "Sigmoid", "LogSigmoid",
                        "Tanh", "Softsign", "GELU", "LeakyReLU", "ELU", "CELU", "Hardtanh", "Softplus", "PReLU",
                        "Flatten", "Identity")),
    ("GELU", {"approximate": "tanh"}), ("LeakyReLU", {"negative_slope": 0.3}), ("ELU", {"alpha": 0.5}),
    ("Hardtanh", {"min_val": -0.5, "max_val": 0.2}), ("Softplus", {"beta": 2.0}), ("Softmax", {"dim": 1}),
    ("LogSoftmax", {"dim": -1}), ("PReLU", {"num_parameters": 3}), ("Flatten", {"start_dim": 0, "end_dim": 1}),
    ("Upsample", {"scale_factor": 2}), ("Upsample", {"size": (5, 3), "mode": "bilinear"}))}


@table(ACTIVATIONS)
def test_layers_without_weights(row: Any) -> None:
    name, options = row
    check(name, (), options, random(2, 3, 4, 2))


def test_whole_channels_are_dropped() -> None:
    with Tensor.train():
        for layer in (nn.Dropout1d(0.4), nn.Dropout2d(0.4), nn.Dropout3d(0.4)):
            out = layer(Tensor.ones(40, 50, 2, 2)).numpy().reshape(2000, 4)
            assert (out == out[:, :1]).all() and abs((out[:, 0] == 0).mean() - 0.4) < 0.05
            np.testing.assert_allclose(out.max(), 1 / 0.6, rtol=1e-5)
        out = nn.AlphaDropout(0.3)(Tensor.randn(200, 200)).numpy()
        assert abs(out.mean()) < 0.02 and abs(out.std() - 1) < 0.02
    assert nn.Dropout2d(0.4)(Tensor.ones(1, 2, 3, 3)).sum().item() == 18


LOSSES: dict[str, tuple[str, dict[str, Any], str]] = {f"{n}{o or ''}": (n, o, k) for n, o, k in (
    ("MSELoss", {}, "like"), ("L1Loss", {"reduction": "sum"}, "like"), ("SmoothL1Loss", {"beta": 0.5}, "like"),
    ("HuberLoss", {"delta": 0.7}, "like"), ("BCEWithLogitsLoss", {"reduction": "none"}, "chance"),
    ("CrossEntropyLoss", {}, "class"), ("CrossEntropyLoss", {"label_smoothing": 0.1, "ignore_index": 2}, "class"),
    ("CrossEntropyLoss", {"reduction": "none"}, "class"), ("NLLLoss", {"ignore_index": 1}, "class"))}


@table(LOSSES)
def test_losses(row: Any) -> None:
    name, options, kind = row
    target = {"like": random(4, 5, seed=1), "chance": (random(4, 5, seed=1) > 0).astype(np.float32),
              "class": np.array([0, 2, 1, 4])}[kind]
    inputs = [random(4, 5), *([target] if kind == "like" else [])]
    check(name, (), options, *inputs, call=None if kind == "like" else {"target": target})


def test_losses_with_weights() -> None:
    x, weight, label = random(4, 5), abs(random(5, seed=1)), np.array([0, 2, 1, 4])
    chance = (random(4, 5, seed=2) > 0).astype(np.float32)
    some: tuple[dict[str, Any], ...] = ({}, {"ignore_index": 2, "label_smoothing": 0.2}, {"label_smoothing": 0.2},
                                        {"ignore_index": 2, "reduction": "none"})
    for options in some:
        compare(lambda t, o=options: nn.CrossEntropyLoss(Tensor(weight), **o)(t, Tensor(label)),
                lambda t, o=options: torch.nn.CrossEntropyLoss(torch.tensor(weight), **o)(t, torch.tensor(label)), x)
    compare(lambda t: nn.CrossEntropyLoss(Tensor(weight), label_smoothing=0.2)(t, Tensor(chance)),
            lambda t: torch.nn.CrossEntropyLoss(torch.tensor(weight), label_smoothing=0.2)(t, torch.tensor(chance)), x)
    images, places = random(2, 5, 3), np.array([[0, 1, 4], [2, 2, 3]])
    compare(lambda t: t.cross_entropy(Tensor(places), weight=Tensor(weight), label_smoothing=0.1),
            lambda t: F.cross_entropy(t, torch.tensor(places), torch.tensor(weight), label_smoothing=0.1), images)
    for positive in (None, weight):
        both = [None if positive is None else kind(positive) for kind in (Tensor, torch.tensor)]
        compare(lambda t, p=both[0]: nn.BCEWithLogitsLoss(Tensor(weight), pos_weight=p)(t, Tensor(chance)),
                lambda t, p=both[1]: torch.nn.BCEWithLogitsLoss(torch.tensor(weight), pos_weight=p)(
                    t, torch.tensor(chance)), x)
    for given in (None, weight):
        own, other = (None if given is None else kind(given) for kind in (Tensor, torch.tensor))
        compare(lambda t, w=own: nn.BCELoss(w)(t.sigmoid(), Tensor(chance)),
                lambda t, w=other: torch.nn.BCELoss(w)(t.sigmoid(), torch.tensor(chance)), x)
    with pytest.raises(ValueError, match="one weight per class"):
        nn.CrossEntropyLoss(Tensor(weight[:3]))(Tensor(x), Tensor(label))


SEEN = np.triu(np.ones((5, 5), bool), 1)
PADDING = np.array([[False] * 5, [False, False, False, True, True]])
ATTENTION: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}), "batch first": ({"batch_first": True, "bias": False}, {}),
    "mask": ({}, {"attn_mask": SEEN}), "float mask": ({}, {"attn_mask": random(5, 5, seed=4)}),
    "mask of each head": ({}, {"attn_mask": random(4, 5, 5, seed=4)}),
    "padding": ({}, {"key_padding_mask": PADDING}), "both": ({}, {"attn_mask": SEEN, "key_padding_mask": PADDING}),
    "each head's weights": ({}, {"average_attn_weights": False}),
}


@table(ATTENTION)
def test_multihead_attention(row: Any) -> None:
    made, call = row
    shape = (2, 5, 8) if made.get("batch_first") else (5, 2, 8)
    inputs = [random(*shape, seed=n) for n in range(3)]
    check("MultiheadAttention", (8, 2), made, *inputs, call=call)
    ours, theirs = nn.MultiheadAttention(8, 2, **made), torch.nn.MultiheadAttention(8, 2, **made)
    nn.state.load_state_dict(ours, theirs.state_dict())
    weights, expected = (
        layer(*map(kind, inputs), **{k: kind(v) if isinstance(v, np.ndarray) else v for k, v in call.items()})[1]
        for layer, kind in ((ours, Tensor), (theirs, torch.tensor)))
    np.testing.assert_allclose(weights.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_attention_to_other_widths_and_without_a_batch() -> None:
    check("MultiheadAttention", (8, 4), {"kdim": 3, "vdim": 5}, random(5, 2, 8), random(4, 2, 3), random(4, 2, 5))
    check("MultiheadAttention", (4, 1), {}, random(3, 4), random(2, 4), random(2, 4))
    assert nn.MultiheadAttention(4, 2)(*[Tensor.ones(3, 0, 4)] * 3)[0].shape == (3, 0, 4)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu", "batch_first": True}], ids=str)
def test_transformer_layers(options: dict[str, Any]) -> None:
    made = {"dim_feedforward": 12, "dropout": 0.0, **options}
    x, memory = ((random(2, 5, 8), random(2, 4, 8)) if options else (random(5, 2, 8), random(4, 2, 8)))
    seen = {"src_mask": SEEN, "src_key_padding_mask": PADDING}
    check("TransformerEncoderLayer", (8, 2), made, x, call=seen, rtol=1e-3)
    check("TransformerDecoderLayer", (8, 2), made, x, memory, call={"tgt_mask": SEEN}, rtol=1e-3)


def test_transformer_stacks() -> None:
    made: dict[str, Any] = {"dim_feedforward": 12, "dropout": 0.0}
    for name, inputs in (("Encoder", [random(5, 2, 8)]), ("Decoder", [random(5, 2, 8), random(4, 2, 8)])):
        layer, twin = getattr(nn, f"Transformer{name}Layer")(8, 2, **made), getattr(
            torch.nn, f"Transformer{name}Layer")(8, 2, **made)
        ours = getattr(nn, f"Transformer{name}")(layer, 2, nn.LayerNorm(8))
        theirs = getattr(torch.nn, f"Transformer{name}")(twin, 2, torch.nn.LayerNorm(8))
        nn.state.load_state_dict(ours, {n: random(*p.shape, seed=7) * 0.2 for n, p in theirs.state_dict().items()})
        theirs.load_state_dict({n: torch.tensor(t.numpy()) for n, t in nn.state.get_state_dict(ours).items()})
        compare(ours, theirs, *inputs, rtol=1e-3)
        assert len({id(t) for t in nn.state.get_parameters(ours)}) == len(theirs.state_dict())


def test_sequential_is_a_list_of_layers() -> None:
    def made(kit: Any) -> Any:
        return kit.Sequential(kit.Conv2d(1, 2, 3), kit.BatchNorm2d(2), kit.ReLU(), kit.Sequential(kit.Flatten()),
                              kit.Linear(18, 3))

    ours, theirs = made(nn), made(torch.nn).eval()
    assert nn.state.load_state_dict(ours, theirs.state_dict()) == [] and len(ours) == len(theirs) == 5
    assert set(nn.state.get_state_dict(ours)) == set(theirs.state_dict())
    compare(ours, theirs, random(2, 1, 5, 5))


@pytest.mark.parametrize("name", ["Conv2d", "BatchNorm2d", "AdaptiveAvgPool2d", "TransformerEncoderLayer"])
def test_half_precision(name: str) -> None:
    arguments = {"Conv2d": (3, 4, 3), "BatchNorm2d": (3,), "AdaptiveAvgPool2d": (2,),
                 "TransformerEncoderLayer": (8, 2, 8, 0.0)}[name]
    ours, theirs = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments).eval().to(torch.bfloat16)
    for t in nn.state.get_parameters(ours):
        t.replace(t.cast("bfloat16") if t.dtype.is_float else t)
    nn.state.load_state_dict(ours, {n: p.float().numpy() for n, p in theirs.state_dict().items()})
    x = random(5, 2, 8) if "Transformer" in name else random(2, 3, 5, 5)
    out = ours(Tensor(x).cast("bfloat16"))
    assert str(out.dtype) == "dtypes.bfloat16"
    expected = theirs(torch.tensor(x).to(torch.bfloat16)).float().detach().numpy()
    np.testing.assert_allclose(out.float().numpy(), expected, rtol=0.05, atol=0.06)


def test_options_that_pytorch_has() -> None:
    q = random(3, 2, 8)
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True}):
        check("MultiheadAttention", (8, 2), options, q, q, q, rtol=1e-3)
        check("MultiheadAttention", (8, 2), options, q, q, q, rtol=1e-3,
              call={"attn_mask": np.triu(np.ones((3, 3), bool), 1)})
    check("AvgPool2d", (2,), {"divisor_override": 3}, random(1, 2, 4, 4))
    check("PReLU", (), {}, np.float32(-2))
    check("Upsample", (), {"scale_factor": (1.5, 2), "mode": "bicubic"}, random(1, 2, 3, 4))
    for wanted in ([9], [10], [1, 6, 9]):
        check("ConvTranspose1d", (4, 6, 3), {"stride": 2}, random(1, 4, 4), call={"output_size": wanted}, rtol=1e-3)


def test_batch_norm_of_all_batches_alike_and_of_none() -> None:
    ours, theirs = nn.BatchNorm1d(3, momentum=None), torch.nn.BatchNorm1d(3, momentum=None)
    with Tensor.train():
        for seed in range(3):
            x = random(4, 3, seed=seed)
            np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), atol=1e-5)
        empty = ours(Tensor(x[:0]))
        theirs(torch.tensor(x[:0]))
        assert empty.shape == (0, 3) and empty.sum().gradient(ours.weight)[0].tolist() == [0.0] * 3
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        np.testing.assert_allclose(getattr(ours, name).numpy().reshape(-1), getattr(theirs, name).numpy().reshape(-1),
                                   rtol=1e-5)
