"""Quantising a float32 model by data: what `tilesmith quantize` and `tilesmith.quantize` do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilesmith.capabilities.quantisation.numbers.narrow import OPSET as NARROW_OPSET
from tilesmith.capabilities.quantisation.precisions.choosing import AIMS
from tilesmith.capabilities.quantisation.precisions.job import check_aim, with_precisions
from tilesmith.capabilities.quantisation.preparation.float_model import OPSET, float_model
from tilesmith.capabilities.quantisation.search.quantise import (
    Quantised,
    QuantiseOptions,
    quantised,
)
from tilesmith.jobs.databases import BY_DEFAULT, Named, located
from tilesmith.jobs.subjects.calibration_data import (
    Data,
    expected_inputs,
    random_samples,
    samples_of,
)
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.hardware.target import HOST
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.search_space.support.files import check_output, written
from tilesmith.search_space.support.json_object import JsonObject

if TYPE_CHECKING:
    import onnx

    from tilesmith.compiler.onnx.files.file import ModelFile
    from tilesmith.jobs.subjects.subject import Model

_MOST_BYTES = 2**31 - 2**20
"""What protobuf writes in one piece; weights of larger models lie beside it."""


@dataclass(frozen=True)
class QuantiseRequest(QuantiseOptions):
    """A model, data, and how it is to be quantised.

    Attributes:
        model: as `api.quantize`.
        data: see `calibration_data`; None with `random`.
        random: how many random samples, drawn with `seed`, stand in for data.
        shapes: of inputs by name, or sizes of symbolic dimensions by theirs.
        database: where kernels' times are looked up and kept, for latency.
        plan: precisions by layer, or a file of them, in place of a choice.
    """

    model: "Model"
    data: Data | None = None
    random: int = field(default=0, kw_only=True)
    shapes: Mapping[str, Sequence[Any]] | None = field(default=None, kw_only=True)
    database: Named = field(default=BY_DEFAULT, kw_only=True, repr=False)
    plan: Mapping[str, str] | str | Path | None = field(default=None, kw_only=True)

    @property
    def mixed(self) -> bool:
        """Whether each layer has a precision of its own."""
        return self.minimise != "work" or self.plan is not None


@dataclass(frozen=True)
class QuantisedModel(
    JsonObject,
    keys="layers:_layers kept:report.kept error:report.accuracy.error "
    "sqnr_db:report.accuracy.sqnr_db max_abs_err:report.accuracy.largest "
    "top1_agreement:report.accuracy.top1 weight_error:report.weight_error "
    "calibrated_samples:report.calibrated measured_samples:report.measured "
    "float_bytes:report.float_bytes quantised_bytes:report.quantised_bytes "
    "sensitivities:report.sensitivities precisions:report.precisions?",
):
    """A quantised model and the report on it; give `model` to `compile`.

    Attributes:
        model: ONNX, with Q/DQ pairs or weights in blocks; onnxruntime runs it, too.
        report: layers, sensitivities, accuracy, sizes.
    """

    model: "onnx.ModelProto"
    report: Quantised

    @property
    def _layers(self) -> list[str]:
        return [layer.node for layer in self.report.layers]

    def save(self, path: str | Path) -> None:
        """Write the model; weights beyond 2 GiB lie in a file beside it.

        Raises:
            InputError: the path cannot be written.
            JobError: the disk is full.
        """
        write_model(self.model, Path(path))


def quantised_model(
    asked: QuantiseRequest, watch: Callable[[str], None] = lambda text: None
) -> QuantisedModel:
    """Calibrate and quantise; errors as `api.quantize`."""
    _check(asked)
    model = float_model(file_of(asked.model), NARROW_OPSET if asked.mixed else OPSET)
    inputs = expected_inputs(model.inputs, asked.shapes or {})
    samples = [] if asked.data is None else samples_of(inputs, asked.data)
    if asked.random:
        samples = random_samples(inputs, asked.random, asked.seed)
    target = resolve_target(HOST)
    if not asked.mixed:
        report = quantised(model, samples, target, asked, watch)
        return QuantisedModel(report.model, report)
    where = (
        located(asked.database, makes=asked.plan is None).location
        if asked.minimise != "size"
        else None
    )
    report = with_precisions(model, samples, target, asked, where, asked.plan, watch)
    return QuantisedModel(report.model, report)


def _check(asked: QuantiseRequest) -> None:
    if asked.minimise not in ("work", *AIMS):
        raise InputError(
            f"minimise = '{asked.minimise}' is unknown; 'work', {' or '.join(map(repr, AIMS))} is "
            "expected"
        )
    if asked.mixed:
        check_aim(asked, asked.plan is not None)
    if asked.data is not None and asked.random:
        raise InputError("give either calibration data or a number of random samples, not both")
    free = asked.weights and asked.budget is None and not asked.sensitivities
    if asked.data is None and not asked.random and not free:
        raise InputError(
            "quantising needs calibration data: give arrays of the model's inputs (--data), or, to "
            "try it, a number of random samples (--random)"
        )
    wanted = asked.budget is not None or asked.sensitivities or asked.mixed
    if asked.samples < wanted:
        raise InputError(f"samples = {asked.samples} is out of range; at least {int(wanted)}")
    if asked.budget is not None and not 0 <= asked.budget < np.inf:
        raise InputError(
            f"budget = {asked.budget} is out of range; 0 or more, such as 0.02 for 2 % of the "
            "outputs' norm"
        )


def file_of(model: "Model") -> "ModelFile":
    """A model as ONNX, from whichever front end.

    Raises:
        ModelError: it cannot be read, or is none of ONNX.
    """
    from tilesmith.compiler.driver.front_end import onnx_file_of

    file = onnx_file_of(model)
    if file is None:
        raise ModelError(
            "models of StableHLO cannot be quantised; export the model as ONNX, in which pairs of "
            "QuantizeLinear and DequantizeLinear are written"
        )
    return file


def write_model(model: "onnx.ModelProto", path: Path) -> None:
    """Write a model whole or not at all; errors as `QuantisedModel.save`."""
    check_output(path)
    tensors = list(model.graph.initializer)
    if sum(len(tensor.raw_data) for tensor in tensors) <= _MOST_BYTES:
        with written(path) as file:
            file.write(model.SerializeToString())
        return
    beside = path.with_name(path.name + ".data")
    check_output(beside)
    bare = type(model)(ir_version=model.ir_version, producer_name=model.producer_name)
    bare.opset_import.extend(model.opset_import)
    for part in ("node", "input", "output"):
        getattr(bare.graph, part).extend(getattr(model.graph, part))
    bare.graph.name = model.graph.name
    with written(beside) as file:
        for tensor in tensors:
            entry = bare.graph.initializer.add(name=tensor.name, data_type=tensor.data_type)
            entry.dims.extend(tensor.dims)
            _refer(entry, beside.name, file.tell(), len(tensor.raw_data))
            file.write(tensor.raw_data)
    with written(path) as file:
        file.write(bare.SerializeToString())


def _refer(tensor: "onnx.TensorProto", location: str, offset: int, length: int) -> None:
    """Say where a tensor's bytes lie."""
    tensor.data_location = tensor.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
