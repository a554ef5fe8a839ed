"""Inputs for whoever gives none: seeded random numbers that fit where they become shapes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.compiling import random_inputs
from tilesmith.jobs.requests.graphs import graph_of
from tilesmith.jobs.subjects.subject import is_artifact

if TYPE_CHECKING:
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.jobs.requests.request import Request
    from tilesmith.jobs.subjects.subject import Model


def seeded_inputs(request: "Request", executable: "Executable") -> dict[str, NDArray[Any]]:
    """Inputs of a request's compiled model, by name.

    Raises:
        InputError: an input for which none can be made.
    """
    inputs = random_inputs(executable)
    if not _may_be_shapes(inputs) or is_artifact(request.subject):
        return inputs
    known = {info.name: info.dims for info in executable.inputs}
    model = request.resolved().model
    return fitting_inputs(model, graph_of(model, known))


def given_or_filled(
    request: "Request",
    executable: "Executable",
    given: Mapping[str, NDArray[Any]],
    fill: str | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays given, and others for the inputs that have none.

    Args:
        executable: at one size.
        fill: one of `FILLS`, for what is not given; None: random, if nothing is given at all.

    Raises:
        InputError: as `seeded_inputs`.
    """
    if fill is None and given:
        return dict(given)
    inputs = seeded_inputs(request, executable)
    if fill not in (None, "random"):
        inputs = {name: FILLS[fill](array) for name, array in inputs.items()}
    return {**inputs, **given}


def _iota(like: NDArray[Any]) -> NDArray[Any]:
    """0, 1, 2, ...; from 0 again at 128, which every type of number holds exactly or wraps."""
    return (np.arange(like.size) % 128).astype(like.dtype).reshape(like.shape)


FILLS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "random": lambda like: like,
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "iota": _iota,
}
"""What an input may hold that no array is given for."""


def fitting_inputs(model: "Model", graph: "Graph", seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs of a model as imported; errors as `seeded_inputs`."""
    from tilesmith.compiler.graph.fitting_inputs import fitted

    inputs = random_inputs(graph, seed)
    return fitted(graph, inputs, _declared(model)) if _may_be_shapes(inputs) else inputs


def _may_be_shapes(inputs: Mapping[str, NDArray[Any]]) -> bool:
    return any(a.dtype.kind in "iu" and a.ndim <= 1 for a in inputs.values())


def _declared(model: "Model") -> dict[str, tuple[int, ...]]:
    """Shapes of outputs that an ONNX file states in full."""
    from tilesmith.compiler.driver.front_end import FrontEndModel, onnx_file_of

    file = None if isinstance(model, FrontEndModel) else onnx_file_of(model)
    if file is None:
        return {}
    types = {value.name: value.type.tensor_type for value in file.proto.graph.output}
    shapes = {n: tuple(d.dim_value for d in t.shape.dim) for n, t in types.items()}
    return {n: shape for n, shape in shapes.items() if types[n].HasField("shape") and all(shape)}
