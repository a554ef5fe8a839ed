"""Attributes that are one of a few words, which the ONNX standard lists in prose only.

An operator does not guess what another word could mean: it is refused where a model is read. What
was a word in any opset is one here.
"""

from collections.abc import Iterable

from tilesmith.compiler.graph.cells import ACTIVATIONS

_RECURRENT = ("forward", "reverse", "bidirectional")
_REDUCED = ("none", "mean", "sum")
_SCATTERED = ("none", "add", "mul", "max", "min")
_ROUNDED = ("up", "down", "nearest")

_EVERYWHERE = {"auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "")}
"""Attributes that mean the same wherever they are."""

_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("BitShift", "direction"): ("LEFT", "RIGHT"),
    ("Cast", "round_mode"): _ROUNDED,
    ("CastLike", "round_mode"): _ROUNDED,
    ("CausalConvWithState", "activation"): ("none", "silu", "swish"),
    ("DepthToSpace", "mode"): ("DCR", "CRD"),
    ("GRU", "direction"): _RECURRENT,
    ("Gelu", "approximate"): ("none", "tanh"),
    ("GridSample", "mode"): ("linear", "bilinear", "nearest", "cubic", "bicubic"),
    ("GridSample", "padding_mode"): ("zeros", "border", "reflection"),
    ("ImageDecoder", "pixel_format"): ("RGB", "BGR", "Grayscale"),
    ("LSTM", "direction"): _RECURRENT,
    ("LinearAttention", "update_rule"): ("linear", "gated", "delta", "gated_delta"),
    ("NegativeLogLikelihoodLoss", "reduction"): _REDUCED,
    ("Pad", "mode"): ("constant", "reflect", "edge", "wrap"),
    ("RNN", "direction"): _RECURRENT,
    ("Resize", "coordinate_transformation_mode"): (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_half_pixel_for_nn", "tf_crop_and_resize",
    ),
    ("Resize", "keep_aspect_ratio_policy"): ("stretch", "not_larger", "not_smaller"),
    ("Resize", "mode"): ("nearest", "linear", "cubic"),
    ("Resize", "nearest_mode"): ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("RoiAlign", "coordinate_transformation_mode"): ("half_pixel", "output_half_pixel"),
    ("RoiAlign", "mode"): ("avg", "max"),
    ("ScatterElements", "reduction"): _SCATTERED,
    ("ScatterND", "reduction"): _SCATTERED,
    ("SoftmaxCrossEntropyLoss", "reduction"): _REDUCED,
    ("SpaceToDepth", "mode"): ("DCR", "CRD"),
    ("StringNormalizer", "case_change_action"): ("NONE", "LOWER", "UPPER"),
    ("TensorScatter", "mode"): ("linear", "circular"),
    ("TfIdfVectorizer", "mode"): ("TF", "IDF", "TFIDF"),
    ("Upsample", "mode"): ("nearest", "linear", "bilinear"),
}  # fmt: skip


def word_faults(operator: str, attribute: str, words: Iterable[str]) -> Iterable[str]:
    """What is wrong with the words that an operator's attribute holds."""
    known = _EVERYWHERE.get(attribute) or _WORDS.get((operator, attribute), ())
    if attribute == "activations":
        known = tuple(ACTIVATIONS)
        spelt = {name.lower(): name for name in known}
        words = [spelt.get(word.lower(), word) for word in words]
    for word in words:
        if known and word not in known:
            yield f"is '{word}'; it has to be one of {', '.join(filter(None, known))}"
