"""What each layer's quantisation costs in accuracy, and which layers are better left in float32.

A layer's sensitivity is the error of the model's outputs where it alone is quantised. Errors of
layers add up about as squares do, but not exactly; so layers are taken out of a budget's way in the
order of their sensitivities, and every step is checked on the whole model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilesmith.capabilities.quantisation.preparation.plan import WeightedLayer
from tilesmith.jobs.measures.output_errors import sqnr_db
from tilesmith.search_space.support.json_object import JsonObject

ErrorOf = Callable[[Sequence[WeightedLayer]], float]
"""The error of the model's outputs where these layers are quantised."""


@dataclass(frozen=True)
class LayerSensitivity(
    JsonObject, keys="node:layer.node operator:layer.operator error sqnr_db share"
):
    """The error of the outputs when one layer alone is quantised.

    Attributes:
        error: as `errors.Accuracy.error`.
        share: of the model's multiplications that are the layer's.
    """

    layer: WeightedLayer
    error: float
    share: float

    @property
    def sqnr_db(self) -> float:
        """Signal to quantisation noise in dB."""
        return sqnr_db(self.error)


def sensitivities(
    layers: Sequence[WeightedLayer],
    work: dict[str, int],
    error_of: ErrorOf,
    watch: Callable[[int], None] = lambda done: None,
) -> tuple[LayerSensitivity, ...]:
    """The sensitivity of every layer, the most sensitive first.

    Args:
        work: multiplications of each layer, by node.
        watch: called with how many are done.
    """
    whole = max(1, sum(work.values()))
    measured = []
    for done, layer in enumerate(layers):
        measured.append(LayerSensitivity(layer, error_of([layer]), work.get(layer.node, 0) / whole))
        watch(done + 1)
    return tuple(sorted(measured, key=lambda s: -s.error))


def fewest_kept(ranked: Sequence[LayerSensitivity], budget: float, error_of: ErrorOf) -> set[str]:
    """The nodes to leave in float32 so that the error is within a budget, as few as are found.

    The most sensitive are left out until the whole model is within the budget (how many, by
    bisection); then each goes back, the one with the most work first, where that stays within.

    Args:
        ranked: the most sensitive first.
        budget: the greatest error allowed.
    """
    layers = [s.layer for s in ranked]

    def error(kept: set[str]) -> float:
        return error_of([layer for layer in layers if layer.node not in kept])

    first = {layer.node for layer in layers[:0]}
    if error(first) <= budget:
        return first
    low, high = 0, len(layers)  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        if error({layer.node for layer in layers[:middle]}) <= budget:
            high = middle
        else:
            low = middle
    kept = {layer.node for layer in layers[:high]}
    for one in sorted(ranked[: max(0, high - 1)], key=lambda s: -s.share):
        if error(kept - {one.layer.node}) <= budget:
            kept -= {one.layer.node}
    return kept
