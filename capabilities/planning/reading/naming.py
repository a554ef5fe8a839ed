"""From what a user names to an `Architecture`: a `config.json`, its folder, or an ONNX file."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilesmith.capabilities.planning.architecture import Architecture
from tilesmith.capabilities.planning.configuration import Configuration, read_json
from tilesmith.capabilities.planning.reading.quantisation import stored_as
from tilesmith.capabilities.planning.registry import families
from tilesmith.search_space.support.errors import ModelError

CONFIGURATIONS = ("model_index.json", "config.json")
"""What a folder's model is described by: a pipeline of several models, or one."""


_SHARED = ("_name_or_path", "quantization_config", "tie_word_embeddings")
"""Fields beside `text_config` that apply to it."""

_WHOLE = ("clip",)
"""Families of several models that are read whole."""


def read_architecture(model: str | Path) -> Architecture:
    """The architecture of a configuration, of the folder it lies in, or of an ONNX file.

    Raises:
        ModelError: unreadable, of an unknown family, or a field is missing or impossible.
    """
    path = Path(model)
    if path.is_dir():
        path = next((path / name for name in CONFIGURATIONS if (path / name).exists()), path)
    if path.suffix == ".onnx":
        from tilesmith.capabilities.planning.reading.onnx_graph import architecture_of_graph

        return architecture_of_graph(path)
    return architecture_of(read_configuration(path))


def read_configuration(path: Path) -> Configuration:
    """A configuration file, with the family it names.

    Raises:
        ModelError: it cannot be read, or names no family.
    """
    fields = read_json(path)
    family = fields.get("model_type") or fields.get("_class_name")
    if not isinstance(family, str):
        raise ModelError(
            f"'{path}' names neither a model_type nor a _class_name; one of {', '.join(families)} "
            "is expected"
        )
    return Configuration(str(path), family, fields)


def architecture_of(configuration: Configuration) -> Architecture:
    """What a configuration describes; of a model of several, its language model (`text_config`).

    Raises:
        ModelError: of an unknown family, or a field is missing or impossible.
    """
    reader = families.find(configuration.family)
    text = configuration.fields.get("text_config")
    whole = "hidden_size" in configuration or configuration.family in _WHOLE
    if isinstance(text, Mapping) and not (reader and whole):
        return architecture_of(_of_text(configuration, text))
    if reader is None:
        raise ModelError(
            f"'{configuration.source}' is of the unknown architecture '{configuration.family}'; "
            f"one of {', '.join(families)} is expected"
        )
    return replace(reader(configuration), stored=stored_as(configuration))


def _of_text(whole: Configuration, text: Mapping[str, Any]) -> Configuration:
    """The language model's own configuration; how its weights are stored is said of the whole."""
    family = text.get("model_type") or f"{whole.family}_text"
    shared = {name: whole.fields[name] for name in _SHARED if name in whole.fields}
    return Configuration(whole.source, str(family), {**shared, **text})
