"""The Python API's checks: is a compiled model right, and where is it not.

import tilesmith as ts
report = ts.compare("model.onnx", inputs={"input": x})
report.first_bad, report.tensors[0].error.max_rel
"""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.search_space.hardware.target import HOST, Target

if TYPE_CHECKING:
    from tilesmith.capabilities.fault_finding.bisecting import BisectReport
    from tilesmith.capabilities.fault_finding.comparing import Arrays
    from tilesmith.capabilities.fault_finding.stepping.report import ComparisonReport
    from tilesmith.jobs.subjects.subject import Compiled, Model


@takes(Asked)
def compare(
    model: "Model | Compiled",
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    inputs: "Arrays | None" = None,
    reference: str | None = None,
    tolerance: float | None = None,
    replace: str = "",
    source: "Model | None" = None,
    **asked: Unpack[Asked],
) -> "ComparisonReport":
    """Compare every tensor of a compiled model with a reference's.

    Args:
        model: as `compile` takes it; or an executable, or the path of an artifact.
        database: where tuned schedules are looked up, as `compile`.
        inputs: arrays by name; None: seeded random ones.
        reference: "onnxruntime" (no optimisation on), "onnx" (`onnx.reference`) or "float64"; None:
            the first that is installed.
        tolerance: largest relative error of a float32 tensor that is rounding; None: 1e-3.
        replace: a tensor whose reference value is put in, to see what becomes of the outputs; "":
            of the suspect.
        source: the model that an executable or artifact was compiled from, where that is no file
            beside it (an executable knows the file it was compiled from here).

    Raises:
        InputError: no such reference or tensor, or inputs that do not fit.
        ModelError, TargetError: as `compile`; or the reference does not take the model.
        JobError: the model cannot be computed on these inputs.
    """
    from tilesmith.capabilities.fault_finding.comparing import CompareOptions, compared

    options = CompareOptions(inputs, reference, tolerance, replace, source)
    return compared(Request(model, target, here(database), **asked), options)


@takes(Asked)
def bisect(
    model: "Model",
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    inputs: "Arrays | None" = None,
    reference: str | None = None,
    tolerance: float | None = None,
    reduce: bool = True,
    output: str | Path | None = None,
    **asked: Unpack[Asked],
) -> "BisectReport":
    """Find out which pass, kernel, schedule or place in memory makes a compiled model wrong.

    Args:
        model: as `compile` takes it.
        inputs, reference, tolerance: as `compare`.
        reduce: whether to look for the smallest model that shows it.
        output: a folder that it is written to, with its inputs and the command; not there yet, or
            empty.

    Returns:
        `finding` is None if nothing is wrong.

    Raises:
        InputError: an artifact, inputs that do not fit, or a folder that cannot be written.
        ModelError, TargetError: as `compile`; or the reference does not take the model.
        JobError: the reference cannot compute it.
    """
    from tilesmith.capabilities.fault_finding.bisect_folder import check_folder, write_folder
    from tilesmith.capabilities.fault_finding.bisecting import BisectOptions, bisected

    if output is not None:
        check_folder(Path(output))
    options = BisectOptions(inputs, reference, tolerance, reduce)
    report = bisected(Request(model, target, here(database), **asked), options)
    if output is not None and report.small is not None:
        write_folder(report, Path(output))
    return report
