"""Networks with random weights, for `benchmarks/export_models.py`: each gives a module and inputs.

From transformers and diffusers: a ViT, a GPT-2, a ConvNeXt and a diffusion UNet. Written here, as
exporters see them: a Llama-like decoder (grouped queries, rotary positions, RMSNorm, SwiGLU) that
reads a prompt or continues one by a token beside its cache, and an encoder whose layers choose 2 of
8 experts (Fedus et al. 2022; every expert computes, weights of those not chosen are zero, which is
how such models are exported without control flow).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Network = tuple[nn.Module, tuple[Tensor, ...], list[str]]
"""A module, its inputs and their names."""


class Only(nn.Module):
    """A model as a module of one tensor in and one out.

    Args:
        pick: which of its results.
    """

    def __init__(self, model: Any, pick: str, *more: Any, **named: Any) -> None:
        super().__init__()
        self.model, self.pick, self.more, self.named = model, pick, more, named

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self.model(x, *self.more, **self.named), self.pick)


def vit() -> Network:
    """ViT-base at 224 x 224."""
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(attn_implementation="eager"), add_pooling_layer=False)
    return Only(model, "last_hidden_state"), (torch.randn(1, 3, 224, 224),), ["pixels"]


def gpt2() -> Network:
    """GPT-2 (124 M) on 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager", use_cache=False))
    return Only(model, "logits", use_cache=False), (torch.randint(0, 50257, (1, 64)),), ["ids"]


def convnext() -> Network:
    """ConvNeXt-tiny at 224 x 224."""
    from transformers import ConvNextConfig, ConvNextModel

    model = ConvNextModel(ConvNextConfig())
    return Only(model, "last_hidden_state"), (torch.randn(1, 3, 224, 224),), ["pixels"]


def unet() -> Network:
    """A diffusion UNet of 64, 128 and 256 channels on latents of 32 x 32, attention at the last."""
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32, in_channels=4, out_channels=4, layers_per_block=2,
        block_out_channels=(64, 128, 256), norm_num_groups=32,
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return Only(model, "sample", torch.tensor([10])), (torch.randn(1, 4, 32, 32),), ["latents"]


WIDTH, HEADS, SHARED, HIDDEN, LAYERS, WORDS = 768, 12, 4, 2048, 12, 8192
"""Of the Llama-like decoder: 12 heads share 4 of keys and values."""

CACHED = 128
"""Tokens before the one it decodes."""


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x: Tensor, start: int) -> Tensor:
    """Rotary positions (Su et al. 2021) of heads x tokens x depth, from token `start` on."""
    depth = x.shape[-1]
    pace = 10000.0 ** (-torch.arange(0, depth, 2) / depth)
    angles = torch.arange(start, start + x.shape[-2])[:, None] * pace[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    turned = torch.cat((-x[..., depth // 2 :], x[..., : depth // 2]), dim=-1)
    return x * angles.cos() + turned * angles.sin()


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        depth = WIDTH // HEADS
        self.before, self.between = RmsNorm(WIDTH), RmsNorm(WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, SHARED * depth, bias=False)
        self.value = nn.Linear(WIDTH, SHARED * depth, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, ...]:
        y = self.before(x)
        start = 0 if past is None else CACHED
        query = rotated(self._heads(self.query(y), HEADS), start)
        key = rotated(self._heads(self.key(y), SHARED), start)
        value = self._heads(self.value(y), SHARED)
        if past is not None:
            key, value = torch.cat((past[0], key), dim=2), torch.cat((past[1], value), dim=2)
        mixed = functional.scaled_dot_product_attention(
            query, key.repeat_interleave(HEADS // SHARED, dim=1),
            value.repeat_interleave(HEADS // SHARED, dim=1), is_causal=past is None,
        )  # fmt: skip
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), key, value

    @staticmethod
    def _heads(x: Tensor, heads: int) -> Tensor:
        return x.reshape(1, x.shape[1], heads, WIDTH // HEADS).transpose(1, 2)


class Decoder(nn.Module):
    """Logits of the last token, and of each layer the keys and values with those of this run."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = RmsNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x = self.words(ids)
        kept: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            before = (past[2 * number], past[2 * number + 1]) if past else None
            x, key, value = layer(x, before)
            kept += [key, value]
        return self.head(self.norm(x[:, -1:])), *kept


def llama_prefill() -> Network:
    """The Llama-like decoder (90 M weights) on a prompt of 128 tokens."""
    return Decoder(), (torch.randint(0, WORDS, (1, CACHED)),), ["ids"]


def llama_decode() -> Network:
    """The same on one token beside a cache of 128."""
    shape = (1, SHARED, CACHED, WIDTH // HEADS)
    past = [torch.randn(shape) for _ in range(2 * LAYERS)]
    names = [f"past_{kind}_{n}" for n in range(LAYERS) for kind in ("key", "value")]
    return Decoder(), (torch.randint(0, WORDS, (1, 1)), *past), ["ids", *names]


class Experts(nn.Module):
    """Two of eight experts a token, as weights of the sum of all."""

    def __init__(self, width: int, hidden: int, number: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, number)
        self.up = nn.ModuleList(nn.Linear(width, hidden) for _ in range(number))
        self.down = nn.ModuleList(nn.Linear(hidden, width) for _ in range(number))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        second = scores.topk(2, dim=-1).values[..., 1:]
        weights = torch.softmax(scores.masked_fill(scores < second, -1e9), dim=-1)
        parts = [
            weights[..., n : n + 1] * down(functional.gelu(up(x)))
            for n, (up, down) in enumerate(zip(self.up, self.down, strict=True))
        ]
        return torch.stack(parts).sum(dim=0)


class ExpertsLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.experts = Experts(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        query, key, value = (
            part(y).reshape(1, x.shape[1], self.heads, -1).transpose(1, 2)
            for part in self.projections[:3]
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.projections[3](mixed.transpose(1, 2).reshape(x.shape))
        return x + self.experts(self.between(x))


def experts() -> Network:
    """Four layers of mixtures of experts, 384 wide, on 128 tokens."""
    layers = nn.Sequential(*(ExpertsLayer(384, 6) for _ in range(4)))
    return layers, (torch.randn(1, 128, 384),), ["hidden"]


NETWORKS = {
    "vit": vit,
    "gpt2": gpt2,
    "llama_prefill": llama_prefill,
    "llama_decode": llama_decode,
    "unet": unet,
    "convnext": convnext,
    "experts": experts,
}
