"""Option values: text that can be meant becomes a value, all else one sentence."""

from __future__ import annotations

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.end_to_end.command import invoke
from tilesmith.cli.values import NamedFile, NamedShape, NameList, Setting


@given(st.text("abc:/._", min_size=1), st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_a_shape_survives_writing_and_reading(name: str, dims: list[int]) -> None:
    text = f"{name}={'x'.join(map(str, dims))}"
    assert NamedShape().convert(text, None, None) == (name, tuple(dims))


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (NamedShape(), "x", "not of the form NAME=1x3x224x224"),
        (NamedShape(), "=1x2", "not of the form"),
        (NamedShape(), "x=1x-2", "not of the form"),
        (NamedShape(), "x=1x²", "not of the form"),
        (Setting(), "sbuf.mib", "not of the form KEY=VALUE"),
        (Setting(), "=48", "not of the form KEY=VALUE"),
        (NamedFile(), "x=", "not of the form NAME=FILE.npy"),
        (NameList(("a", "b")), "a,c", "'c' is not one of a, b"),
    ],
)
def test_text_that_means_nothing_is_refused(
    kind: click.ParamType[Any], text: str, expected: str
) -> None:
    with pytest.raises(click.BadParameter, match=expected):
        kind.convert(text, None, None)


def test_values_may_contain_the_separator() -> None:
    assert Setting().convert("isa.flags=+fma=1", None, None) == ("isa.flags", "+fma=1")
    assert NameList(("a", "b")).convert("b,a,b", None, None) == ("b", "a")


@pytest.mark.parametrize(("cores", "remarks"), [(2, True), (64, False), (None, True)])
def test_more_threads_than_cores_are_remarked_on(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, remarks: bool
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    said = invoke("bench", "absent.onnx", "--threads", "64").stderr
    assert (f"64 are more than the {cores or 1} cores here" in said) == remarks
