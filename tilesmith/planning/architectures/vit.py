"""Encoders of images: ViT and DeiT. Patches are rows, one more is the class.

Source: modeling_vit.py of transformers.
"""

from __future__ import annotations

from tilesmith.planning.architecture import Architecture, Layer, Pointwise, Product
from tilesmith.planning.architectures.bert import encoder_layer
from tilesmith.planning.architectures.parts import norm
from tilesmith.planning.configuration import Configuration
from tilesmith.planning.registry import families


@families.register("vit")
def vit(c: Configuration) -> Architecture:
    """ViT with its classifier, of as many classes as the configuration has labels."""
    return _vision(c, extra=1)


@families.register("deit")
def deit(c: Configuration) -> Architecture:
    """DeiT: ViT with a token of distillation."""
    return _vision(c, extra=2)


def _vision(c: Configuration, *, extra: int) -> Architecture:
    width, patch = c.integer("hidden_size"), c.integer("patch_size", 16)
    size, channels = c.integer("image_size", 224), c.integer("num_channels", 3)
    patches = (size // patch) ** 2
    rows = patches + extra
    layer = encoder_layer(c, width, bias=c.flag("qkv_bias", True))
    labels = c.fields.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else 1000
    tokens = Pointwise("class, positions", width, parameters=width * (rows + extra))
    first = Product("patches", channels * patch * patch, width, bias=True)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="pass",
        layers=(
            Layer("patches", (first,), rows=patches),
            Layer("positions", (tokens,), rows=rows),
            Layer("encoder", layer, c.integer("num_hidden_layers"), rows=rows),
            Layer("norm", (norm(width, keeps="layer"),), rows=rows),
            Layer("classifier", (Product("classifier", width, classes, bias=True),), rows=1),
        ),
        width=width,
    )
