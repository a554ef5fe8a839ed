"""`torch.compile(model, backend="tilesmith")` on models of transformers, timm and diffusers.

    pip install 'tilesmith[models]' timm diffusers
    python -m benchmarks.torch_compile [--only bert vits] [--json]

Small models with random weights, each called as its library's user calls it: default settings,
keyword arguments, caches and containers in its results, no `no_grad`. Printed for each: how many
graphs Dynamo made of it and how many of them are compiled whole, the largest difference from
PyTorch relative to the largest value, seconds of the first call, time of a call beside PyTorch's,
and each operator that is left to PyTorch. Seeds are set before both, for models that draw numbers.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

try:
    import torch
    from torch import Tensor, nn
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None

Inputs = Mapping[str, Any]
Build = Callable[[], tuple[nn.Module, Inputs]]

MODELS: dict[str, Build] = {}
"""By name, in the order they are written."""

TEXT = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip


def ids(*shape: int) -> Tensor:
    """Random tokens, none of them special."""
    return torch.randint(5, 90, shape)


def _words(padded: bool) -> dict[str, Tensor]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    return {"input_ids": ids(2, 12), **({"attention_mask": mask} if padded else {})}


def _picture(size: int = 32) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, size, size)}


def _transformers(
    name: str, kind: str, config: str, inputs: Callable[[], Inputs], **settings: Any
) -> None:
    """A model of transformers: its class, its configuration's, and what differs from defaults."""

    def build() -> tuple[nn.Module, Inputs]:
        import transformers

        made = getattr(transformers, config)(**settings)
        return getattr(transformers, kind)(made), inputs()

    MODELS[name] = build


def _encoder(name: str, family: str, padded: bool = True, **settings: Any) -> None:
    _transformers(name, f"{family}Model", f"{family}Config", lambda: _words(padded),
                  **{**TEXT, **settings})  # fmt: skip


def _decoder(name: str, family: str, **settings: Any) -> None:
    _transformers(name, f"{family}ForCausalLM", f"{family}Config", lambda: _words(False),
                  **{**TEXT, **TOKENS, **settings})  # fmt: skip


def _know_vision_operators() -> None:
    """Let torchvision be imported beside a PyTorch that it was not built for: the libraries here
    need none of its operators, and its import asks whether they are there."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor")


# -- text ----------------------------------------------------------------------------------------
_encoder("bert", "Bert")
_encoder("roberta", "Roberta", pad_token_id=1)
_encoder("albert", "Albert", embedding_size=16)
_encoder("electra", "Electra", embedding_size=16)
_encoder("mpnet", "MPNet")
_encoder("deberta-v2", "DebertaV2", relative_attention=True, position_buckets=8,
         pos_att_type=["p2c", "c2p"], type_vocab_size=0)  # fmt: skip
_encoder("modernbert", "ModernBert", **TOKENS, cls_token_id=3, sep_token_id=4)
_transformers("distilbert", "DistilBertModel", "DistilBertConfig", lambda: _words(True),
              vocab_size=96, dim=32, n_layers=2, n_heads=4, hidden_dim=64)  # fmt: skip
_transformers("gpt-2", "GPT2LMHeadModel", "GPT2Config", lambda: _words(False),
              vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64)  # fmt: skip
_decoder("gpt-neox", "GPTNeoX")
_decoder("llama", "Llama", num_key_value_heads=2)
_decoder("mistral", "Mistral", num_key_value_heads=2)
_decoder("mixtral", "Mixtral", num_key_value_heads=2, num_local_experts=4)
_decoder("qwen-2", "Qwen2", num_key_value_heads=2)
_decoder("qwen-3", "Qwen3", num_key_value_heads=2, head_dim=8)
_decoder("qwen-3-next", "Qwen3Next", num_key_value_heads=2, head_dim=8, num_experts=4,
         num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
         linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
         linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"])  # fmt: skip
_decoder("gpt-oss", "GptOss", num_key_value_heads=2, head_dim=8, num_local_experts=4,
         num_experts_per_tok=2)  # fmt: skip
_decoder("gemma-2", "Gemma2", num_key_value_heads=2, head_dim=8)
_transformers("gemma-3", "Gemma3ForCausalLM", "Gemma3TextConfig", lambda: _words(False),
              **TEXT, **TOKENS, num_key_value_heads=2, head_dim=8)  # fmt: skip
_decoder("phi-3", "Phi3", num_key_value_heads=2)
_decoder("falcon", "Falcon")
_transformers("bloom", "BloomForCausalLM", "BloomConfig", lambda: _words(True),
              vocab_size=96, hidden_size=32, n_layer=2, n_head=4)  # fmt: skip
_transformers("opt", "OPTForCausalLM", "OPTConfig", lambda: _words(True), vocab_size=96,
              hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
              max_position_embeddings=64, word_embed_proj_dim=32)  # fmt: skip
_transformers("mamba", "MambaForCausalLM", "MambaConfig", lambda: _words(False), vocab_size=96,
              hidden_size=32, num_hidden_layers=2, state_size=8)  # fmt: skip
_transformers("t5", "T5ForConditionalGeneration", "T5Config",
              lambda: {"input_ids": ids(1, 12), "decoder_input_ids": ids(1, 6)},
              vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)  # fmt: skip
_transformers("bart", "BartForConditionalGeneration", "BartConfig",
              lambda: {"input_ids": ids(1, 12), "decoder_input_ids": ids(1, 6)},
              vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2,
              encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
              decoder_ffn_dim=64, max_position_embeddings=64)  # fmt: skip

# -- sound ---------------------------------------------------------------------------------------
SOUND = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
for _name, _family in (("wav2vec2", "Wav2Vec2"), ("hubert", "Hubert")):
    _transformers(_name, f"{_family}Model", f"{_family}Config",
                  lambda: {"input_values": torch.randn(1, 400)}, **SOUND)  # fmt: skip
_transformers("whisper", "WhisperForConditionalGeneration", "WhisperConfig",
              lambda: {"input_features": torch.randn(1, 16, 64), "decoder_input_ids": ids(1, 6)},
              vocab_size=96, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2,
              encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
              decoder_ffn_dim=64, max_source_positions=32, max_target_positions=32, pad_token_id=0,
              bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)  # fmt: skip
_transformers("vits", "VitsModel", "VitsConfig", lambda: _words(False), vocab_size=96,
              hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
              flow_size=32, spectrogram_bins=33, prior_encoder_num_flows=2,
              upsample_initial_channel=32, duration_predictor_filter_channels=32,
              prior_encoder_num_wavenet_layers=2, depth_separable_channels=2)  # fmt: skip

# -- pictures, and pictures with text ------------------------------------------------------------
_transformers("vit", "ViTForImageClassification", "ViTConfig", _picture, **IMAGE)
_transformers("dinov2", "Dinov2Model", "Dinov2Config", _picture, **IMAGE)
_transformers("swin", "SwinModel", "SwinConfig", _picture, image_size=32, patch_size=4,
              embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)  # fmt: skip
_transformers("convnext", "ConvNextForImageClassification", "ConvNextConfig", _picture,
              hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, image_size=32)  # fmt: skip
_transformers("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", _picture,
              hidden_sizes=[8, 16, 32, 64], depths=[1] * 4, decoder_hidden_size=32)  # fmt: skip
_transformers("siglip", "SiglipModel", "SiglipConfig",
              lambda: {"input_ids": ids(1, 12), **_picture()},
              text_config={**TEXT, **TOKENS}, vision_config=IMAGE)  # fmt: skip
_transformers("clip", "CLIPModel", "CLIPConfig",
              lambda: {"input_ids": ids(1, 12), **_picture()},
              text_config={**TEXT, **TOKENS}, vision_config=IMAGE, projection_dim=16)  # fmt: skip
_transformers("blip", "BlipForConditionalGeneration", "BlipConfig",
              lambda: {"input_ids": ids(1, 12), **_picture()},
              text_config={**TEXT, **TOKENS, "encoder_hidden_size": 32},
              vision_config=IMAGE)  # fmt: skip


@lambda build: MODELS.setdefault("llava", build)
def _llava() -> tuple[nn.Module, Inputs]:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig
    from transformers import LlavaForConditionalGeneration as Llava

    text = LlamaConfig(**TEXT, num_key_value_heads=2)
    model = Llava(LlavaConfig(vision_config=CLIPVisionConfig(**IMAGE), text_config=text,
                              image_token_index=95))  # fmt: skip
    words = torch.cat([torch.full((1, 16), 95), ids(1, 8)], 1)
    return model, {"input_ids": words, **_picture()}


@lambda build: MODELS.setdefault("detr", build)
def _detr() -> tuple[nn.Module, Inputs]:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1],
                            layer_type="basic", out_features=["stage2"])  # fmt: skip
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=backbone, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_queries=5,
    )  # fmt: skip
    return DetrForObjectDetection(config), _picture(64)


# -- timm ----------------------------------------------------------------------------------------
def _timm(name: str, **settings: Any) -> None:
    def build() -> tuple[nn.Module, Inputs]:
        import timm

        return timm.create_model(name, **settings), {"x": torch.randn(1, 3, 64, 64)}

    MODELS[f"timm {name}"] = build


_timm("resnet18")
_timm("mobilenetv3_small_050")
_timm("efficientnet_b0")
_timm("regnetx_002")
_timm("vit_tiny_patch16_224", img_size=64, depth=2)
_timm("ghostnet_050")


# -- diffusers -----------------------------------------------------------------------------------
def _diffusers(name: str, kind: str, inputs: Callable[[], Inputs], **settings: Any) -> None:
    def build() -> tuple[nn.Module, Inputs]:
        import diffusers

        return getattr(diffusers, kind)(**settings), inputs()

    MODELS[name] = build


def _latents(**more: Any) -> Callable[[], Inputs]:
    return lambda: {"timestep": torch.tensor([10]), **{k: make() for k, make in more.items()}}


_diffusers("unet", "UNet2DConditionModel",
           _latents(sample=lambda: torch.randn(1, 4, 8, 8),
                    encoder_hidden_states=lambda: torch.randn(1, 6, 16)),
           sample_size=8, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=4,
           cross_attention_dim=16, attention_head_dim=4,
           down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
           up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))  # fmt: skip
_diffusers("autoencoder-kl", "AutoencoderKL", lambda: {"sample": torch.randn(1, 3, 16, 16)},
           block_out_channels=(16, 32), norm_num_groups=4,
           down_block_types=("DownEncoderBlock2D",) * 2,
           up_block_types=("UpDecoderBlock2D",) * 2)  # fmt: skip
_diffusers("dit", "DiTTransformer2DModel",
           _latents(hidden_states=lambda: torch.randn(1, 4, 8, 8),
                    class_labels=lambda: torch.tensor([3])),
           num_attention_heads=2, attention_head_dim=8, num_layers=2, sample_size=8,
           norm_num_groups=4, num_embeds_ada_norm=10)  # fmt: skip
_diffusers("sd3", "SD3Transformer2DModel",
           _latents(hidden_states=lambda: torch.randn(1, 4, 8, 8),
                    encoder_hidden_states=lambda: torch.randn(1, 6, 16),
                    pooled_projections=lambda: torch.randn(1, 12)),
           sample_size=8, in_channels=4, num_layers=2, attention_head_dim=8,
           num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=16,
           pooled_projection_dim=12, out_channels=4, pos_embed_max_size=8)  # fmt: skip


# -- figures -------------------------------------------------------------------------------------
def tensors(result: Any) -> Iterator[Tensor]:
    """The tensors of a result, in order; caches are left out."""
    if isinstance(result, Tensor):
        yield result.detach()
    elif isinstance(result, Mapping):
        yield from (t for value in result.values() for t in tensors(value))
    elif isinstance(result, tuple | list):
        yield from (t for value in result for t in tensors(value))


def difference(results: Any, expected: Any) -> float:
    """max |a - b| / max |b|, of the tensor that differs most; infinite where shapes differ."""
    worst = 0.0
    for ours, theirs in zip(tensors(results), tensors(expected), strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return float("inf")
        if theirs.numel():
            ours, theirs = ours.double(), theirs.double()
            apart = torch.nan_to_num((ours - theirs).abs(), nan=float("inf"))
            apart[(ours == theirs) | (ours.isnan() & theirs.isnan())] = 0
            largest = torch.nan_to_num(theirs.abs(), 0, 0).max().clamp_min(1e-30)
            worst = max(worst, float(apart.max() / largest))
    return worst


def _seconds(call: Callable[[], Any]) -> float:
    """The shortest of some calls, after one that is not timed."""
    call()
    times, until = [], time.perf_counter() + 1.0
    while not times or (len(times) < 20 and time.perf_counter() < until):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def row(name: str) -> dict[str, Any]:
    """One line of the table."""
    from tilesmith.torch_backend import reports

    torch._dynamo.reset()
    gc.collect()  # graphs of the model before
    torch.manual_seed(7)
    model, inputs = MODELS[name]()
    model.eval()
    compiled = torch.compile(model, backend="tilesmith")

    def call(which: Callable[..., Any]) -> Any:
        torch.manual_seed(11)
        return which(**inputs)

    expected = call(model)
    started = time.perf_counter()
    result = call(compiled)
    first = time.perf_counter() - started
    graphs = reports()
    left: Counter[str] = Counter()
    for graph in graphs:
        left.update(graph.left)
    return {
        "model": name,
        "graphs": len(graphs),
        "whole": sum(graph.whole for graph in graphs),
        "error": difference(result, expected),
        "first_s": first,
        "ours_us": _seconds(lambda: call(compiled)) * 1e6,
        "pytorch_us": _seconds(lambda: call(model)) * 1e6,
        "left": dict(left),
        "reasons": sorted({graph.reason for graph in graphs if graph.reason}),
        "host": sorted({node for graph in graphs for node in graph.host}),
    }


def text(figures: Mapping[str, Any]) -> str:
    """A line for people."""
    if "failed" in figures:
        return f"{figures['model']:28} {figures['failed']}"
    left = ", ".join(f"{name} {count}" for name, count in figures["left"].items()) or "-"
    whole = f"{figures['whole']} of {figures['graphs']}"
    verdict = "" if figures["error"] <= LIMIT else "  DIFFERS"
    return (
        f"{figures['model']:28} {whole:>8} {figures['error']:8.1e} {figures['first_s']:7.1f} s "
        f"{figures['ours_us']:9.0f} {figures['pytorch_us']:9.0f}  {left}{verdict}"
    )


LIMIT = 1e-3
"""Of the relative difference."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[*MODELS], metavar="MODEL", default=[*MODELS])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    _know_vision_operators()
    rows = []
    if not arguments.json:
        print(f"{'model':28} {'whole':>8} {'error':>8} {'first':>9} {'us':>9} {'PyTorch':>9}  left")
    for name in arguments.only:
        try:
            figures = row(name)
        except Exception as error:  # of any kind: it is the line's result
            figures = {"model": name, "failed": f"{type(error).__name__}: {error}"}
        rows.append(figures)
        print(json.dumps(figures) if arguments.json else text(figures), flush=True)
    ran = [r for r in rows if "failed" not in r]
    right = [r for r in ran if r["error"] <= LIMIT]
    whole = [r for r in right if r["whole"] == r["graphs"]]
    if not arguments.json:
        print(f"{len(rows)} models: {len(ran)} run, {len(right)} right, {len(whole)} whole")
    return int(len(right) < len(rows))


if __name__ == "__main__":
    sys.exit(main())
