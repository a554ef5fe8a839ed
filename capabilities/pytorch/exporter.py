"""PyTorch's exporter to ONNX as it is used here: programs decomposed once, then written.

    exported program -- decomposed --> operators that have a function -- written --> ONNX

The exporter's own entrance reads the source of all its functions and decomposes the program in
every call, which takes longer than the rest of a small graph. So its parts are called, and its
functions are read once. Those parts are no public interface: where a version of PyTorch lacks
them, `decomposed` applies our rules alone, and the entrance does the rest.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.fx import Node

from tilesmith.capabilities.pytorch.decompositions import Rule, rules

try:
    from torch.fx.experimental import _config as shape_options
    from torch.onnx._internal.exporter import (
        _core,
        _decomp,
        _dispatching,
        _fx_passes,
        _registration,
    )

    HAS_PARTS = True
except ImportError:  # another version of PyTorch
    HAS_PARTS = False

_OPSET = 24
"""Version of ONNX's operators: earlier ones of some take no bfloat16."""


@cache
def _registry() -> Any:
    """Functions by operator, the exporter's and ours."""
    from tilesmith.capabilities.pytorch.translations import INEXACT, TRANSLATIONS

    registry = _registration.ONNXRegistry.from_torchlib()
    for name in INEXACT:
        registry.functions.pop(name, None)
    for target, function in TRANSLATIONS.items():
        registry.register_op(target, function)
    return registry


@cache
def _exporters_rules() -> Mapping[Any, Rule]:
    """How the exporter decomposes operators that have no function."""
    implemented = set(_decomp.get_onnx_implemented_overloads(_registry()))
    table: Mapping[Any, Rule] = _decomp.create_onnx_friendly_decomposition_table(implemented)
    return table


def _either(rule: Rule, other: Rule) -> Rule:
    """A rule, and another for arguments that it does not serve."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        result = rule(*args, **kwargs)
        return other(*args, **kwargs) if result is NotImplemented else result

    return decomposed


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program, functional and in operators that are written."""
    if not HAS_PARTS:
        return program.run_decompositions(rules())
    table = dict(_exporters_rules())
    for operator, rule in rules().items():
        table[operator] = _either(rule, table[operator]) if operator in table else rule
    with shape_options.patch(backed_size_oblivious=True):  # as the exporter does
        return program.run_decompositions(table)


def written(program: ExportedProgram, inputs: Sequence[str]) -> Any:
    """The decomposed program as a model of `onnx_ir`, its inputs so named.

    Operators that mix element types, or reduce narrow ones, are given conversions in the program.

    Raises:
        Exception: of any kind, where an operator has no function or its function fails.
    """
    if HAS_PARTS:
        with shape_options.patch(backed_size_oblivious=True):
            _fx_passes.insert_type_promotion_nodes(program.graph_module)
            program._graph_module = _fx_passes.remove_assertion_nodes(program.graph_module)
        _name_outputs(program)
        model = _core._exported_program_to_onnx_program(program, registry=_registry()).model
        model = _core.onnxscript_apis.convert_version(model, _OPSET)
        for value, name in zip(model.graph.inputs, inputs, strict=True):
            value.name = name
        return model
    from tilesmith.capabilities.pytorch.translations import TRANSLATIONS

    return torch.onnx.export(
        program, dynamo=True, optimize=False, verbose=False, input_names=inputs,
        custom_translation_table=TRANSLATIONS,
    ).model  # fmt: skip


def _name_outputs(program: ExportedProgram) -> None:
    """Let a program's signature name what its graph gives, which conversions have replaced."""
    output = next(node for node in program.graph.nodes if node.op == "output")
    for spec, node in zip(program.graph_signature.output_specs, output.args[0], strict=True):
        if isinstance(spec.arg, TensorArgument):
            spec.arg = TensorArgument(node.name)


def has_function(node: Node) -> bool:
    """Whether there is a function that writes a node's operator, as far as one can tell."""
    return not HAS_PARTS or _dispatching.dispatch(node, _registry())[0] is not None
