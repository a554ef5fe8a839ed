"""Parameters of every family of configurations against the models that transformers builds of
them, without weights (on torch's meta device)."""

from __future__ import annotations

from typing import Any

import pytest

from tilesmith.capabilities.planning.architecture import AttentionOperator
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.reading.naming import architecture_of
from tilesmith.capabilities.planning.registry import families

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.extra

BODY = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip
TEXT = {**BODY, "vocab_size": 1000, "pad_token_id": 0}
GROUPED = {**TEXT, "num_key_value_heads": 2}
FALCON = {name: value for name, value in TEXT.items() if name != "intermediate_size"}
EXPERTS = {**GROUPED, "moe_intermediate_size": 32}
LATENT = {
    **TEXT, "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 1,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip
ROUTED = {**GROUPED, "num_local_experts": 4}
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000}
BERT = dict.fromkeys(("bert", "camembert", "roberta", "xlm-roberta"), TEXT)
CAUSAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        ("cohere", "cohere2", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
         "granite", "llama", "mistral", "nemotron", "olmo2", "olmo3", "phi3", "qwen2",
         "qwen3", "seed_oss", "smollm3", "ernie4_5", "stablelm", "starcoder2"), GROUPED),
    **dict.fromkeys(("gpt_neox", "olmo", "phi"), TEXT),
    **dict.fromkeys(("gpt_oss", "granitemoe", "mixtral", "phimoe"),
                    ROUTED),
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 1000},
    "dbrx": {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 1000,
             "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4}, "ffn_config": {
                 "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "q_lora_rank": 24, "n_group": 1, "topk_group": 1},
    "falcon": {**FALCON, "multi_query": True},
    "glm4_moe": {**EXPERTS, "n_routed_experts": 4, "num_experts_per_tok": 2, "use_qk_norm": True},
    "gpt2": GPT,
    "gpt_bigcode": GPT,
    "gpt_neo": {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 1000,
                "attention_types": [[["global", "local"], 1]]},
    "gptj": {**GPT, "rotary_dim": 8},
    "llama4_text": {**GROUPED, "head_dim": 16, "intermediate_size_mlp": 128,
                    "num_local_experts": 4, "interleave_moe_layer_step": 2},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 3, "vocab_size": 1000},
    "olmoe": {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2},
    "opt": {"hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
            "vocab_size": 1000, "word_embed_proj_dim": 64},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 48, "num_experts": 6},
    "qwen3_moe": {**EXPERTS, "num_experts": 6, "num_experts_per_tok": 2},
}  # fmt: skip
PASSES: dict[str, dict[str, Any]] = {
    **BERT,
    "distilbert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "vocab_size": 1000},
    "electra": {**TEXT, "embedding_size": 32},
}
READERS: dict[str, dict[str, Any]] = {
    "t5": {"d_model": 64, "d_ff": 96, "d_kv": 32, "num_heads": 4, "num_layers": 3,
           "vocab_size": 1000},
    "whisper": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 1000,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96,
                "decoder_ffn_dim": 80, "max_source_positions": 50, "max_target_positions": 40,
                "pad_token_id": 0},
}  # fmt: skip
GATED = {**READERS["t5"], "feed_forward_proj": "gated-gelu", "num_decoder_layers": 2}
SPOKEN = "AutoModelForSpeechSeq2Seq"
OTHERS = {
    "falcon in groups": ("falcon", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "gemma of wide heads": ("gemma2", {**GROUPED, "head_dim": 32}),
    "llama with biases": ("llama", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "cohere, normalised": ("cohere", {**GROUPED, "use_qk_norm": True}),
    "stablelm with biases": ("stablelm", {**GROUPED, "use_qkv_bias": True}),
}


def counted(kind: str, fields: dict[str, Any], model: str) -> tuple[dict[str, Any], int]:
    """The whole configuration, and how many numbers the model has that is built of it; the
    router's corrections are buffers there, and numbers of the checkpoint."""
    found = transformers.AutoConfig.for_model(kind, **fields)
    with torch.device("meta"):
        built = getattr(transformers, model).from_config(found)
    numbers = {id(p): p.numel() for p in built.parameters()}
    corrections = [b.numel() for n, b in built.named_buffers() if n.endswith("correction_bias")]
    return found.to_dict(), sum(numbers.values()) + sum(corrections)


CASES = [
    *((kind, kind, fields, "AutoModelForCausalLM") for kind, fields in CAUSAL.items()),
    *((name, kind, fields, "AutoModelForCausalLM") for name, (kind, fields) in OTHERS.items()),
    *((kind, kind, fields, "AutoModel") for kind, fields in PASSES.items()),
    ("t5", "t5", READERS["t5"], "AutoModelForSeq2SeqLM"),
    ("t5 with gates", "t5", GATED, "AutoModelForSeq2SeqLM"),
    ("whisper", "whisper", READERS["whisper"], SPOKEN),
]


@pytest.mark.parametrize(("name", "kind", "fields", "model"), CASES, ids=[c[0] for c in CASES])
def test_parameters_are_those_of_the_model(
    name: str, kind: str, fields: dict[str, Any], model: str
) -> None:
    """Whether the file says all, or leaves out what the class has."""
    whole, expected = counted(kind, fields, model)
    for given in (whole, {"model_type": kind, **fields}):
        assert architecture_of(Configuration(name, kind, given)).parameters == expected


def test_a_vision_transformer_has_a_class_for_each_label() -> None:
    whole, expected = counted("vit", dict(BODY), "AutoModelForImageClassification")
    assert architecture_of(Configuration("vit", "vit", whole)).parameters == expected


def test_clip_is_read_whole_and_its_encoders_alone() -> None:
    text = {**TEXT, "max_position_embeddings": 77}
    vision = {**BODY, "hidden_size": 128, "image_size": 56, "patch_size": 14}
    both = {"text_config": text, "vision_config": vision, "projection_dim": 48}
    parts = {"clip_text_model": text, "clip_vision_model": vision, "clip": both}
    for kind, fields in parts.items():
        whole, expected = counted(kind, fields, "AutoModel")
        for given in (whole, fields):
            assert architecture_of(Configuration("", kind, given)).parameters == expected, kind


def test_the_language_model_of_a_model_of_several() -> None:
    text = {**GROUPED, "head_dim": 32, "sliding_window": 512}
    vision = {**BODY, "image_size": 56, "patch_size": 14}
    whole = transformers.AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    _, expected = counted("gemma3_text", text, "AutoModelForCausalLM")
    assert architecture_of(Configuration("", "gemma3", whole.to_dict())).parameters == expected
    nested = {"text_config": text}
    assert architecture_of(Configuration("", "gemma3", nested)).parameters == expected


def test_layers_with_windows_are_those_of_the_class() -> None:
    for kind, window in {"gemma3_text": 4096, "gpt_oss": 128, "cohere2": 4096, "olmo3": 4096,
                         "llama4_text": 8192, "exaone4": 4096}.items():  # fmt: skip
        fields = {**CAUSAL[kind], "num_hidden_layers": 8}
        whole = transformers.AutoConfig.for_model(kind, **fields)
        expected = sum(name != "full_attention" for name in whole.layer_types)
        for given in (whole.to_dict(), fields):
            found = architecture_of(Configuration("", kind, given))
            seen = [
                (layer.repeats, op.window)
                for layer in found.layers
                for op in layer.operators
                if isinstance(op, AttentionOperator) and op.window
            ]
            assert sum(number for number, _ in seen) == expected, kind
            assert {size for _, size in seen} == {window}, kind


def test_every_family_of_transformers_is_compared() -> None:
    """Aliases, and what transformers has not, apart."""
    apart = {"clip", "clip_text_model", "clip_vision_model", "deit", "kimi_k2", "qwen2_5_vl",
             "qwen2_vl", "qwen3_vl_text", "qwen3_vl_moe_text", "vit"}  # fmt: skip
    diffusers = {name for name in families if name[0].isupper()}
    assert set(families) - diffusers - apart == {*CAUSAL, *PASSES, *READERS}
