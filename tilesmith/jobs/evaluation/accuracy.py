"""What a precision costs in accuracy: outputs beside those of the same model in fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.compiling import at_one_size, executable_of, random_inputs
from tilesmith.jobs.subjects.calibration_data import Data, ExpectedInput, samples_of
from tilesmith.jobs.subjects.subject import is_artifact
from tilesmith.search_space.expressions.dtypes import to_numpy

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.jobs.measures.output_errors import Accuracy
    from tilesmith.jobs.requests.request import Request

_SAMPLES = 16
"""Samples that are compared: of the data, or random."""


def beside_fp32(request: Request, executable: Executable) -> Accuracy | None:
    """How far an executable's outputs are from those of the request in fp32.

    They are compared on the data that int8 is calibrated with, where it is given, else on seeded
    random inputs. None where there is no model in fp32: an artifact, or a quantised model.
    """
    if request.precision == "fp32" or is_artifact(request.subject):
        return None
    if request.precision == "int8" and request.calibration is None:
        return None
    from tilesmith.jobs.measures.output_errors import accuracy

    in_fp32 = replace(request, precision="fp32", calibration=None)
    plain = at_one_size(executable_of(in_fp32), request.shapes or {})
    samples = _samples(executable, request.calibration)
    return accuracy(executable.run, samples, [plain.run(sample) for sample in samples])


def _samples(executable: Executable, data: Data | None) -> Sequence[Mapping[str, NDArray[Any]]]:
    if data is None:
        return [random_inputs(executable, seed) for seed in range(_SAMPLES)]
    expected = [
        ExpectedInput(info.name, info.dims, np.dtype(to_numpy(info.dtype)))
        for info in executable.inputs
    ]
    samples = samples_of(expected, data)
    chosen = np.random.default_rng(0).permutation(len(samples))[:_SAMPLES]
    return [samples[number] for number in sorted(chosen)]
