"""Exported programs as pure functions of tensors, and what calls have to do beside.

`torch.export` keeps a module's calling convention in a program's signature: nested arguments and
results, Python numbers fixed at export, buffers and arguments that the module writes. `flattened`
takes all that out of the program. What is left takes tensors and gives tensors; `CallSignature`
says how a call's arguments become the former, and how results and writes come of the latter.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from tilesmith.capabilities.pytorch.exporter import decomposed
from tilesmith.search_space.support.errors import ModelError

_WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
_COMPUTED = (TensorArgument, SymIntArgument, SymFloatArgument, SymBoolArgument)


@dataclass(frozen=True, eq=False)
class InputSource:
    """Where a program's input comes from: a leaf of the call's arguments, or the module's state.

    Attributes:
        name: of the input, for callers and messages.
        leaf: number of the leaf; -1 for state.
        state: the module's own tensor, which the module writes, or None.
    """

    name: str
    leaf: int
    state: torch.Tensor | None = None


@dataclass(frozen=True)
class Result:
    """A leaf of what a call gives: an output of the program, or a constant.

    Attributes:
        output: number of the program's output; -1 for a constant.
        constant: the value, where it is one.
        number: whether the output is a Python number and no tensor.
    """

    output: int
    constant: Any = None
    number: bool = False


@dataclass(frozen=True, eq=False)
class CallSignature:
    """The calling convention of a module, beside the program.

    Attributes:
        arguments: the tree of (args, kwargs).
        results: the tree of what a call gives.
        sources: of the program's inputs, in order.
        fixed: leaves of the arguments that export took for constants, with their values.
        given: leaves of what a call gives, in order.
        writes: (number of an output, number of the input whose tensor it is written into).
        complex: outputs that are complex numbers, which ONNX has as pairs of real ones.
    """

    arguments: Any
    results: Any
    sources: tuple[InputSource, ...]
    fixed: Mapping[int, Any]
    given: tuple[Result, ...]
    writes: tuple[tuple[int, int], ...]
    complex: frozenset[int] = frozenset()

    @cached_property
    def is_plain(self) -> bool:
        """Whether a call gives the program's outputs, one by one, and writes nothing."""
        outputs = tuple(result.output for result in self.given)
        numbers = any(result.number for result in self.given)
        return outputs == tuple(range(len(outputs))) and not self.writes and not numbers


@dataclass
class _Inputs:
    """Inputs of a pure program, gathered in order.

    Attributes:
        specs: of all placeholders, those of weights among them.
        sources, fixed: as in `CallSignature`.
        numbers: of the sources, by what writes call them: names of arguments and of state.
    """

    specs: list[InputSpec] = field(default_factory=list)
    sources: list[InputSource] = field(default_factory=list)
    fixed: dict[int, Any] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, source: InputSource) -> None:
        self.numbers[key] = len(self.sources)
        self.sources.append(source)


def flattened(program: ExportedProgram, name: str) -> tuple[ExportedProgram, CallSignature]:
    """The program as a pure function from tensors to tensors, and the rest of its signature.

    Args:
        name: of the module, for messages.

    Raises:
        ModelError: an argument is of a kind no compiled model takes.
    """
    functional = decomposed(program)
    specs = functional.graph_signature.output_specs
    inputs = _inputs(functional, {s.target for s in specs if s.kind in _WRITES}, name)
    kept = [number for number, spec in enumerate(specs) if isinstance(spec.arg, _COMPUTED)]
    given, writes = _results(specs, kept, inputs.numbers)
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, specs[number].arg, None) for number in kept]
    pure = _with_signature(functional, ExportGraphSignature(inputs.specs, outputs), kept)
    trees = functional.module_call_graph[0].signature
    assert trees is not None
    return pure, CallSignature(
        trees.in_spec, trees.out_spec, tuple(inputs.sources), inputs.fixed, tuple(given),
        tuple(writes), _complex(pure),
    )  # fmt: skip


def _complex(program: ExportedProgram) -> frozenset[int]:
    output = next(node for node in program.graph.nodes if node.op == "output")
    values = [node.meta.get("val") for node in output.args[0]]
    return frozenset(
        n for n, v in enumerate(values) if isinstance(v, torch.Tensor) and v.is_complex()
    )


def _inputs(program: ExportedProgram, written: Collection[str | None], name: str) -> _Inputs:
    """What a call gives and the state it writes become inputs; weights stay what they are."""
    inputs = _Inputs()
    leaf = 0
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            if isinstance(spec.arg, ConstantArgument):
                inputs.fixed[leaf] = spec.arg.value
            elif isinstance(spec.arg, _COMPUTED):
                inputs.add(spec.arg.name, InputSource(spec.arg.name, leaf))
            else:
                raise ModelError(
                    f"argument '{spec.arg.name}' of '{name}' is neither a tensor nor a number; "
                    "pass tensors, or make it part of the module"
                )
            leaf += 1
        elif spec.kind in (InputKind.BUFFER, InputKind.PARAMETER) and spec.target in written:
            inputs.add(spec.target, InputSource(spec.target, -1, _state(program, spec.target)))
            spec = InputSpec(InputKind.USER_INPUT, spec.arg, None)
        inputs.specs.append(spec)
    return inputs


def _results(
    specs: Sequence[OutputSpec], kept: Sequence[int], numbers: Mapping[str, int]
) -> tuple[list[Result], list[tuple[int, int]]]:
    """The leaves of what a call gives, and the writes into which input's tensor."""
    place = {number: position for position, number in enumerate(kept)}
    given: list[Result] = []
    writes: list[tuple[int, int]] = []
    for number, spec in enumerate(specs):
        if spec.kind is OutputKind.USER_OUTPUT:
            if number in place:
                plain = isinstance(spec.arg, TensorArgument)
                given.append(Result(place[number], number=not plain))
            else:
                given.append(Result(-1, getattr(spec.arg, "value", None)))
        elif spec.kind in (*_WRITES, OutputKind.USER_INPUT_MUTATION):
            writes.append((place[number], numbers[str(spec.target)]))
    return given, writes


def _with_signature(
    program: ExportedProgram, signature: ExportGraphSignature, kept: Sequence[int]
) -> ExportedProgram:
    """The program with its outputs `kept`, under a signature of plain inputs and outputs."""
    module = program.graph_module
    output = next(node for node in module.graph.nodes if node.op == "output")
    output.args = (tuple(output.args[0][number] for number in kept),)
    module.recompile()
    count = sum(spec.kind is InputKind.USER_INPUT for spec in signature.input_specs)
    _, arguments = pytree.tree_flatten((tuple(range(count)), {}))
    _, results = pytree.tree_flatten(tuple(range(len(kept))))
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=[ModuleCallEntry("", ModuleCallSignature([], [], arguments, results))],
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _state(program: ExportedProgram, name: str) -> torch.Tensor:
    state = program.state_dict.get(name)
    return program.constants[name] if state is None else state
