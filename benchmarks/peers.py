"""The work of each case per system: a builder makes the inputs and returns the call to be timed.

Torch and the lazy libraries (Tinsmith and tinygrad share their names) are imported only when a system is made.
A call allocates its result, and `sync` waits for kernels that calls have left running.
"""
from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Run = Callable[[], Any]
VARIANTS: dict[str, tuple[str, ...]] = {"tinsmith": ("", "jit"), "torch": ("eager", "compile"), "tinygrad": ("",)}


class GPT:
    """A small pre-norm decoder of any library's layers, with learned positions and an untied output layer."""

    def __init__(self, embedding: Any, linear: Any, norm: Any, width: int, heads: int, layers: int, vocab: int) -> None:
        self.heads = heads
        self.words, self.places = embedding(vocab, width), embedding(1024, width)
        self.blocks = [(norm(width), linear(width, 3 * width), linear(width, width), norm(width),
                        linear(width, 4 * width), linear(4 * width, width)) for _ in range(layers)]
        self.norm, self.out = norm(width), linear(width, vocab)

    def layers(self) -> list[Any]:
        return [self.words, self.places, *(layer for block in self.blocks for layer in block), self.norm, self.out]

    def logits(self, x: Any, place: Any, attend: Callable[..., Any], gelu: Callable[..., Any]) -> Any:
        h = self.words(x) + self.places(place)
        for norm1, qkv, project, norm2, up, down in self.blocks:
            parts = qkv(norm1(h)).reshape(*h.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            seen = attend(parts[0], parts[1], parts[2]).permute(0, 2, 1, 3)
            h = h + project(seen.reshape(*h.shape))
            h = h + down(gelu(up(norm2(h))))
        return self.out(self.norm(h))


class Torch:
    """PyTorch, eager or through ``torch.compile``."""

    def __init__(self, variant: str) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.F: Any = importlib.import_module("torch.nn.functional")
        self.torch.compiler.reset()  # otherwise the next size is compiled for dynamic shapes
        self.compile = variant == "compile"

    def wrap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        return self.torch.compile(f, dynamic=False) if self.compile else f

    def sync(self) -> None:
        """Do nothing: CPU calls are synchronous."""

    def _call(self, f: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Run:
        args = [self.torch.rand(shape).mul(100 if dtype == "int8" else 1).to(getattr(self.torch, dtype))
                for shape in shapes]
        return partial(self.wrap(f), *args)

    def matmul(self, m: int, k: int, n: int, batch: int, dtype: str) -> Run:
        head = (batch,) if batch > 1 else ()
        product = self.torch._int_mm if dtype == "int8" else self.torch.matmul
        return self._call(lambda x, y: product(x, y), (*head, m, k), (*head, k, n), dtype=dtype)

    def matvec(self, rows: int, cols: int, dtype: str = "float32") -> Run:
        return self._call(lambda x, y: x @ y, (rows, cols), (cols,), dtype=dtype)

    def conv(self, n: int, cin: int, hw: int, cout: int, k: int, padding: int, groups: int,
             stride: int = 1, dtype: str = "float32") -> Run:
        return self._call(lambda x, w: self.F.conv2d(x, w, padding=padding, groups=groups, stride=stride),
                          (n, cin, hw, hw), (cout, cin // groups, k, k), dtype=dtype)

    def conv_step(self, n: int, cin: int, hw: int, cout: int, k: int, padding: int, groups: int,
                  stride: int = 1) -> Run:
        x, w = (self.torch.rand(s, requires_grad=True) for s in ((n, cin, hw, hw), (cout, cin // groups, k, k)))
        f = self.wrap(lambda x, w: self.F.conv2d(x, w, padding=padding, groups=groups, stride=stride))
        weights = self.torch.rand_like(f(x, w))
        return lambda: self.torch.autograd.grad(f(x, w), (x, w), weights)

    def attention(self, b: int, h: int, s: int, d: int) -> Run:
        return self._call(lambda q, k, v: self.F.scaled_dot_product_attention(q, k, v), *[(b, h, s, d)] * 3)

    def attention_step(self, b: int, h: int, s: int, d: int) -> Run:
        q, k, v = (self.torch.rand(b, h, s, d, requires_grad=True) for _ in range(3))
        seed, attention = self.torch.rand(b, h, s, d), self.wrap(self.F.scaled_dot_product_attention)
        return lambda: self.torch.autograd.grad(attention(q, k, v), (q, k, v), seed)

    def sum(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.sum(), (rows, cols))

    def column_sum(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.sum(0), (rows, cols))

    def add(self, rows: int, cols: int) -> Run:
        return self._call(lambda x, y: x + y, (rows, cols), (rows, cols))

    def transpose(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.t().contiguous(), (rows, cols))

    def softmax(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.softmax(-1), (rows, cols))

    def layernorm(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: self.F.layer_norm(x, (cols,)), (rows, cols))

    def gelu(self, rows: int, cols: int) -> Run:  # the tanh form, as in the other two
        return self._call(lambda x, y: self.F.gelu(x * 2 + y, approximate="tanh"), (rows, cols), (rows, cols))

    def cat(self, rows: int, cols: int, parts: int) -> Run:
        return self._call(lambda *x: self.torch.cat(x, 1), *[(rows, cols)] * parts)

    def roll(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.roll((5, 7), (0, 1)), (rows, cols))

    def flip(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.flip(1), (rows, cols))

    def interleave(self, rows: int, cols: int, times: int) -> Run:
        return self._call(lambda x: x.repeat_interleave(times, 1), (rows, cols))

    def pad(self, n: int, c: int, hw: int, by: int, mode: str) -> Run:
        return self._call(lambda x: self.F.pad(x, (by,) * 4, mode=mode), (n, c, hw, hw))

    def cumsum(self, n: int) -> Run:
        return self._call(lambda x: x.cumsum(0), (n,))

    def sort(self, n: int) -> Run:
        return self._call(lambda x: x.sort(0)[0], (n,))

    def mnist(self, batch: int) -> Run:
        nn, x, y = self.torch.nn, self.torch.rand(batch, 1, 28, 28), self.torch.randint(0, 10, (batch,))
        net = nn.Sequential(
            nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(576, 10))
        opt, forward = self.torch.optim.Adam(net.parameters()), self.wrap(net)

        def step() -> float:
            opt.zero_grad()
            loss = self.F.cross_entropy(forward(x), y)
            loss.backward()
            opt.step()
            return float(loss)
        return step

    def gpt(self, batch: int, length: int, width: int, heads: int, layers: int, vocab: int,
            dtype: str = "float32") -> Run:
        nn, F = self.torch.nn, self.F
        made = GPT(nn.Embedding, nn.Linear, nn.LayerNorm, width, heads, layers, vocab)
        parameters = [p for layer in made.layers() for p in layer.parameters()]
        opt = self.torch.optim.AdamW(parameters, lr=1e-4)
        x, y = (self.torch.randint(0, vocab, (batch, length)) for _ in range(2))
        place = self.torch.arange(length)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        forward = self.wrap(lambda x: F.cross_entropy(
            made.logits(x, place, attend, lambda t: F.gelu(t, approximate="tanh")).flatten(0, 1), y.flatten()))

        def step() -> float:
            opt.zero_grad()
            with self.torch.autocast("cpu", self.torch.bfloat16, enabled=dtype == "bfloat16"):
                loss = forward(x)
            loss.backward()
            opt.step()
            return float(loss)
        return step


class Lazy:
    """Tinsmith or tinygrad, by the names that both have, on the default device.

    Args:
        jit: every call replays a captured one.
        jit_steps: only training steps are captured, as is usual with tinygrad.
    """

    def __init__(self, name: str, jit: bool = False, jit_steps: bool = False) -> None:
        self.jit, self.jit_steps = jit, jit or jit_steps
        self.lib: Any = importlib.import_module(name)
        self.Tensor: Any = self.lib.Tensor
        self.nn: Any = importlib.import_module(f"{name}.nn")

    def sync(self) -> None:
        self.lib.Device[self.lib.Device.DEFAULT].synchronize()

    def wrap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        captured: Callable[..., Any] = self.lib.TinyJit(f) if self.jit else f
        return captured

    def tanh_gelu(self, x: Any) -> Any:
        """Return the tanh form of GELU: tinygrad's only form; Tinsmith's default is PyTorch's erf form."""
        return x.gelu() if self.lib.__name__ == "tinygrad" else x.gelu("tanh")

    def training(self) -> contextlib.AbstractContextManager[Any]:
        """Return a training-mode context; tinygrad 0.14 turned `Tensor.train()` into a context variable."""
        context: contextlib.AbstractContextManager[Any]
        context = self.Tensor.train() if hasattr(self.Tensor, "train") else self.lib.Context(TRAINING=1)
        return context

    def narrow(self, dtype: str) -> contextlib.AbstractContextManager[Any]:
        """Return a context with contractions in ``dtype``; tinygrad has no such mode: its row is one in float32."""
        none: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        return none if dtype == "float32" or not hasattr(self.Tensor, "autocast") else self.Tensor.autocast(dtype)

    def _call(self, f: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float32") -> Run:
        kind = getattr(self.lib.dtypes, dtype)
        args = [self.Tensor.rand(*shape).mul(100 if dtype == "int8" else 1).cast(kind).contiguous().realize()
                for shape in shapes]
        return partial(self.wrap(lambda *inputs: f(*inputs).realize()), *args)

    def matmul(self, m: int, k: int, n: int, batch: int, dtype: str) -> Run:
        head = (batch,) if batch > 1 else ()
        acc = self.lib.dtypes.int32 if dtype == "int8" else None
        return self._call(lambda x, y: x.matmul(y, dtype=acc), (*head, m, k), (*head, k, n), dtype=dtype)

    def matvec(self, rows: int, cols: int, dtype: str = "float32") -> Run:
        return self._call(lambda x, y: x.matmul(y), (rows, cols), (cols,), dtype=dtype)

    def conv(self, n: int, cin: int, hw: int, cout: int, k: int, padding: int, groups: int,
             stride: int = 1, dtype: str = "float32") -> Run:
        return self._call(lambda x, w: x.conv2d(w, padding=padding, groups=groups, stride=stride), (n, cin, hw, hw),
                          (cout, cin // groups, k, k), dtype=dtype)

    def conv_step(self, n: int, cin: int, hw: int, cout: int, k: int, padding: int, groups: int,
                  stride: int = 1) -> Run:
        shapes = ((n, cin, hw, hw), (cout, cin // groups, k, k))
        x, w = (self.Tensor.rand(*s).contiguous().realize() for s in shapes)
        x.requires_grad = w.requires_grad = True
        out = (hw + 2 * padding - k) // stride + 1
        weights = self.Tensor.rand(n, cout, out, out).realize()

        def step() -> Any:
            y = x.conv2d(w, padding=padding, groups=groups, stride=stride)
            results = (y, *(y * weights).sum().gradient(x, w))
            self.Tensor.realize(*results)
            return results
        return self.wrap(step)

    def attention(self, b: int, h: int, s: int, d: int) -> Run:
        return self._call(lambda q, k, v: q.scaled_dot_product_attention(k, v), *[(b, h, s, d)] * 3)

    def attention_step(self, b: int, h: int, s: int, d: int) -> Run:
        q, k, v, seed = (self.Tensor.rand(b, h, s, d).contiguous().realize() for _ in range(4))
        for t in (q, k, v):
            t.requires_grad = True

        def step() -> Any:
            out = q.scaled_dot_product_attention(k, v)
            results = (out, *(out * seed).sum().gradient(q, k, v))
            self.Tensor.realize(*results)
            return results
        return self.wrap(step)

    def sum(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.sum(), (rows, cols))

    def column_sum(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.sum(axis=0), (rows, cols))

    def add(self, rows: int, cols: int) -> Run:
        return self._call(lambda x, y: x + y, (rows, cols), (rows, cols))

    def transpose(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.permute(1, 0).contiguous(), (rows, cols))

    def softmax(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.softmax(), (rows, cols))

    def layernorm(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.layernorm(), (rows, cols))

    def gelu(self, rows: int, cols: int) -> Run:
        return self._call(lambda x, y: self.tanh_gelu(x * 2 + y), (rows, cols), (rows, cols))

    def cat(self, rows: int, cols: int, parts: int) -> Run:
        return self._call(lambda *x: x[0].cat(*x[1:], dim=1), *[(rows, cols)] * parts)

    def roll(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.roll((5, 7), (0, 1)).contiguous(), (rows, cols))

    def flip(self, rows: int, cols: int) -> Run:
        return self._call(lambda x: x.flip(1).contiguous(), (rows, cols))

    def interleave(self, rows: int, cols: int, times: int) -> Run:
        return self._call(lambda x: x.repeat_interleave(times, 1).contiguous(), (rows, cols))

    def pad(self, n: int, c: int, hw: int, by: int, mode: str) -> Run:
        return self._call(lambda x: x.pad((by,) * 4, mode=mode).contiguous(), (n, c, hw, hw))

    def cumsum(self, n: int) -> Run:
        return self._call(lambda x: x.cumsum(0), (n,))

    def sort(self, n: int) -> Run:
        return self._call(lambda x: x.sort(0)[0], (n,))

    def mnist(self, batch: int) -> Run:
        nn, tensor = self.nn, self.Tensor
        x, y = tensor.rand(batch, 1, 28, 28).realize(), tensor.randint(batch, low=0, high=10).realize()
        layers: Sequence[Callable[[Any], Any]] = [
            nn.Conv2d(1, 32, 5), tensor.relu, nn.Conv2d(32, 32, 5), tensor.relu, nn.BatchNorm(32), tensor.max_pool2d,
            nn.Conv2d(32, 64, 3), tensor.relu, nn.Conv2d(64, 64, 3), tensor.relu, nn.BatchNorm(64), tensor.max_pool2d,
            lambda t: t.flatten(1), nn.Linear(576, 10)]
        opt = nn.optim.Adam(nn.state.get_parameters(layers))

        def step() -> Any:
            with self.training():
                opt.zero_grad()
                loss = x.sequential(layers).sparse_categorical_crossentropy(y)
                loss.backward()
                return loss.realize(*opt.schedule_step())
        run = self.lib.TinyJit(step) if self.jit_steps else step
        return lambda: run().item()

    def gpt(self, batch: int, length: int, width: int, heads: int, layers: int, vocab: int,
            dtype: str = "float32") -> Run:
        nn, tensor = self.nn, self.Tensor
        made = GPT(nn.Embedding, nn.Linear, nn.LayerNorm, width, heads, layers, vocab)
        opt = nn.optim.AdamW(nn.state.get_parameters(made.layers()), lr=1e-4)
        x, y = (tensor.randint(batch, length, low=0, high=vocab).realize() for _ in range(2))
        place = tensor.arange(length).realize()

        def step() -> Any:
            with self.training():
                opt.zero_grad()
                with self.narrow(dtype):
                    out = made.logits(x, place, lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
                                      self.tanh_gelu)
                    loss = out.sparse_categorical_crossentropy(y)
                loss.backward()
                return loss.realize(*opt.schedule_step())
        run = self.lib.TinyJit(step) if self.jit_steps else step
        return lambda: run().item()


def make(system: str, variant: str) -> Torch | Lazy:
    """Return the builders of ``system``; an error of its import propagates."""
    return Torch(variant) if system == "torch" else Lazy(system, variant == "jit", system == "tinygrad")
