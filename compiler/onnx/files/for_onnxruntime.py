"""Models as onnxruntime takes them: files of a format newer than its own, too.

onnxruntime refuses a model whose `ir_version` it does not know, though the nodes may all be old:
the onnx package writes its newest version by default, and is often ahead. Invariant: nodes, weights
and opsets stay what they are; only the number is lowered.
"""

import os
from pathlib import Path
from typing import Any

import onnx

from tilesmith.search_space.support.errors import ModelError

TAKEN = 10
"""A version of the format (onnx 1.16) that every onnxruntime since 1.18 takes."""

_EXTERNAL = "session.model_external_initializers_file_folder_path"


def prepared(model: str | Path | onnx.ModelProto, options: Any) -> onnx.ModelProto:
    """A copy that a session can be made of; `options` are told where external weights lie.

    Args:
        model: a file, whose external weights stay where they are, or a loaded model.
        options: `onnxruntime.SessionOptions` of the session.

    Raises:
        ModelError: onnxruntime takes no such path.
    """
    proto = onnx.ModelProto()
    if isinstance(model, onnx.ModelProto):
        proto.CopyFrom(model)
    else:
        proto.ParseFromString(Path(model).read_bytes())
        folder = str(Path(model).resolve().parent)
        if folder.encode(errors="ignore") != os.fsencode(folder):
            raise ModelError(f"onnxruntime takes no path that is not UTF-8, as '{model}'; move it")
        options.add_session_config_entry(_EXTERNAL, folder)
    proto.ir_version = min(proto.ir_version, TAKEN)
    return proto


def as_given(model: Path, options: Any) -> str | bytes:
    """A file's name where onnxruntime takes the file as it is, else what `prepared` makes of it."""
    if onnx.load(model, load_external_data=False).ir_version <= TAKEN:
        return str(model)
    return bytes(prepared(model, options).SerializeToString())
