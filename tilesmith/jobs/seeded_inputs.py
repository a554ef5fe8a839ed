"""Inputs for whoever gives none: seeded random numbers, that fit where they become shapes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tilesmith.jobs.compiling import random_inputs
from tilesmith.jobs.graphs import graph_of
from tilesmith.jobs.subjects import is_artifact

if TYPE_CHECKING:
    from tilesmith.compiler.executable import Executable
    from tilesmith.compiler.graph import Graph
    from tilesmith.jobs.request import Request
    from tilesmith.jobs.subjects import Model


def seeded_inputs(request: Request, executable: Executable) -> dict[str, NDArray[Any]]:
    """Inputs of a request's compiled model, by name.

    Raises:
        InputError: an input for which none can be made.
    """
    found = random_inputs(executable)
    if not _may_be_shapes(found) or is_artifact(request.subject):
        return found
    known = {info.name: info.dims for info in executable.inputs}
    model = request.resolved().model
    return fitting_inputs(model, graph_of(model, known))


def fitting_inputs(model: Model, graph: Graph, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs of a model as imported; errors as `seeded_inputs`."""
    from tilesmith.compiler.fitting_inputs import fitted

    found = random_inputs(graph, seed)
    return fitted(graph, found, _declared(model)) if _may_be_shapes(found) else found


def _may_be_shapes(inputs: Mapping[str, NDArray[Any]]) -> bool:
    return any(a.dtype.kind in "iu" and a.ndim <= 1 for a in inputs.values())


def _declared(model: Model) -> dict[str, tuple[int, ...]]:
    """Shapes of outputs that an ONNX file states in full."""
    from tilesmith.compiler.front_end import FrontEndModel
    from tilesmith.compiler.onnx.file import read_model
    from tilesmith.compiler.stablehlo.importer import is_stablehlo

    if isinstance(model, FrontEndModel) or (isinstance(model, str | Path) and is_stablehlo(model)):
        return {}
    types = {value.name: value.type.tensor_type for value in read_model(model).proto.graph.output}
    shapes = {n: tuple(d.dim_value for d in t.shape.dim) for n, t in types.items()}
    return {n: shape for n, shape in shapes.items() if types[n].HasField("shape") and all(shape)}
