"""Running the float32 model over data, and what its tensors hold meanwhile."""

from collections.abc import Sequence

import numpy as np

from tilesmith.capabilities.quantisation.numbers.histograms import Histogram
from tilesmith.capabilities.quantisation.search.emulation import Arrays, Floats
from tilesmith.search_space.support.errors import InputError


def observed(model: Floats, seen: Sequence[str], samples: Sequence[Arrays]) -> dict[str, Histogram]:
    """Histograms of tensors over samples.

    Args:
        seen: the tensors, which the model gives.

    Raises:
        InputError: a sample makes a number that is not finite.
    """
    histograms = {name: Histogram() for name in seen}
    for number, sample in enumerate(samples):
        outputs = model.run(sample)
        for name, histogram in histograms.items():
            if not np.isfinite(outputs[name]).all():
                raise InputError(
                    f"tensor '{name}' of the model holds a number that is not finite on sample "
                    f"{number} of the calibration data, and no scale covers that; leave the node "
                    "that reads it out with --keep-node, or mend the data"
                )
            histogram.add(outputs[name])
    return histograms


def refuse_infinite(samples: Sequence[Arrays]) -> None:
    """Refuse samples that are not finite in a sentence."""
    for number, name, value in (
        (number, name, value)
        for number, sample in enumerate(samples)
        for name, value in sample.items()
    ):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise InputError(
                f"input '{name}' holds infinities or not-a-number in sample {number} of the "
                "calibration data; calibrate with the finite numbers that the model is used on"
            )
