"""What is typed for a kernel's arguments becomes shapes, arrays and values, or a sentence."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest

from tilesmith.capabilities.nki.commands.nki import Argument


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("x=128x512", ((128, 512), "float32")),
        ("x=4x6x8:bfloat16", ((4, 6, 8), "bfloat16")),
        ("g=512:float16", ((512,), "float16")),
        ("eps=1e-6", 1e-6),
        ("pool=2", 2),
        ("shape=(3, 4)", (3, 4)),
        ("mask=None", None),
        ("mode='fast'", "fast"),
    ],
)
def test_values(word: str, value: object) -> None:
    assert Argument().convert(word, None, None) == (word.partition("=")[0], value)


def test_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0))
    name, array = Argument().convert(f"x={tmp_path / 'x.npy'}", None, None)
    assert name == "x" and array.tolist() == list(range(6))


@pytest.mark.parametrize("word", ["x", "=3", "x=", "x=3 4", "x=import os"])
def test_what_is_none(word: str) -> None:
    with pytest.raises(click.UsageError):
        Argument().convert(word, None, None)
