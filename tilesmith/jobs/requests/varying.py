"""Jobs on models whose sizes vary: what is asked for, built, tuned and fed.

asked = varying_of("model.onnx", {"sequence": (1, 2048)})      None where nothing varies
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilesmith.jobs.subjects.subject import is_artifact
from tilesmith.search_space.support.errors import InputError, ModelError, TilesmithError
from tilesmith.search_space.workloads.workload import shape_text

if TYPE_CHECKING:
    import onnx

    from tilesmith.compiler.graph.graph import Graph
    from tilesmith.compiler.onnx.files.file import ModelFile
    from tilesmith.compiler.varying.executable import VaryingExecutable
    from tilesmith.compiler.varying.sizes.declared import Declared
    from tilesmith.jobs.requests.request import Request, Resolved, Shapes
    from tilesmith.jobs.subjects.subject import Model


@dataclass(frozen=True)
class Varying:
    """A model and ranges of its sizes."""

    file: "ModelFile"
    declared: "Declared"


def varying_of(model: "Model", shapes: "Shapes") -> Varying | None:
    """What a caller says of a model's sizes; None where `shapes` are inputs' shapes in numbers.

    Raises:
        ModelError: a name, range or shape does not fit the model.
    """
    if not shapes:
        return None
    fixed = all(_is_fixed(extents) for extents in shapes.values())
    if fixed and not _names_sizes(model, shapes):
        return None
    from tilesmith.compiler.driver.front_end import onnx_file_of

    file = onnx_file_of(model)
    if file is None:
        raise ModelError("this model's sizes cannot vary; give every size one value")
    from tilesmith.compiler.varying.sizes.declared import declared_by

    return Varying(file, declared_by(file, shapes))


def shapes_of_each(models: Sequence[str], shapes: "Shapes") -> "list[Shapes]":
    """Of shapes that several models are given at once, those that are each one's own.

    Args:
        models: paths of models or artifacts.

    Raises:
        InputError: no model has an input or a size of some name.
    """
    if len(models) == 1 or not shapes:
        return [shapes for _ in models]  # who reads it says what does not fit it
    known = [_names_of(model) for model in models]
    for name in shapes:
        if all(names is not None and name not in names for names in known):
            each = "; ".join(
                f"'{model}' has {', '.join(names or ()) or 'none'}"
                for model, names in zip(models, known, strict=True)
            )
            raise InputError(f"no model has an input or a symbolic dimension '{name}': {each}")
    return [
        shapes if names is None else {n: said for n, said in shapes.items() if n in names}
        for names in known
    ]


def _names_of(model: str) -> list[str] | None:
    """What the shapes of a model are given by; None where it cannot be read."""
    from tilesmith.compiler.driver.front_end import format_of
    from tilesmith.compiler.varying.executable import load

    if (format := format_of(model)) is not None:
        return format.input_names(Path(model))
    if is_artifact(model):
        try:
            loaded = load(model)
        except TilesmithError:  # who runs it says what is wrong
            return None
        sizes = [size.name for size in getattr(loaded.recipe, "sizes", ())]
        return [*(info.name for info in loaded.inputs), *sizes]
    proto = _glance(model)
    if proto is None:
        return None
    dims = {d.dim_param for v in proto.graph.input for d in v.type.tensor_type.shape.dim}
    return list(dict.fromkeys([*(v.name for v in proto.graph.input), *sorted(dims - {""})]))


def _is_fixed(extents: Any) -> bool:
    return isinstance(extents, tuple | list) and all(isinstance(e, int) for e in extents)


def _names_sizes(model: "Model", shapes: "Shapes") -> bool:
    """Whether symbolic dimensions are named, and not only inputs."""
    proto = _glance(model)
    if proto is None:
        return False
    given = proto.graph.input
    dims = {d.dim_param for value in given for d in value.type.tensor_type.shape.dim}
    return not shapes.keys().isdisjoint(dims - {value.name for value in given})


def _glance(model: "Model") -> "onnx.ModelProto | None":
    """A model's file without a check of it; None where it cannot be parsed, or is no such file."""
    import onnx

    from tilesmith.compiler.driver.front_end import FrontEndModel
    from tilesmith.compiler.onnx.files.file import parsed

    if isinstance(model, FrontEndModel):
        file = model.file()
        return None if file is None else file.proto
    if isinstance(model, onnx.ModelProto):
        return model
    try:
        return parsed(Path(model))[0]
    except Exception:  # whatever protobuf raises; who reads it in earnest says what is wrong
        return None


def typical_graphs(varying: Varying, asked: "Resolved") -> "list[tuple[Graph, str]]":
    """The kernels at one choice of sizes for each region of them, and the sizes as text: what a
    tuner has to tune."""
    from tilesmith.compiler.driver.build import BuildOptions, Schedules
    from tilesmith.compiler.varying.build import typical
    from tilesmith.compiler.varying.sizes.fitting import text_of

    options = BuildOptions(asked.threads, asked.precision, bits=asked.bits)
    tuned = asked.database is not None
    points = typical(
        varying.file, varying.declared, Schedules(asked.target, None, options, tuned=tuned)
    )
    return [(graph, text_of(point)) for point, graph in points]


def sizes_for(executable: "VaryingExecutable", shapes: "Shapes") -> dict[str, int]:
    """One choice of sizes: what `shapes` say, and the middle of the ranges elsewhere.

    Raises:
        ModelError: they contradict the model or each other.
    """
    sizes = {size.name: size for size in executable.recipe.sizes}
    inputs = {info.name: info for info in executable.inputs}
    by_size: dict[str, int] = {}
    for name, said in shapes.items():
        extents = tuple(extent for extent in said if isinstance(extent, int))
        if len(extents) < len(said):
            raise InputError(
                f"'{name}' is given a range; the artifact is compiled, and takes one value"
            )
        if name in sizes and len(extents) == 1:
            pairs = {name: extents[0]}
        elif name in inputs and inputs[name].shape is not None:
            shape = inputs[name].shape or ()
            if len(shape) != len(extents):
                raise InputError(f"input '{name}' has {len(shape)} axes, not {len(extents)}")
            pairs = {str(e): v for e, v in zip(shape, extents, strict=True) if str(e) in sizes}
        else:
            known = ", ".join((*sizes, *inputs))
            raise InputError(f"'{executable.title}' has no size or input '{name}'; it has {known}")
        for size, value in pairs.items():
            if by_size.setdefault(size, value) != value:
                raise InputError(f"'{size}' is given both as {by_size[size]} and {value}")
    return {**executable.typical, **by_size}


def shape_words(shapes: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """How a command line says shapes: 'batch=1..64', 'x=1x3x224x224'."""
    return [f"{name}={shape_text(map(_extent_text, said))}" for name, said in shapes.items()]


def _extent_text(extent: Any) -> Any:
    return f"{extent[0]}..{extent[1]}" if isinstance(extent, tuple) else extent


def option_words(asked: "Request") -> list[str]:
    """What a request says of a model beside its target, threads and database, as options.

    Calibration data that are in memory have no word.
    """
    words = ["--precision", asked.precision] if asked.precision != "fp32" else []
    words += ["--bits", asked.bits] if asked.bits != "any" else []
    if isinstance(asked.calibration, str | Path):
        words += ["--calibration", str(asked.calibration)]
    for name, value in (asked.settings or {}).items():
        words += ["--set", f"{name}={value}"]
    for text in shape_words(asked.shapes or {}):
        words += ["--shape", text]
    return words
