"""The precision int8: models that are quantised already, and those that calibration data quantises.

Integer kernels follow from the Q/DQ pairs in a model, so that "int8" is a property of the model and
not of how its kernels are compiled: what is asked for here becomes another model, of precision
"fp32" from there on (docs/decisions/0045-post-training-quantisation.md). A `Quantiser`, which a
capability registers, makes it. Nobody else runs that model, so that what a layer adds to a residual
is not rounded first (docs/decisions/0076-sums-that-stay-unrounded.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.search_space.support.errors import InputError, WorkloadError
from tilesmith.search_space.support.extensions import absent
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.workload import Workload

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.calibration_data import Data
    from tilesmith.jobs.subjects.subject import Model

    Shapes = Mapping[str, tuple[int | tuple[int, int], ...]]
    from collections.abc import Callable, Mapping

    from tilesmith.jobs.subjects.subject import Subject


class Quantiser(ABC):
    """Makes quantised models."""

    @abstractmethod
    def is_quantised(self, model: "Model") -> bool:
        """Whether a model is one of bytes already.

        Raises:
            ModelError: it cannot be read, or is none of ONNX.
        """

    @abstractmethod
    def quantised(self, model: "Model", data: "Data", shapes: "Shapes") -> "Model":
        """A model of float32 as one of bytes, for nobody but our own kernels.

        Args:
            data: to calibrate with.
            shapes: of inputs by name, or sizes of symbolic dimensions by theirs.

        Raises:
            ModelError: the model cannot be read, or has nothing to quantise.
            InputError: the data are not of this model.
        """


quantisers: Registry[type[Quantiser]] = Registry("quantiser", "", room="quantiser")


def quantiser() -> Quantiser:
    """The one that is installed; `DependencyError` if there is none."""
    for name in quantisers:
        return quantisers[name]()
    raise absent("quantisation", "the precision int8")


INT8 = "int8"


def in_integers(
    subject: "Subject",
    precision: str,
    data: "Data | None",
    shapes: Mapping[str, tuple[int | tuple[int, int], ...]],
) -> "tuple[Subject, str]":
    """The subject and the precision that its kernels are asked for.

    Args:
        precision: as the caller named it.
        data: to calibrate with, if given.
        shapes: as `Request.shapes`.

    Raises:
        InputError: int8 of what is no model, or of one that is not quantised, without data.
        ModelError: the model cannot be read, or has nothing to quantise.
    """
    from tilesmith.jobs.subjects.subject import is_artifact, is_model

    if precision != INT8:
        if data is not None:
            raise InputError(
                f"calibration data is for the precision int8, and {precision} is asked for"
            )
        if precision != "fp32" and not is_model(subject):
            return _operators(subject, lambda one: _narrow(one, precision)), precision
        return subject, precision
    if subject == "" or is_artifact(subject):  # no model, or one that is compiled already
        return subject, "fp32"
    if not is_model(subject):
        return _operators(subject, _of_bytes), "fp32"
    fixed = {name: said for name, said in shapes.items() if all(isinstance(e, int) for e in said)}
    return _quantised(subject, data, fixed), "fp32"  # type: ignore[arg-type]


def _operators(subject: "Subject", change: "Callable[[Workload], Workload]") -> "Subject":
    """Single operators, each changed."""
    if isinstance(subject, Workload):
        return change(subject)
    return [change(one) for one in subject]  # type: ignore[union-attr, arg-type]


def _narrow(workload: Workload, precision: str) -> Workload:
    """An operator of float32 with its elements in a precision; others have theirs by name."""
    from tilesmith.compiler.numerics.precision import check_precision, in_precision, precision_dtype

    check_precision(precision)
    return in_precision(workload, precision_dtype(precision), precision_dtype("fp32"))


def _of_bytes(workload: Workload) -> Workload:
    """A product of float32 as one of bytes, as quantised models have them.

    Raises:
        InputError: the operator has no such form.
    """
    from tilesmith.compiler.numerics.precision import precision_dtype

    if workload.dtype != precision_dtype("fp32"):
        return workload  # it has its element types by name
    given = dict(workload.parameters)
    if "weights" not in given:
        raise InputError(
            f"the precision int8 is of models and of products; operator '{workload.operator}' has "
            "no integer form, it names its element type with dtype="
        )
    try:
        return Workload.of(
            workload.operator,
            {**given, "weights": "int8"},
            dtype="uint8",
            constants=workload.constants,
            epilogue=workload.epilogue,
        )
    except WorkloadError as error:
        raise WorkloadError(f"'{workload}' in int8: {error}") from error


def _quantised(
    model: "Model", data: "Data | None", shapes: Mapping[str, tuple[int | tuple[int, int], ...]]
) -> "Model":

    known = quantiser()
    if known.is_quantised(model):
        return model
    if data is None:
        named = Path(model) if isinstance(model, str | Path) else Path("model.onnx")
        written = named.with_name(f"{named.stem}_int8.onnx")
        raise InputError(
            f"'{named}' is of fp32, and int8 needs scales: quantise it by data first, 'tilesmith "
            f"quantize {named} -o {written} --data DATA', or give the data with --calibration DATA"
        )
    return known.quantised(model, data, shapes)
