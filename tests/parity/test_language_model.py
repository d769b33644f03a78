"""examples/language_model.py against the models of ``transformers``, on the files that those write."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.examples.test_language_model import example  # noqa: F401 (a fixture)
from tinsmith import Tensor, nn

torch = pytest.importorskip("torch", reason="pip install 'tinsmith[parity]'")
transformers = pytest.importorskip("transformers", reason="pip install 'tinsmith[parity]'")

TOKENS = np.array([[1, 5, 3, 40, 2, 7, 7]])
SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}


def gpt2(**options: Any) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, **options))


def llama(**options: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, **options))


@pytest.mark.parametrize("make, options", [(gpt2, {}), (llama, {}), (llama, {"rope_scaling": SCALED}),
                                           (llama, {"tie_word_embeddings": True})])
def test_scores_and_text(example: Any, tmp_path: Path, make: Any, options: dict[str, Any]) -> None:  # noqa: F811
    torch.manual_seed(0)
    twin = make(**options).eval()
    for p in twin.parameters():  # as drawn for training, nearly all tokens have the same score
        p.data += 0.2 * torch.randn_like(p)
    twin.save_pretrained(tmp_path, safe_serialization=True)
    ours, _ = example.from_folder(tmp_path)
    with torch.no_grad():
        want = twin(torch.tensor(TOKENS)).logits.numpy()
        np.testing.assert_allclose(ours(Tensor(TOKENS.astype(np.int32))).numpy(), want, rtol=1e-4, atol=1e-4)
        text = torch.tensor(TOKENS[:, :3])
        for _ in range(8):
            text = torch.cat([text, twin(text).logits[:, -1:].argmax(-1)], 1)
    writer = example.Writer(ours)
    assert list(writer.write(TOKENS[0, :3].tolist(), 8)) == text[0, 3:].tolist() and len(writer.step.captures) == 1


@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_training_step(example: Any, tmp_path: Path, make: Any) -> None:  # noqa: F811
    """Loss and all weights after one step against the twin's, read from the file it writes; GPT-2's embedding is
    tied."""
    torch.manual_seed(0)
    twin = make().eval()
    for p in twin.parameters():
        p.data += 0.2 * torch.randn_like(p)
    twin.save_pretrained(tmp_path / "before")
    ours, _ = example.from_folder(tmp_path / "before")
    scores = twin(torch.tensor(TOKENS)).logits
    want = torch.nn.functional.cross_entropy(scores[0, :-1], torch.tensor(TOKENS[0, 1:]))
    want.backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    twin.save_pretrained(tmp_path / "after")

    def weights(model: Any) -> dict[str, Tensor]:
        return {n: t for n, t in nn.state.get_state_dict(model).items() if not n.startswith("_angles")}

    opt = nn.optim.SGD(list(weights(ours).values()), lr=0.1)
    loss = ours(Tensor(TOKENS.astype(np.int32)))[0, :-1].cross_entropy(Tensor(TOKENS[0, 1:])).backward()
    opt.step()
    np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-5)
    stepped = weights(example.from_folder(tmp_path / "after")[0])
    assert (ours.output.weight is ours.token_embd.weight) is (make is gpt2)
    for name, t in weights(ours).items():
        np.testing.assert_allclose(t.numpy(), stepped[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_half_precision_files(example: Any, tmp_path: Path) -> None:  # noqa: F811
    torch.manual_seed(0)
    twin = llama().eval().to(torch.bfloat16)
    twin.save_pretrained(tmp_path)
    ours, _ = example.from_folder(tmp_path)
    with torch.no_grad():
        want = twin.float()(torch.tensor(TOKENS)).logits.numpy()
    np.testing.assert_allclose(ours(Tensor(TOKENS.astype(np.int32))).numpy(), want, rtol=1e-4, atol=1e-4)
