"""Vision and diffusion models of `transformers` and `diffusers`, small, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from case import Case, family, tokens
from torch import Tensor, nn


class Attribute(nn.Module):
    """A model that returns a container: one tensor of it."""

    def __init__(self, model: Any, attribute: str) -> None:
        super().__init__()
        self.model, self.attribute = model, attribute

    def forward(self, x: Tensor) -> Tensor:
        """Whatever the model takes first -> the named output."""
        found: Tensor = getattr(self.model(x), self.attribute)
        return found


@family
def vit() -> Case:
    """ViT: patches by a convolution, a class token, an encoder."""
    from transformers import ViTConfig, ViTForImageClassification

    configuration = ViTConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        image_size=64, patch_size=16, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(configuration)
    return Case("vit", Attribute(model, "logits"), {"x": torch.randn(1, 3, 64, 64)})


class BothTowers(nn.Module):
    """CLIP: images and texts in, their embeddings out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """(texts, tokens), (images, 3, height, width) -> two times (n, projection)."""
        found = self.model(input_ids=input_ids, pixel_values=pixel_values)
        return found.text_embeds, found.image_embeds


@family
def clip() -> Case:
    """CLIP, both towers."""
    from transformers import CLIPConfig, CLIPModel

    tower = {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }  # fmt: skip
    configuration = CLIPConfig(
        text_config={
            **tower, "vocab_size": 256, "max_position_embeddings": 32, "eos_token_id": 2,
            "bos_token_id": 1, "pad_token_id": 0,
        },
        vision_config={**tower, "image_size": 64, "patch_size": 16},
        projection_dim=64,
    )  # fmt: skip
    ids = tokens(256, 2, 16)
    ids[:, -1] = 2
    inputs = {"input_ids": ids, "pixel_values": torch.randn(2, 3, 64, 64)}
    return Case("clip", BothTowers(CLIPModel(configuration)), inputs)


@family
def text_encoder() -> Case:
    """The text encoder of Stable Diffusion: CLIP's, its hidden states."""
    from transformers import CLIPTextConfig, CLIPTextModel

    configuration = CLIPTextConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32, eos_token_id=2, bos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    ids = tokens(256, 1, 32)
    ids[:, -1] = 2
    return Case(
        "text-encoder", Attribute(CLIPTextModel(configuration), "last_hidden_state"), {"x": ids}
    )


class Denoiser(nn.Module):
    """A diffusion UNet: latents, a time step and the text's states in, the noise out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: Tensor, timestep: Tensor, states: Tensor) -> Tensor:
        """(n, 4, height, width), (n,), (n, tokens, width) -> (n, 4, height, width)."""
        noise: Tensor = self.model(sample, timestep, states, return_dict=False)[0]
        return noise


@family
def unet() -> Case:
    """Stable Diffusion's UNet: residual blocks, self and cross attention, skip connections."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=64,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    inputs = {
        "sample": torch.randn(1, 4, 16, 16),
        "timestep": torch.tensor([10]),
        "states": torch.randn(1, 8, 64),
    }
    return Case("unet", Denoiser(model), inputs)


class Decoder(nn.Module):
    """The decoding half of a variational autoencoder."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, latents: Tensor) -> Tensor:
        """(n, 4, height, width) -> (n, 3, 2 height, 2 width)."""
        image: Tensor = self.model.decode(latents, return_dict=False)[0]
        return image


class Encoder(Decoder):
    """The encoding half: the latents' moments."""

    def forward(self, image: Tensor) -> Tensor:
        """(n, 3, height, width) -> (n, 8, height / 2, width / 2)."""
        moments: Tensor = self.model.encode(image, return_dict=False)[0].parameters
        return moments


def _autoencoder() -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(32, 64), layers_per_block=1, latent_channels=4, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=32,
    )  # fmt: skip


@family
def vae_decoder() -> Case:
    """Stable Diffusion's VAE, latents to image."""
    return Case("vae-decoder", Decoder(_autoencoder()), {"latents": torch.randn(1, 4, 16, 16)})


@family
def vae_encoder() -> Case:
    """Stable Diffusion's VAE, image to latents."""
    return Case("vae-encoder", Encoder(_autoencoder()), {"image": torch.randn(1, 3, 32, 32)})


@family
def convnext() -> Case:
    """ConvNeXt: 7x7 depthwise convolutions, layer norms over channels."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    configuration = ConvNextConfig(
        hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 2, 1], image_size=64, num_labels=10
    )
    model = ConvNextForImageClassification(configuration)
    return Case("convnext", Attribute(model, "logits"), {"x": torch.randn(1, 3, 64, 64)})
