"""From a compiled request to its order, and the model's file where there is none.

A model in memory is written with its weights, for the artifact that its process exchanges to holds
them. That is done once for each content: processes that hold the same model share the file.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilesmith.capabilities.first_use.orders import (
    OrderFolder,
    OrderState,
    TuningOrder,
    made_private,
)
from tilesmith.compiler.driver.front_end import FrontEndModel, format_of
from tilesmith.compiler.onnx.files.file import weight_files
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.varying.executable import VaryingExecutable
from tilesmith.jobs.compilation.compiling import source_text
from tilesmith.jobs.requests.graphs import updates_of
from tilesmith.jobs.requests.request import Resolved
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.support.files import written

_MODEL, _WEIGHTS = "model.onnx", "model.weights"
_LARGEST = (1 << 31) - 1
"""Bytes of the largest message of protocol buffers."""


@dataclass(frozen=True)
class _Content:
    """What a model in memory is: its operators, and weights beside them."""

    proto: onnx.ModelProto
    weights: dict[str, NDArray[Any]]

    def digest(self) -> str:
        digest = hashlib.sha256(self.proto.SerializeToString(deterministic=True))
        for name in sorted(self.weights):
            array = self.weights[name]
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        return digest.hexdigest()

    def write(self, folder: Path) -> None:
        """The model as an ONNX file, its weights in a file beside it."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.proto)
        tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        with written(folder / _WEIGHTS) as stream:
            for name, array in self.weights.items():
                start = stream.tell()
                stream.write(np.ascontiguousarray(array).view(np.uint8).data)
                where = {"location": _WEIGHTS, "offset": start, "length": stream.tell() - start}
                del tensors[name].external_data[:]
                for key, value in where.items():
                    tensors[name].external_data.add(key=key, value=str(value))
        with written(folder / _MODEL) as stream:
            stream.write(proto.SerializeToString())


def ordered(
    root: Path,
    asked: Resolved,
    executable: Executable | VaryingExecutable,
    database: str,
    one_size: Mapping[str, tuple[int, ...]] | None = None,
) -> OrderFolder:
    """The folder of the order for what was compiled, which is written if it is not there.

    Args:
        one_size: of a model whose sizes vary, the shapes of inputs to make a program for.

    Raises:
        ModelError: the model has no form that another process could read.
        JobError, InputError: a full disk, or a folder that cannot be written.
    """
    model, shapes, content = asked.model, dict(asked.shapes), None
    if isinstance(model, str | Path):
        path = str(Path(model).resolve())
        digest = digest_of_file(Path(path))
    else:
        content = _content_of(model)
        path, digest = _MODEL, content.digest()
        if isinstance(model, FrontEndModel) and isinstance(executable, Executable):
            shapes = {info.name: info.dims for info in executable.inputs if info.known}
    updates = {**updates_of(model), **asked.updates}
    located = database if "://" in database else str(Path(database).resolve())
    order = TuningOrder(
        path, digest, asked.target.to_json(), located, asked.threads, asked.precision, shapes,
        updates, asked.chips, packs=_absolute(asked.packs), bits=asked.bits,
    )  # fmt: skip
    if one_size is not None:
        order = replace(order, shapes=dict(one_size), ranges=shapes)
    folder = OrderFolder(root / order.key)
    made_private(folder.path)
    state = folder.state
    if folder.order is None and (not state.ended or state.failed):
        folder.state = OrderState()
        if content is not None:
            content.write(folder.path)
            order = replace(order, model=str(folder.path / _MODEL))
        folder.write("order.json", order.to_json())
    return folder


def _absolute(packs: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if packs is None:
        return None
    return tuple(str(Path(pack).resolve()) if Path(pack).exists() else pack for pack in packs)


def digest_of_file(path: Path) -> str:
    """What a model's file holds, and which weights lie in files beside it; `ModelError` if it
    cannot be read."""
    digest = hashlib.sha256(source_text(path).encode())
    if format_of(path) is None:
        for file in weight_files(path):
            status = file.stat()
            where = file.relative_to(path.parent)
            digest.update(f"{where} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _content_of(model: "onnx.ModelProto | FrontEndModel") -> _Content:
    if isinstance(model, onnx.ModelProto):
        content = _Content(model, {})
    else:
        file = model.file()
        if file is None:
            raise ModelError(
                f"'{model.name}' is in memory alone, in a form that no file holds; tune it with "
                "tilesmith.tune"
            )
        content = _Content(file.proto, dict(file.held))
    if content.proto.ByteSize() > _LARGEST:
        raise ModelError(
            f"'{content.proto.graph.name}' is larger than an ONNX file may be; save it with its "
            "weights beside it, and compile it by its path"
        )
    return content
