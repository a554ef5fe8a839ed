"""What parent and worker say to each other: one JSON object a line, no pickle.

A request names an operation and its arguments; a reply carries results. Configurations, workloads
and targets travel as the texts they are stored as.
"""

from __future__ import annotations

import json
from typing import Any

from tilesmith.search_space.results.measure import MeasureResult


def line(message: dict[str, Any]) -> bytes:
    """A message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def result_to_json(result: MeasureResult) -> dict[str, Any]:
    """A result as JSON values."""
    return vars(result).copy()


def result_from_json(values: dict[str, Any]) -> MeasureResult:
    """Undo `result_to_json`."""
    samples = tuple(values["samples"])
    warm = tuple(values["warm_samples"])
    return MeasureResult(**{**values, "samples": samples, "warm_samples": warm})
