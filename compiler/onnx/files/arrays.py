"""Arrays in ONNX files: initialisers, attributes, sparse ones, and those stored beside the file.

Invariant: weights stored outside the file come from inside the model's folder only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, helper, numpy_helper

from tilesmith.compiler.graph.graph import Node
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.workload import shape_text


def one_line(error: Exception) -> str:
    """The text of an error of ONNX's, which may be long and have many lines."""
    return " ".join(str(error).split())[:300]


@dataclass(frozen=True)
class ArrayReader:
    """Reads the arrays of one model.

    Attributes:
        folder: where its files may lie; None for a model from memory.
        model: the model's name, for messages.
        held: weights that are in memory already, by name; the model has their types alone.
    """

    folder: Path | None
    model: str
    held: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def array(self, tensor: onnx.TensorProto) -> NDArray[Any]:
        """A tensor's values.

        Raises:
            ModelError: they lie in a file that cannot be read or is outside the model's folder, or
                they are not as many as the shape says.
        """
        if tensor.name and tensor.name in self.held:
            return self.held[tensor.name]
        if external_data_helper.uses_external_data(tensor):
            tensor = self._with_external_data(tensor)
        try:
            array = numpy_helper.to_array(tensor)
            if array.shape != tuple(tensor.dims):  # a negative extent, which numpy fills in
                raise ValueError(array.shape)
            return array
        except KeyError as error:
            raise ModelError(
                f"weight '{tensor.name}' of '{self.model}' is of the dtype number "
                f"{tensor.data_type}, which is none of ONNX's; export the model anew"
            ) from error
        except (ValueError, TypeError) as error:
            raise ModelError(
                f"weight '{tensor.name}' of '{self.model}' does not hold as many numbers as its "
                f"shape {shape_text(tensor.dims)} says; the file may be truncated"
            ) from error

    def dense(self, sparse: onnx.SparseTensorProto) -> NDArray[Any]:
        """A sparse tensor's values, zeros between them."""
        values, indices = self.array(sparse.values), self.array(sparse.indices)
        try:
            dense = np.zeros(tuple(sparse.dims), dtype=values.dtype)
            if indices.ndim == 1:
                dense.reshape(-1)[indices] = values
            else:
                dense[tuple(indices.T)] = values
        except (ValueError, IndexError, MemoryError) as error:
            raise ModelError(
                f"the indices of the sparse weight '{sparse.values.name}' of '{self.model}' do not "
                f"fit its shape {shape_text(sparse.dims)}; export the model anew"
            ) from error
        return dense

    def embed(self, graph: onnx.GraphProto) -> None:
        """Put what lies in other files into the graph, for those who do not know the folder."""
        for tensor in _tensors(graph):
            if external_data_helper.uses_external_data(tensor):
                tensor.CopyFrom(self._with_external_data(tensor))

    def _is_inside(self, where: str) -> bool:
        return self.folder is not None and (self.folder / where).resolve().is_relative_to(
            self.folder
        )

    def _with_external_data(self, tensor: onnx.TensorProto) -> onnx.TensorProto:
        where = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
        if self.folder is None:
            raise ModelError(
                f"weight '{tensor.name}' is stored in the file '{where}'; import it by its path"
            )
        if not where or "\0" in where or not self._is_inside(where):
            raise ModelError(
                f"weight '{tensor.name}' of '{self.model}' is stored in '{where}', outside the "
                "model's folder; only files inside it are read"
            )
        whole = onnx.TensorProto()
        whole.CopyFrom(tensor)
        try:
            external_data_helper.load_external_data_for_tensor(whole, str(self.folder))
        except Exception as error:  # OSError, ValueError and what onnx's C++ part raises
            raise ModelError(
                f"weight '{tensor.name}' of '{self.model}' cannot be read: {one_line(error)}"
            ) from error
        whole.data_location = onnx.TensorProto.DEFAULT
        del whole.external_data[:]
        return whole


def typed_only(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    """An initialiser of the array's type without its values, for a reader that holds them."""
    tensor = onnx.TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
    tensor.dims.extend(array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return tensor


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor in a graph, those of nested graphs included."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def constant_value(node: Node) -> NDArray[Any]:
    """The array of a `Constant` node, whichever attribute holds it."""
    (name, value), *_ = node.attributes
    if name in ("value", "sparse_value"):
        return np.asarray(value)
    dtype: Any = None
    if name.startswith("value_float"):
        dtype = np.float32
    elif name.startswith("value_int"):
        dtype = np.int64
    return np.array(value, dtype=dtype)
