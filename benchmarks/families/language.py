"""Language models of `transformers`, small, with random weights: true to form, seconds to compile.

Every builder returns a `Case`: a module that takes and returns plain tensors (the framework's
caches and containers are left out), and arguments for it.
"""

from __future__ import annotations

from typing import Any

import torch
from case import Case, family, tokens
from torch import Tensor, nn

VOCABULARY = 256
SEQUENCE = 32


class Logits(nn.Module):
    """A causal language model without its cache: token ids in, logits out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        """(batch, sequence) -> (batch, sequence, vocabulary)."""
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def _causal(name: str, configuration: Any, batch: int = 1) -> Case:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(configuration, attn_implementation="sdpa")
    if hasattr(configuration, "num_experts_per_tok"):  # as one product: it can be exported
        model.set_experts_implementation("batched_mm")
    ids = tokens(VOCABULARY, batch, SEQUENCE)
    return Case(name, Logits(model), {"input_ids": ids})


@family
def llama_3() -> Case:
    """Llama-3: grouped queries, rotary embeddings with scaled frequencies, SwiGLU."""
    from transformers import LlamaConfig

    return _causal(
        "llama-3",
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=512,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ),
    )  # fmt: skip


@family
def qwen_2() -> Case:
    """Qwen2: biases on queries, keys and values."""
    from transformers import Qwen2Config

    return _causal(
        "qwen-2",
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=512,
        ),
    )  # fmt: skip


@family
def qwen_3() -> Case:
    """Qwen3: queries and keys are normalised head by head."""
    from transformers import Qwen3Config

    return _causal(
        "qwen-3",
        Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        ),
    )  # fmt: skip


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of neighbours turned: complex products, in real numbers."""
    cosine, sine = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(3)


def _without_complex_numbers(model: Any) -> None:
    """DeepSeek-V2 of `transformers` turns queries and keys by complex products, for which ONNX has
    no type: let it turn them in real numbers. What it computes has to stay what it was."""
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as module

    ids = tokens(VOCABULARY, 1, SEQUENCE)
    before = model(input_ids=ids, use_cache=False).logits

    def angles(self: Any, x: Tensor, position_ids: Tensor) -> Tensor:
        return position_ids[..., None].float() * self.inv_freq

    module.DeepseekV2RotaryEmbedding.forward = angles
    module.apply_rotary_emb = lambda q, k, turn: (_turned(q, turn), _turned(k, turn))
    after = model(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(after, before)


@family
def deepseek_v2() -> Case:
    """DeepSeek-V2: latent attention, routed and shared experts."""
    from transformers import DeepseekV2Config

    case = _causal(
        "deepseek-v2",
        DeepseekV2Config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=48,
            qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, n_routed_experts=8,
            n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64,
            first_k_dense_replace=1, n_group=2, topk_group=1, topk_method="group_limited_greedy",
            max_position_embeddings=512,
        ),
    )  # fmt: skip
    _without_complex_numbers(case.module.model)
    return case


@family
def deepseek_v3() -> Case:
    """DeepSeek-V3: as V2, experts chosen by sigmoid scores with a correcting bias."""
    from transformers import DeepseekV3Config

    return _causal(
        "deepseek-v3",
        DeepseekV3Config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=48,
            qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, n_routed_experts=8,
            n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=64,
            first_k_dense_replace=1, n_group=2, topk_group=1, max_position_embeddings=512,
        ),
    )  # fmt: skip


@family
def mixtral() -> Case:
    """Mixtral: two of four experts for every token."""
    from transformers import MixtralConfig

    return _causal(
        "mixtral",
        MixtralConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
            num_attention_heads=8, num_key_value_heads=2, num_local_experts=4,
            num_experts_per_tok=2, max_position_embeddings=512,
        ),
    )  # fmt: skip


@family
def gpt_2() -> Case:
    """GPT-2: learned positions, layer norms before, gelu by tanh, tied embeddings."""
    from transformers import GPT2Config

    return _causal(
        "gpt-2",
        GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=128, n_layer=2, n_head=4),
    )


class Encoded(nn.Module):
    """An encoder with a mask: ids in, hidden states out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(batch, sequence) twice -> (batch, sequence, hidden)."""
        found = self.model(input_ids=input_ids, attention_mask=attention_mask)
        hidden: Tensor = found.last_hidden_state
        return hidden


@family
def bert() -> Case:
    """BERT with a padding mask."""
    from transformers import BertConfig, BertModel

    configuration = BertConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=128,
    )  # fmt: skip
    mask = torch.ones(2, SEQUENCE, dtype=torch.int64)
    mask[1, 20:] = 0
    inputs = {"input_ids": tokens(VOCABULARY, 2, SEQUENCE), "attention_mask": mask}
    return Case("bert", Encoded(BertModel(configuration)), inputs)


class Translated(nn.Module):
    """An encoder and a decoder: source and target ids in, logits out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """(batch, source), (batch, target) -> (batch, target, vocabulary)."""
        found = self.model(
            input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False
        )
        logits: Tensor = found.logits
        return logits


@family
def t5() -> Case:
    """T5: relative position biases, cross attention, RMS norms."""
    from transformers import T5Config, T5ForConditionalGeneration

    configuration = T5Config(
        vocab_size=VOCABULARY, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    inputs = {
        "input_ids": tokens(VOCABULARY, 1, SEQUENCE),
        "decoder_input_ids": tokens(VOCABULARY, 1, 16),
    }
    return Case("t5", Translated(T5ForConditionalGeneration(configuration)), inputs)


class Transcribed(nn.Module):
    """Whisper: a spectrogram and target ids in, logits out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_features: Tensor, decoder_input_ids: Tensor) -> Tensor:
        """(batch, mels, frames), (batch, target) -> (batch, target, vocabulary)."""
        found = self.model(
            input_features=input_features, decoder_input_ids=decoder_input_ids, use_cache=False
        )
        logits: Tensor = found.logits
        return logits


@family
def whisper() -> Case:
    """Whisper: 1-D convolutions, an encoder of sound, a decoder of text."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    configuration = WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=16, d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
        decoder_ffn_dim=256, max_source_positions=64, max_target_positions=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {
        "input_features": torch.randn(1, 16, 128),
        "decoder_input_ids": tokens(VOCABULARY, 1, 16),
    }
    return Case("whisper", Transcribed(WhisperForConditionalGeneration(configuration)), inputs)
