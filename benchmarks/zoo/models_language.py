"""Models of ``transformers``, built from configurations with random weights: language, images, sound, series."""

# ruff: noqa: C408
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from benchmarks.zoo.registry import Example, Size, declare_ops, model, wide

Fields = dict[str, Any]
NO_DROPOUT: Final = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "hidden_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "embd_pdrop",
    "attn_pdrop",
    "resid_pdrop",
    "dropout_rate",
    "classifier_dropout",
    "classifier_dropout_prob",
    "layerdrop",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "embed_dropout",
    "resid_dropout",
    "feat_proj_dropout",
    "final_dropout",
    "mask_time_prob",
    "mask_feature_prob",
    "drop_path_rate",
    "summary_last_dropout",
    "summary_first_dropout",
    "hidden_dropout_rate",
    "embedding_dropout",
    "drop_rate",
)


class _Adapted(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A model of ``transformers`` called with tensors, that returns its floating-point results in order."""

    def __init__(self, inner: Any, names: tuple[str, ...], wanted: str) -> None:
        super().__init__()
        self.inner, self.names, self.wanted = inner, names, wanted

    def forward(self, *inputs: Any) -> Any:
        found = self.inner(**dict(zip(self.names, inputs)), return_dict=True)
        return getattr(found, self.wanted) if self.wanted else found[0]


def _configured(kind: str, fields: Fields) -> Any:
    """Return a configuration without dropout."""
    declare_ops()
    import transformers

    config = transformers.AutoConfig.for_model(kind, **fields)
    for name in NO_DROPOUT:
        if isinstance(getattr(config, name, None), float):
            setattr(config, name, 0.0)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def _made(kind: str, auto: str, fields: Fields) -> Any:
    declare_ops()
    import transformers

    found, config = getattr(transformers, auto), _configured(kind, fields)
    return found.from_config(config) if auto.startswith("Auto") else found(config)


def next_word(output: Any, tokens: Any) -> Any:
    """Return the cross entropy of the next word."""
    return torch.nn.functional.cross_entropy(wide(output[:, :-1].flatten(0, 1)), tokens[:, 1:].flatten())


def _language(kind: str, auto: str, small: Fields, full: Fields, shape: tuple[int, int], size: Size) -> Example:
    """Return a model from tokens to scores of words, or to hidden states."""
    fields, (batch, length) = (small, (2, 8)) if size == "small" else (full, shape)
    found = _made(kind, auto, fields)
    words = min(int(found.config.get_text_config().vocab_size), 1000)
    tokens = torch.randint(4, words, (batch, length))
    if "CausalLM" in auto or "MaskedLM" in auto:
        return Example(_Adapted(found, ("input_ids",), "logits"), (tokens,), (tokens,), next_word)
    if "Seq2Seq" in auto:
        return Example(
            _Adapted(found, ("input_ids", "decoder_input_ids"), "logits"),
            (tokens, tokens.roll(1, 1)),
            (tokens,),
            next_word,
        )
    mask = (torch.arange(length) < torch.tensor([[length], *[[length - 3]] * (batch - 1)])).long()
    return Example(_Adapted(found, ("input_ids", "attention_mask"), ""), (tokens, mask))


def _image(kind: str, auto: str, small: Fields, full: Fields, shape: tuple[int, int], size: Size) -> Example:
    """Return a model from images (batch, edge) to its first result."""
    fields = small if size == "small" else full
    batch, edge = (2, int(torch.tensor(fields.get("image_size", 32)).max())) if size == "small" else shape
    wanted = "logits" if "Classification" in auto or "Segmentation" in auto else ""
    return Example(_Adapted(_made(kind, auto, fields), ("pixel_values",), wanted), (torch.randn(batch, 3, edge, edge),))


def _sound(kind: str, auto: str, small: Fields, full: Fields, shape: tuple[int, int], size: Size) -> Example:
    """Return a model from samples to hidden states or scores."""
    fields, (batch, length) = (small, (2, 400)) if size == "small" else (full, shape)
    return Example(_Adapted(_made(kind, auto, fields), ("input_values",), ""), (torch.randn(batch, length),))


def _enter(name: str, make: Callable[..., Example], *arguments: Any) -> None:
    model(name, "language", "transformers")(functools.partial(make, *arguments))


_BERT: Final[Fields] = dict(
    vocab_size=60,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=40,
)
_BERT_FULL: Final[Fields] = dict(
    num_hidden_layers=4, hidden_size=384, num_attention_heads=6, intermediate_size=1536, vocab_size=8000
)
_LLAMA: Final[Fields] = dict(
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    num_key_value_heads=2,
    max_position_embeddings=64,
    head_dim=8,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
_LLAMA_FULL: Final[Fields] = {
    **_LLAMA,
    "vocab_size": 8000,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 1408,
    "max_position_embeddings": 512,
}

for _name, _more in {
    "bert": {},
    "roberta": {},
    "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 8},
    "camembert": {},
    "mpnet": {},
    "convbert": {"embedding_size": 16, "conv_kernel_size": 3},
    "roformer": {"embedding_size": 16},
    "megatron-bert": {},
    "ernie": {},
    "nystromformer": {"num_landmarks": 4, "segment_means_seq_len": 8},
    "deberta": {},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "fnet": {},
    "layoutlm": {},
    "rembert": {"input_embedding_size": 8, "output_embedding_size": 8},
    "squeezebert": {
        "embedding_size": 16,
        **{f"{k}_groups": 2 for k in ("q", "k", "v", "post_attention", "intermediate", "output")},
    },
    "modernbert": {
        "global_attn_every_n_layers": 2,
        "local_attention": 4,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "ibert": {},
    "esm": {"pad_token_id": 1, "mask_token_id": 3},
    "data2vec-text": {},
    "longformer": {"attention_window": 4},
    "big_bird": {"attention_type": "original_full"},
    "visual_bert": {},
    "canine": {"num_hash_buckets": 64},
    "yoso": {"use_expectation": True},
}.items():
    _size_full = {k: 384 for k in _more if k.endswith("embedding_size")}
    _enter(
        f"{_name}", _language, _name, "AutoModel", {**_BERT, **_more}, {**_BERT_FULL, **_more, **_size_full}, (8, 128)
    )
_enter("bert_masked", _language, "bert", "AutoModelForMaskedLM", _BERT, _BERT_FULL, (8, 128))
_enter(
    "distilbert",
    _language,
    "distilbert",
    "AutoModelForMaskedLM",
    dict(vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=40),
    dict(vocab_size=8000, n_layers=4, dim=384, n_heads=6),
    (8, 128),
)
_enter(
    "mobilebert",
    _language,
    "mobilebert",
    "AutoModel",
    dict(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        embedding_size=16,
        intra_bottleneck_size=16,
        true_hidden_size=16,
        max_position_embeddings=40,
    ),
    dict(vocab_size=8000, num_hidden_layers=6),
    (8, 128),
)
_enter(
    "xlnet",
    _language,
    "xlnet",
    "AutoModel",
    dict(vocab_size=60, d_model=16, n_layer=1, n_head=2, d_inner=32),
    dict(vocab_size=8000, d_model=384, n_layer=4, n_head=6, d_inner=1536),
    (8, 128),
)
_enter(
    "funnel",
    _language,
    "funnel",
    "FunnelModel",
    dict(vocab_size=60, block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=32),
    dict(vocab_size=8000, block_sizes=[2, 2, 2], d_model=384, n_head=6),
    (8, 128),
)
_enter(
    "perceiver",
    _language,
    "perceiver",
    "AutoModelForMaskedLM",
    dict(
        vocab_size=60,
        num_latents=4,
        d_latents=16,
        d_model=16,
        num_blocks=1,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        max_position_embeddings=8,
        qk_channels=16,
        v_channels=16,
    ),
    dict(
        vocab_size=262,
        num_latents=64,
        d_latents=256,
        d_model=256,
        num_self_attends_per_block=4,
        max_position_embeddings=256,
        qk_channels=256,
        v_channels=256,
    ),
    (4, 256),
)

for _name, _more in {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 4},
    "phi": {},
    "phi3": {},
    "stablelm": {},
    "olmo": {},
    "olmo2": {},
    "granite": {},
    "cohere": {},
    "glm": {},
    "smollm3": {},
    "starcoder2": {},
    "nemotron": {},
    "helium": {},
    "persimmon": {},
    "diffllama": {},
    "exaone4": {"sliding_window": 4},
    "ministral": {},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "granitemoe": {"num_local_experts": 4},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "seed_oss": {},
    "apertus": {},
    "arcee": {},
    "deepseek_v3": {
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
    },
    "minicpm3": {
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "jetmoe": {"kv_channels": 8, "num_local_experts": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 8},
}.items():
    _wide = {k: v for k, v in _more.items() if k not in ("sliding_window", "layer_types")}
    _enter(_name, _language, _name, "AutoModelForCausalLM", {**_LLAMA, **_more}, {**_LLAMA_FULL, **_wide}, (4, 128))
for _name, _small, _full in (
    ("gpt2", dict(n_embd=16, n_layer=2, n_head=2, n_positions=40), dict(n_embd=384, n_layer=4, n_head=6)),
    ("gpt_bigcode", dict(n_embd=16, n_layer=2, n_head=2, n_positions=40), dict(n_embd=384, n_layer=4, n_head=6)),
    (
        "gpt_neo",
        dict(
            hidden_size=16,
            num_layers=2,
            num_heads=2,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            max_position_embeddings=40,
        ),
        dict(hidden_size=384, num_layers=4, num_heads=6, attention_types=[[["global", "local"], 2]]),
    ),
    ("gpt_neox", dict(_BERT), dict(_BERT_FULL)),
    ("gptj", dict(n_embd=16, n_layer=2, n_head=2, n_positions=40, rotary_dim=4), dict(n_embd=384, n_layer=4, n_head=6)),
    (
        "codegen",
        dict(n_embd=16, n_layer=2, n_head=4, n_positions=40, rotary_dim=4),
        dict(n_embd=384, n_layer=4, n_head=4, rotary_dim=32),
    ),
    (
        "opt",
        dict(
            hidden_size=16,
            num_hidden_layers=2,
            ffn_dim=32,
            num_attention_heads=2,
            max_position_embeddings=40,
            word_embed_proj_dim=16,
        ),
        dict(hidden_size=384, num_hidden_layers=4, ffn_dim=1536, num_attention_heads=6, word_embed_proj_dim=384),
    ),
    ("bloom", dict(hidden_size=16, n_layer=2, n_head=2), dict(hidden_size=384, n_layer=4, n_head=6)),
    (
        "falcon",
        dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2),
        dict(hidden_size=384, num_hidden_layers=4, num_attention_heads=6),
    ),
    ("mpt", dict(d_model=16, n_layers=2, n_heads=2, max_seq_len=40), dict(d_model=384, n_layers=4, n_heads=6)),
    (
        "ctrl",
        dict(n_embd=16, n_layer=2, n_head=2, dff=32, n_positions=40),
        dict(n_embd=384, n_layer=4, n_head=6, dff=1536),
    ),
    (
        "xglm",
        dict(d_model=16, num_layers=2, attention_heads=2, ffn_dim=32, max_position_embeddings=40),
        dict(d_model=384, num_layers=4, attention_heads=6, ffn_dim=1536),
    ),
    ("mamba", dict(hidden_size=16, num_hidden_layers=1, state_size=4), dict(hidden_size=256, num_hidden_layers=2)),
    (
        "mamba2",
        dict(hidden_size=16, num_hidden_layers=1, state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
        dict(hidden_size=256, num_hidden_layers=4, num_heads=8, head_dim=64),
    ),
    (
        "rwkv",
        dict(hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, intermediate_size=32),
        dict(hidden_size=256, num_hidden_layers=2),
    ),
    (
        "xlstm",
        dict(hidden_size=32, num_hidden_layers=1, num_blocks=1, num_heads=2),
        dict(hidden_size=256, num_blocks=2, num_heads=4),
    ),
    ("openai-gpt", dict(n_embd=16, n_layer=2, n_head=2, n_positions=40), dict(n_embd=384, n_layer=4, n_head=6)),
    ("biogpt", dict(_BERT), dict(_BERT_FULL)),
):
    _enter(
        _name,
        _language,
        _name,
        "AutoModelForCausalLM",
        {"vocab_size": 60, **_small},
        {"vocab_size": 8000, **_full},
        (4, 128),
    )
_S2S: Final[Fields] = dict(
    vocab_size=60,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=40,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
)
_S2S_FULL: Final[Fields] = {
    **_S2S,
    "vocab_size": 8000,
    "d_model": 384,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "max_position_embeddings": 512,
}
for _name in ("bart", "marian", "pegasus", "mbart", "blenderbot", "m2m_100", "plbart"):
    _enter(_name, _language, _name, "AutoModelForSeq2SeqLM", _S2S, _S2S_FULL, (8, 64))
_T5: Final[Fields] = dict(
    vocab_size=60,
    d_model=16,
    d_kv=8,
    d_ff=32,
    num_layers=1,
    num_heads=2,
    num_decoder_layers=1,
    decoder_start_token_id=0,
)
_T5_FULL: Final[Fields] = {
    **_T5,
    "vocab_size": 8000,
    "d_model": 384,
    "d_kv": 64,
    "d_ff": 1536,
    "num_layers": 3,
    "num_heads": 6,
    "num_decoder_layers": 3,
}
for _name, _more in {
    "t5": {},
    "mt5": {},
    "umt5": {},
    "switch_transformers": {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "longt5": {"local_radius": 4},
}.items():
    _enter(_name, _language, _name, "AutoModelForSeq2SeqLM", {**_T5, **_more}, {**_T5_FULL, **_more}, (8, 64))

_VIT: Final[Fields] = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=4
)
_VIT_FULL: Final[Fields] = dict(
    hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=224, patch_size=16
)
for _name in (
    "vit",
    "deit",
    "beit",
    "dinov2",
    "ijepa",
    "vit_msn",
    "data2vec-vision",
    "dinov3_vit",
    "siglip_vision_model",
    "clip_vision_model",
):
    _enter(f"{_name}.image", _image, _name, "AutoModel", _VIT, _VIT_FULL, (4, 224))
for _name, _auto, _small, _full in (
    (
        "swin",
        "AutoModel",
        dict(image_size=32, patch_size=4, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4),
        dict(depths=[2, 2, 2], num_heads=[3, 6, 12]),
    ),
    (
        "swinv2",
        "AutoModel",
        dict(image_size=32, patch_size=4, embed_dim=16, depths=[2, 1], num_heads=[2, 4], window_size=4),
        dict(depths=[2, 2, 2], num_heads=[3, 6, 12]),
    ),
    (
        "convnext",
        "AutoModelForImageClassification",
        dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
        dict(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 6, 2]),
    ),
    (
        "convnextv2",
        "AutoModelForImageClassification",
        dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
        dict(hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 6, 2]),
    ),
    (
        "resnet",
        "AutoModelForImageClassification",
        dict(hidden_sizes=[8, 16], depths=[1, 1], embedding_size=8, layer_type="basic"),
        dict(layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]),
    ),
    (
        "regnet",
        "AutoModelForImageClassification",
        dict(hidden_sizes=[8, 16], depths=[1, 1], embedding_size=8, groups_width=4),
        dict(),
    ),
    (
        "bit",
        "AutoModelForImageClassification",
        dict(hidden_sizes=[32, 32], depths=[1, 1], embedding_size=32, num_groups=4),
        dict(depths=[2, 2, 2, 2]),
    ),
    ("mobilenet_v1", "AutoModelForImageClassification", dict(depth_multiplier=0.25, image_size=96), dict()),
    (
        "mobilevit",
        "AutoModelForImageClassification",
        dict(image_size=32, hidden_sizes=[16, 16, 16], num_attention_heads=2, neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16]),
        dict(),
    ),
    (
        "mobilevitv2",
        "AutoModelForImageClassification",
        dict(image_size=64, width_multiplier=0.25),
        dict(width_multiplier=0.5),
    ),
    (
        "segformer",
        "AutoModelForSemanticSegmentation",
        dict(
            image_size=32,
            hidden_sizes=[8, 8, 16, 16],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2],
            decoder_hidden_size=8,
        ),
        dict(),
    ),
    (
        "pvt",
        "AutoModelForImageClassification",
        dict(image_size=32, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
        dict(),
    ),
    (
        "pvt_v2",
        "AutoModelForImageClassification",
        dict(image_size=32, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2]),
        dict(),
    ),
    (
        "poolformer",
        "AutoModelForImageClassification",
        dict(image_size=32, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1]),
        dict(),
    ),
    (
        "cvt",
        "AutoModelForImageClassification",
        dict(embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 1, 1]),
        dict(),
    ),
    (
        "levit",
        "LevitForImageClassification",
        dict(
            image_size=64, hidden_sizes=[16, 32, 32], depths=[1, 1, 1], key_dim=[8, 8, 8], num_attention_heads=[2, 2, 2]
        ),
        dict(),
    ),
    (
        "swiftformer",
        "AutoModelForImageClassification",
        dict(image_size=64, depths=[1, 1, 1, 1], embed_dims=[8, 8, 16, 16]),
        dict(),
    ),
    (
        "focalnet",
        "AutoModelForImageClassification",
        dict(
            image_size=32, embed_dim=8, depths=[1, 1], hidden_sizes=[8, 16], focal_levels=[2, 2], focal_windows=[3, 3]
        ),
        dict(),
    ),
    (
        "hiera",
        "AutoModelForImageClassification",
        dict(image_size=[32, 32], patch_size=[7, 7], patch_stride=[4, 4], embed_dim=8, depths=[1, 1], num_heads=[1, 2],
             num_query_pool=1),
        dict(),
    ),
    (
        "yolos",
        "AutoModelForObjectDetection",
        dict(_VIT, image_size=[16, 16], num_detection_tokens=3),
        dict(_VIT_FULL, image_size=[224, 224]),
    ),
    (
        "dpt",
        "AutoModelForDepthEstimation",
        dict(
            _VIT,
            backbone_out_indices=[0, 1],
            num_hidden_layers=2,
            neck_hidden_sizes=[8, 8, 8, 8],
            fusion_hidden_size=8,
            is_hybrid=False,
            reassemble_factors=[4, 2, 1, 0.5],
        ),
        dict(),
    ),
    ("textnet", "AutoModel", dict(), dict()),
    ("hgnet_v2", "AutoModelForImageClassification", dict(image_size=96), dict()),
    (
        "efficientnet",
        "AutoModelForImageClassification",
        dict(width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=32),
        dict(hidden_dim=1280, width_coefficient=1.0, depth_coefficient=1.0),
    ),
):
    _enter(f"{_name}.image", _image, _name, _auto, _small, _full, (4, 224))

_W2V: Final[Fields] = dict(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    conv_dim=[8, 8],
    conv_stride=[5, 4],
    conv_kernel=[10, 8],
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2,
    output_hidden_size=16,
)
_W2V_FULL: Final[Fields] = dict(hidden_size=384, num_hidden_layers=3, num_attention_heads=6, intermediate_size=1536)
for _name in ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio", "wav2vec2-conformer"):
    _enter(
        _name,
        _sound,
        _name,
        "AutoModel",
        {**_W2V, **({"conv_pos_kernel_size": 3} if "data2vec" in _name else {})},
        _W2V_FULL,
        (2, 16000),
    )
_enter("sew", _sound, "sew", "AutoModel", {**_W2V, "squeeze_factor": 2}, _W2V_FULL, (2, 16000))


@model("whisper", "language", "transformers")
def _whisper(size: Size) -> Example:
    small = size == "small"
    fields = {
        **(_S2S if small else _S2S_FULL),
        "num_mel_bands": 0,
        "num_mel_bins": 8 if small else 80,
        "max_source_positions": 16 if small else 500,
        "max_target_positions": 40 if small else 448,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    }
    fields.pop("num_mel_bands")
    found = _made("whisper", "AutoModelForSpeechSeq2Seq", fields)
    length = 2 * found.config.max_source_positions
    tokens = torch.randint(4, 60, (2, 6 if small else 64))
    return Example(
        _Adapted(found, ("input_features", "decoder_input_ids"), "logits"),
        (torch.randn(2, found.config.num_mel_bins, length), tokens),
        (tokens,),
        next_word,
    )


@model("audio_spectrogram_transformer", "language", "transformers")
def _spectrogram(size: Size) -> Example:
    fields = (
        {**_VIT, "max_length": 32, "num_mel_bins": 16}
        if size == "small"
        else {**_VIT_FULL, "max_length": 512, "num_mel_bins": 128}
    )
    found = _made("audio-spectrogram-transformer", "AutoModelForAudioClassification", fields)
    return Example(
        _Adapted(found, ("input_values",), "logits"), (torch.randn(2, fields["max_length"], fields["num_mel_bins"]),)
    )


@model("clip", "language", "transformers")
def _clip(size: Size) -> Example:
    small = size == "small"
    text = {**(_BERT if small else _BERT_FULL), "eos_token_id": 2, "bos_token_id": 1}
    found = _made(
        "clip",
        "AutoModel",
        {"text_config": text, "vision_config": _VIT if small else _VIT_FULL, "projection_dim": 16 if small else 256},
    )
    edge = 16 if small else 224
    return Example(
        _Adapted(found, ("input_ids", "pixel_values"), "logits_per_image"),
        (torch.randint(4, 60, (2, 8)), torch.randn(2, 3, edge, edge)),
    )


@model("patchtst", "language", "transformers")
def _patchtst(size: Size) -> Example:
    small = size == "small"
    fields: Fields = dict(
        num_input_channels=3,
        context_length=16 if small else 512,
        patch_length=4 if small else 16,
        patch_stride=4 if small else 16,
        prediction_length=4,
        d_model=16 if small else 128,
        num_attention_heads=2,
        num_hidden_layers=1 if small else 3,
        ffn_dim=32 if small else 512,
    )
    declare_ops()
    import transformers

    found = transformers.PatchTSTForPrediction(_configured("patchtst", fields))
    return Example(
        _Adapted(found, ("past_values",), "prediction_outputs"), (torch.randn(4, fields["context_length"], 3),)
    )


@model("timesformer", "language", "transformers")
def _timesformer(size: Size) -> Example:
    fields = {**(_VIT if size == "small" else _VIT_FULL), "num_frames": 2}
    found = _made("timesformer", "AutoModel", fields)
    return Example(
        _Adapted(found, ("pixel_values",), ""), (torch.randn(2, 2, 3, fields["image_size"], fields["image_size"]),)
    )


@model("videomae", "language", "transformers")
def _videomae(size: Size) -> Example:
    fields = {**(_VIT if size == "small" else _VIT_FULL), "num_frames": 4}
    found = _made("videomae", "AutoModel", fields)
    return Example(
        _Adapted(found, ("pixel_values",), ""), (torch.randn(2, 4, 3, fields["image_size"], fields["image_size"]),)
    )


@model("decision_transformer", "language", "transformers")
def _decision(size: Size) -> Example:
    declare_ops()
    import transformers

    width, steps = (16, 3) if size == "small" else (256, 20)
    found = transformers.DecisionTransformerModel(
        _configured(
            "decision_transformer",
            dict(state_dim=5, act_dim=3, hidden_size=width, n_layer=2, n_head=2, max_ep_len=40, n_positions=128),
        )
    )
    inputs = (
        torch.randn(2, steps, 5),
        torch.randn(2, steps, 3),
        torch.randn(2, steps, 1),
        torch.arange(steps).expand(2, -1),
        torch.ones(2, steps),
    )
    return Example(
        _Adapted(found, ("states", "actions", "returns_to_go", "timesteps", "attention_mask"), "action_preds"), inputs
    )
