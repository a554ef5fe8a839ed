"""Architectures from public configurations have as many parameters as was published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    ProductOperator,
)
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.reading.naming import architecture_of, read_architecture
from tilesmith.search_space.support.errors import ModelError


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
        sized("qwen3_moe", 2048, 6144, 48, 32, vocab_size=151936, num_key_value_heads=4,
              head_dim=128), 30.532e9),
    "DeepSeek V3": (
        sized("deepseek_v3", 7168, 18432, 61, 128, vocab_size=129280, moe_intermediate_size=2048,
              n_routed_experts=256, num_experts_per_tok=8, q_lora_rank=1536), 671.026e9),
    "GPT-2": (
        {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257},
        124.44e6),
    "BERT base": (sized("bert", 768, 3072, 12, 12, vocab_size=30522), 109.482e6),
    "ViT base": (sized("vit", 768, 3072, 12, 12), 86.568e6),
    "Phi 2": (sized("phi", 2560, 10240, 32, 32, vocab_size=51200), 2.7797e9),
    "DBRX": (
        {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
         "vocab_size": 100352, "attn_config": {"kv_n_heads": 8}, "ffn_config": {
             "ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}, 131.597e9),
    "StarCoder": (
        {"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48,
         "n_inner": 24576, "n_positions": 8192, "vocab_size": 49152}, 15.517e9),
    "MPT 7B": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32,
         "vocab_size": 50432}, 6.649e9),
    "BLOOM, as published": (
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
         "vocab_size": 250880}, 176.247e9),
    "Whisper large v3": (
        {"model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32,
         "encoder_attention_heads": 20, "decoder_attention_heads": 20, "encoder_ffn_dim": 5120,
         "decoder_ffn_dim": 5120, "vocab_size": 51866, "num_mel_bins": 128}, 1.54349e9),
    "T5 3B": (
        {"model_type": "t5", "d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32,
         "num_layers": 24, "vocab_size": 32128}, 2.8516e9),
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


UNET = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [320, 640, 1280, 1280],
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
    "cross_attention_dim": 768, "attention_head_dim": 8, "sample_size": 64,
}  # fmt: skip
UNET_XL = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", *["CrossAttnDownBlock2D"] * 2],
    "up_block_types": [*["CrossAttnUpBlock2D"] * 2, "UpBlock2D"],
    "cross_attention_dim": 2048, "attention_head_dim": [5, 10, 20], "sample_size": 128,
    "transformer_layers_per_block": [1, 2, 10], "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
VAE = {
    "_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2, "sample_size": 512,
}  # fmt: skip
CLIP = sized("clip_text_model", 768, 3072, 12, 12, vocab_size=49408)


def test_a_diffusion_pipeline_is_its_models(tmp_path: Path) -> None:
    counts = {"unet": (UNET, 859_520_964), "vae": (VAE, 83_653_863),
              "text_encoder": (CLIP, 123_060_480)}  # fmt: skip
    for name, (fields, _) in counts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(fields))
        assert read_architecture(tmp_path / name).parameters == counts[name][1]
    index = {"_class_name": "StableDiffusionPipeline"}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    assert read_architecture(tmp_path).parameters == sum(n for _, n in counts.values())
    assert architecture_of(Configuration("", "UNet2DConditionModel", UNET_XL)).parameters == (
        2_567_463_684
    )


def test_an_onnx_file_is_read_without_its_weights(tmp_path: Path) -> None:
    """Two products around an activation, and an attention of two heads."""

    def weight(name: str, *dims: int) -> onnx.TensorProto:
        found = onnx.TensorProto(name=name, data_type=1, dims=dims)
        found.data_location = onnx.TensorProto.EXTERNAL
        found.external_data.add(key="location", value="nowhere.bin")
        return found

    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "up"], ["h"]), make("Relu", ["h"], ["r"]),
        make("MatMul", ["r", "down"], ["y"]),
        make("MatMul", ["q", "k"], ["s"]), make("Softmax", ["s"], ["p"]),
        make("MatMul", ["p", "v"], ["a"]),
    ]  # fmt: skip
    shapes = {"x": ["n", 10, 64], "q": [1, 2, 10, 32], "k": [1, 2, 32, 10], "v": [1, 2, 10, 32]}
    inputs = [onnx.helper.make_tensor_value_info(name, 1, s) for name, s in shapes.items()]
    outputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("y", "a")]
    weights = [weight("up", 64, 256), weight("down", 256, 64)]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, weights)
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset]), tmp_path / "m.onnx")
    read = read_architecture(tmp_path / "m.onnx")
    assert read.parameters == 2 * 64 * 256
    products = [
        (o.k, o.n, o.split, layer.rows) for layer, o in _all(read) if isinstance(o, ProductOperator)
    ]
    assert products == [(64, 256, "columns", 10), (256, 64, "rows", 10)]
    attentions = [(o.heads, o.keys, o.width, o.value_width, layer.rows)
                  for layer, o in _all(read) if isinstance(o, AttentionOperator)]  # fmt: skip
    assert attentions == [(2, 10, 32, 0, 10), (2, 10, 0, 32, 10)]


def _all(read: Architecture) -> list[tuple[Layer, Operator]]:
    return [(layer, operator) for layer in read.layers for operator in layer.operators]


def test_an_onnx_file_whose_products_have_no_weights_is_refused(tmp_path: Path) -> None:
    values = [onnx.helper.make_tensor_value_info(name, 1, [8, 8]) for name in ("x", "w", "y")]
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([product], "g", values[:2], values[2:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="no products with weights"):
        read_architecture(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        (
            "llama",
            {"num_hidden_layers": 10**12},
            "num_hidden_layers = 1000000000000; a whole .* to",
        ),
        ("llama", {"hidden_size": float("nan")}, "hidden_size = nan; a whole number from 1 to"),
        ("llama", {"vocab_size": True}, "vocab_size = True; a whole number"),
        ("llama", {"num_key_value_heads": 7}, "32 is not divisible by num_key_value_heads = 7"),
        ("mixtral", {"num_experts_per_tok": 9}, "visits 9 experts of 8; at most 8"),
        ("qwen3_moe", {"mlp_only_layers": 7}, "mlp_only_layers = 7; a list of whole numbers"),
        ("gpt_neo", {"attention_types": [["global"]]}, "attention_types does not say of 12 layers"),
        ("dbrx", {"attn_config": [1]}, r"attn_config = \[1\]; a group of fields"),
    ],
)
def test_damaged_fields_are_named(family: str, fields: dict[str, Any], said: str) -> None:
    body = sized(family, 4096, 14336, 32, 32, vocab_size=32000)
    others = {"num_layers": 12, "num_heads": 16, "d_model": 512, "n_heads": 8, "n_layers": 4}
    with pytest.raises(ModelError, match=said):
        architecture_of(Configuration("config.json", family, {**others, **body, **fields}))
