"""`CopiedBox`: elements that lie at regular steps in two arrays, copied from one into the other."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CopiedBox:
    """Elements copied from one flat array into another.

    Attributes:
        names: of the buffers, target and source.
        starts: the first element in each.
        dimensions: extent, and the step in each.
    """

    names: tuple[str, str]
    starts: tuple[int, int]
    dimensions: tuple[tuple[int, int, int], ...]

    def copy(self, target: NDArray[Any], source: NDArray[Any]) -> None:
        """Copy the elements, as they are, from one C-contiguous array into another."""
        size, word = target.itemsize, f"u{target.itemsize}"
        target_view, source_view = (
            np.ndarray(
                [dimension[0] for dimension in self.dimensions], word, array.reshape(-1).view(word),
                start * size, [dimension[side] * size for dimension in self.dimensions],
            )
            for side, start, array in zip((1, 2), self.starts, (target, source), strict=True)
        )  # fmt: skip
        target_view[...] = source_view
