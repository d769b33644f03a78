"""Full networks, whose kernels are planned, rendered and compiled for every target without its device.

``small`` ones have the structure of the real ones with few layers and channels, ``full`` ones are what is published:
GPT-2 (124 M), BERT base, ViT-B/16, ResNet-50 and the U-Net of Ronneberger et al. (2015) with batch normalization. Each
is run once as it infers and once as it learns (loss, gradients, a step of AdamW), in float32 and under ``autocast``.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.corpus.programs import Build, CorpusProgram, empty
from tinsmith import Tensor, dtypes, nn

Layer = Callable[[Tensor], Tensor]


class Size(NamedTuple):
    """Examples of a batch, layers, width, heads or blocks of a stage, and the length of a side or a sentence."""

    batch: int
    layers: int
    width: int
    heads: int
    length: int
    classes: int


# *** transformers ***


class Block:
    """Attention and two linear layers, with normalization before each (``first``: GPT-2, ViT) or after each (BERT)."""

    def __init__(self, size: Size, causal: bool, first: bool, dropout: float, gelu: str = "none") -> None:
        w = size.width
        self.qkv, self.out = nn.Linear(w, 3 * w), nn.Linear(w, w)
        self.up, self.down = nn.Linear(w, 4 * w), nn.Linear(4 * w, w)
        self.norm1, self.norm2 = nn.LayerNorm(w), nn.LayerNorm(w)
        self.heads, self.causal, self.first, self.dropout, self.gelu = size.heads, causal, first, dropout, gelu

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).chunk(3)
        found = q[0].scaled_dot_product_attention(k[0], v[0], mask, is_causal=self.causal)
        return self.out(found.transpose(1, 2).reshape(b, t, w)).dropout(self.dropout)

    def feed(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).gelu(self.gelu)).dropout(self.dropout)

    def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.first:
            x = x + self.attend(self.norm1(x), mask)
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x, mask))
        return self.norm2(x + self.feed(x))


class Language:
    """GPT-2 (causal, first and last layer with tied weights) or BERT with masked words."""

    def __init__(self, size: Size, causal: bool, dropout: float = 0.1, gelu: str = "none") -> None:
        self.size, self.causal, self.dropout = size, causal, dropout
        self.words, self.places = nn.Embedding(size.classes, size.width), nn.Embedding(size.length, size.width)
        self.blocks = [Block(size, causal, causal, dropout, gelu) for _ in range(size.layers)]
        self.norm = nn.LayerNorm(size.width)

    def inputs(self) -> list[Tensor]:
        shape = self.size.batch, self.size.length
        tokens = empty(*shape, dtype=dtypes.int32)
        return [tokens] if self.causal else [tokens, empty(shape[0], 1, 1, shape[1], dtype=dtypes.bool)]

    def __call__(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.words(tokens) + self.places(Tensor.arange(self.size.length))
        x = (x if self.causal else self.norm(x)).dropout(self.dropout)
        for block in self.blocks:
            x = block(x, mask)
        return (self.norm(x) if self.causal else x) @ self.words.weight.transpose(0, 1)

    def targets(self) -> Tensor:
        return empty(self.size.batch, self.size.length, dtype=dtypes.int32)


class Vision:
    """ViT: patches of 16 × 16 and a class token."""

    def __init__(self, size: Size) -> None:
        self.size, count = size, (size.length // 16) ** 2
        self.patches = nn.Conv2d(3, size.width, 16, stride=16)
        self.token = Tensor.zeros(1, 1, size.width, requires_grad=True)
        self.places = Tensor.zeros(1, count + 1, size.width, requires_grad=True)
        self.blocks = [Block(size, False, True, 0.0) for _ in range(size.layers)]
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.classes)

    def inputs(self) -> list[Tensor]:
        return [empty(self.size.batch, 3, self.size.length, self.size.length)]

    def __call__(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = self.token.expand(self.size.batch, -1, -1).cat(x, dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])

    def targets(self) -> Tensor:
        return empty(self.size.batch, dtype=dtypes.int32)


# *** convolutions ***


class Bottleneck:
    def __init__(self, channels: int, width: int, stride: int) -> None:
        self.conv1, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2, self.norm3 = nn.BatchNorm(width), nn.BatchNorm(4 * width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.short: list[Layer] = []
        if stride > 1 or channels != 4 * width:
            self.short = [nn.Conv2d(channels, 4 * width, 1, stride=stride, bias=False), nn.BatchNorm(4 * width)]

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())).relu()
        return (self.norm3(self.conv3(y)) + x.sequential(self.short)).relu()


class Residual:
    """ResNet of bottlenecks: ``layers`` are 50 for (3, 4, 6, 3) of them, else one a stage."""

    def __init__(self, size: Size) -> None:
        self.size, channels = size, size.width
        self.conv, self.norm = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False), nn.BatchNorm(channels)
        self.blocks = list[Bottleneck]()
        for stage, count in enumerate((3, 4, 6, 3) if size.layers == 50 else (1, 1, 1, 1)):
            for n in range(count):
                self.blocks.append(Bottleneck(channels, size.width << stage, 2 if stage and not n else 1))
                channels = 4 * size.width << stage
        self.head = nn.Linear(channels, size.classes)

    def inputs(self) -> list[Tensor]:
        return [empty(self.size.batch, 3, self.size.length, self.size.length)]

    def __call__(self, images: Tensor) -> Tensor:
        x = self.norm(self.conv(images)).relu().max_pool2d(3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))

    def targets(self) -> Tensor:
        return empty(self.size.batch, dtype=dtypes.int32)


class Double:
    def __init__(self, channels: int, width: int) -> None:
        self.layers: list[Layer] = []
        for n in (channels, width):
            self.layers += [nn.Conv2d(n, width, 3, padding=1, bias=False), nn.BatchNorm(width), Tensor.relu]

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


class UNet:
    """U-Net: ``layers`` halvings of the resolution and back, with a class for each pixel."""

    def __init__(self, size: Size) -> None:
        self.size, widths = size, [size.width << n for n in range(size.layers + 1)]
        self.down = [Double(a, b) for a, b in zip([3, *widths], widths)]
        self.up = [nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in reversed(widths[:-1])]
        self.joined = [Double(2 * w, w) for w in reversed(widths[:-1])]
        self.head = nn.Conv2d(size.width, size.classes, 1)

    def inputs(self) -> list[Tensor]:
        return [empty(self.size.batch, 3, self.size.length, self.size.length)]

    def __call__(self, x: Tensor) -> Tensor:
        beside = list[Tensor]()
        for n, double in enumerate(self.down):
            x = double(x.max_pool2d(2) if n else x)
            beside.append(x)
        for up, joined, skip in zip(self.up, self.joined, reversed(beside[:-1])):
            x = joined(skip.cat(up(x), dim=1))
        return self.head(x).permute(0, 2, 3, 1)

    def targets(self) -> Tensor:
        return empty(self.size.batch, self.size.length, self.size.length, dtype=dtypes.int32)


# *** the programs ***


@dataclass(frozen=True)
class Network:
    make: Callable[[Size], Any]
    small: Size
    full: Size


NETWORKS = {
    "GPT-2": Network(partial(Language, causal=True), Size(2, 2, 128, 4, 64, 503), Size(8, 12, 768, 12, 1024, 50257)),
    "BERT": Network(partial(Language, causal=False), Size(2, 2, 128, 4, 64, 509), Size(16, 12, 768, 12, 512, 30522)),
    "ViT": Network(Vision, Size(2, 2, 128, 4, 64, 10), Size(64, 12, 768, 12, 224, 1000)),
    "ResNet-50": Network(Residual, Size(2, 4, 16, 0, 64, 10), Size(64, 50, 64, 0, 224, 1000)),
    "U-Net": Network(UNet, Size(1, 2, 16, 0, 32, 3), Size(4, 4, 64, 0, 256, 3)),
}


def network(kind: Network, size: Size, learns: bool, rounded: bool) -> Build:
    """Return a program of inference, or of a training step."""
    model = kind.make(size)
    parameters, inputs, y = nn.state.get_parameters(model), model.inputs(), model.targets()
    Tensor.realize(*nn.state.get_state_dict(model).values())
    made = nn.optim.AdamW(parameters, lr=1e-3) if learns else None

    def forward() -> Tensor:
        with Tensor.autocast("bfloat16") if rounded else nullcontext():
            found = model(*inputs)
            return found.flatten(0, -2).sparse_categorical_crossentropy(y.flatten()) if learns else found

    def infer() -> None:
        with Tensor.no_grad():
            forward().realize()

    def learn() -> None:
        assert made is not None
        with Tensor.train():
            made.zero_grad()
            loss = forward()
            loss.backward()
            made.step()
            loss.realize()
    return learn if learns else infer


def snippet(make: Callable[[], Tensor], rounded: str = "") -> Build:
    def run() -> None:
        with Tensor.autocast(rounded) if rounded else nullcontext():
            make().realize()
    return run


def _product(m: int, k: int, n: int, relu: bool, dtype: Any = dtypes.float32, rounded: str = "") -> Build:
    x, w = empty(m, k, dtype=dtype), empty(k, n, dtype=dtype)
    return snippet(lambda: (x.relu() if relu else x) @ w, rounded)


def _pointwise(batch: int, channels: int, side: int, dtype: Any = dtypes.float32) -> Build:
    x, w = empty(batch, channels, side, side, dtype=dtype), empty(3, channels, 1, 1, dtype=dtype)
    return snippet(lambda: x.conv2d(w))


def snippets() -> Iterator[CorpusProgram]:
    """Return single contractions with computed operands, or with few results per row."""
    for size in (2048, 4096):
        for rounded in ("bfloat16", "float16"):
            for relu in (False, True):
                yield CorpusProgram(f"snippet: {'relu, ' * relu}product of {size}², autocast {rounded}",
                                    partial(_product, size, size, size, relu, rounded=rounded), True)
        for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.float16):
            yield CorpusProgram(f"snippet: relu, product of {size}², {dtype.name}",
                                partial(_product, size, size, size, True, dtype), True)
    for dtype in (dtypes.float32, dtypes.bfloat16):
        for shape in ((1, 64, 256), (4, 64, 56), (16, 512, 32), (2, 16, 17)):
            yield CorpusProgram(f"snippet: 1×1 convolution to 3 channels of {shape}, {dtype.name}",
                                partial(_pointwise, *shape, dtype), True)


def models(sizes: Sequence[str] = ("small", "full")) -> list[CorpusProgram]:
    """Return the snippets, then each network of each size, for inference and training, in float32 and under
    ``autocast``."""
    found = list(snippets())
    for size in sizes:
        for name, kind in NETWORKS.items():
            for learns in (False, True):
                for rounded in (False, True):
                    of = f"{size} {name}, {'training' if learns else 'inference'}{', autocast' * rounded}"
                    found.append(CorpusProgram(of, partial(network, kind, getattr(kind, size), learns, rounded),
                                               size == "small"))
    return found
