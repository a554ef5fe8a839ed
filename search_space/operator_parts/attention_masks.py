"""Kinds of mask that attention takes: which axes of the scores a mask has.

A mask is added to the scores and spread over the axes it lacks.
"""

from collections.abc import Mapping

MASKS: Mapping[str, str] = {
    "row": "bn", "full": "bmn", "shared": "mn", "heads": "hmn", "each": "bhmn"
}  # fmt: skip
"""Axes by kind: sequences, heads, queries, keys."""
