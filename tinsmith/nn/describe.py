"""Models as text (``repr`` of layers as in PyTorch, ``summary``), and errors for PyTorch names that ``nn`` lacks.

The error for a layer or module method of PyTorch without a counterpart names the replacement.
"""
from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from tinsmith.core.errors import ArgumentError, UnknownNameError
from tinsmith.core.suggestions import unknown
from tinsmith.tensor.base import TensorBase
from tinsmith.tensor.tensor import Tensor

_LEAVES: Final = (str, bytes, int, float, complex, TensorBase, type, ModuleType)


class Layer:
    """The base of the layers of ``nn``, which gives them a ``repr``. A layer of your own needs no base.

    >>> from tinsmith import nn
    >>> nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
    Sequential(
      (0): Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
      (1): ReLU()
    )
    """

    def extra_repr(self) -> str:
        """Return the arguments that ``repr`` shows between the parentheses."""
        return ""

    def __repr__(self) -> str:
        return describe(self)


def arguments(**values: Any) -> str:
    """Return ``name=value`` pairs as an argument list."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def per_axis(value: Any, axes: int) -> tuple[Any, ...]:
    """Return a window setting (kernel size, stride, …) as a tuple with one value per axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes


def describe(layer: Any) -> str:
    """Return the class of a layer or model with its arguments, and the layers that it holds, one per line."""
    name = type(layer).__name__
    extra = layer.extra_repr() if isinstance(layer, Layer) else ""
    inner = [f"({path}): {describe(part) if _is_layer(part) else _function_name(part)}"
             for path, part in _parts(layer, within=False)]
    if not inner:
        return f"{name}({extra})"
    lines = [*([extra] if extra else []), *inner]
    return f"{name}(\n" + "\n".join("  " + line.replace("\n", "\n  ") for line in lines) + "\n)"


def _function_name(function: Any) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}()"


def _is_layer(value: Any) -> bool:
    """Return True if a value is a callable object that may hold tensors, not a function."""
    return callable(value) and hasattr(value, "__dict__") and not hasattr(value, "__code__") and not isinstance(
        value, _LEAVES)


def _parts(layer: Any, within: bool) -> Iterator[tuple[str, Any]]:
    """Yield (path, layer or function) for the attributes, list items and dict values of a layer, in order.

    Args:
        within: also yield nested layers, each after its parent.
    """
    seen = {id(layer)}

    def walk(value: Any, path: str, listed: bool) -> Iterator[tuple[str, Any]]:
        for name, child in _children(value):
            inner = f"{path}.{name}" if path else str(name)
            if id(child) in seen or isinstance(child, _LEAVES) or child is None:
                continue
            if _is_layer(child):
                seen.add(id(child))
                yield inner, child
                if within:
                    yield from walk(child, inner, False)
            elif isinstance(child, (list, tuple, Mapping)) and not hasattr(child, "_fields"):
                seen.add(id(child))
                yield from walk(child, inner, True)
            elif callable(child) and isinstance(value, (list, tuple, Mapping)):
                yield inner, child

    yield from walk(layer, "", False)


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    listed = list(enumerate(value)) if isinstance(value, (list, tuple)) else []
    return [*listed, *(vars(value).items() if hasattr(value, "__dict__") else ())]


class SummaryRow(NamedTuple):
    """One layer of a summary.

    Attributes:
        path: its path in the model's state dict, such as ``encoder.0``; empty for the model.
        layer: its class.
        shape: the shape of its first result; None if it was not called or returned no tensor.
        parameters: elements of the tensors that it holds itself, without running statistics.
    """

    path: str
    layer: str
    shape: tuple[Any, ...] | None
    parameters: int


def _indented(row: SummaryRow, paths: set[str]) -> str:
    """Return the name of a row below the row of the layer that holds it."""
    words = row.path.split(".") if row.path else []
    holders = [n for n in range(len(words)) if ".".join(words[:n]) in paths]
    name = ".".join(words[holders[-1]:]) if holders else ""
    return f"{'  ' * len(holders)}{name} {row.layer}" if name else row.layer


class Summary(NamedTuple):
    """The layers of a model as a table.

    Attributes:
        rows: the model and its layers, each after the one that holds it.
        parameters: elements of all tensors that are trained.
        buffers: elements of the others, such as running statistics.
        nbytes: memory of both.
    """

    rows: tuple[SummaryRow, ...]
    parameters: int
    buffers: int
    nbytes: int

    def __repr__(self) -> str:
        head = ("layer", "output", "parameters")
        body = [(_indented(r, {other.path for other in self.rows}), "–" if r.shape is None else str(r.shape),
                 f"{r.parameters:,}" if r.parameters else "–") for r in self.rows]
        widths = [max(len(line[n]) for line in [head, *body]) for n in range(3)]
        table = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in [head, *body]]
        rule = "─" * len(table[0])
        total = f"{self.parameters:,} parameters, {self.buffers:,} in buffers, {self.nbytes / 1e6:,.2f} MB"
        return "\n".join([table[0], rule, *table[1:], rule, total])


def summary(model: Callable[..., Any], *inputs: Any) -> Summary:
    """Return the layers of a model with output shapes and numbers of parameters.

    The model is called once in evaluation mode, without gradients; nothing is computed. Without inputs, shapes are
    left out.

    >>> from tinsmith import nn
    >>> nn.summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), Tensor.ones(3, 4))
    layer       output  parameters
    ──────────────────────────────
    Sequential  (3, 2)           –
      0 Linear  (3, 8)          40
      1 ReLU    (3, 8)           –
      2 Linear  (3, 2)          18
    ──────────────────────────────
    58 parameters, 0 in buffers, 0.00 MB

    Raises:
        ArgumentError: if the model cannot be called.
    """
    if not callable(model):
        raise ArgumentError("summary", f"a model is called with its inputs, not {type(model).__name__}",
                            "an object with __call__")
    layers = [("", model), *_parts(model, within=True)]
    shapes = _shapes(model, inputs, {id(layer) for _, layer in layers}) if inputs else {}
    rows, counted = [], dict[int, TensorBase]()
    for path, layer in layers:
        name = type(layer).__name__ if _is_layer(layer) else getattr(layer, "__name__", type(layer).__name__)
        own = {id(t): t for t in _tensors(layer)} if _is_layer(layer) else {}
        new = [t for key, t in own.items() if key not in counted]
        counted.update(own)
        trainable = sum(_size(t) for t in new if t.requires_grad is not False)
        rows.append(SummaryRow(path, name, shapes.get(id(layer)), trainable))
    trained = [t for t in counted.values() if t.requires_grad is not False]
    others = [t for t in counted.values() if t.requires_grad is False]
    return Summary(tuple(rows), sum(map(_size, trained)), sum(map(_size, others)),
                   sum(_size(t) * t.dtype.itemsize for t in counted.values()))


def _size(t: TensorBase) -> int:
    return math.prod(t.shape)


def _tensors(value: Any) -> Iterator[TensorBase]:
    """Yield the tensors in the attributes, lists and dicts of a layer, except the tensors of its sublayers."""
    for _, child in _children(value):
        if isinstance(child, TensorBase):
            yield child
        elif isinstance(child, (list, tuple, Mapping)):
            yield from _tensors(child)


def _shapes(model: Callable[..., Any], inputs: tuple[Any, ...], layers: set[int]) -> dict[int, tuple[Any, ...]]:
    """Call a model and return the shape of the first result of each layer, by the layer's id."""
    found: dict[int, tuple[Any, ...]] = {}
    before = sys.getprofile()

    def note(frame: FrameType, event: str, value: Any) -> None:
        if event != "return" or frame.f_code.co_name != "__call__":
            return
        layer = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        if id(layer) in layers and isinstance(first, TensorBase):
            found.setdefault(id(layer), first.shape)

    with Tensor.train(False), Tensor.no_grad():
        sys.setprofile(note)
        try:
            model(*inputs)
        finally:
            sys.setprofile(before)
    return found

_HOOK: Final = "__getattr__"
_ALL: Final = "for t in nn.state.get_state_dict(model).values(): t.replace(t.{}(…))"

_PAD = "x.pad((left, right, top, bottom){}), from the last axis on"
_LAZY = "{} with its sizes: parameters are there when the layer is made"


def _each(names: str, mend: str) -> dict[str, str]:
    return {name: mend.format(name.removeprefix("Lazy")) for name in names.split()}

ABSENT: dict[str, str] = {
    "Module": "a class with __call__",
    **_each("ModuleList ParameterList", "a list"),
    **_each("ModuleDict ParameterDict", "a dict"),
    "Container": "a list or a dict",
    "Parameter": "a Tensor",
    **_each("Buffer UninitializedParameter", "a Tensor with requires_grad=False"),
    "functional": "methods of Tensor: x.relu()",
    "init": "Tensor.uniform, normal, glorot_uniform, kaiming_uniform, kaiming_normal",
    "Unflatten": "x.unflatten(dim, sizes)",
    **_each("DataParallel SyncBatchNorm", "x.shard(devices, axis=0), over which batch norms are synced"),
    **_each("ZeroPad1d ZeroPad2d ZeroPad3d", _PAD.format("")),
    **_each("ConstantPad1d ConstantPad2d ConstantPad3d", _PAD.format(", value=v")),
    **_each("ReflectionPad1d ReflectionPad2d ReflectionPad3d", _PAD.format(', mode=\"reflect\"')),
    **_each("ReplicationPad1d ReplicationPad2d ReplicationPad3d", _PAD.format(', mode=\"replicate\"')),
    **_each("CircularPad1d CircularPad2d CircularPad3d", _PAD.format(', mode=\"circular\"')),
    **_each("LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d "
            "LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d "
            "LazyLinear", _LAZY),
    "PixelShuffle": "x.pixel_shuffle(upscale_factor)",
    "PixelUnshuffle": "x.pixel_unshuffle(downscale_factor)",
    "ChannelShuffle": "x.channel_shuffle(groups)",
    "GLU": "x.glu(dim)",
    "Hardshrink": "x.hardshrink(lambd)",
    "Softshrink": "x.softshrink(lambd)",
    "Tanhshrink": "x.tanhshrink()",
    "Threshold": "x.threshold(threshold, value)",
    "Softmin": "x.softmin(axis)",
    "Softmax2d": "x.softmax(1)",
    "RReLU": "nn.LeakyReLU, or x.leaky_relu with a random slope",
    "Bilinear": 'Tensor.einsum("ni,oij,nj->no", x, weight, y)',
    "CosineSimilarity": "x.cosine_similarity(y, dim, eps)",
    "PairwiseDistance": "x.pairwise_distance(y, p, eps, keepdim)",
    "KLDivLoss": "x.kl_div(target, reduction, log_target)",
    "HingeEmbeddingLoss": "x.hinge_embedding_loss(target, margin, reduction)",
    "CosineEmbeddingLoss": "x.cosine_embedding_loss(y, target, margin, reduction)",
    "MarginRankingLoss": "x.margin_ranking_loss(y, target, margin, reduction)",
    "PoissonNLLLoss": "x.poisson_nll_loss(target, log_input, full, eps, reduction)",
    "GaussianNLLLoss": "x.gaussian_nll_loss(target, var, full, eps, reduction)",
    "SoftMarginLoss": "x.soft_margin_loss(target, reduction)",
    "TripletMarginLoss": "x.triplet_margin_loss(positive, negative, margin)",
    "TripletMarginWithDistanceLoss": "(d(x, positive) - d(x, negative) + margin).relu().mean()",
    **_each("MultiLabelSoftMarginLoss", "x.binary_crossentropy_logits(target)"),
    **_each("MultiLabelMarginLoss MultiMarginLoss", "(margin - x.gather(1, label) + x).relu() without the label's own"),
    "NLLLoss2d": "nn.NLLLoss",
    "LinearCrossEntropyLoss": "nn.Linear and nn.CrossEntropyLoss",
    "CTCLoss": "the recursion written with tensor methods: tests/compat/programs/speech_ctc.py",
    "AdaptiveLogSoftmaxWithLoss": "nn.Linear and nn.CrossEntropyLoss",
    "EmbeddingBag": "nn.Embedding, and .sum(1) or .mean(1)",
    "Unfold": "x.unfold(dim, size, step), once for each axis",
    "Fold": "x.scatter_reduce with the places of the windows",
    **_each("MaxUnpool1d MaxUnpool2d MaxUnpool3d", "x.max_unpool2d(indices, kernel_size)"),
    **_each("LPPool1d LPPool2d LPPool3d", "(x ** p).avg_pool2d(kernel_size) times the window's size, to the power 1/p"),
    **_each("FractionalMaxPool2d FractionalMaxPool3d", "nn.AdaptiveMaxPool2d"),
    **_each("LocalResponseNorm CrossMapLRN2d", "a mean of squares by avg_pool2d over the channels, or nn.GroupNorm"),
    "FeatureAlphaDropout": "nn.AlphaDropout",
    **_each("UpsamplingNearest2d", "nn.Upsample(scale_factor=2)"),
    **_each("UpsamplingBilinear2d", 'nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)'),
    "Transformer": "nn.TransformerEncoder and nn.TransformerDecoder",
    "RNNBase": "nn.RNN, nn.LSTM or nn.GRU",
    "RNNCellBase": "nn.RNNCell, nn.LSTMCell or nn.GRUCell",
}

MEMBERS: Final[dict[str, str]] = {
    "parameters": "nn.state.get_parameters(model)", "named_parameters": "nn.state.get_state_dict(model).items()",
    "buffers": "nn.state.get_state_dict(model)", "named_buffers": "nn.state.get_state_dict(model).items()",
    "state_dict": "nn.state.get_state_dict(model), or nn.state.save(path, model=model, optimizer=optimizer)",
    "load_state_dict": "nn.state.load_state_dict(model, state), or nn.state.load(path, model=model)",
    "train": "with Tensor.train(): around what trains", "eval": "nothing: outside of Tensor.train() nothing trains",
    "forward": "the call itself, model(x)", "zero_grad": "optimizer.zero_grad()",
    "modules": "its attributes, vars(model)", "children": "its attributes, vars(model)",
    "named_modules": "its attributes, vars(model)", "named_children": "its attributes, vars(model)",
    "apply": "a loop over nn.state.get_state_dict(model).values()", "register_parameter": "an attribute",
    "register_buffer": "an attribute with requires_grad=False", "add_module": "an attribute",
    "register_module": "an attribute", "requires_grad_": "t.requires_grad = False for each of "
    "nn.state.get_parameters(model)", "register_forward_hook": "a function that calls the layer",
    "register_forward_pre_hook": "a function that calls the layer", "compile": "TinyJit(model)",
    "add_param_group": "all groups when it is made, or nn.optim.OptimizerGroup(one, other)",
    **{name: _ALL.format(name) for name in ("to", "cuda", "cpu", "half", "float", "double", "bfloat16", "type")}}


def explain_members(module: ModuleType) -> None:
    """Make missing PyTorch methods of a module's classes raise an error that names the replacement.

    >>> from tinsmith import nn
    >>> try:
    ...     nn.Linear(2, 3).parameters()
    ... except AttributeError as error:
    ...     print(error.mend)
    nn.state.get_parameters(model)
    """
    for name, value in vars(module).items():
        mine = type(value) is type and value.__module__ == module.__name__
        if mine and not name.startswith("_") and not hasattr(value, _HOOK):
            setattr(value, _HOOK, _no_member)


def _no_member(self: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name)
    if name in MEMBERS:
        raise UnknownNameError(type(self).__name__, f"no attribute {name!r}", MEMBERS[name])
    raise unknown(type(self).__name__, name, [*getattr(self, "__dict__", ()), *dir(type(self))])
