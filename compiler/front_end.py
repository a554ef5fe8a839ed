"""`FrontEndModel`: a model of another framework, wherever the API takes the path of an ONNX file.

A front end (`compiler/pytorch` is one) reads what its framework has, and gives graphs when asked;
everything behind graphs is the same for all. Invariant: what it is made of does not change, so that
two questions get the same graph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tilesmith.compiler.graph import Graph
from tilesmith.compiler.onnx.file import ModelFile


class FrontEndModel(ABC):
    """A model in memory that a front end made.

    Attributes:
        name: for messages, and for the graph.
    """

    name: str

    @abstractmethod
    def graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The model as ONNX operators.

        Args:
            shapes: of inputs by name; as for `import_model`.

        Raises:
            ModelError: the model cannot be brought to a graph, or `shapes` does not fit it.
        """

    @property
    def updates(self) -> Mapping[str, str]:
        """By input the output that its array is to hold after a run."""
        return {}

    def file(self) -> ModelFile | None:
        """The model in ONNX's form, for those who look at it at many sizes; None: it has none."""
        return None
