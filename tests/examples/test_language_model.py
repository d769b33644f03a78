"""examples/language_model.py: files of the published layouts, with small random weights."""
from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinsmith import GlobalCounters, Tensor
from tinsmith.nn.state import safe_save

PATH = Path(__file__).parents[2] / "tinsmith" / "examples" / "language_model.py"
RNG = np.random.default_rng(0)
SIZES = {"vocab_size": 48, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 24, "rms_norm_eps": 1e-5}
TOKENS = np.array([[5, 1, 7, 30, 2, 9]], np.int32)
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
WEIGHTS = {"self_attn.q_proj": ("attn_q", 64, 64), "self_attn.k_proj": ("attn_k", 32, 64),
           "self_attn.v_proj": ("attn_v", 32, 64), "self_attn.o_proj": ("attn_output", 64, 64),
           "mlp.gate_proj": ("ffn_gate", 96, 64), "mlp.up_proj": ("ffn_up", 96, 64),
           "mlp.down_proj": ("ffn_down", 64, 96)}


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("language_model_example", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def drawn(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 4).astype(np.float32)


def llama() -> dict[str, np.ndarray]:
    """Weights by Hugging Face's names."""
    out = {"model.embed_tokens.weight": drawn(48, 64), "model.norm.weight": 1 + drawn(64),
           "lm_head.weight": drawn(48, 64)}
    for n in range(2):
        out |= {f"model.layers.{n}.{name}.weight": 1 + drawn(64) for name in NORMS}
        out |= {f"model.layers.{n}.{name}.weight": drawn(*shape) for name, (_, *shape) in WEIGHTS.items()}
    return out


def folder_of(path: Path, weights: dict[str, np.ndarray], told: dict[str, Any]) -> Path:
    """A folder of Hugging Face's layout, in two files."""
    (path / "config.json").write_text(json.dumps(told), "utf-8")
    names = sorted(weights)
    for n, part in enumerate((names[::2], names[1::2])):
        safe_save({name: Tensor(weights[name]) for name in part}, path / f"model-0000{n + 1}-of-00002.safetensors")
    return path


def gguf_of(path: Path, weights: dict[str, np.ndarray], kind: str) -> Path:
    """The same weights in a GGUF file: queries and keys in the order of pairs, matrices quantized."""
    gguf = pytest.importorskip("gguf", reason="pip install 'tinsmith[gguf]'")
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for n in range(2):
        names |= {f"model.layers.{n}.{theirs}": f"blk.{n}.{ours}" for theirs, ours in NORMS.items()}
        names |= {f"model.layers.{n}.{theirs}": f"blk.{n}.{ours}" for theirs, (ours, *_) in WEIGHTS.items()}
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_feed_forward_length(96)
    writer.add_context_length(24)
    writer.add_layer_norm_rms_eps(1e-5)
    for theirs, ours in names.items():
        value = weights[f"{theirs}.weight"]
        if "attn_q" in ours or "attn_k" in ours:
            value = value.reshape(-1, 2, 8, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        if value.ndim == 1 or not kind:
            writer.add_tensor(f"{ours}.weight", np.ascontiguousarray(value))
        else:
            number = gguf.GGMLQuantizationType[kind]
            packed = gguf.quants.quantize(np.ascontiguousarray(value), number)
            writer.add_tensor(f"{ours}.weight", packed, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_both_layouts_are_one_model(example: Any, tmp_path: Path) -> None:
    """GGUF has neighbours rotated together, the other layout the halves: the scores are the same."""
    weights = llama()
    one, _ = example.from_folder(folder_of(tmp_path, weights, {"model_type": "llama", **SIZES}))
    two, _ = example.from_gguf(gguf_of(tmp_path / "x.gguf", weights, ""))
    np.testing.assert_allclose(one(Tensor(TOKENS)).numpy(), two(Tensor(TOKENS)).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_quantized_weights_stay_packed(example: Any, tmp_path: Path, kind: str) -> None:
    """A step reads packed weights with one capture, and takes no memory for unpacked ones."""
    weights = llama()
    rough, _ = example.from_gguf(gguf_of(tmp_path / "x.gguf", weights, kind))
    unpacked = {n: t.numpy() for n, t in example.get_state_dict(rough).items() if "_angles" not in n}
    exact, _ = example.from_gguf(tmp_path / "x.gguf")
    exact.load({n: Tensor(v) for n, v in unpacked.items()})
    writer, want = example.Writer(rough), []
    text = [5, 1, 7]
    for _ in range(9):
        want.append(int(exact(Tensor([text + want], dtype="int32"))[0, -1].argmax().item()))
    before = GlobalCounters.mem_used
    assert list(writer.write(text, 9)) == want and len(writer.step.captures) == 1
    assert GlobalCounters.mem_used - before < 30_000  # the weights unpacked have 200 kB


def test_gpt2(example: Any, tmp_path: Path) -> None:
    """The names of the published files, with transposed weights and masks that nobody reads, and a tied head."""
    told = {"model_type": "gpt2", "vocab_size": 48, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    weights = {"wte.weight": drawn(48, 32), "wpe.weight": drawn(16, 32), "ln_f.weight": 1 + drawn(32),
               "ln_f.bias": drawn(32), "h.0.attn.bias": np.ones((1, 1, 16, 16), np.float32)}
    for name, *shape in (("attn.c_attn", 32, 96), ("attn.c_proj", 32, 32), ("mlp.c_fc", 32, 128),
                         ("mlp.c_proj", 128, 32)):
        weights |= {f"h.0.{name}.weight": drawn(*shape), f"h.0.{name}.bias": drawn(shape[1])}
    for name in ("ln_1", "ln_2"):
        weights |= {f"h.0.{name}.weight": 1 + drawn(32), f"h.0.{name}.bias": drawn(32)}
    model, _ = example.from_folder(folder_of(tmp_path, weights, told))
    whole = model(Tensor(TOKENS)).numpy()
    writer = example.Writer(model)
    assert next(writer.write(TOKENS[0].tolist(), 1)) == whole[0, -1].argmax()
    text, want = TOKENS[0].tolist(), []
    for _ in range(6):
        want.append(int(model(Tensor([text + want], dtype="int32"))[0, -1].argmax().item()))
    assert list(example.Writer(model).write(text, 6)) == want
    assert len(list(example.Writer(model).write(text, 100))) == 11  # the context is full


def test_the_command(tmp_path: Path, example: Any, monkeypatch: pytest.MonkeyPatch,
                     capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(tmp_path, llama(), {"model_type": "llama", **SIZES})
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path), "--prompt", "\1\2", "--tokens", "6", "--temperature", "0.5"])
    example.main()
    printed = capsys.readouterr().out
    assert "tokens/s, captured 1 times" in printed and "llama, 2 layers of width 64" in printed


def test_vocabularies_of_gguf(example: Any) -> None:
    pytest.importorskip("tokenizers", reason="pip install 'tinsmith[examples]'")
    letters = [chr(n) for n in range(33, 127)] + ["Ġ"]
    t = example.Tokenizer.of_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [*letters, "he", "hel"],
                                   "tokenizer.ggml.merges": ["h e", "he l"], "tokenizer.ggml.eos_token_id": 3})
    assert t.encode("hello")[0] == len(letters) + 1 and t.decode(t.encode("hello you")) == "hello you" and t.end == {3}
    words = ["<unk>", "<s>", "</s>", "▁", "h", "e", "l", "o", "▁h", "el", "▁hel"]
    t = example.Tokenizer.of_gguf({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words,
                                   "tokenizer.ggml.scores": [0.0] * 8 + [-1.0, -2.0, -3.0],
                                   "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2})
    assert t.encode("hello") == [1, 10, 6, 7] and t.decode([10, 6, 7]).strip() == "hello"
