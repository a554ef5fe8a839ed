"""What a choice of precisions came to: the front of error and latency, and each layer's reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilesmith.search_space.support.json_object import JsonObject


@dataclass(frozen=True)
class LayerPrecision(JsonObject):
    """A layer and the precision it has.

    Attributes:
        errors: of the model's outputs where this layer alone has a precision, by precision.
        us: microseconds of its kernels, by precision; empty where time did not matter.
        bytes: of its weights, by precision.
        why: a sentence.
    """

    node: str
    operator: str
    precision: str
    errors: Mapping[str, float]
    us: Mapping[str, float]
    bytes: Mapping[str, int]
    why: str


@dataclass(frozen=True)
class Point(
    JsonObject,
    keys="budget predicted_error predicted_ms:predicted_s gap error held_out ms bytes layers "
    "verdict",
):
    """A plan of the front, compiled and measured whole.

    Attributes:
        budget: that the integer program was given.
        predicted_error: by its layers' errors.
        predicted_s: by its kernels' and conversions' seconds; NaN where time did not matter.
        gap: how much less the best plan within that budget may cost.
        error: measured on the samples that layers' errors were measured on.
        held_out: measured on samples that nothing was chosen by.
        ms: median milliseconds of the whole model, in turns with the others.
        bytes: of the weights.
        layers: how many have each precision.
        verdict: "chosen", or why not.
    """

    budget: float
    predicted_error: float
    predicted_s: float
    gap: float
    error: float
    held_out: float
    ms: float
    bytes: int
    layers: Mapping[str, int]
    verdict: str


@dataclass(frozen=True)
class PrecisionReport(
    JsonObject,
    keys="minimise budget plan fp32_ms ms fp32_bytes bytes error held_out samples held_out_samples "
    "kernels_measured kernels_known front layers",
):
    """See the module's docstring.

    Attributes:
        minimise: "latency" or "size".
        budget: the error allowed.
        plan: precisions by layer; those that are left out are in fp32.
        fp32_ms, ms: of the float32 model and of the chosen one, in turns.
        error, held_out: the chosen one's.
        samples, held_out_samples: how many errors were measured on.
        kernels_measured, kernels_known: in this run, and from the database.
        front: by budget, the float32 model left out.
        layers: in the model's order.
    """

    minimise: str
    budget: float
    plan: Mapping[str, str]
    fp32_ms: float
    ms: float
    fp32_bytes: int
    bytes: int
    error: float
    held_out: float
    samples: int
    held_out_samples: int
    kernels_measured: int
    kernels_known: int
    front: Sequence[Point]
    layers: Sequence[LayerPrecision]
