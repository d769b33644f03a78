"""Complete models for ``python -m benchmarks models``: a step of each, as a user writes it."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.corpus.models import Block, Language, Size, Vision
from tinsmith import Tensor, TinyJit, Variable, nn
from tinsmith.examples.decoder import Config, Decoder
from tinsmith.examples.lstm_text import Writer
from tinsmith.examples.mnist import Network
from tinsmith.examples.resnet import ResNet

VOCABULARY, LENGTH = 50304, 1024
BERT_LENGTH, LSTM_LENGTH, LSTM_WIDTH, CHARACTERS = 128, 128, 512, 256
UNET_WIDTHS = (64, 128, 256, 512)
LLAMA = Config(vocabulary=32000, width=2048, layers=22, heads=32, kv_heads=4, hidden=5632, context=1024)
LLAMA_8B = Config(vocabulary=128256, width=4096, layers=32, heads=32, kv_heads=8, hidden=14336, context=1024)

Step = Callable[[], Tensor]


class UNet:
    """U-Net with group normalization: each level is two convolutions, down by pooling and up by transposed ones."""

    def __init__(self, widths: Sequence[int], classes: int) -> None:
        self.down = [self.double(a, b) for a, b in zip((3, *widths), widths)]
        self.up = [nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in zip(widths[:0:-1], widths[-2::-1])]
        self.joined = [self.double(2 * w, w) for w in widths[-2::-1]]
        self.head = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def double(channels: int, width: int) -> list[Any]:
        layers: list[Any] = []
        for n in (channels, width):
            layers += [nn.Conv2d(n, width, 3, padding=1, bias=False), nn.GroupNorm(8, width), Tensor.relu]
        return layers

    def __call__(self, x: Tensor) -> Tensor:
        beside = list[Tensor]()
        for n, double in enumerate(self.down):
            x = (x.max_pool2d(2) if n else x).sequential(double)
            beside.append(x)
        for up, joined, skip in zip(self.up, self.joined, reversed(beside[:-1])):
            x = skip.cat(up(x), dim=1).sequential(joined)
        return self.head(x)


class Bert:
    """The encoder of BERT-base: word, place and segment embeddings, post-normalized blocks."""

    def __init__(self) -> None:
        size = Size(0, 12, 768, 12, BERT_LENGTH, 30522)
        self.words, self.places = nn.Embedding(size.classes, size.width), nn.Embedding(512, size.width)
        self.norm = nn.LayerNorm(size.width)
        self.blocks = [Block(size, False, False, 0.0) for _ in range(size.layers)]

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.words(tokens) + self.places(Tensor.arange(tokens.shape[1])))
        for block in self.blocks:
            x = block(x)
        return x


class Lstm(Writer):
    """A language model of characters: embedding, two LSTM layers, and a linear layer."""

    def __call__(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().__call__(x)[0]


def _training(layers: Sequence[Any], optimizer: type, x: Tensor, y: Tensor, autocast: bool = True,
              classes: int = -1, **options: Any) -> Step:
    """Return a captured training step: forward under autocast, cross-entropy over axis ``classes``, backward, update.
    """
    update = optimizer(nn.state.get_parameters(list(layers)), **options)

    @TinyJit
    @Tensor.train()
    def step(x: Tensor, y: Tensor) -> Tensor:
        update.zero_grad()
        with Tensor.autocast("bfloat16", enabled=autocast):
            out = x
            for layer in layers:
                out = layer(out)
        out = out.float()
        if classes != -1:
            out = out.permute(0, 2, 3, 1)
        loss = out.flatten(0, -2).sparse_categorical_crossentropy(y.flatten())
        loss.backward()
        update.step()
        return loss.realize()

    return lambda: step(x, y)


def _images(rng: np.random.Generator, batch: int, side: int) -> Tensor:
    return Tensor(rng.normal(size=(batch, 3, side, side)).astype(np.float32)).realize()


def _integers(rng: np.random.Generator, most: int, *shape: int) -> Tensor:
    return Tensor(rng.integers(0, most, shape, np.int32)).realize()


def gpt2(batch: int) -> Step:
    rng = np.random.default_rng(0)
    x = _integers(rng, VOCABULARY, batch, LENGTH)
    model = Language(Size(batch, 12, 768, 12, LENGTH, VOCABULARY), True, dropout=0.0, gelu="tanh")
    for table in (model.words, model.places):
        table.weight.replace(Tensor.normal(*table.weight.shape, std=0.02, requires_grad=True))
    return _training([model], nn.optim.AdamW, x, x, lr=1e-4)


def resnet50(batch: int) -> Step:
    rng = np.random.default_rng(0)
    x, y = _images(rng, batch, 224), _integers(rng, 1000, batch)
    return _training([ResNet(50)], nn.optim.SGD, x, y, lr=1e-2, momentum=0.9)


def vit(batch: int) -> Step:
    rng = np.random.default_rng(0)
    x, y = _images(rng, batch, 224), _integers(rng, 1000, batch)
    return _training([Vision(Size(batch, 12, 768, 12, 224, 1000))], nn.optim.AdamW, x, y, lr=1e-4)


def mnist(batch: int) -> Step:
    """Return a step in float32; ``ALLOW_TF32=1`` rounds its products."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.random((batch, 1, 28, 28), np.float32)).realize()
    return _training([Network()], nn.optim.Adam, x, _integers(rng, 10, batch), autocast=False)


def unet(batch: int) -> Step:
    rng = np.random.default_rng(0)
    x, y = _images(rng, batch, 128), _integers(rng, 4, batch, 128, 128)
    return _training([UNet(UNET_WIDTHS, 4)], nn.optim.AdamW, x, y, classes=1, lr=1e-4)


def lstm(batch: int) -> Step:
    rng = np.random.default_rng(0)
    x = _integers(rng, CHARACTERS, batch, LSTM_LENGTH)
    return _training([Lstm(CHARACTERS, LSTM_WIDTH)], nn.optim.AdamW, x, x, autocast=False, lr=1e-4)


def bert(batch: int) -> Step:
    tokens, model = _integers(np.random.default_rng(0), 30522, batch, BERT_LENGTH), Bert()

    @TinyJit
    @Tensor.no_grad()
    def step(tokens: Tensor) -> Tensor:
        with Tensor.autocast("bfloat16"):
            return model(tokens).realize()

    return lambda: step(tokens)


def llama(batch: int, config: Config = LLAMA) -> Step:
    """Return one token of greedy decoding at position 511; weights and cache in bfloat16."""
    model, start = Decoder(config), Variable("start", 0, config.context - 1)
    for p in model.parameters():
        p.replace(p.cast("bfloat16").contiguous().realize())
    shape = (2, batch, config.context, config.kv_heads, config.head_width)
    caches = [Tensor.zeros(*shape, dtype="bfloat16").contiguous().realize() for _ in range(config.layers)]
    token = Tensor(np.zeros((batch, 1), np.int32)).realize()

    @TinyJit
    @Tensor.no_grad()
    def step(token: Tensor, start: Any) -> Tensor:
        return model(token, start, caches)[:, -1].argmax(-1).reshape(batch, 1).cast("int32").realize()

    return lambda: step(token, start.bind(511))


OURS: dict[str, Callable[[int], Step]] = {
    "gpt2": gpt2, "resnet50": resnet50, "vit": vit, "unet": unet, "lstm": lstm, "bert": bert, "mnist": mnist,
    "llama": llama, "llama8b": functools.partial(llama, config=LLAMA_8B)}
BATCHES = {"gpt2": 8, "resnet50": 64, "vit": 64, "unet": 32, "lstm": 64, "bert": 32, "mnist": 512, "llama": 1,
           "llama8b": 1}
