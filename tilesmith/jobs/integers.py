"""The precision int8: models that are quantised already, and those that calibration data quantises.

Integer kernels follow from the Q/DQ pairs in a model, so that "int8" is a property of the model and
not of how its kernels are compiled: what is asked for here becomes another model, of precision
"fp32" from there on (docs/decisions/0045-post-training-quantisation.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.search_space.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tilesmith.jobs.calibration_data import Data
    from tilesmith.jobs.subjects import Model, Subject

INT8 = "int8"


def in_integers(
    subject: Subject,
    precision: str,
    data: Data | None,
    shapes: Mapping[str, tuple[int | tuple[int, int], ...]],
) -> tuple[Subject, str]:
    """The subject and the precision that its kernels are asked for.

    Args:
        precision: as the caller named it.
        data: to calibrate with, if given.
        shapes: as `Request.shapes`.

    Raises:
        InputError: int8 of what is no model, or of one that is not quantised, without data.
        ModelError: the model cannot be read, or has nothing to quantise.
    """
    if precision != INT8:
        if data is not None:
            raise InputError(
                f"calibration data is for the precision int8, and {precision} is asked for"
            )
        return subject, precision
    from tilesmith.jobs.subjects import is_artifact, is_model

    if subject == "" or is_artifact(subject):  # no model, or one that is compiled already
        return subject, "fp32"
    if not is_model(subject):
        raise InputError(
            "the precision int8 is of models; a single operator names its element types, such as "
            "'matmul m=128 n=768 k=768 dtype=uint8 weights=int8'"
        )
    fixed = {name: said for name, said in shapes.items() if all(isinstance(e, int) for e in said)}
    return _quantised(subject, data, fixed), "fp32"  # type: ignore[arg-type]


def _quantised(
    model: Model, data: Data | None, shapes: Mapping[str, tuple[int | tuple[int, int], ...]]
) -> Model:
    from tilesmith.compiler.quantisation.float_model import quantised_by
    from tilesmith.jobs.quantising import QuantiseRequest, file_of, quantised_model

    if quantised_by(file_of(model).proto) is not None:
        return model
    if data is None:
        named = Path(model) if isinstance(model, str | Path) else Path("model.onnx")
        written = named.with_name(f"{named.stem}_int8.onnx")
        raise InputError(
            f"'{named}' is of fp32, and int8 needs scales: quantise it by data first, 'tilesmith "
            f"quantize {named} -o {written} --data DATA', or give the data with --calibration DATA"
        )
    asked = QuantiseRequest(model, data, samples=0, shapes=shapes)
    return quantised_model(asked).model
