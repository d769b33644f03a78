"""One small failing program per error: its class, its id, the names in its message, the line it blames, and that other
tensors are unaffected.

A program is a few lines of source; the last one fails. The tensors it made before that still compute what they should.
"""
from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinsmith import Context, Device, Tensor, dtypes, nn
from tinsmith.core import errors
from tinsmith.nn.state import load_state_dict
from tinsmith.tensor.realize import is_realized

NAMES: dict[str, Any] = {"Tensor": Tensor, "dtypes": dtypes, "nn": nn, "np": np, "Device": Device, "Context": Context,
                         "load_state_dict": load_state_dict, "ones": Tensor.ones}

# class, what the message must contain, program
SHAPES = {
    "add": ("ShapeError", "add|(3, 4)|(5, 6)|axis -2|3 and 5|reshape", "ones(3, 4) + ones(5, 6)"),
    "sub": ("ShapeError", "sub|(3,)|(4,)", "ones(3) - ones(4)"),
    "mul": ("ShapeError", "mul|(2, 3)|(2,)|axis -1", "ones(2, 3) * ones(2)"),
    "less": ("ShapeError", "lt|(3,)|(4,)", "ones(3) < ones(4)"),
    "maximum": ("ShapeError", "maximum|(3,)|(4,)", "ones(3).maximum(ones(4))"),
    "pow": ("ShapeError", "pow|(3,)|(4,)", "ones(3) ** ones(4)"),
    "and": ("ShapeError", "bitwise_and|(1, 2)|(3,)", "Tensor([[1, 2]]) & Tensor([1, 2, 3])"),
    "where": ("ShapeError", "where|(2,)|(3,)", "Tensor([True, False]).where(ones(3), 0)"),
    "matmul": ("ShapeError", "dot|(3, 4)|(5, 6)|4|5|transpose", "ones(3, 4) @ ones(5, 6)"),
    "matmul-batch": ("ShapeError", "dot|(2, 3, 4)|(3, 4, 5)|2 and 3", "ones(2, 3, 4) @ ones(3, 4, 5)"),
    "dot-scalars": ("ShapeError", "dot|()|*", "Tensor(1.0).dot(Tensor(2.0))"),
    "einsum": ("ShapeError", "einsum|'j'|3 and 4|(2, 3), (4, 5)", "Tensor.einsum('ij,jk->ik', ones(2, 3), ones(4, 5))"),
    "linear": ("ShapeError", "dot (in linear)|(2, 3)|(4, 5)", "ones(2, 3).linear(ones(4, 5))"),
    "Linear": ("ShapeError", "dot (in Linear)|(2, 5)|(3, 4)", "layer = nn.Linear(3, 4)\nlayer(ones(2, 5))"),
    "linear-bias": ("ShapeError", "add (in linear)|(2, 5)|(4,)", "ones(2, 3).linear(ones(3, 5), ones(4))"),
    "cat": ("ShapeError", "cat|(3, 4)|(5, 6)|axis 0|axis 1 has 6 and 4|dim=1", "ones(3, 4).cat(ones(5, 6))"),
    "cat-axes": ("ShapeError", "cat|(3,)|(3, 4)|numbers of axes", "ones(3, 4).cat(ones(3))"),
    "cat-list": ("DTypeError", "cat|int|Tensor(...)", "ones(3).cat([1, 2])"),
    "stack": ("ShapeError", "stack|(4,)|(3,)", "ones(3).stack(ones(4))"),
    "stack-none": ("ArgumentError", "stack|no tensors", "Tensor.stack([])"),
    "reshape": ("ShapeError", "reshape|(6,)|6 elements|(4, 2)", "ones(6).reshape(4, 2)"),
    "reshape-open": ("ShapeError", "reshape|(-1, -1)", "ones(6).reshape(-1, -1)"),
    "reshape-float": ("DTypeError", "reshape|2.0|int(...)", "ones(6).reshape(2.0, 3)"),
    "expand": ("ShapeError", "expand|(3, 4)|(3, 5)|axis 1|repeat", "ones(3, 4).expand(3, 5)"),
    "expand-fewer": ("ShapeError", "expand|(3, 4)|(4,)", "ones(3, 4).expand(4)"),
    "permute-twice": ("AxisError", "permute|(0, 0)|(3, 4)", "ones(3, 4).permute(0, 0)"),
    "permute-range": ("AxisError", "permute|axis 2|(3, 4)|-2 to 1", "ones(3, 4).permute(0, 1, 2)"),
    "squeeze": ("AxisError", "squeeze|axis 5|(3, 1)|-2 to 1", "ones(3, 1).squeeze(5)"),
    "unsqueeze": ("AxisError", "unsqueeze|axis 4|(3,)", "ones(3).unsqueeze(4)"),
    "sum": ("AxisError", "sum|axis 2|(3, 4)|-2 to 1", "ones(3, 4).sum(2)"),
    "sum-twice": ("ArgumentError", "sum|(0, 0)|once", "ones(3, 3).sum((0, 0))"),
    "mean-name": ("DTypeError", "mean|an axis|'x'", "ones(3).mean('x')"),
    "softmax": ("AxisError", "softmax|axis 3|(3, 4)", "ones(3, 4).softmax(3)"),
    "argmax": ("AxisError", "argmax|axis 2|(3, 4)", "ones(3, 4).argmax(2)"),
    "max-empty": ("ShapeError", "max|(0,)|at least one", "ones(0).max()"),
    "split": ("ShapeError", "split|(1, 1)|(3,)|sum to 3", "ones(3).split([1, 1])"),
    "pad": ("ShapeError", "pad|2 pairs|(3,)", "ones(3).pad(((1, 2), (3, 4)))"),
    "shrink": ("ShapeError", "shrink|(0, 5)|axis 0|size 3", "ones(3).shrink(((0, 5),))"),
    "zeros": ("ShapeError", "zeros|(-1,)|negative", "Tensor.zeros(-1)"),
    "item": ("ShapeError", "item|(3,)|3 elements|tolist", "ones(3).item()"),
    "bool": ("ArgumentError", "bool|(3,)|ambiguous|.any() or .all()", "if ones(3) > 0: pass"),
}
LAYERS = {
    "conv2d": ("ShapeError", "conv2d|(1, 3, 8, 8)|3 channels|(4, 2, 3, 3)|takes 2",
               "ones(1, 3, 8, 8).conv2d(ones(4, 2, 3, 3))"),
    "Conv2d": ("ShapeError", "conv2d|(1, 2, 8, 8)|takes 3", "nn.Conv2d(3, 4, 3)(ones(1, 2, 8, 8))"),
    "conv2d-unbatched": ("ShapeError", "conv2d|(1, 2, 8, 8)|takes 3", "ones(2, 8, 8).conv2d(ones(4, 3, 3, 3))"),
    "conv2d-axes": ("ShapeError", "conv2d|(8, 8) has 2 axes|(4, 3, 3, 3) 4|[N, Cin, …]|[Cout, Cin/groups, k…]",
                    "ones(8, 8).conv2d(ones(4, 3, 3, 3))"),
    "conv2d-weight": ("ShapeError", "conv2d|(4, 3) has 0 spatial axes|1 to 3", "ones(8, 8).conv2d(ones(4, 3))"),
    "ConvTranspose2d-axes": ("ShapeError", "conv_transpose2d|(8, 8) has 2 axes|[N, Cin, …]|[Cin, Cout/groups, k…]",
                             "nn.ConvTranspose2d(3, 4, 3)(ones(8, 8))"),
    "conv2d-small": ("ShapeError", "conv2d|kernel 3|size 2|padding", "ones(1, 3, 2, 2).conv2d(ones(4, 3, 3, 3))"),
    "conv2d-bias": ("ShapeError", "conv2d|(3,)|4 output", "ones(1, 3, 8, 8).conv2d(ones(4, 3, 3, 3), ones(3))"),
    "conv2d-groups": ("ShapeError", "conv2d|groups=3|3 input and 4",
                      "ones(1, 3, 4, 4).conv2d(ones(4, 1, 3, 3), None, 3)"),
    "conv2d-same": ("ArgumentError", "conv2d|'same'|(2, 2)|stride 1",
                    "ones(1, 1, 8, 8).conv2d(ones(1, 1, 3, 3), stride=2, padding='same')"),
    "conv2d-name": ("ArgumentError", "conv2d|'full'|'valid'",
                    "ones(1, 1, 8, 8).conv2d(ones(1, 1, 3, 3), padding='full')"),
    "sum-axis-dim": ("ArgumentError", "sum|axis=0|dim=1|one argument", "ones(2, 3).sum(0, dim=1)"),
    "SGD-rate": ("DTypeError", "SGD|learning rate|'a'|lr=0.001", "nn.optim.SGD([x], lr='a')"),
    "Adam-tensor": ("DTypeError", "Adam|list of tensors|[tensor]", "nn.optim.Adam(x)"),
    "SGD-strange": ("DTypeError", "SGD|takes tensors|3 (int)", "nn.optim.SGD([x, 3])"),
    "pool": ("ShapeError", "max_pool2d|kernel 3|size 2", "ones(1, 1, 2, 2).max_pool2d(3)"),
    "LayerNorm": ("ShapeError", "LayerNorm|(2, 5)|(4,)", "nn.LayerNorm(4)(ones(2, 5))"),
    "layernorm": ("AxisError", "layernorm|axis 3|(2, 5)", "ones(2, 5).layernorm(axis=3)"),
    "RMSNorm": ("ShapeError", "RMSNorm|(2, 4)|(3,)", "nn.RMSNorm(3)(ones(2, 4))"),
    "BatchNorm": ("ShapeError", "BatchNorm|(2, 3, 2)|4 channels", "nn.BatchNorm(4)(ones(2, 3, 2))"),
    "batchnorm": ("ShapeError", "batchnorm|(2, 3)|mean (2,)|(3,)",
                  "ones(2, 3).batchnorm(None, None, ones(2), ones(2))"),
    "cross_entropy": ("ShapeError", "cross_entropy|(4, 10)|(3,)|indices (4,)",
                      "ones(4, 10).cross_entropy(Tensor([1, 2, 3]))"),
    "sparse": ("ShapeError", "sparse_categorical_crossentropy|(4, 10)|(3,)",
               "ones(4, 10).sparse_categorical_crossentropy(Tensor([1, 2, 3]))"),
    "cross_entropy-class": ("AxisError", "cross_entropy|class 9|size 2|0 to 1, and ignore_index",
                            "ones(2, 2).cross_entropy(Tensor([1, 9]))"),
    "cross_entropy-array": ("AxisError", "cross_entropy|class -100|size 2",
                            "ones(2, 2).cross_entropy(Tensor(np.array([1, -100])))"),
    "sparse-class": ("AxisError", "sparse_categorical_crossentropy|class 2|size 2",
                     "ones(2, 2).sparse_categorical_crossentropy(Tensor([-1, 2]))"),
    "nll_loss-class": ("AxisError", "nll_loss|class 2|size 2", "ones(2, 2).nll_loss(Tensor([0, 2]))"),
    "embedding-range": ("AxisError", "embedding|index 4|size 4|0 to 3", "nn.Embedding(4, 2)(Tensor([1, 4]))"),
    "nll_loss": ("ShapeError", "nll_loss|(4, 3)|(2,)", "ones(4, 3).nll_loss(Tensor([1, 2]))"),
    "mse_loss": ("ShapeError", "mse_loss|(4,)|(3,)", "ones(4).mse_loss(ones(3))"),
    "attention": ("ShapeError", "scaled_dot_product_attention|(1, 2, 4)|(1, 2, 5)",
                  "ones(1, 2, 4).scaled_dot_product_attention(ones(1, 2, 5), ones(1, 2, 5))"),
    "embedding": ("ShapeError", "embedding|(4,)|[rows, width]", "Tensor([1]).embedding(ones(4))"),
    "dropout": ("ArgumentError", "dropout|2|[0, 1]", "ones(3).dropout(2)"),
    "state-missing": ("ArgumentError", "load_state_dict|missing bias|strict=False",
                      "load_state_dict(nn.Linear(2, 3), {'weight': ones(3, 2)})"),
    "state-unexpected": ("ArgumentError", "load_state_dict|missing bias; unexpected x",
                         "load_state_dict(nn.Linear(2, 3), {'weight': ones(3, 2), 'x': ones(3)})"),
    "state-shape": ("ShapeError", "load_state_dict|weight: (2, 2) into (3, 2)",
                    "load_state_dict(nn.Linear(2, 3), {'weight': ones(2, 2), 'bias': ones(3)})"),
}
DTYPES = {
    "index-tensor": ("DTypeError", "getitem|dtypes.float|.cast(dtypes.int32)", "ones(4)[Tensor([1.0])]"),
    "index-float": ("DTypeError", "getitem|1.5|float", "ones(4)[1.5]"),
    "index-text": ("DTypeError", "getitem|'a'|str", "ones(4)['a']"),
    "index-range": ("AxisError", "getitem|index 5|axis 0|(4,)|-4 to 3", "ones(4)[5]"),
    "index-list": ("AxisError", "getitem|index 4|size 4|-4 to 3", "ones(4)[[0, 4]]"),
    "index-array": ("AxisError", "getitem|index -5|size 4|-4 to 3", "ones(4)[np.array([0, -5])]"),
    "index-many": ("AxisError", "getitem|2 indices|(4,)", "ones(4)[0, 0]"),
    "index-shapes": ("ShapeError", "getitem|(2,)|(3,)", "ones(4, 4)[Tensor([1, 2]), Tensor([1, 2, 3])]"),
    "index-mask": ("ShapeError", "getitem|mask|(1,)|(4,)", "ones(4)[Tensor([True])]"),
    "gather": ("DTypeError", "gather|dtypes.float", "ones(4).gather(0, Tensor([1.0]))"),
    "scatter": ("DTypeError", "scatter|dtypes.int|dtypes.float", "ones(4).scatter(0, Tensor([1]), Tensor([1]))"),
    "setitem": ("ShapeError", "setitem|(3,)|(2,)", "x[0:2] = ones(3)"),
    "embedding-float": ("DTypeError", "embedding|dtypes.float", "Tensor([1.0]).embedding(ones(4, 4))"),
    "bits": ("DTypeError", "bitwise_and|integers|dtypes.float", "ones(3) & 1"),
    "shift": ("DTypeError", "lshift|dtypes.float", "ones(3) << 1"),
    "bitcast": ("ShapeError", "bitcast|(3,)|4 bytes|8 bytes", "ones(3).bitcast('int64')"),
    "typo": ("UnknownNameError", "flaot32|did you mean dtypes.float32?", "dtypes.flaot32"),
    "typo-cast": ("DTypeError", "cast|flaot32|did you mean dtypes.float32?", "ones(3).cast('flaot32')"),
    "unknown": ("DTypeError", "foo|known: bool, int8", "Tensor([1], dtype='foo')"),
    "ragged": ("ShapeError", "Tensor|ragged|equal lengths", "Tensor([[1, 2], [3]])"),
    "none": ("DTypeError", "Tensor|None|numbers", "Tensor(None)"),
    "none-inside": ("DTypeError", "Tensor|list with an element None", "Tensor([1, None])"),
    "text": ("DTypeError", "Tensor|'abc' (str)|numbers", "Tensor('abc')"),
    "texts": ("DTypeError", "Tensor|list|'a'", "Tensor(['a', 'b'])"),
    "object": ("DTypeError", "Tensor|object", "Tensor(object())"),
    "complex": ("DTypeError", "Tensor|complex64", "Tensor(np.zeros(3, np.complex64))"),
    "huge-int": ("DTypeError", "Tensor|no dtype holds|1180591620717411303424", "Tensor([2**70])"),
    "full-text": ("DTypeError", "full|'a'", "Tensor.full((2,), 'a')"),
    "arange-text": ("DTypeError", "arange|'a'", "Tensor.arange('a')"),
    "arange-step": ("ArgumentError", "arange|step of 0", "Tensor.arange(0, 5, 0)"),
    "int-power": ("ArgumentError", "pow|dtypes.int|-1|float32", "Tensor([2]) ** -1"),
    "method-none": ("DTypeError", "add|NoneType", "x.add(None)"),
    "assign-shape": ("ShapeError", "assign|(3,)|(2,)", "x.assign(ones(3))"),
    "assign-dtype": ("DTypeError", "assign|dtypes.float|dtypes.int|.cast", "x.assign(Tensor([1, 2]))"),
    "inplace-shape": ("ShapeError", "add|in place|(2,)|(3, 2)|x = x + y", "x += ones(3, 2)"),
    "inplace-dtype": ("DTypeError", "add|in place|dtypes.int|dtypes.float", "i = Tensor([1, 2])\ni += 1.5"),
    "replace": ("ShapeError", "replace|(2,)|(1,)", "x.replace(Tensor([1.0]))"),
    "large-add": ("RangeError", "add|dtypes.int|-2147483648 to 2147483647|1099511627776|wider", "Tensor([1]) + 2**40"),
    "large-mul": ("RangeError", "mul|dtypes.uchar|0 to 255|-1", "Tensor([1], dtype='uint8') * -1"),
    "large-list": ("RangeError", "Tensor|dtypes.uchar|300", "Tensor([1, 300], dtype='uint8')"),
    "large-number": ("RangeError", "Tensor|dtypes.char|-129", "Tensor(-129, dtype='int8')"),
    "large-full": ("RangeError", "full|dtypes.uchar|300", "Tensor.full((2,), 300, dtype='uint8')"),
    "large-full-nan": ("RangeError", "full|dtypes.int|nan", "Tensor.full((2,), float('nan'), dtype='int32')"),
    "large-arange": ("RangeError", "arange|dtypes.uchar|299", "Tensor.arange(300, dtype='uint8')"),
    "large-setitem": ("RangeError", "setitem|dtypes.int|1099511627776", "i = Tensor([1, 2])\ni[0] = 2**40"),
    "large-where": ("RangeError", "where|dtypes.int|1099511627776", "(x > 1).where(Tensor([1, 2]), 2**40)"),
    "large-pad": ("RangeError", "pad|dtypes.int|1099511627776", "Tensor([1]).pad(((1, 1),), value=2**40)"),
    "large-float": ("RangeError", "add|too large for a float", "x + 10**400"),
    "list-of-tensors": ("DTypeError", "Tensor|list of tensors|Tensor.stack", "Tensor([Tensor(1), Tensor(2)])"),
    "float-of": ("ShapeError", "float|(2,)|not one number", "float(x)"),
    "int-of": ("ShapeError", "int|(2,)|not one number", "int(x)"),
    "index-of": ("DTypeError", "index|dtypes.float|no index", "[1, 2][Tensor(1.0)]"),
    "format": ("ShapeError", "format|(2,)|not one number", "f'{x:.2f}'"),
}
ARGUMENTS = {
    "masked_fill": ("DTypeError", "masked_fill|'a' (str)", "x.masked_fill('a', 0)"),
    "masked_select": ("DTypeError", "masked_select|'a' (str)", "x.masked_select('a')"),
    "conv2d": ("DTypeError", "conv2d|'a' (str)|a tensor", "ones(1, 1, 4, 4).conv2d('a')"),
    "conv2d-stride": ("ArgumentError", "conv2d|stride is 0|at least 1",
                      "ones(1, 1, 4, 4).conv2d(ones(1, 1, 2, 2), stride=0)"),
    "conv2d-padding": ("DTypeError", "conv2d|padding|1.5 (float)",
                       "ones(1, 1, 4, 4).conv2d(ones(1, 1, 2, 2), padding=1.5)"),
    "max_pool2d": ("DTypeError", "max_pool2d|kernel_size|'a' (str)", "ones(1, 1, 4, 4).max_pool2d('a')"),
    "cross_entropy": ("DTypeError", "cross_entropy|'a' (str)", "ones(2, 3).cross_entropy('a')"),
    "cross_entropy-0d": ("ShapeError", "cross_entropy|no axis of classes|[classes]",
                         "Tensor(1.0).cross_entropy(Tensor(0.0))"),
    "label_smoothing": ("DTypeError", "cross_entropy|label_smoothing|'a' (str)",
                        "ones(2, 3).cross_entropy(Tensor([0, 1]), label_smoothing='a')"),
    "label_smoothing-range": ("ArgumentError", "cross_entropy|label_smoothing is nan|[0, 1]",
                              "ones(2, 3).cross_entropy(ones(2, 3), label_smoothing=float('nan'))"),
    "reduction": ("ArgumentError", "loss (in mse_loss)|reduction='max'|'mean', 'sum', 'none'",
                  "x.mse_loss(x, reduction='max')"),
    "mse_loss": ("DTypeError", "mse_loss|'a' (str)", "x.mse_loss('a')"),
    "nll-weight": ("ShapeError", "nll_loss|(2,)|3 classes", "ones(2, 3).nll_loss(Tensor([0, 1]), ones(2))"),
    "dropout": ("DTypeError", "dropout|p must be a number|'a' (str)", "x.dropout('a')"),
    "celu": ("ArgumentError", "celu|alpha is 0", "x.celu(0)"),
    "gelu": ("ArgumentError", "gelu|approximate='erf'|'tanh', 'none'", "x.gelu('erf')"),
    "gather": ("DTypeError", "gather|'a' (str)", "x.gather(0, 'a')"),
    "gather-0d": ("ShapeError", "gather|an index of shape ()|(1, 1)", "Tensor([[1.0]]).gather(0, Tensor(0))"),
    "sum-flag": ("DTypeError", "sum|True (bool)|keepdim=", "x.sum(True)"),
    "any-tensor": ("DTypeError", "any|an axis|Tensor of shape", "x.any(x)"),
    "hfft": ("ShapeError", "hfft|pairs|(3,)|x.complex()", "Tensor([1.0, 2.0, 3.0]).hfft()"),
    "output-size": ("ArgumentError", "ConvTranspose1d|output_size=(9,)|from (7,) to (8,)",
                    "nn.ConvTranspose1d(1, 1, 3, stride=2)(Tensor.ones(1, 1, 3), output_size=(9,))"),
    "scatter": ("DTypeError", "scatter|'a' (str)", "x.scatter(0, 'a', 1)"),
    "scatter-reduce": ("ArgumentError", "scatter|['add'] (list)|None, 'add', 'multiply'",
                       "x.scatter(0, Tensor([0]), 1.0, reduce=['add'])"),
    "split": ("DTypeError", "split|'a' (str)", "x.split('a')"),
    "split-array": ("DTypeError", "split|ndarray of shape (2, 2)", "x.split(np.zeros((2, 2)))"),
    "split-tensor": ("DTypeError", "split|Tensor of shape (2,)", "x.split(x)"),
    "split-0d": ("ShapeError", "split|0-d|.reshape(1)", "Tensor(1.0).split(1)"),
    "chunk": ("DTypeError", "chunk|'a' (str)", "x.chunk('a')"),
    "chunk-0d": ("ShapeError", "chunk|0-d|.reshape(1)", "Tensor(1.0).chunk(1)"),
    "chunk-huge": ("ArgumentError", "chunk|number of parts is 1000000000000", "ones(0).chunk(10**30)"),
    "roll": ("DTypeError", "roll|a shift|'a' (str)", "x.roll('a')"),
    "roll-tensor": ("DTypeError", "roll|a shift|Tensor of shape (2,)", "x.roll(x)"),
    "pad": ("DTypeError", "pad|padding|'x' (str)", "x.pad([1, 'x'])"),
    "pad-pair": ("DTypeError", "pad|3 (int)|pair", "ones(2, 2).pad([(1, 1), 3])"),
    "pad-mode": ("ArgumentError", "pad|mode='mirror'|'reflect'", "x.pad((1, 1), mode='mirror')"),
    "shrink": ("DTypeError", "shrink|1.5 (float)|pair", "x.shrink([1.5])"),
    "reshape": ("DTypeError", "reshape|a size|ndarray of shape (2, 2)", "x.reshape(np.zeros((2, 2)))"),
    "one_hot": ("DTypeError", "one_hot|num_classes|ndarray of shape (2,)", "Tensor([1]).one_hot(np.zeros(2))"),
    "linspace": ("DTypeError", "linspace|steps|'a' (str)", "Tensor.linspace(0, 1, 'a')"),
    "arange": ("ArgumentError", "arange|nan|finite", "Tensor.arange(float('nan'))"),
    "randint": ("DTypeError", "randint|low|'a' (str)", "Tensor.randint(3, low='a')"),
    "randint-none": ("ArgumentError", "randint|no integers from 5 up to but without 5|low < high",
                     "Tensor.randint(3, low=5, high=5)"),
    "randint-dtype": ("RangeError", "randint|dtypes.int|1099511627775|wider dtype", "Tensor.randint(3, high=2**40)"),
    "randint-low": ("RangeError", "randint|dtypes.uchar|-1", "Tensor.randint(3, low=-1, high=2, dtype='uint8')"),
    "randint-many": ("ArgumentError", "randint|1099511627776 integers|more than the 2**32|high - low <= 2**32",
                     "Tensor.randint(3, high=2**40, dtype='int64')"),
    "round": ("DTypeError", "round|decimals=-1|dtypes.int|.float()", "round(Tensor([15]), -1)"),
    "randperm": ("DTypeError", "randperm|n must be an integer|ndarray of shape (2,)", "Tensor.randperm(np.zeros(2))"),
    "multinomial": ("DTypeError", "multinomial|num_samples|'a' (str)", "x.multinomial('a')"),
    "interpolate": ("DTypeError", "interpolate|a size|1.5 (float)", "x.interpolate(1.5)"),
    "interpolate-mode": ("ArgumentError", "interpolate|mode='cubic'|'linear', 'bilinear'",
                         "x.interpolate((3,), mode='cubic')"),
    "shard": ("DeviceError", "1.5|CPU", "x.shard(1.5)"),
    "shard_like": ("DTypeError", "shard_like|str, not a tensor", "x.shard_like('a')"),
    "uniform": ("DTypeError", "uniform|low|'a' (str)", "Tensor.uniform(3, low='a')"),
    "max-dim": ("ArgumentError", "max|dim=1|max(axis=1) and argmax(axis=1)", "ones(2, 2).max(dim=1)"),
    "min-dim": ("ArgumentError", "min|dim=0|min(axis=0) and argmin(axis=0)", "ones(2, 2).min(dim=0)"),
    "topk": ("DTypeError", "topk|k must be an integer|1.5 (float)", "x.topk(1.5)"),
    "einsum": ("DTypeError", "einsum|Tensor of shape (2,)|'ij,jk->ik'", "Tensor.einsum(x, x)"),
    "replace": ("DTypeError", "replace|str, not a tensor", "x.replace('a')"),
    "gradient": ("DTypeError", "gradient|str, not a tensor", "x.sum().gradient('a')"),
    "sequential": ("DTypeError", "sequential|'a' (str)", "x.sequential(['a'])"),
    "index-list": ("DTypeError", "Tensor|[0, 'a'] (list)", "x[[0, 'a']]"),
    "Linear": ("DTypeError", "Linear|in_features|'a' (str)", "nn.Linear('a', 3)"),
    "Linear-call": ("DTypeError", "Linear|str, not a tensor", "nn.Linear(2, 3)('a')"),
    "Conv2d": ("ArgumentError", "Conv2d|groups is 0|at least 1", "nn.Conv2d(2, 2, 3, groups=0)"),
    "ConvTranspose2d": ("DTypeError", "ConvTranspose2d|kernel_size|'a' (str)", "nn.ConvTranspose2d(2, 2, 'a')"),
    "GroupNorm": ("ArgumentError", "GroupNorm|num_groups is 0|at least 1", "nn.GroupNorm(0, 4)"),
    "LayerNorm": ("DTypeError", "LayerNorm|normalized_shape|'a' (str)", "nn.LayerNorm('a')"),
    "LayerNorm2d": ("ShapeError", "LayerNorm2d|(2, 4)|[N, C, H, W]", "nn.LayerNorm2d(4)(ones(2, 4))"),
    "LSTMCell": ("ShapeError", "LSTMCell|(4,)|[N, 3]", "nn.LSTMCell(3, 2)(ones(4))"),
    "bias": ("DTypeError", "Linear|bias must be True or False|'no' (str)", "nn.Linear(2, 3, bias='no')"),
    "SGD": ("DTypeError", "SGD|momentum|'a' (str)", "nn.optim.SGD([ones(2).contiguous()], momentum='a')"),
    "Adam": ("ArgumentError", "Adam|b1 is 2|[0, 1]", "nn.optim.Adam([ones(2).contiguous()], b1=2)"),
}
DEVICES = {
    "unknown": ("DeviceError", "Tensor|'FOO'|CPU, PYTHON, NPY", "Tensor([1.0], device='FOO')"),
    "unknown-ones": ("DeviceError", "ones|'FOO'|CPU, PYTHON, NPY", "ones(3, device='FOO')"),
    "unknown-to": ("DeviceError", "to|'FOO'|CPU, PYTHON, NPY", "x.to('FOO')"),
    "unknown-open": ("DeviceError", "'FOO'|CPU, PYTHON, NPY", "Device['FOO']"),
    "renderer": ("DeviceError", "CPU|'X86'|CPU:C", "Tensor([1.0], device='CPU:X86')"),
    "number": ("DeviceError", "3|CPU, PYTHON, NPY", "Tensor([1.0], device=3)"),
    "add": ("DeviceError", "add|CPU, PYTHON|.to('CPU')", "x + Tensor([1.0, 1.0], device='PYTHON')"),
    "matmul": ("DeviceError", "dot|CPU, PYTHON", "x @ Tensor([1.0, 1.0], device='PYTHON')"),
    "cat": ("DeviceError", "cat|CPU, PYTHON", "x.cat(Tensor([1.0], device='PYTHON'))"),
    "index": ("DeviceError", "getitem|CPU, PYTHON", "x[Tensor([0], device='PYTHON')]"),
    "conv2d": ("DeviceError", "conv2d|CPU|PYTHON",
               "w = ones(1, 1, 3, 3)\nw.conv2d(Tensor(np.ones((1, 1, 3, 3), 'f'), device='PYTHON'))"),
    "assign": ("DeviceError", "assign|CPU|PYTHON|.to('CPU')", "x.assign(Tensor([1.0, 1.0], device='PYTHON'))"),
    "gradient-shape": ("GradientError", "gradient|(3,)|(2,)", "(x * 2).gradient(x, gradient=ones(3))"),
    "gradient-scalar": ("GradientError", "backward|(2,)|scalar|gradient=", "(x * 2).backward()"),
    "backward-integers": ("GradientError", "backward|dtypes.int has no derivative|floats",
                          "Tensor([1, 2]).sum().backward()"),
    "backward-bool": ("GradientError", "backward|dtypes.bool has no derivative", "(x > 1).any().backward()"),
    "gradient-integers": ("GradientError", "gradient|dtypes.int has no derivative",
                          "x.cast('int32').sum().gradient(x)"),
    "gradient-none": ("GradientError", "gradient|(1,)|does not influence", "x.sum().gradient(Tensor([3.0]))"),
    "memory": ("OutOfMemoryError", "CPU|4503599627370496 bytes requested|in use|smaller batch",
               "big = ones(2**50).contiguous()\nbig.realize()"),
    "memory-host": ("OutOfMemoryError", "bytes requested", "Tensor.empty(2**50).numpy()"),
    "memory-python": ("OutOfMemoryError", "PYTHON|4503599627370496 bytes requested",
                      "big = ones(2**50, device='PYTHON').contiguous()\nbig.realize()"),
    "setting": ("ArgumentError", "Context|'DEBG'|did you mean DEBUG=?", "with Context(DEBG=1): pass"),
    "setting-text": ("ArgumentError", "DEBUG='abc'|whole number|DEBUG=1", "with Context(DEBUG='abc'): pass"),
    "setting-type": ("ArgumentError", "Context|NOOPT=[]|whole number", "with Context(NOOPT=[]): pass"),
}
ALL = {f"{kind}-{name}": row for kind, table in
       (("shape", SHAPES), ("layer", LAYERS), ("dtype", DTYPES), ("argument", ARGUMENTS), ("device", DEVICES))
       for name, row in table.items()}


def failing(source: str, names: dict[str, Any]) -> Exception:
    """Run ``source`` as a file of the user's and return the exception that it raises."""
    with pytest.raises(Exception) as caught:  # the class is what the callers look at
        exec(compile(source, "/home/user/model.py", "exec"), names)
    return caught.value


@pytest.mark.parametrize("name", ALL)
def test_message(name: str) -> None:
    kind, parts, program = ALL[name]
    x = Tensor([1.0, 2.0])
    y = x * 3
    source = f"# a user's program\nz = x + y\n{program}\n"
    names = {**NAMES, "x": x, "y": y}
    error = failing(source, names)
    wanted: type[errors.TinsmithError] = getattr(errors, kind)
    assert type(error) is wanted, error
    text = str(error)
    assert text.startswith(f"[{wanted.id}] ")
    for part in parts.split("|"):
        assert part in text, f"{part!r} is not in {text!r}"
    assert ". Try: " in text
    assert (error.file, error.line) == ("/home/user/model.py", source.count("\n"))
    assert f"(model.py:{error.line})" in text
    assert x.tolist() == [1, 2]
    assert y.tolist() == [3, 6]
    assert names["z"].tolist() == [4, 8]
    assert x.shape == (2,) and x.dtype is dtypes.float32 and x.grad is None


def test_every_error_has_its_own_id() -> None:
    found = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.TinsmithError)]
    assert len({c.id for c in found}) == len(found)


@pytest.mark.parametrize(("program", "builtin"), [
    ("ones(3) + ones(4)", ValueError), ("ones(3).sum(4)", IndexError), ("ones(3) & 1", TypeError),
    ("ones(2**50).contiguous().realize()", MemoryError), ("ones(3, device='FOO')", RuntimeError)])
def test_errors_are_also_what_python_would_raise(program: str, builtin: type[Exception]) -> None:
    assert isinstance(failing(program, dict(NAMES)), builtin)


def test_errors_survive_pickling() -> None:
    error = failing("ones(3) + ones(4)", dict(NAMES))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and type(again) is errors.ShapeError


def test_an_error_inside_a_function_names_its_line() -> None:
    def model(t: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
        return layer(t)

    with pytest.raises(errors.ShapeError, match=r"Linear.*\(test_messages\.py:\d+\)") as caught:
        model(Tensor.ones(2, 5), nn.Linear(3, 4))
    assert caught.value.line == model.__code__.co_firstlineno + 1


def test_a_refused_state_changes_nothing() -> None:
    layer = nn.Linear(2, 1)
    before = layer.weight.numpy(), layer.bias.numpy()
    for state in ({"weight": Tensor.ones(1, 2)}, {"weight": Tensor.ones(1, 2), "bias": Tensor.ones(7)}):
        with pytest.raises(ValueError, match="load_state_dict"):
            load_state_dict(layer, state)
    assert np.array_equal(layer.weight.numpy(), before[0]) and np.array_equal(layer.bias.numpy(), before[1])


def test_work_goes_on_after_running_out_of_memory() -> None:
    a = Tensor([1.0, 2.0])
    b = (a.reshape(2, 1).expand(2, 1 << 49) + 1).contiguous()
    with pytest.raises(errors.OutOfMemoryError, match=r"4503599627370496 bytes requested"):
        b.realize()
    assert (a + 1).tolist() == [2, 3]
    w = Tensor([5.0]).realize()
    w.assign(w + 1)
    with pytest.raises(errors.OutOfMemoryError):
        w.realize(b)
    assert w.tolist() == [6]


FOUR = ", ".join(["<Tensor (2, 2)>"] * 4)
SHORT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rate": (lambda many: nn.optim.SGD(1e-3, many), f"not [{FOUR}, ...] (list)"),
    "one of them": (lambda many: nn.optim.SGD([many[0], many]), "takes tensors, got [<Tensor (2, 2)>,"),
    "argument": (lambda many: many[0].reshape(2.5, 2), "2.5 (float)"),
    "size": (lambda many: nn.Linear(many[0], 3), "Tensor of shape (2, 2)"),
    "index": (lambda many: many[0][{"a": many[0]}], "{'a': <Tensor (2, 2)>} (dict)"),
    "setting": (lambda many: Context(DEBUG=many).__enter__(), "DEBUG=[<Tensor (2, 2)>"),
    "long": (lambda many: Tensor("x" * 999), "xxx...xxx")}


@pytest.mark.parametrize("use, words", SHORT.values(), ids=SHORT)
def test_values_in_messages_are_short_and_stay_lazy(use: Callable[[Any], Any], words: str) -> None:
    """A message shows a tensor's shape, not its values, which may be many and would have to be computed."""
    many = [Tensor([[1.5, 2.5], [3.5, 4.5]]) * 2 for _ in range(9)]
    with pytest.raises((TypeError, ValueError)) as caught:
        use(many)
    text = str(caught.value)
    assert words in text and len(text) < 320 and "\n" not in text and "Tensor([[" not in text, text
    assert not any(is_realized(t.uop) for t in many)
