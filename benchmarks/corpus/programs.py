"""The programs of the corpus: the benchmarks' programs, ordinary programs, and random shapes of every kind of kernel.

A program is built on the device of the moment and computes everything that it returns. Random ones draw from a
generator seeded with their name: they are the same everywhere, and stay the same when others come or go.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.cases import CASES, Case
from benchmarks.peers import Lazy
from tinsmith import Tensor, dtypes, nn
from tinsmith.core.dtypes import DType
from tinsmith.nn.io.ggml import KINDS, matrix

Build = Callable[[], Any]  # makes the inputs; what it returns is called, and computes


@dataclass(frozen=True)
class CorpusProgram:
    """A program. ``build`` prepares inputs and returns the computation; only the latter's kernels belong to the
    program.

    Attributes:
        quick: one of those that the test suite looks at.
    """

    name: str
    build: Callable[[], Build]
    quick: bool = False


def empty(*shape: int, dtype: DType = dtypes.float32) -> Tensor:
    """Return an uninitialized input."""
    return Tensor.empty(*shape, dtype=dtype)


def leaf(*shape: int) -> Tensor:
    """Return an input that requires a gradient."""
    return Tensor.empty(*shape, requires_grad=True)


def computed(*results: Tensor) -> Build:
    return lambda: Tensor.realize(*results)


def gradients(value: Tensor, *inputs: Tensor) -> Build:
    """Return a value and its gradients with respect to inputs."""
    return lambda: Tensor.realize(value, *(value * value).sum().gradient(*inputs))


# *** what the benchmarks time ***


def benchmarked(case: Case) -> CorpusProgram:
    def build() -> Build:
        run: Build = getattr(Lazy("tinsmith"), case.kind)(**case.sizes)
        return run

    return CorpusProgram(case.name, build, case.name in ("matmul 512³", "softmax 4096²", "attention 1×8×512×64"))


# *** ordinary programs ***


def optimizer(kind: str) -> Callable[[], Build]:
    def build() -> Build:
        weights = [leaf(256, 784), leaf(256), leaf(10, 256)]
        for w in weights:
            w.grad = empty(*w.shape)
        made = getattr(nn.optim, kind)(weights, lr=1e-3)

        def step() -> None:
            with Tensor.train():
                made.step()
        return step

    return build


def mlp_step() -> Build:
    x, w1, b1, w2, b2 = empty(128, 784), leaf(784, 512), leaf(512), leaf(512, 10), leaf(10)
    y = empty(128, dtype=dtypes.int32)
    loss = ((x @ w1 + b1).relu() @ w2 + b2).sparse_categorical_crossentropy(y)
    return gradients(loss, w1, b1, w2, b2)


def encoder_layer() -> Build:
    x, scale, shift = leaf(8, 64, 128), leaf(128), leaf(128)
    wq, wk, wv, wo, up, down = (leaf(128, n) for n in (128, 128, 128, 128, 512, 512))
    h = x.layernorm() * scale + shift
    q, k, v = ((h @ w).reshape(8, 64, 4, 32).permute(0, 2, 1, 3) for w in (wq, wk, wv))
    h = x + q.scaled_dot_product_attention(k, v).permute(0, 2, 1, 3).reshape(8, 64, 128) @ wo
    out = h + (h.layernorm() @ up).gelu() @ down.permute(1, 0)
    return gradients(out, x, scale, shift, wq, wk, wv, wo, up, down)


def residual_block() -> Build:
    x, w1, w2 = leaf(8, 64, 28, 28), leaf(64, 64, 3, 3), leaf(64, 64, 3, 3)
    gamma, beta = leaf(64), leaf(64)

    def norm(t: Tensor) -> Tensor:
        mean = t.mean((0, 2, 3), keepdim=True)
        return (t - mean) * (t.var((0, 2, 3), keepdim=True) + 1e-5).rsqrt() * gamma.reshape(1, 64, 1, 1) + beta.reshape(
            1, 64, 1, 1)

    return gradients((norm(norm(x.conv2d(w1, padding=1)).relu().conv2d(w2, padding=1)) + x).relu(), x, w1, w2, gamma)


def recurrent_cell() -> Build:
    x, h, c, wx, wh, b = empty(64, 128), empty(64, 256), empty(64, 256), leaf(128, 1024), leaf(256, 1024), leaf(1024)
    i, f, g, o = (x @ wx + h @ wh + b).chunk(4, dim=1)
    after = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return computed(after, o.sigmoid() * after.tanh())


def moved() -> Build:
    parts = [empty(1000, 777) for _ in range(3)]
    return computed(Tensor.cat(*parts, dim=1), parts[0].roll(5, 1), parts[1].flip(1), parts[2].pad(((2, 3), (4, 5))))


def decoded() -> Build:
    """Return one decoding step of a language model: matrix-vector products, a key-value cache, the next token."""
    x, wq, w, table = empty(1, 512), empty(512, 512), empty(2048, 512), empty(1000, 512)
    keys, values = empty(8, 200, 64), empty(8, 200, 64)
    q = (x @ wq).reshape(8, 1, 64)
    seen = (q @ keys.transpose(1, 2) * 0.125).softmax() @ values
    h = (seen.reshape(1, 512) @ w.T).silu() @ w
    return computed((h @ table.T).argmax())


def mixed_precision() -> Build:
    x, w = empty(256, 512, dtype=dtypes.bfloat16), empty(512, 1024, dtype=dtypes.bfloat16)
    halves = empty(128, 300, dtype=dtypes.float16), empty(300, 200, dtype=dtypes.float16)
    small = empty(100, 200, dtype=dtypes.uint8), empty(200, 64, dtype=dtypes.int8)
    return computed((x @ w).gelu(), halves[0] @ halves[1], small[0].matmul(small[1], dtype=dtypes.int32),
                    (empty(64, 768, dtype=dtypes.bfloat16) * 2).softmax())


def recurrent(kind: str) -> Callable[[], Build]:
    def build() -> Build:
        layer = getattr(nn, kind)(48, 64)
        weights = nn.state.get_parameters(layer)
        Tensor.realize(*weights)
        return gradients(layer(empty(3, 16, 48))[0], *weights)

    return build


def quantized(kind: str, rows: int) -> Callable[[], Build]:
    def build() -> Build:
        size, nbytes, _ = KINDS[kind]
        packed = empty(256 * 1024 // size * nbytes, dtype=dtypes.uint8)
        return computed(empty(rows, 1024).linear(matrix(packed, kind, (256, 1024)).T))

    return build


ORDINARY: dict[str, Callable[[], Build]] = {
    **{f"{kind} step": optimizer(kind) for kind in ("SGD", "Adam", "AdamW", "LAMB")},
    "mlp step": mlp_step, "encoder layer": encoder_layer, "residual block": residual_block,
    "recurrent cell": recurrent_cell, **{f"{kind} of 3 steps": recurrent(kind) for kind in ("LSTM", "GRU", "RNN")},
    **{f"{rows} × 1024 by {kind}": quantized(kind, rows) for rows in (1, 4) for kind in (
        "Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")},
    "moved": moved, "decoded": decoded, "mixed precision": mixed_precision,
}


# *** random shapes ***

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 100, 127, 128, 192, 255, 256, 300, 384,
         512, 513, 768, 1000, 1024)
LARGE = (1024, 1536, 2000, 2048, 3000, 4096, 5000, 8192)


def _sizes(r: Random, count: int, most: int = 1 << 24) -> list[int]:
    """Return random sizes whose product is at most ``most``, occasionally with a large one."""
    while True:
        found = [r.choice(LARGE if r.random() < 0.15 else SIZES) for _ in range(count)]
        total = 1
        for s in found:
            total *= s
        if total <= most:
            return found


def random_product(r: Random) -> Build:
    m, k, n = _sizes(r, 3, 1 << 32)
    batch = r.choice(((), (), (), (r.choice((2, 8, 12)),)))
    dtype = r.choice((dtypes.float32,) * 4 + (dtypes.float16, dtypes.bfloat16, dtypes.int8, dtypes.float64))
    x = empty(*batch, k, m, dtype=dtype).transpose(-1, -2) if r.random() < 0.25 else empty(*batch, m, k, dtype=dtype)
    y = empty(*batch, n, k, dtype=dtype).transpose(-1, -2) if r.random() < 0.4 else empty(*batch, k, n, dtype=dtype)
    out = x.matmul(y, dtype=dtypes.int32 if dtype is dtypes.int8 else None)
    after = r.choice(("", "", "bias", "relu", "residual"))
    if after == "bias":
        out = out + empty(n, dtype=out.dtype)
    elif after == "relu":
        out = out.relu()
    elif after == "residual":
        out = out + empty(*out.shape, dtype=out.dtype)
    return computed(out)


def random_convolution(r: Random) -> Build:
    n, cin, cout = r.choice((1, 2, 16)), r.choice((1, 3, 16, 32, 64)), r.choice((8, 17, 32, 64))
    k, size = r.choice((1, 3, 3, 5)), r.choice((7, 14, 28, 31, 56))
    groups = cin if cin == cout and r.random() < 0.5 else 1
    x, w = leaf(n, cin, size, size), leaf(cout, cin // groups, k, k)
    y = x.conv2d(w, padding=r.choice((0, k // 2)), stride=r.choice((1, 1, 2)), groups=groups)
    return gradients(y, x, w) if r.random() < 0.5 else computed(y.relu())


def random_reduction(r: Random) -> Build:
    shape = _sizes(r, r.choice((1, 2, 3)))
    axes = tuple(sorted(r.sample(range(len(shape)), r.randint(1, len(shape)))))
    x = empty(*shape, dtype=r.choice((dtypes.float32, dtypes.float32, dtypes.int32, dtypes.bfloat16, dtypes.float64)))
    return computed(getattr(x * 2 if r.random() < 0.5 else x, r.choice(("sum", "max", "min", "mean", "prod")))(axes))


def random_rows(r: Random) -> Build:
    rows, columns = _sizes(r, 2)
    x = leaf(rows, columns)
    what = r.choice(("softmax", "log_softmax", "layernorm", "norm", "logsumexp", "argmax", "var"))
    if what == "norm":
        return computed(x / (x * x).sum(1, keepdim=True).sqrt())
    y = getattr(x, what)() if what in ("softmax", "log_softmax", "layernorm") else getattr(x, what)(1)
    return gradients(y, x) if what != "argmax" and r.random() < 0.4 else computed(y)


def random_map(r: Random) -> Build:
    shape = _sizes(r, r.choice((1, 2, 3)))
    dtype = r.choice((dtypes.float32, dtypes.float32, dtypes.float16, dtypes.float64))
    x, y = empty(*shape, dtype=dtype), empty(*(s if r.random() < 0.7 else 1 for s in shape), dtype=dtype)
    name = r.choice(("exp", "tanh", "gelu", "sigmoid", "sin", "relu", "silu", "sqrt", "log"))
    return computed(getattr(x * y + 1, name)())


def random_permutation(r: Random) -> Build:
    shape = _sizes(r, r.choice((2, 3, 4)))
    order = r.sample(range(len(shape)), len(shape))
    x = empty(*shape, dtype=r.choice((dtypes.float32, dtypes.float32, dtypes.uint8, dtypes.bfloat16)))
    return computed(x.permute(*order).contiguous())


def random_movement(r: Random) -> Build:
    rows, columns = (max(s, 4) for s in _sizes(r, 2))
    x, y = empty(rows, columns), empty(rows, columns)
    what = r.choice(("cat", "pad", "flip", "shrink", "roll", "stack", "repeat"))
    made = {"cat": lambda: x.cat(y, dim=r.choice((0, 1))), "pad": lambda: x.pad(((1, 2), (3, 0))),
            "flip": lambda: x.flip(r.choice((0, 1))), "shrink": lambda: x[1:-1, 2:], "roll": lambda: x.roll(3, 1),
            "stack": lambda: x.stack(y, dim=1), "repeat": lambda: x.repeat(2, 3)}[what]()
    return computed(made.contiguous())


def random_pool(r: Random) -> Build:
    n, c, size = r.choice((1, 4, 16)), r.choice((3, 16, 64)), r.choice((8, 24, 28, 33))
    x, k = leaf(n, c, size, size), r.choice((2, 3))
    y = getattr(x, r.choice(("max_pool2d", "avg_pool2d")))((k, k), stride=r.choice((k, 2)))
    return gradients(y, x) if r.random() < 0.5 else computed(y)


def random_scan(r: Random) -> Build:
    shape = _sizes(r, r.choice((1, 2)))
    axis, what = r.randrange(len(shape)), r.choice(("cumsum", "cummax", "cumprod"))
    found = getattr(empty(*shape), what)(axis)
    return computed(found[0] if what == "cummax" else found)


def random_choice(r: Random) -> Build:
    """Return a random gather (or its gradient), scatter, histogram or sort."""
    rows, columns, count = r.choice((50, 300, 1000)), r.choice((1, 16, 64, 300)), r.choice((10, 64, 500))
    table, where = leaf(rows, columns), empty(count, dtype=dtypes.int32)
    if r.random() < 0.3:
        return computed(empty(rows * columns).sort()[0])
    picked = table[where]
    return gradients(picked, table) if r.random() < 0.6 else computed(picked)


def random_attention(r: Random) -> Build:
    b, h, s, d = r.choice((1, 2)), r.choice((1, 4, 8)), r.choice((17, 64, 128, 256, 300)), r.choice((16, 32, 64))
    q, k, v = (leaf(b, h, s, d) for _ in range(3))
    y = q.scaled_dot_product_attention(k, v, is_causal=r.random() < 0.5)
    return gradients(y, q, k, v) if r.random() < 0.5 else computed(y)


def random_loss(r: Random) -> Build:
    rows, columns = r.choice((32, 64, 100)), r.choice((10, 100, 1000))
    x, y = leaf(rows, columns), empty(rows, dtype=dtypes.int32)
    return gradients(x.sparse_categorical_crossentropy(y), x)


RANDOM: dict[str, tuple[Callable[[Random], Build], int]] = {
    "product": (random_product, 80), "convolution": (random_convolution, 24), "reduction": (random_reduction, 40),
    "rows": (random_rows, 28), "map": (random_map, 20), "permutation": (random_permutation, 20),
    "movement": (random_movement, 14), "pool": (random_pool, 10), "scan": (random_scan, 10),
    "choice": (random_choice, 10), "attention": (random_attention, 12), "loss": (random_loss, 4),
}


def _random(kind: str, number: int) -> CorpusProgram:
    make, name = RANDOM[kind][0], f"{kind} {number}"
    return CorpusProgram(name, lambda: make(Random(name)), number == 0 and kind != "attention")


def programs() -> Sequence[CorpusProgram]:
    """Return all programs, each with a unique name."""
    return (*(benchmarked(case) for case in CASES if not case.fresh),
            *(CorpusProgram(name, build, name == "Adam step") for name, build in ORDINARY.items()),
            *(_random(kind, n) for kind, (_, count) in RANDOM.items() for n in range(count)))
