"""How a command line asks for what a request asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilesmith.jobs.requests.request import Request


def option_words(asked: Request) -> list[str]:
    """What a request says of a model beside its target, threads and database, as options.

    Calibration data that are in memory have no word.
    """
    from tilesmith.jobs.requests.varying import shape_words

    words = ["--precision", asked.precision] if asked.precision != "fp32" else []
    if isinstance(asked.calibration, str | Path):
        words += ["--calibration", str(asked.calibration)]
    for name, value in (asked.settings or {}).items():
        words += ["--set", f"{name}={value}"]
    for text in shape_words(asked.shapes or {}):
        words += ["--shape", text]
    return words
