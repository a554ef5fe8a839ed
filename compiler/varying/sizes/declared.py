"""What a caller declares: a range for each size, and the inputs' shapes as formulas of the sizes.

    shapes={"sequence": (1, 2048)}                       a symbolic dimension of the model by name
    shapes={"input_ids": ((1, 64), (1, 2048))}           an input's axes; those without a name of
                                                         their own are called input_ids_0, ...

Invariants: symbolic dimensions of one name are one size; every axis of every input is a number or
a formula of sizes that have ranges.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from tilesmith.compiler.onnx.files.file import ModelFile
from tilesmith.compiler.onnx.inference.checks import dimension_names, unknown_shape
from tilesmith.compiler.varying.sizes.fitting import Point
from tilesmith.search_space.expressions.expression import Expr, const, var
from tilesmith.search_space.expressions.sizes import Axes, Size, is_size_name, parse_extent
from tilesmith.search_space.support.errors import ModelError, WorkloadError

Extent = int | tuple[int, int]
"""What a caller says of an axis: its size, or the least and the greatest it may have."""

Shapes = Mapping[str, "tuple[Extent, ...]"]
"""By input: an extent for each axis. By symbolic dimension: one extent, or (least, greatest)."""


@dataclass(frozen=True)
class Declared:
    """See the module's docstring.

    Attributes:
        sizes: those that vary, in the order in which inputs name them.
        inputs: shape of each input that was declared.
    """

    sizes: tuple[Size, ...]
    inputs: Mapping[str, tuple[Expr, ...]]

    def shapes(self, point: Point) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes at some sizes."""
        return {
            name: tuple(int(extent.evaluate(point)) for extent in shape)
            for name, shape in self.inputs.items()
        }


def declared_by(file: ModelFile, shapes: Shapes) -> Declared:
    """What `shapes` say of a model's inputs.

    Raises:
        ModelError: an unknown name, a range that is none or contradicts the model, or an axis that
            nothing is said of.
    """
    return _Reader(file, dict(shapes)).declared()


class _Reader:
    def __init__(self, file: ModelFile, shapes: dict[str, tuple[Extent, ...]]) -> None:
        self.file, self.shapes = file, shapes
        stored = {tensor.name for tensor in file.proto.graph.initializer}
        self.given = [
            value for value in file.proto.graph.input
            if value.name not in stored or value.name in shapes
        ]  # fmt: skip
        self.ranges: dict[str, tuple[int, int]] = {}
        """Of dimensions as the model calls them, and of those without a name."""
        self.names: dict[str, str] = {}
        """What sizes are called here."""

    def declared(self) -> Declared:
        inputs = {value.name for value in self.given}
        dims = dimension_names(self.given)
        for name, extents in self.shapes.items():
            if name not in inputs and name not in dims:
                raise unknown_shape(self.file.name, name, self.given)
            if name not in inputs:
                self._set(name, _range_of(name, extents))
        tensors = [value for value in self.given if _is_tensor(value)]
        for value in tensors:
            if value.name in self.shapes:  # first, for they may name what others are given by
                self._shape(value)
        shapes = {value.name: self._shape(value) for value in tensors}
        self._check_derived(shapes)
        sizes = tuple(
            Size(self.names[name], low, high)
            for name, (low, high) in self.ranges.items()
            if low < high and name in self.names
        )
        fixed = {
            self.names[name]: low
            for name, (low, high) in self.ranges.items()
            if low == high and name in self.names
        }
        bound = {
            name: tuple(extent.substitute(fixed) for extent in shape)
            for name, shape in shapes.items()
        }
        return Declared(sizes, bound)

    def _set(self, name: str, ends: tuple[int, int]) -> None:
        if self.ranges.setdefault(name, ends) != ends:
            raise ModelError(
                f"the symbolic dimension '{name}' of '{self.file.name}' is given both as "
                f"{_text(self.ranges[name])} and {_text(ends)}"
            )

    def _shape(self, value: onnx.ValueInfoProto) -> tuple[Expr, ...]:
        said = self.shapes.get(value.name)
        dims = list(_dims(value))
        if said is not None and not value.type.tensor_type.HasField("shape"):
            dims = [onnx.TensorShapeProto.Dimension() for _ in said]
        if said is not None and len(said) != len(dims):
            raise ModelError(
                f"input '{value.name}' of '{self.file.name}' has {len(dims)} axes; "
                f"{len(said)} are given"
            )
        axes = []
        for axis, dim in enumerate(dims):
            extent = None if said is None else said[axis]
            axes.append(self._axis(value.name, axis, dim, extent))
        return tuple(axes)

    def _axis(
        self, name: str, axis: int, dim: onnx.TensorShapeProto.Dimension, said: Extent | None
    ) -> Expr:
        ends = None if said is None else _range_of(name, (said,))
        if dim.HasField("dim_value"):
            if ends not in (None, (dim.dim_value, dim.dim_value)):
                raise ModelError(
                    f"axis {axis} of input '{name}' of '{self.file.name}' is {dim.dim_value}; "
                    f"{_text(ends or (0, 0))} does not fit it"
                )
            return const(dim.dim_value)
        own = dim.dim_param or f"{name}.{axis}"
        if ends is not None:
            self._set(own, ends)
        if own not in self.ranges and (formula := self._formula(dim.dim_param)) is not None:
            return formula
        if own not in self.ranges:
            raise ModelError(
                f"axis {axis} of input '{name}' of '{self.file.name}' has no size; give it one or "
                f"a range, for example --shape {dim.dim_param or name}=1..128"
            )
        return var(self._size(own))

    def _formula(self, text: str) -> Expr | None:
        """A dimension that is written as a formula of others, such as 'past + sequence'."""
        try:
            formula = parse_extent(text.replace(" ", ""))
        except WorkloadError:
            return None
        known = all(name in self.ranges for name in formula.variables())
        if not known or not formula.variables() or is_size_name(text):
            return None
        return formula.substitute({name: var(self._size(name)) for name in formula.variables()})

    def _size(self, name: str) -> str:
        """What a dimension is called in formulas: its own name, made an identifier."""
        if name not in self.names:
            wanted = re.sub(r"\W", "_", name, flags=re.ASCII)
            wanted = wanted if is_size_name(wanted) else f"size_{wanted}"
            while wanted in self.names.values():
                wanted += "_"
            self.names[name] = wanted
        return self.names[name]

    def _check_derived(self, shapes: Mapping[str, tuple[Expr, ...]]) -> None:
        """Every size has to be the whole of some axis, from which a run reads it."""
        plain = {str(extent) for shape in shapes.values() for extent in shape}
        for name, own in self.names.items():
            if own not in plain:
                raise ModelError(
                    f"'{name}' of '{self.file.name}' is no axis of an input by itself, so that "
                    "its value cannot be told; give the axes it is part of as ranges of their own"
                )


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.HasField("tensor_type"))


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _range_of(name: str, extents: tuple[Extent, ...]) -> tuple[int, int]:
    """(least, greatest) of one axis."""
    match extents:
        case Axes() if len(extents) > 1:
            given = "x".join(_text(e if isinstance(e, tuple) else (e, e)) for e in extents)
            raise ModelError(
                f"'{name}' is one symbolic dimension, and {given} are {len(extents)} extents; give "
                "it a size such as 8 or a range such as 1..128, or name an input to give its shape"
            )
        case (int(low), int(high)) | ((int(low), int(high)),):
            pass
        case (int(low),):
            high = low
        case _:
            raise ModelError(
                f"'{name}' is given as {extents!r}; a size or a range such as 1..128 is expected"
            )
    if not 1 <= low <= high:
        raise ModelError(
            f"'{name}' is given the range {low}..{high}; a range from at least 1 is expected"
        )
    return low, high


def _text(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}..{ends[1]}"
