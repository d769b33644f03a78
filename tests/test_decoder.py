"""examples/decoder.py: a cached decode equals a full recomputation, with one program for all positions."""
from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import GlobalCounters, Tensor, TinyJit, Variable
from tinsmith.core.settings import Context

PATH = Path(__file__).parents[1] / "tinsmith" / "examples" / "decoder.py"


@pytest.fixture(scope="module")
def decoder() -> Any:
    spec = importlib.util.spec_from_file_location("decoder_example", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(decoder: Any) -> Any:
    Tensor.manual_seed(7)
    sizes = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 48, "context": 16}
    return decoder.Decoder(decoder.Config(vocabulary=40, **sizes))


def caches(model: Any) -> list[Tensor]:
    c = model.config
    return [Tensor.zeros(2, 1, c.context, c.kv_heads, c.head_width).contiguous().realize() for _ in range(c.layers)]


TOKENS = np.random.default_rng(0).integers(0, 40, (1, 16)).astype(np.int32)


def reference(model: Any) -> np.ndarray:
    """Return the scores computed by NumPy without a cache."""
    c, state = model.config, {}

    def value(t: Tensor) -> np.ndarray:
        return state.setdefault(id(t), t.numpy().astype(np.float64))

    def norm(x: np.ndarray, layer: Any) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + layer.eps) * value(layer.weight)

    def turn(x: np.ndarray) -> np.ndarray:
        half = c.head_width // 2
        angles = np.arange(len(x))[:, None, None] * c.base ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    x = value(model.embedding.weight)[TOKENS[0]]
    for layer in model.layers:
        h, attention, n = norm(x, layer.norm1), layer.attention, len(x)
        q = turn((h @ value(attention.q.weight).T).reshape(n, c.heads, c.head_width))
        kv = (h @ value(attention.kv.weight).T).reshape(n, 2 * c.kv_heads, c.head_width)
        k, v = turn(kv[:, : c.kv_heads]), kv[:, c.kv_heads :]
        seen = []
        for head in range(c.heads):
            shared = head * c.kv_heads // c.heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(c.head_width)
            weights = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf))
            seen.append(weights / weights.sum(-1, keepdims=True) @ v[:, shared])
        x = x + np.stack(seen, 1).reshape(n, -1) @ value(attention.out.weight).T
        h = norm(x, layer.norm2)
        gate = h @ value(layer.gate.weight).T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ value(layer.up.weight).T)) @ value(layer.down.weight).T
    return norm(x, model.norm) @ value(model.head.weight).T


def test_the_model_computes_its_formula(model: Any) -> None:
    np.testing.assert_allclose(model(Tensor(TOKENS)).numpy()[0], reference(model), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("noopt", [0, 1])
def test_cached_steps_are_a_full_recomputation(model: Any, noopt: int) -> None:
    """Byte by byte with one program; and a prompt at once, a multi-byte piece, then single bytes."""
    with Context(NOOPT=noopt):
        want = model(Tensor(TOKENS)).numpy()[0]
        start, cache = Variable("start", 0, 15), caches(model)
        step = TinyJit(lambda token, at: model(token, at, cache)[:, -1].realize())
        counts = []
        for k in range(16):
            got = step(Tensor(TOKENS[:, k : k + 1]).realize(), start.bind(k)).numpy()[0]
            np.testing.assert_allclose(got, want[k], rtol=1e-4, atol=1e-5)
            counts.append(GlobalCounters.schedule_count)
        assert len(step.captures) == 1 and step.replays == 14 and counts[-1] == counts[2]
        cache = caches(model)
        middle = Variable("middle", 1, 10)
        for at, k in ((0, 7), (middle.bind(7), 3), (start.bind(10), 1), (start.bind(11), 1)):
            first = at if isinstance(at, int) else at.val
            got = model(Tensor(TOKENS[:, first : first + k]), at, cache).numpy()[0]
            np.testing.assert_allclose(got, want[first : first + k], rtol=1e-4, atol=1e-5)


def test_a_writer_takes_the_likeliest_byte(decoder: Any, model: Any) -> None:
    writer = decoder.Writer(model)
    text = bytes(TOKENS[0, :4].tolist())
    for _ in range(8):
        scores = model(Tensor(np.frombuffer(text, np.uint8).astype(np.int32).reshape(1, -1))).numpy()
        text += bytes([int(scores[0, -1].argmax())])
    assert bytes(writer.write(text[:4], 8)) == text[4:]
    assert len(writer.step.captures) == 1
    assert len(list(writer.write(text, 100))) == 16 - len(text)  # the context is full


def test_a_drawn_byte_follows_the_temperature(decoder: Any, model: Any) -> None:
    cold, hot = decoder.Writer(model, 1e-4), decoder.Writer(model, 100.0)
    assert list(cold.write(b"\1\2", 10)) == list(decoder.Writer(model).write(b"\1\2", 10))
    assert len({tuple(hot.write(b"\1\2", 10)) for _ in range(4)}) == 4


def test_training_learns_a_text(decoder: Any) -> None:
    Tensor.manual_seed(1)
    small = decoder.Decoder(decoder.Config(width=32, layers=1, heads=2, kv_heads=1, hidden=48, context=32))
    losses = decoder.Training(small, b"abcdefgh" * 60, steps=60, batch=8, length=16).run(60)
    assert losses[-1] < 0.6 < 4 < losses[0]
    assert bytes(decoder.Writer(small).write(b"abcd", 12)) == b"efghabcdefgh"


SIZES = {"width": 16, "layers": 1, "heads": 2, "kv_heads": 1, "hidden": 24, "context": 16}
TEXT = b"to be or not to be, that is the question. " * 20


def fresh_run(decoder: Any, **options: Any) -> Any:
    Tensor.manual_seed(7)
    return decoder.Training(decoder.Decoder(decoder.Config(**SIZES)), TEXT, steps=8, batch=4, length=12, **options)


def test_a_training_run_that_was_cut_short_ends_in_the_same_bits(decoder: Any, tmp_path: Path) -> None:
    whole = fresh_run(decoder)
    losses = whole.run(8)
    half = fresh_run(decoder)
    half.run(3)
    half.save(tmp_path / "run")
    rest = fresh_run(decoder)
    rest.load(tmp_path / "run")
    assert rest.done == 3 and rest.run(8) == losses[3:] and losses[-1] < losses[0]
    for mine, other in zip(rest.model.parameters(), whole.model.parameters()):
        assert mine.numpy().tobytes() == other.numpy().tobytes()
    assert whole.step.replays == 6 and len(whole.step.captures) == 1
    assert rest.held_out_loss(2) == whole.held_out_loss(2)


def test_training_from_the_command_line(decoder: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(TEXT * 10)
    run = tmp_path / "run.safetensors"
    args = argparse.Namespace(data=tmp_path / "text", run=run, steps=2, seed=0, bf16=False)
    for steps, expected in ((1, "step    1   loss"), (2, f"{run}: going on after step 1")):
        Tensor.manual_seed(7)
        args.steps = steps
        decoder.train(decoder.Decoder(decoder.Config(**SIZES | {"context": 128})), args)
        assert expected in (out := capsys.readouterr().out) and "bits per byte) on held-out text" in out
    with pytest.raises(SystemExit, match="2580 are needed"):
        decoder.Training(decoder.Decoder(decoder.Config(**SIZES)), TEXT, steps=8)


def test_a_writer_chooses_among_the_bytes_that_it_is_given(decoder: Any, model: Any) -> None:
    found = list(decoder.Writer(model, 1.0, b"\x05\x07\x09").write(b"\x01", 15))
    assert set(found) <= {5, 7, 9} and len(set(found)) > 1


def test_control_characters_are_not_printed(decoder: Any) -> None:
    assert decoder.readable("Grüße\tan\n".encode() + b"\x00\x1b[31m\xc3(\x7f") == "Grüße\tan\n··[31m·(·"


def test_random_weights_write_text(decoder: Any, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    small = decoder.Config(**SIZES | {"vocabulary": 256})
    monkeypatch.setattr(decoder, "Config", lambda: small)
    monkeypatch.setattr(sys, "argv", ["decoder", "--tokens", "24"])
    decoder.main()
    text = capsys.readouterr().out.splitlines()[1]
    assert text.startswith("The ") and text.isascii() and text.isprintable() and len(text) > 10
