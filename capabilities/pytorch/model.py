"""`TorchModel`: a module of PyTorch as a model of Tilesmith's.

    module -- torch.export --> program -- flattened --> pure program -- torch.onnx --> graph

Weights never travel: the model written by `torch.onnx` has their types alone, and the graph's
constants are arrays over the module's own memory. Invariant: nothing of the module changes by
being read.
"""

import logging
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import onnx
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.fx import Node

from tilesmith.capabilities.pytorch.exporter import written
from tilesmith.capabilities.pytorch.program import CallSignature, flattened
from tilesmith.compiler.driver.front_end import FrontEndModel
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.files.arrays import one_line, typed_only
from tilesmith.compiler.onnx.files.file import ModelFile, read_model
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.torch_tensors import array_of
from tilesmith.search_space.support.errors import DependencyError, InputError, ModelError

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class TorchModel(FrontEndModel):
    """A module as `torch.export` traced it.

    Attributes:
        name: of the module's class.
        proto: the module in ONNX operators, its weights typed only.
        weights: arrays over the module's parameters and buffers, by initialiser name.
        signature: how calls become inputs, and outputs results.
        sizes: what symbolic dimensions were at export, by name.
        ranges: (least, greatest) sizes that export allows them, by name.
    """

    name: str
    proto: onnx.ModelProto
    weights: Mapping[str, NDArray[Any]]
    signature: CallSignature
    sizes: Mapping[str, int]
    ranges: Mapping[str, tuple[int, float]]

    def graph(self, shapes: Shapes) -> Graph:
        """See the base class; an input left out has its size at export."""
        whole = {**self.shapes, **{name: tuple(shape) for name, shape in shapes.items()}}
        return import_model(self.proto, whole, self.weights)

    def file(self) -> ModelFile:
        """See the base class."""
        return replace(read_model(self.proto), held=self.weights)

    @property
    def updates(self) -> dict[str, str]:
        """Arguments and buffers that the module writes, by what it writes; sizes that vary are
        written by copying."""
        if self.shapes:
            return {}
        results = [value.name for value in self.proto.graph.output]
        sources = {results[o]: self.signature.sources[s].name for o, s in self.signature.writes}
        return {source: result for result, source in sources.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes at export, of inputs with symbolic dimensions."""
        return {
            value.name: tuple(
                self.sizes[d.dim_param] if d.dim_param else d.dim_value
                for d in value.type.tensor_type.shape.dim
            )
            for value in self.proto.graph.input
            if any(d.dim_param for d in value.type.tensor_type.shape.dim)
        }

    @property
    def bounded(self) -> dict[str, tuple[int, int]]:
        """The ranges of the sizes that vary, if each has an end; else none of them."""
        ranges = {name: self.ranges[name] for name in self.sizes if name in self.ranges}
        if len(ranges) < len(self.sizes) or any(math.isinf(high) for _, high in ranges.values()):
            return {}
        return {name: (max(low, 1), int(high)) for name, (low, high) in ranges.items()}


def model_of(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
) -> TorchModel:
    """Trace a module.

    Args:
        module: in the mode it should run in.
        args, kwargs: examples of what it is called with.
        dynamic_shapes: as `torch.export.export` takes them; sizes not named there are fixed.
        name: for messages; the module's class unless given.

    Raises:
        ModelError: the module cannot be traced, or does what ONNX has no operators for.
        DependencyError: onnxscript is not installed.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a torch.nn.Module is expected; got {type(module).__name__}")
    if not isinstance(args, tuple):
        raise InputError(f"args is a tuple of the module's arguments; got {type(args).__name__}")
    name = name or type(module).__name__
    program = exported(module, args, kwargs, dynamic_shapes, name)
    _check_random(program, name)
    return pure_program(program, name).model()


def exported(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    name: str = "",
) -> ExportedProgram:
    """What `torch.export` makes of a module; arguments and errors as `model_of`."""
    _know_caches()
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(
                module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # of every kind: it runs the module's own code
        raise ModelError(f"torch.export cannot trace '{name}': {one_line(error)}") from error


@dataclass(frozen=True, eq=False)
class PureProgram:
    """A module as a pure function of tensors, not yet in ONNX operators; see `TorchModel`."""

    name: str
    program: ExportedProgram
    signature: CallSignature

    def model(self) -> TorchModel:
        """The program in ONNX operators; errors as `model_of`."""
        with quiet(), torch.no_grad():
            proto, weights = _written(self.program, self.name, self.signature)
        return TorchModel(self.name, proto, weights, self.signature, *_sizes(self.program))


def pure_program(program: ExportedProgram, name: str) -> PureProgram:
    """The pure function of an exported program; errors as `model_of`."""
    with quiet(), torch.no_grad():  # with gradients, attention is decomposed in another way
        return PureProgram(name, *flattened(program, name))


def _know_caches() -> None:
    """Let caches of transformers be arguments and results, where that is imported."""
    if "transformers" in sys.modules:
        with suppress(Exception):  # a version that knows of it in another place, or not at all
            from transformers.integrations import executorch

            executorch.register_dynamic_cache_export_support()


def _check_random(program: ExportedProgram, name: str) -> None:
    for node in program.graph.nodes:
        if is_random(node) and "dropout" in node.name:
            raise ModelError(
                f"'{name}' drops out at random ({node.name}), being in training mode; call its "
                "eval() first"
            )


def is_random(node: Node) -> bool:
    """Whether a node draws random numbers: operators that drop out do so in training alone."""
    operator = node.target
    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    given = {a.name: v for a, v in zip(operator._schema.arguments, node.args, strict=False)}
    given = {a.name: a.default_value for a in operator._schema.arguments} | given | node.kwargs
    if not all(given.get(name, True) for name in ("train", "training")):
        return False
    return all(given.get(name, True) for name in ("p", "dropout_p", "dropout"))


def _written(
    program: ExportedProgram, name: str, signature: CallSignature
) -> tuple[onnx.ModelProto, dict[str, NDArray[Any]]]:
    """The program in ONNX operators, and its weights."""
    try:
        import onnx_ir
        import onnxscript  # noqa: F401  (what torch.onnx writes with)
    except ImportError as error:
        raise DependencyError(
            f"{error.name} is not installed; install it with: pip install 'tilesmith[torch]'"
        ) from error
    try:
        model = written(program, [source.name for source in signature.sources])
    except Exception as error:
        raise ModelError(
            f"'{name}' cannot be written in ONNX operators: {_cause(error)}"
        ) from error
    weights: dict[str, NDArray[Any]] = {}
    for value in model.graph.initializers.values():
        weights[value.name] = array_of(value.const_value.raw, f"weight '{value.name}' of '{name}'")
        value.const_value = None
    proto: onnx.ModelProto = onnx_ir.to_proto(model)
    proto.graph.name = name
    proto.graph.initializer.extend(typed_only(*item) for item in weights.items())
    return proto, weights


def _cause(error: BaseException) -> str:
    """What was wrong to begin with: the exporter tells it last, after advice to its own makers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(Exception(error))


def _sizes(program: ExportedProgram) -> tuple[dict[str, int], dict[str, tuple[int, float]]]:
    """Of every symbolic dimension: its size at export, and the range it may be in."""
    sizes: dict[str, int] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            sizes |= {str(s): s.node.hint for s in value.shape if isinstance(s, torch.SymInt)}
    ranges = {
        str(symbol): (int(bounds.lower), float(bounds.upper))
        for symbol, bounds in program.range_constraints.items()
    }
    return sizes, {k: (v[0], math.inf if v[1] > 1 << 62 else v[1]) for k, v in ranges.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Without what libraries tell their own developers while they export."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir", "onnxscript")]
    before = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
