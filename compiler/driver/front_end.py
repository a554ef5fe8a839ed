"""`FrontEndModel`: a model of another framework, wherever the API takes the path of an ONNX file.

A front end (`capabilities/pytorch` is one) reads what its framework has, and gives graphs when
asked; everything behind graphs is the same for all. Invariant: what it is made of does not change,
so that two questions get the same graph. A front end that reads files registers their format
(`formats`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import onnx

from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.files.file import ModelFile, read_model
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.registry import Registry


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


class ModelFormat(ABC):
    """A format of model files beside ONNX's.

    Attributes:
        name: as people write it.
        suffixes: ends of files' names by which it is known.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    @abstractmethod
    def model(self, path: Path) -> FrontEndModel:
        """The model in a file; `ModelError` where it cannot be read."""

    @abstractmethod
    def input_names(self, path: Path) -> list[str]:
        """The names of the model's inputs; errors as `FrontEndModel.graph`."""


formats: Registry[type[ModelFormat]] = Registry("model format", "", ModelError, room="model_format")
"""By the name of the module of each."""


def format_of(model: object) -> ModelFormat | None:
    """The format of a model's file by its name; None for ONNX's, and for models in memory."""
    if isinstance(model, str | Path):
        for known in map(formats.__getitem__, formats):
            if str(model).endswith(known.suffixes):
                return known()
    return None


def onnx_file_of(model: str | Path | onnx.ModelProto | FrontEndModel) -> ModelFile | None:
    """A model in ONNX's form, whichever front end reads it; None where that has no such form.

    Raises:
        ModelError: the file cannot be read.
    """
    if isinstance(model, FrontEndModel):
        return model.file()
    return None if format_of(model) is not None else read_model(model)
