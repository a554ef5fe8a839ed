"""Latent diffusion: UNets with cross attention (Stable Diffusion 1, 2, XL), their VAE, and
pipelines.

Rows are pixels of the latent, a quarter at each level down. A convolution is a product of as many
rows as there are pixels. A UNet alone is one denoising pass of one latent; a pipeline (its
`model_index.json` beside the folders of its models) is the text encoder, 50 passes of two latents
(classifier-free guidance) and the VAE's decoder.

Source: unet_2d_condition.py, unet_2d_blocks.py, transformer_2d.py, vae.py of diffusers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    AttentionOperator,
    Layer,
    Operator,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.reading.naming import architecture_of, read_configuration
from tilesmith.capabilities.planning.registry import families
from tilesmith.search_space.support.errors import ModelError

STEPS = 50
"""Denoising steps of a pipeline: what diffusers' own default is."""
TEXT_TOKENS = 77


@families.register("UNet2DConditionModel")
def unet(c: Configuration) -> Architecture:
    """A UNet as Stable Diffusion has it."""
    channels = c.integers("block_out_channels", len(c.value("block_out_channels")))
    return Architecture(
        name=str(c.fields.get("_name_or_path") or "UNet2DConditionModel"),
        family=c.family,
        kind="pass",
        layers=tuple(_Unet(c, channels).layers()),
        width=channels[0],
    )


class _Unet:
    """A UNet's configuration, block by block."""

    def __init__(self, c: Configuration, channels: tuple[int, ...]) -> None:
        self.channels, levels = channels, len(channels)
        self.down = c.texts("down_block_types")
        self.up = c.texts("up_block_types")
        if len(self.down) != levels or len(self.up) != levels:
            raise ModelError(
                f"'{c.source}': {levels} block_out_channels go with {len(self.down)} "
                f"down_block_types and {len(self.up)} up_block_types; as many are expected"
            )
        self.depth = c.integers("layers_per_block", levels, 2)
        self.heads = c.integers("attention_head_dim", levels, 8)  # heads, by an old mistake
        self.context = c.integer("cross_attention_dim", 1280)
        self.blocks = c.integers("transformer_layers_per_block", levels, 1)
        self.inputs, self.outputs = c.integer("in_channels", 4), c.integer("out_channels", 4)
        self.size = c.integer("sample_size", 64)
        self.time = 4 * channels[0]
        self.added = 0
        if "projection_class_embeddings_input_dim" in c:
            self.added = c.integer("projection_class_embeddings_input_dim")

    def layers(self) -> Iterator[Layer]:
        first = self.channels[0]
        yield Layer("time", tuple(self._embeddings()), rows=1)
        yield self._layer("conv in", 0, [conv(self.inputs, first)])
        yield from self._downwards()
        last, level = self.channels[-1], len(self.channels) - 1
        middle = [
            *resnet(last, last, self.time),
            *self._transformer(level, last),
            *resnet(last, last, self.time),
        ]
        yield self._layer("middle", level, middle)
        yield from self._upwards()
        yield self._layer("conv out", 0, [group_norm(first), conv(first, self.outputs)])

    def _embeddings(self) -> Iterator[Operator]:
        widths = [self.channels[0], *([self.added] if self.added else [])]
        for width in widths:
            yield ProductOperator("embedding 1", width, self.time, bias=True)
            yield ProductOperator("embedding 2", self.time, self.time, "rows", bias=True)

    def _downwards(self) -> Iterator[Layer]:
        before = self.channels[0]
        for level, (kind, width) in enumerate(zip(self.down, self.channels, strict=True)):
            for _ in range(self.depth[level]):
                yield self._layer("down", level, self._block(kind, level, before, width))
                before = width
            if level < len(self.channels) - 1:
                yield self._layer("downsample", level + 1, [conv(width, width)])

    def _upwards(self) -> Iterator[Layer]:
        top = len(self.channels) - 1
        before = self.channels[-1]
        for number, kind in enumerate(self.up):
            level = top - number
            width, below = self.channels[level], self.channels[max(level - 1, 0)]
            count = self.depth[level] + 1
            for at in range(count):
                skip = below if at == count - 1 else width
                yield self._layer("up", level, self._block(kind, level, before + skip, width))
                before = width
            if level:
                yield self._layer("upsample", level - 1, [conv(width, width)])

    def _block(self, kind: str, level: int, before: int, width: int) -> list[Operator]:
        operators: list[Operator] = [*resnet(before, width, self.time)]
        if kind.startswith("CrossAttn"):
            operators += self._transformer(level, width)
        return operators

    def _transformer(self, level: int, width: int) -> list[Operator]:
        """Attention to the image, attention to the text, a gated feed-forward."""
        heads = self.heads[level]
        size = width // heads
        one: list[Operator] = [
            *(PointwiseOperator(f"norm {n}", width, 2 * width) for n in range(3)),
            ProductOperator("query, key, value", width, width, unit=size, times=3),
            AttentionOperator("to the image", heads, heads, size, size, causal=False),
            ProductOperator("output", width, width, "rows", unit=size, bias=True),
            ProductOperator("query", width, width, unit=size),
            AttentionOperator(
                "to the text", heads, heads, size, size, causal=False, keys=TEXT_TOKENS
            ),
            ProductOperator("output", width, width, "rows", unit=size, bias=True),
            ProductOperator("gate, up", width, 4 * width, times=2, bias=True),
            ProductOperator("down", 4 * width, width, "rows", bias=True),
        ]
        text = ProductOperator(
            "key, value of the text", self.context, width, unit=size, times=2, rows=TEXT_TOKENS
        )
        around: list[Operator] = [
            group_norm(width),
            ProductOperator("project in", width, width, bias=True),
            ProductOperator("project out", width, width, "rows", bias=True),
        ]
        return around + [*one, text] * self.blocks[level]

    def _layer(self, name: str, level: int, operators: Sequence[Operator]) -> Layer:
        side = max(1, self.size >> level)
        return Layer(name, tuple(operators), rows=side * side)


def conv(inputs: int, outputs: int, split: str = "columns") -> ProductOperator:
    """A convolution of 3 x 3."""
    return ProductOperator(
        "conv 3x3", 9 * inputs, outputs, "rows" if split == "rows" else "columns", bias=True
    )


def group_norm(width: int) -> PointwiseOperator:
    """Normalisation of groups of channels."""
    return PointwiseOperator("group norm", width, 2 * width)


def resnet(inputs: int, outputs: int, time: int = 0) -> list[Operator]:
    """Two convolutions behind a residual, moved by the time of diffusion."""
    operators: list[Operator] = [
        group_norm(inputs),
        conv(inputs, outputs),
        group_norm(outputs),
        conv(outputs, outputs, "rows"),
        PointwiseOperator("residual", outputs, operands=2),
    ]
    if time:
        operators.append(ProductOperator("time", time, outputs, bias=True, rows=1))
    if inputs != outputs:
        operators.append(ProductOperator("shortcut", inputs, outputs, bias=True))
    return operators


@families.register("AutoencoderKL")
def autoencoder(c: Configuration) -> Architecture:
    """A VAE: a pass decodes one latent; the encoder is counted and does not run."""
    channels = c.integers("block_out_channels", len(c.value("block_out_channels")))
    latent, depth = c.integer("latent_channels", 4), c.integer("layers_per_block", 1)
    pixels = c.integer("in_channels", 3)
    image = c.integer("sample_size", 512)
    top, last = len(channels) - 1, channels[-1]

    def layer(name: str, level: int, operators: Sequence[Operator], runs: int) -> Layer:
        side = max(1, image >> level)
        return Layer(name, tuple(operators), rows=side * side, runs=runs)

    middle = [*resnet(last, last), *_plain_attention(last), *resnet(last, last)]
    layers = [layer("encoder in", 0, [conv(pixels, channels[0])], 0)]
    before = channels[0]
    for level, width in enumerate(channels):
        for _ in range(depth):
            layers.append(layer("encoder", level, resnet(before, width), 0))
            before = width
        if level < top:
            layers.append(layer("downsample", level + 1, [conv(width, width)], 0))
    layers.append(layer("encoder middle", top, middle, 0))
    quantise = ProductOperator("quantise", 2 * latent, 2 * latent, bias=True)
    ends: list[Operator] = [group_norm(last), conv(last, 2 * latent), quantise]
    layers.append(layer("encoder out", top, ends, 0))
    begin: list[Operator] = [
        ProductOperator("unquantise", latent, latent, bias=True),
        conv(latent, last),
    ]
    layers += [layer("decoder in", top, begin, 1), layer("decoder middle", top, middle, 1)]
    before = last
    for level in reversed(range(len(channels))):
        width = channels[level]
        for _ in range(depth + 1):
            layers.append(layer("decoder", level, resnet(before, width), 1))
            before = width
        if level:
            layers.append(layer("upsample", level - 1, [conv(width, width)], 1))
    out: list[Operator] = [group_norm(channels[0]), conv(channels[0], pixels)]
    layers.append(layer("decoder out", 0, out, 1))
    return Architecture("AutoencoderKL", c.family, "pass", tuple(layers), channels[0])


def _plain_attention(width: int) -> list[Operator]:
    """One head over all pixels."""
    return [
        group_norm(width),
        ProductOperator("query, key, value", width, width, unit=width, times=3, bias=True),
        AttentionOperator("attention", 1, 1, width, width, causal=False),
        ProductOperator("output", width, width, "rows", unit=width, bias=True),
    ]


@families.register("StableDiffusionPipeline")
def pipeline(c: Configuration) -> Architecture:
    """Text encoder, denoising and decoder, one behind the other."""
    return _pipeline(c, ("text_encoder",))


@families.register("StableDiffusionXLPipeline")
def pipeline_xl(c: Configuration) -> Architecture:
    """The same with two text encoders."""
    return _pipeline(c, ("text_encoder", "text_encoder_2"))


def _pipeline(c: Configuration, encoders: tuple[str, ...]) -> Architecture:
    folder = Path(c.source).parent
    parts = {
        name: architecture_of(read_configuration(folder / name / "config.json"))
        for name in (*encoders, "unet", "vae")
    }
    texts = [layer for name in encoders for layer in parts[name].layers]
    layers = [
        *(replace(layer, rows=2 * TEXT_TOKENS) for layer in texts),
        *(replace(layer, rows=2 * layer.rows, runs=STEPS) for layer in parts["unet"].layers),
        *parts["vae"].layers,
    ]
    width = parts["unet"].width
    return Architecture(c.family, c.family, "pass", tuple(layers), width)
