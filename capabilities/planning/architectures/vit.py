"""Encoders of images: ViT, DeiT, and CLIP, which has one of text beside it. Patches are rows, one
more is the class.

Source: modeling_vit.py and modeling_clip.py of transformers.
"""

from tilesmith.capabilities.planning.architecture import (
    Architecture,
    Layer,
    PointwiseOperator,
    ProductOperator,
)
from tilesmith.capabilities.planning.architectures.bert import clip_text, encoder_layer
from tilesmith.capabilities.planning.architectures.parts import norm
from tilesmith.capabilities.planning.configuration import Configuration
from tilesmith.capabilities.planning.registry import families


@families.register("vit")
def vit(c: Configuration) -> Architecture:
    """ViT with its classifier, of as many classes as the configuration has labels."""
    return _vision(c, extra=1)


@families.register("deit")
def deit(c: Configuration) -> Architecture:
    """DeiT: ViT with a token of distillation."""
    return _vision(c, extra=2)


@families.register("clip_vision_model")
def clip_vision(c: Configuration) -> Architecture:
    """CLIP's encoder of images: patches without a bias, a normalisation before and behind."""
    width, patch = c.integer("hidden_size"), c.integer("patch_size", 32)
    patches = (c.integer("image_size", 224) // patch) ** 2
    first = ProductOperator("patches", c.integer("num_channels", 3) * patch * patch, width)
    positions = PointwiseOperator(
        "class, positions", width, parameters=width * (patches + 2), operands=2
    )
    layer = encoder_layer(c, width)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="pass",
        layers=(
            Layer("patches", (first,), rows=patches),
            Layer("positions", (positions, norm(width, keeps="layer")), rows=patches + 1),
            Layer("image encoder", layer, c.integer("num_hidden_layers"), rows=patches + 1),
            Layer("image norm", (norm(width, keeps="layer"),), rows=1),
        ),
        width=width,
    )


@families.register("clip")
def clip(c: Configuration) -> Architecture:
    """CLIP: a text and an image, each through its encoder and to the width they are compared in."""
    shared = c.integer("projection_dim", 512)
    read, seen = clip_text(c.inner("text_config")), clip_vision(c.inner("vision_config"))
    ends = tuple(ProductOperator("projection", one.width, shared) for one in (read, seen))
    scale = PointwiseOperator("scale", 1, parameters=1)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="pass",
        layers=(*read.layers, *seen.layers, Layer("projections", (*ends, scale), rows=1)),
        width=max(read.width, seen.width),
        positions=read.positions,
    )


def _vision(c: Configuration, *, extra: int) -> Architecture:
    width, patch = c.integer("hidden_size"), c.integer("patch_size", 16)
    size, channels = c.integer("image_size", 224), c.integer("num_channels", 3)
    patches = (size // patch) ** 2
    rows = patches + extra
    layer = encoder_layer(c, width, bias=c.flag("qkv_bias", True))
    labels = c.fields.get("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else 1000
    tokens = PointwiseOperator(
        "class, positions", width, parameters=width * (rows + extra), operands=2
    )
    first = ProductOperator("patches", channels * patch * patch, width, bias=True)
    return Architecture(
        name=str(c.fields.get("_name_or_path") or c.family),
        family=c.family,
        kind="pass",
        layers=(
            Layer("patches", (first,), rows=patches),
            Layer("positions", (tokens,), rows=rows),
            Layer("encoder", layer, c.integer("num_hidden_layers"), rows=rows),
            Layer("norm", (norm(width, keeps="layer"),), rows=rows),
            Layer(
                "classifier", (ProductOperator("classifier", width, classes, bias=True),), rows=1
            ),
        ),
        width=width,
    )
