"""GPT-2 and Llama from published files, writing text with one captured program for all positions.

    python -m tinsmith.examples.language_model FOLDER --prompt "Once"      config.json, *.safetensors, tokenizer.json
    python -m tinsmith.examples.language_model FILE.gguf --prompt "Once"   weights of any type, sizes and vocabulary

Weights keep the type that they have in the file: quantized blocks and 16-bit floats are unpacked by the kernels that
read them. Each layer keeps the keys and values of earlier positions in a cache, as ``examples/decoder.py`` explains.
"""
from __future__ import annotations

import argparse
import importlib
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinsmith import GlobalCounters, Tensor, TinyJit, Variable, dtypes, nn
from tinsmith.nn.io.ggml import is_packed, rows
from tinsmith.nn.state import get_state_dict, gguf_load, load_state_dict, safe_load
from tinsmith.tensor.realize import realize_tensors


@dataclass(frozen=True)
class Config:
    """Sizes of a model. ``paired``: rotary embeddings rotate adjacent elements (as in GGUF), not the two halves."""

    kind: str
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    context: int
    epsilon: float
    base: float = 10000.0
    head_width: int = 0
    paired: bool = False
    scaling: tuple[float, float, float, float] | None = None  # of Llama 3.1: factor, low, high, old context


class Cache:
    """Keys and values of earlier positions: ``[2, batch, context, heads, width]``."""

    def __init__(self, config: Config) -> None:
        shape = 2, 1, config.context, config.kv_heads, config.head_width
        self.values = Tensor.zeros(*shape).contiguous().realize()

    def extended(self, k: Tensor, v: Tensor, start: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values from ``start`` on; return all up to their end."""
        end = start + k.shape[1]
        self.values[:, :, start:end] = k.stack(v)
        return self.values[0, :, :end], self.values[1, :, :end]


def attend(q: Tensor, k: Tensor, v: Tensor, start: Any, cache: Cache | None) -> Tensor:
    """Return causal attention of queries ``[batch, length, heads, width]``; ``cache`` holds earlier keys and values."""
    batch, length = q.shape[:2]
    if cache is not None:
        k, v = cache.extended(k, v, start)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    mask = None
    if length > 1:
        mask = Tensor.arange(k.shape[2]).reshape(1, -1) <= Tensor.arange(length).reshape(-1, 1) + start
    seen = q.scaled_dot_product_attention(k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return seen.transpose(1, 2).reshape(batch, length, -1)


class GPT2Block:
    """Names as in GGUF's files; ``HF_NAMES`` maps the others to them."""

    def __init__(self, c: Config) -> None:
        self.config = c
        self.attn_norm, self.ffn_norm = nn.LayerNorm(c.width, eps=c.epsilon), nn.LayerNorm(c.width, eps=c.epsilon)
        self.attn_qkv, self.attn_output = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)
        self.ffn_up, self.ffn_down = nn.Linear(c.width, c.hidden), nn.Linear(c.hidden, c.width)

    def __call__(self, x: Tensor, start: Any, angles: Any, cache: Cache | None) -> Tensor:
        heads = (*x.shape[:2], self.config.heads, self.config.head_width)
        q, k, v = (t.reshape(*heads) for t in self.attn_qkv(self.attn_norm(x)).chunk(3, dim=-1))
        x = x + self.attn_output(attend(q, k, v, start, cache))
        return x + self.ffn_down(self.ffn_up(self.ffn_norm(x)).gelu("tanh"))


class LlamaBlock:
    """Grouped-query attention over rotated queries and keys, and a gated feed-forward network."""

    def __init__(self, c: Config) -> None:
        self.config = c
        own, shared = c.heads * c.head_width, c.kv_heads * c.head_width
        self.attn_norm, self.ffn_norm = nn.RMSNorm(c.width, eps=c.epsilon), nn.RMSNorm(c.width, eps=c.epsilon)
        self.attn_q, self.attn_output = nn.Linear(c.width, own, bias=False), nn.Linear(own, c.width, bias=False)
        self.attn_k, self.attn_v = (nn.Linear(c.width, shared, bias=False) for _ in range(2))
        self.ffn_gate, self.ffn_up = (nn.Linear(c.width, c.hidden, bias=False) for _ in range(2))
        self.ffn_down = nn.Linear(c.hidden, c.width, bias=False)

    def __call__(self, x: Tensor, start: Any, angles: tuple[Tensor, Tensor], cache: Cache | None) -> Tensor:
        c, lead, y = self.config, x.shape[:2], self.attn_norm(x)
        q = self.rotated(self.attn_q(y).reshape(*lead, c.heads, c.head_width), angles)
        k = self.rotated(self.attn_k(y).reshape(*lead, c.kv_heads, c.head_width), angles)
        v = self.attn_v(y).reshape(*lead, c.kv_heads, c.head_width)
        x = x + self.attn_output(attend(q, k, v, start, cache))
        y = self.ffn_norm(x)
        return x + self.ffn_down(self.ffn_gate(y).silu() * self.ffn_up(y))

    def rotated(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = angles
        if self.config.paired:
            a, b = x[..., 0::2], x[..., 1::2]
            return (a * cos - b * sin).stack(b * cos + a * sin, dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return (a * cos - b * sin).cat(b * cos + a * sin, dim=-1)


def rotation(c: Config, factors: np.ndarray | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[context, 1, head_width / 2]`` of the rotary embedding."""
    half = c.head_width // 2
    speeds = c.base ** (-np.arange(half) / half)
    if c.scaling is not None:  # slow waves are stretched, and those between are blended
        factor, low, high, old = c.scaling
        turns = old * speeds / (2 * math.pi)
        blend = np.clip((turns - low) / (high - low), 0, 1)
        speeds = speeds * (blend + (1 - blend) / factor)
    if factors is not None:
        speeds = speeds / factors
    angles = np.arange(c.context)[:, None, None] * speeds
    cosines, sines = (Tensor(f(angles).astype(np.float32), requires_grad=False).realize() for f in (np.cos, np.sin))
    return cosines, sines


class Embedding:
    """Rows of a table, which may be quantized."""

    def __init__(self, count: int, width: int) -> None:
        self.weight = Tensor.zeros(count, width)

    def __call__(self, index: Tensor) -> Tensor:
        return rows(self.weight, index)


class Model:
    """Token ids ``[batch, length]`` → scores of the next one ``[batch, length, vocabulary]``."""

    def __init__(self, c: Config) -> None:
        self.config = c
        self.token_embd = Embedding(c.vocabulary, c.width)
        if c.kind == "gpt2":
            self.position_embd = Embedding(c.context, c.width)
            self.output_norm: Any = nn.LayerNorm(c.width, eps=c.epsilon)
        else:
            self.output_norm = nn.RMSNorm(c.width, eps=c.epsilon)
        self.blk: list[Any] = [(GPT2Block if c.kind == "gpt2" else LlamaBlock)(c) for _ in range(c.layers)]
        self.output = Embedding(c.vocabulary, c.width)
        self._angles: list[Tensor] = [] if c.kind == "gpt2" else list(rotation(c))

    def __call__(self, tokens: Tensor, start: Any = 0, caches: list[Cache] | None = None,
                 last: bool = False) -> Tensor:
        """Return the next tokens' logits; ``start``: position of the first token, ``last``: of the last token only."""
        x, length = self.token_embd(tokens), tokens.shape[1]
        if self.config.kind == "gpt2":
            x = x + self.position_embd.weight[start : start + length]
        angles = tuple(t[start : start + length] for t in self._angles)
        for n, block in enumerate(self.blk):
            x = block(x, start, angles, None if caches is None else caches[n])
        logits: Tensor = self.output_norm(x[:, -1:] if last else x).linear(self.output.weight.T)
        return logits

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Load weights by GGUF's names, unconverted: each keeps its type until a kernel reads it."""
        factors = tensors.pop("rope_freqs.weight", None)
        if factors is not None:
            self._angles = list(rotation(self.config, factors.numpy()))
        tables = ["token_embd", "output"] + ["position_embd"] * (self.config.kind == "gpt2")
        tensors.setdefault("output.weight", tensors["token_embd.weight"])
        for name in tables:
            table, weight = getattr(self, name), tensors.pop(f"{name}.weight")
            if weight.shape[1] != table.weight.shape[1]:
                raise SystemExit(f"{name}.weight is of shape {weight.shape}, not {table.weight.shape}")
            table.weight = weight
        own = [n for n in get_state_dict(self) if n.split(".")[0] not in (*tables, "_angles")]
        load_state_dict({n: t for n, t in get_state_dict(self).items() if n in own}, tensors, realize=False)


HF_NAMES = (
    (r"^(transformer|model)\.", ""), (r"^(h|layers)\.", "blk."), (r"^wte\.|^embed_tokens\.", "token_embd."),
    (r"^wpe\.", "position_embd."), (r"^ln_f\.|^norm\.", "output_norm."), (r"^lm_head\.", "output."),
    (r"attn\.c_attn", "attn_qkv"), (r"mlp\.c_fc", "ffn_up"), (r"mlp\.c_proj", "ffn_down"),
    (r"attn\.c_proj|self_attn\.o_proj", "attn_output"), (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"), (r"ln_1|input_layernorm", "attn_norm"),
    (r"ln_2|post_attention_layernorm", "ffn_norm"))
UNUSED = re.compile(r"\.attn\.(masked_)?bias$|rotary_emb\.inv_freq$")


def from_folder(folder: Path) -> tuple[Model, Tokenizer]:
    """Load a model and its tokenizer from a folder in Hugging Face's layout."""
    told = json.loads((folder / "config.json").read_text("utf-8"))
    get: Callable[..., Any] = told.get
    width, heads = get("hidden_size") or told["n_embd"], get("num_attention_heads") or told["n_head"]
    kind = told["model_type"]
    scaling = get("rope_scaling") or get("rope_parameters") or {}
    if kind not in ("gpt2", "llama", "mistral"):
        raise SystemExit(f"a model of type {kind!r} is not built: gpt2, llama or mistral")
    config = Config(
        kind, told["vocab_size"], width, get("num_hidden_layers") or told["n_layer"], heads,
        get("num_key_value_heads") or heads, get("intermediate_size") or get("n_inner") or 4 * width,
        min(get("max_position_embeddings") or told["n_positions"], 4096 if kind != "gpt2" else 1 << 30),
        get("rms_norm_eps") or get("layer_norm_epsilon") or 1e-5, get("rope_theta") or scaling.get("rope_theta", 1e4),
        get("head_dim") or width // heads, False,
        tuple(scaling[k] for k in ("factor", "low_freq_factor", "high_freq_factor",
                                   "original_max_position_embeddings"))
        if scaling.get("rope_type", scaling.get("type")) == "llama3" else None)
    files = sorted(folder.glob("*.safetensors"))
    stored = {name: t for file in files for name, t in safe_load(file).items() if not UNUSED.search(name)}
    realize_tensors(list(stored.values()))
    model, tensors = Model(config), {}
    for name, t in stored.items():
        transposed = kind == "gpt2" and re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name)  # GPT-2's are [in, out]
        for pattern, ours in HF_NAMES:
            name = re.sub(pattern, ours, name)
        tensors[name] = (t.T if transposed else t).cast(dtypes.float32)
    model.load(tensors)
    return model, Tokenizer.of_file(folder / "tokenizer.json")


def from_gguf(file: Path) -> tuple[Model, Tokenizer]:
    """Load a model and its tokenizer from one GGUF file."""
    told, tensors = gguf_load(file)
    kind = told["general.architecture"]
    if kind not in ("gpt2", "llama"):
        raise SystemExit(f"a model of architecture {kind!r} is not built: gpt2 or llama")

    def get(name: str, usual: Any = None) -> Any:
        return told.get(f"{kind}.{name}", usual)

    width, heads = get("embedding_length"), get("attention.head_count")
    config = Config(
        kind, tensors["token_embd.weight"].shape[0], width, get("block_count"), heads,
        get("attention.head_count_kv", heads), get("feed_forward_length"),
        min(get("context_length"), 4096 if kind != "gpt2" else 1 << 30),
        get("attention.layer_norm_rms_epsilon", get("attention.layer_norm_epsilon", 1e-5)),
        get("rope.freq_base", 10000.0), get("attention.key_length", width // heads), True)
    model = Model(config)
    realize_tensors([t for t in tensors.values() if not is_packed(t)])
    model.load({name: t if is_packed(t) else t.cast(dtypes.float32) for name, t in tensors.items()})
    return model, Tokenizer.of_gguf(told)


class Tokenizer:
    """Text to ids and back, by the library ``tokenizers``; without a vocabulary, ids are bytes."""

    def __init__(self, library: Any = None, begin: list[int] | None = None, end: set[int] | None = None) -> None:
        self.library, self.begin, self.end = library, begin or [], end or set()

    @classmethod
    def of_file(cls, file: Path) -> Tokenizer:
        if not file.exists():
            return cls()
        library = importlib.import_module("tokenizers").Tokenizer.from_file(str(file))
        names = ("<|endoftext|>", "</s>", "<|eot_id|>", "<|end_of_text|>")
        return cls(library, end={library.token_to_id(n) for n in names} - {None})

    @classmethod
    def of_gguf(cls, told: dict[str, Any]) -> Tokenizer:
        """Return the vocabulary of a GGUF file: byte-level pairs with their merges, or pieces with scores."""
        words = told.get("tokenizer.ggml.tokens")
        if words is None:
            return cls()
        t = importlib.import_module("tokenizers")
        ids = {word: n for n, word in enumerate(words)}
        if told["tokenizer.ggml.model"] == "gpt2":
            merges = [tuple(m.split(" ", 1)) for m in told["tokenizer.ggml.merges"]]
            library = t.Tokenizer(t.models.BPE(ids, merges))
            library.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
            library.decoder = t.decoders.ByteLevel()
        else:
            library = t.Tokenizer(t.models.BPE(ids, pairs(ids, told["tokenizer.ggml.scores"]), byte_fallback=True,
                                               fuse_unk=True, unk_token=words[0]))
            library.normalizer = t.normalizers.Sequence([t.normalizers.Prepend("▁"),
                                                         t.normalizers.Replace(" ", "▁")])
            library.decoder = t.decoders.Sequence([t.decoders.Replace("▁", " "), t.decoders.ByteFallback(),
                                                   t.decoders.Fuse()])
        begin, end = (told.get(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos"))
        starts = told.get("tokenizer.ggml.add_bos_token", told["tokenizer.ggml.model"] == "llama")
        return cls(library, [begin] if starts and begin is not None else [], set() if end is None else {end})

    def encode(self, text: str) -> list[int]:
        return self.begin + (list(text.encode()) if self.library is None else self.library.encode(text).ids)

    def decode(self, ids: list[int]) -> str:
        if self.library is not None:
            return str(self.library.decode(ids))
        return bytes(n for n in ids if n < 256).decode("utf-8", "replace")


def pairs(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return the merges (left, right) of a vocabulary of pieces with scores, best score first."""
    found = [(scores[n], word[:k], word[k:]) for word, n in ids.items() for k in range(1, len(word))
             if word[:k] in ids and word[k:] in ids]
    return [(a, b) for _, a, b in sorted(found, key=lambda f: -f[0])]


class Writer:
    """Writes tokens one after the other: greedy at temperature 0, else drawn."""

    def __init__(self, model: Model, temperature: float = 0.0) -> None:
        self.model, self.temperature = model, temperature
        self.start = Variable("start", 0, model.config.context - 1)
        self.caches = [Cache(model.config) for _ in range(model.config.layers)]
        self.step = TinyJit(self.next)

    def next(self, tokens: Tensor, start: Any) -> Tensor:
        """Return the token after ``tokens`` ``[1, length]``, the first of which is at position ``start``."""
        scores = self.model(tokens, start, self.caches, last=True)[:, -1]
        if self.temperature:  # the greatest of scores with Gumbel noise is a draw from their softmax
            scores = scores / self.temperature - (-Tensor.rand(*scores.shape).log()).log()
        return scores.argmax(-1).reshape(1, 1).cast("int32")

    def write(self, prompt: list[int], count: int) -> Iterator[int]:
        """``count`` tokens that follow the prompt, which is read at once, as far as the context reaches."""
        token = self.next(Tensor([prompt], dtype="int32"), 0)
        yield int(token.item())
        for position in range(len(prompt), min(len(prompt) + count - 1, self.model.config.context)):
            token = self.step(token.realize(), self.start.bind(position))
            yield int(token.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a folder of Hugging Face's layout, or a GGUF file")
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not args.model.is_file() and not (args.model / "config.json").is_file():
        parser.error(f"{args.model} is no file, and no folder with a config.json")
    if min(args.tokens, args.temperature) < 0:
        parser.error("--tokens and --temperature are at least 0")
    Tensor.manual_seed(args.seed)
    model, tokenizer = (from_folder if args.model.is_dir() else from_gguf)(args.model)
    print(f"{model.config.kind}, {model.config.layers} layers of width {model.config.width}, "
          f"{GlobalCounters.mem_used / 1e6:.0f} MB on the device")
    writer = Writer(model, args.temperature)
    prompt = tokenizer.encode(args.prompt) or [0]
    begin = time.perf_counter()
    out, times = [], []
    for token in writer.write(prompt, args.tokens):
        times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        if token in tokenizer.end:
            break
        out.append(token)
    print(args.prompt + tokenizer.decode(out))
    steps = times[3:] or times  # the first ones compile and capture
    print(f"{len(prompt)} tokens read, {len(out)} written, {len(steps) / sum(steps):.1f} tokens/s, "
          f"captured {len(writer.step.captures)} times")


if __name__ == "__main__":
    main()
