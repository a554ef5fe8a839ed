"""From a model, whichever front end reads it, to its graph."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tilesmith.jobs.requests.varying import varying_of
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.jobs.requests.request import Shapes
    from tilesmith.jobs.subjects.subject import Model


def updates_of(model: "Model") -> Mapping[str, str]:
    """What a front end's model says that a run leaves in its inputs; nothing for a file."""
    from tilesmith.compiler.driver.front_end import FrontEndModel

    return model.updates if isinstance(model, FrontEndModel) else {}


def graph_of(model: "Model", shapes: "Shapes") -> "Graph":
    """The graph of a model, whichever front end reads it; errors as `import_model`.

    Raises:
        InputError: `shapes` holds ranges, and one size is needed.
    """
    from tilesmith.compiler.driver.front_end import FrontEndModel, format_of
    from tilesmith.compiler.onnx.importer import import_file, import_model

    varying = varying_of(model, shapes)
    if varying is not None:
        if varying.declared.sizes:
            raise InputError(
                f"'{varying.declared.sizes[0].name}' is given a range, and this needs one size; "
                f"write for example --shape {varying.declared.sizes[0].name}=128"
            )
        return import_file(varying.file, varying.declared.shapes({})).graph
    fixed: Mapping[str, tuple[int, ...]] = shapes  # type: ignore[assignment]
    if (format := format_of(model)) is not None:
        model = format.model(Path(model))  # type: ignore[arg-type]
    return model.graph(fixed) if isinstance(model, FrontEndModel) else import_model(model, fixed)
