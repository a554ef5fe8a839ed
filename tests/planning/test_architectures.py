"""Architectures from public configurations have as many parameters as was published."""

from __future__ import annotations

from typing import Any

import pytest

from tilesmith.planning.architecture import Architecture
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.reading import architecture_of
from tilesmith.search_space.errors import ModelError


def sized(
    family: str, hidden: int, inner: int, layers: int, heads: int, **more: Any
) -> dict[str, Any]:
    """A configuration with the fields most families share."""
    return {
        "model_type": family, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, **more,
    }  # fmt: skip


LLAMA_2, LLAMA_3 = {"vocab_size": 32000}, {"vocab_size": 128256, "num_key_value_heads": 8}
PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "Llama 2 7B": (sized("llama", 4096, 11008, 32, 32, **LLAMA_2), 6.738e9),
    "Llama 2 13B": (sized("llama", 5120, 13824, 40, 40, **LLAMA_2), 13.016e9),
    "Llama 2 70B": (
        sized("llama", 8192, 28672, 80, 64, num_key_value_heads=8, **LLAMA_2), 68.977e9),
    "Llama 3 8B": (sized("llama", 4096, 14336, 32, 32, **LLAMA_3), 8.030e9),
    "Llama 3 70B": (sized("llama", 8192, 28672, 80, 64, **LLAMA_3), 70.554e9),
    "Llama 3.1 405B": (sized("llama", 16384, 53248, 126, 128, **LLAMA_3), 405.853e9),
    "Mistral 7B": (
        sized("mistral", 4096, 14336, 32, 32, vocab_size=32000, num_key_value_heads=8), 7.242e9),
    "Mixtral 8x7B": (
        sized("mixtral", 4096, 14336, 32, 32, vocab_size=32000, num_key_value_heads=8), 46.703e9),
    "Qwen 2 7B": (
        sized("qwen2", 3584, 18944, 28, 28, vocab_size=152064, num_key_value_heads=4), 7.616e9),
    "Qwen 3 8B": (
        sized("qwen3", 4096, 12288, 36, 32, vocab_size=151936, num_key_value_heads=8), 8.191e9),
    "Qwen 3 30B A3B": (
        sized("qwen3_moe", 2048, 6144, 48, 32, vocab_size=151936, num_key_value_heads=4), 30.532e9),
    "DeepSeek V3": (
        sized("deepseek_v3", 7168, 18432, 61, 128, vocab_size=129280, moe_intermediate_size=2048,
              n_routed_experts=256, num_experts_per_tok=8, q_lora_rank=1536), 671.026e9),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
        124.44e6),
    "BERT base": (sized("bert", 768, 3072, 12, 12, vocab_size=30522), 109.482e6),
    "ViT base": (sized("vit", 768, 3072, 12, 12), 86.568e6),
    "Phi 2": (sized("phi", 2560, 10240, 32, 32, vocab_size=51200), 2.7797e9),
    "Gemma 7B": (
        sized("gemma", 3072, 24576, 28, 16, vocab_size=256000, head_dim=256), 8.538e9),
}  # fmt: skip


def read(fields: dict[str, Any]) -> Architecture:
    return architecture_of(Configuration("config.json", fields["model_type"], fields))


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    fields, published = PUBLISHED[name]
    assert read(fields).parameters == pytest.approx(published, rel=1e-4)


def test_a_token_passes_the_active_parameters() -> None:
    mixtral, deepseek = (read(PUBLISHED[name][0]) for name in ("Mixtral 8x7B", "DeepSeek V3"))
    assert mixtral.active_parameters == pytest.approx(12.88e9, rel=1e-3)
    assert deepseek.active_parameters == pytest.approx(37.55e9, rel=1e-3)


def test_a_missing_field_is_named() -> None:
    fields = {k: v for k, v in PUBLISHED["Llama 3 8B"][0].items() if k != "hidden_size"}
    with pytest.raises(ModelError, match=r"'config.json' lacks the field 'hidden_size'"):
        read(fields)


def test_an_unknown_family_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"unknown architecture 'rwkv'.*deepseek_v3.*llama"):
        read({"model_type": "rwkv"})
