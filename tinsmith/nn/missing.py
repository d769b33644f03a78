"""PyTorch layers and module methods without a counterpart in ``nn``: the error names the replacement."""
from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from tinsmith.core.errors import UnknownNameError
from tinsmith.core.suggestions import unknown

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
    "CTCLoss": "the recursion written with tensor methods: tests/compat_programs/speech_ctc.py",
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
