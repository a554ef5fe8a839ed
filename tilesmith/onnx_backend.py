"""Tilesmith as a backend of ONNX: `onnx.backend.base.Backend` over the public API.

    from tilesmith import onnx_backend
    outputs = onnx_backend.prepare(model).run([x])

A model is compiled by `tilesmith.compile`, so that what ONNX's own suite checks is what users run.
Tilesmith compiles for known shapes: a model that leaves some open is compiled when it is first run,
and once for every set of shapes it is run with. Invariants: outputs come in the model's order;
errors are Tilesmith's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from tilesmith.api import compile
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import ModelError

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


class TilesmithRep(BackendRep):
    """A model, compiled or to be compiled as soon as its shapes are known.

    What is given for an input with an initialiser is named to the compiler, too: it takes the place
    of the initialiser.

    Args:
        model: as given to `prepare`.
        options: keyword arguments of `tilesmith.compile`.

    Raises (on construction, or on `run` where shapes are open):
        InputError: the model or an option is wrong; see `tilesmith.compile`.
    """

    def __init__(self, model: onnx.ModelProto, options: Mapping[str, Any]) -> None:
        self._model = model
        self._options = dict(options)
        initialised = {tensor.name for tensor in model.graph.initializer}
        initialised |= {sparse.values.name for sparse in model.graph.sparse_initializer}
        self._all_inputs = tuple(value.name for value in model.graph.input)
        self._inputs = tuple(name for name in self._all_inputs if name not in initialised)
        self._open = initialised | {v.name for v in model.graph.input if _is_open(v)}
        self._outputs = tuple(value.name for value in model.graph.output)
        self._compiled: dict[Shapes, Executable] = {}
        if not self._open & set(self._inputs):
            self.executable({})

    def executable(self, inputs: Mapping[str, Any]) -> Executable:
        """The executable for the shapes of these inputs, by name; compiled on first use."""
        shapes = tuple(
            (name, np.shape(value)) for name, value in inputs.items() if name in self._open
        )
        if shapes not in self._compiled:
            options = {**self._options, "shapes": dict(shapes)}
            executable = compile(self._model, **options)
            assert isinstance(executable, Executable), "no range was asked for"
            self._compiled[shapes] = executable
        return self._compiled[shapes]

    @property
    def compiled(self) -> tuple[Executable, ...]:
        """What has been compiled so far."""
        return tuple(self._compiled.values())

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the model.

        Args:
            inputs: arrays in the order of the model's inputs (with or without those that have
                initialisers), by name, or the only one.

        Returns:
            outputs in the model's order, a named tuple that also takes names in brackets.

        Raises:
            ModelError: the inputs are not those of the model.
            JobError: a host node failed on these inputs.
        """
        named = self._named(inputs)
        results = self.executable(named).run(named)
        outputs = namedtupledict("Outputs", self._outputs)
        return outputs(*(results[name] for name in self._outputs))

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return {name: _as_input(value) for name, value in inputs.items()}
        values = list(inputs) if isinstance(inputs, Sequence) else [inputs]
        names = self._all_inputs if len(values) > len(self._inputs) else self._inputs
        if len(values) > len(names):
            raise ModelError(
                f"{len(values)} inputs are given to '{self._model.graph.name}', which takes "
                f"{len(names)}: {', '.join(names)}"
            )
        return {n: _as_input(v) for n, v in zip(names, values, strict=False)}


class TilesmithBackend(Backend):
    """See the module's docstring. Keyword arguments are those of `tilesmith.compile`."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TilesmithRep:
        """Compile a model; errors as `tilesmith.compile`, and `ModelError` for another device."""
        if not cls.supports_device(device):
            raise ModelError(f"models cannot be run on the device '{device}'; 'CPU' can")
        return TilesmithRep(model, kwargs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operator.

        Args:
            node: the operator.
            inputs: arrays in the order of its inputs (those left out are left out), or by name.
            device: "CPU".
            outputs_info: element type and shape of every output; without it they are inferred.
            kwargs: `opset_version`, the newest unless given; others as `prepare`.

        Raises:
            ModelError: the node is not one of ONNX's, or its inputs do not go together.
        """
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        names = list(dict.fromkeys(name for name in node.input if name))
        if not isinstance(inputs, Mapping):
            inputs = dict(zip(names, inputs, strict=False))
        given = dict(inputs)
        model = _model_of(node, given, outputs_info, version)
        return cls.prepare(model, device, **kwargs).run(given)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the device is a CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


def _is_open(value: onnx.ValueInfoProto) -> bool:
    """Whether the file does not say what shape a tensor has."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return False
    return not tensor.HasField("shape") or any(
        not dim.HasField("dim_value") for dim in tensor.shape.dim
    )


def _as_input(value: Any) -> Any:
    """Numbers become arrays; lists are sequences, None is an empty optional."""
    return np.asarray(value) if isinstance(value, np.generic | int | float) else value


def _model_of(
    node: onnx.NodeProto,
    inputs: Mapping[str, Any],
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    version: int,
) -> onnx.ModelProto:
    """A model of one node."""
    values = []
    for name, value in inputs.items():
        array = np.asarray(value)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        values.append(helper.make_tensor_value_info(name, kind, array.shape))
    names = [name for name in node.output if name]
    outputs = [helper.make_empty_tensor_value_info(name) for name in names]
    if outputs_info is not None:
        outputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
            )
            for name, (dtype, shape) in zip(names, outputs_info, strict=True)
        ]
    graph = helper.make_graph([node], node.op_type, values, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
    if outputs_info is not None:
        return model
    inferred = shape_inference.infer_shapes(model, data_prop=True)
    for value in inferred.graph.output:
        if not value.type.WhichOneof("value"):
            raise ModelError(
                f"the types of the outputs of {node.op_type} are not known; give outputs_info"
            )
    return inferred


is_compatible = TilesmithBackend.is_compatible
prepare = TilesmithBackend.prepare
run_model = TilesmithBackend.run_model
run_node = TilesmithBackend.run_node
supports_device = TilesmithBackend.supports_device
