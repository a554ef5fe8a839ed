"""Values of options: text on the command line becomes what is meant, or one sentence.

Invariant: what is a value of the kind already passes unchanged.
"""

import math
import re
from typing import Any

import click

from tilesmith.jobs.requests.request import PRECISIONS

Shape = tuple["int | tuple[int, int]", ...]


class NamedShape(click.ParamType["tuple[str, Shape]"]):
    """`NAME=1x3x224x224`: an input's shape; becomes (name, dimensions).

    `NAME=1..64` is a range of a symbolic dimension, `NAME=1..64x128` has one for an input's axis.
    """

    name = "NAME=1x3x224x224"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Shape]:
        from tilesmith.search_space.expressions.sizes import Axes

        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        extents = [_EXTENT.fullmatch(part) for part in text.lower().split("x")]
        if not equals or not name or not all(extents):
            self.fail(
                f"'{value}' is not of the form NAME=1x3x224x224, or NAME=1..64 for a range",
                param, ctx,
            )  # fmt: skip
        shape = tuple(_extent(part) for part in extents if part is not None)
        for extent in shape:
            if isinstance(extent, tuple) and not 1 <= extent[0] <= extent[1]:
                self.fail(
                    f"'{value}' has the range {extent[0]}..{extent[1]}; ranges begin at 1 or more, "
                    "the least comes first",
                    param, ctx,
                )  # fmt: skip
        return name, Axes(shape)


class NamedPair(click.ParamType["tuple[str, str]"]):
    """`INPUT=OUTPUT`: two tensors; becomes their names."""

    name = "INPUT=OUTPUT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        first, _, second = str(value).partition("=")
        if not first or not second:
            self.fail(f"'{value}' is not of the form INPUT=OUTPUT", param, ctx)
        return first, second


_EXTENT = re.compile(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", re.ASCII)


def _extent(extent: re.Match[str]) -> int | tuple[int, int]:
    return int(extent[1]) if extent[2] is None else (int(extent[1]), int(extent[2]))


class Setting(click.ParamType["tuple[str, str]"]):
    """`KEY=VALUE`; becomes (key, text)."""

    name = "KEY=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key or not text:
            self.fail(f"'{value}' is not of the form {self.name}", param, ctx)
        return key, text


class Quantity(click.FloatRange):
    """A finite number that is not negative, or at least `min`."""

    name = "number"

    def __init__(self, min: float = 0.0) -> None:
        super().__init__(min=min)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Precision(click.Choice[str]):
    """A precision, by any of its names."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(super().convert(PRECISIONS.get(str(value).lower(), value), param, ctx))


class ByteSize(click.ParamType["int"]):
    """`4096`, `64KiB`, `1.5MB`; becomes bytes."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value))
        size = float(match[1]) * _UNITS[match[2].upper()] if match else 0.0
        if not 1 <= size <= 2**60:
            self.fail(f"'{value}' is no size in bytes such as 4096, 64KiB or 1GiB", param, ctx)
        return int(size)


_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?((?:[KMGT]i?)?B?)", re.ASCII | re.IGNORECASE)
_UNITS = {
    **{f"{prefix}{end}": 1000**i for i, prefix in enumerate(("", *"KMGT")) for end in ("", "B")},
    **{f"{prefix}I{end}": 1024**i for i, prefix in enumerate("KMGT", 1) for end in ("", "B")},
}


class NamedFile(Setting):
    """`NAME=FILE.npy`; becomes (name, path)."""

    name = "NAME=FILE.npy"


class NameList(click.ParamType["tuple[str, ...]"]):
    """`a,b,c` out of a fixed set of names; becomes a tuple without repetitions."""

    name = "NAME,NAME"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self.allowed = allowed

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(str(value).split(",")))
        for name in names:
            if name not in self.allowed:
                self.fail(f"'{name}' is not one of {', '.join(self.allowed)}", param, ctx)
        return names
