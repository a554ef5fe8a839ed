"""StableHLO files and texts -> `Graph`.

Every fault of a module becomes a `ModelError` of one sentence.
"""

import logging
from collections.abc import Mapping
from pathlib import Path

from tilesmith.capabilities.stablehlo.bindings import parse
from tilesmith.capabilities.stablehlo.translator import Translation
from tilesmith.compiler.driver.front_end import FrontEndModel, format_of
from tilesmith.compiler.graph.graph import Graph
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.files import ending
from tilesmith.search_space.workloads.workload import shape_text

_LOG = logging.getLogger(__name__)


def read_file(path: Path) -> bytes:
    """The bytes of a module's file; `ModelError` where it cannot be read."""
    try:
        return ending(path).read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"model file '{path}' does not exist") from error
    except OSError as error:
        raise ModelError(f"model file '{path}' cannot be read: {error.strerror}") from error


class StableHloModel(FrontEndModel):
    """A module in memory, as the API takes models.

    Args:
        module: MLIR text, bytecode, or a portable artifact.
        name: for messages and reports.
    """

    def __init__(self, module: str | bytes, name: str = "model") -> None:
        self.name, self._module = name, module

    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        return import_stablehlo(self._module, self.name, shapes)


def model_of(source: str | bytes | Path) -> StableHloModel:
    """The model in a module's text or bytes, or in the file that a path names."""
    if isinstance(source, Path) or (isinstance(source, str) and format_of(source.strip())):
        path = Path(source)
        return StableHloModel(read_file(path), path.name)
    return StableHloModel(source)


def input_names(path: Path) -> list[str]:
    """The names of the inputs of a module in a file; errors as `import_stablehlo`."""
    return Translation(parse(read_file(path), path.name), path.name).input_names()


def import_stablehlo(
    module: str | bytes, name: str = "model", shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Graph:
    """The graph of a StableHLO module.

    Args:
        module: MLIR text, bytecode, or a portable artifact.
        name: of the model, for messages and reports.
        shapes: of inputs, by name: sizes of open dimensions; the others as the module says.

    Raises:
        ModelError: it is no valid module, or uses what is not supported.
        DependencyError: jaxlib is not installed.
    """
    translation = Translation(parse(module, name), name)
    translation.fix(shapes or {})
    graph = translation.graph()
    _LOG.info(
        "imported %s, StableHLO: %d nodes, %d constants",
        name, len(graph.nodes), len(graph.constants),
    )  # fmt: skip
    check_shapes(graph, shapes or {})
    return graph


def check_shapes(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `ModelError` where shapes are asked for that a graph of fixed shapes does not have."""
    fixed = {info.name: info.dims for info in graph.inputs}
    for name, shape in shapes.items():
        if name not in fixed:
            raise ModelError(
                f"'{graph.name}' has no input '{name}'; its inputs are {', '.join(fixed)}"
            )
        if fixed[name] != tuple(shape):
            raise ModelError(
                f"input '{name}' of '{graph.name}' has the fixed shape {shape_text(fixed[name])}; "
                f"export the function for {shape_text(shape)}"
            )
