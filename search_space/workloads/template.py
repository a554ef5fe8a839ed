"""`Template`: what one operator computes, in one file of `operators/`; a `Scheduler` says how.

A template declares the operator's parameters and operands, computes it in numpy (the reference),
and says what is to be computed as stages, which schedules of every family begin with. It knows no
target. The registry finds template files by itself; the conformance tests walk over all of them.

Contract: `reference` is written in numpy, independently of the stages.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from numpy.typing import NDArray

from tilesmith.search_space.expressions.expression import ExprLike
from tilesmith.search_space.expressions.ranges import WholeRange
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import WorkloadError
from tilesmith.search_space.support.registry import Registry
from tilesmith.search_space.workloads.epilogue import NUMBERS, dtypes, operand_name
from tilesmith.search_space.workloads.parameter import Parameter, ParameterValue, check_extents
from tilesmith.search_space.workloads.workload import Workload, operators, shape_text, signature_of

if TYPE_CHECKING:
    from tilesmith.search_space.scheduling.compute import ComputeDefinition

__all__ = [
    "Operand",
    "Parameter",
    "Shaped",
    "Template",
    "compute_of",
    "template_of",
    "templates",
]


@dataclass(frozen=True)
class Operand:
    """A tensor going in or out: name, logical shape, dtype, and what it is for.

    Attributes:
        extents: of the logical shape; formulas over sizes where the workload varies.
        role: "input" (one of the operator's own), "epilogue" (of a fused step) or "output".
    """

    name: str
    extents: tuple[ExprLike, ...]
    dtype: str
    role: Literal["input", "epilogue", "output"] = "input"

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape as numbers.

        Raises:
            WorkloadError: it varies.
        """
        numbers = tuple(extent for extent in self.extents if isinstance(extent, int))
        if len(numbers) != len(self.extents):
            raise WorkloadError(
                f"operand '{self.name}' has the shape {shape_text(self.extents)}, which has "
                "numbers only at given sizes"
            )
        return numbers


@dataclass(frozen=True)
class Shaped:
    """An operand whose shape is the workload's parameter `shape`, and whose element type is its
    parameter `dtype`; "" stands for the workload's own element type.
    """

    name: str
    shape: str = "shape"
    dtype: str = ""

    def of(self, workload: Workload) -> Operand:
        """The operand of a workload."""
        dtype = workload.text(self.dtype) if self.dtype else workload.dtype
        return Operand(self.name, workload.extents(self.shape), dtype)


class Template(ABC):
    """One operator. See the module's docstring for the contract."""

    operator: ClassVar[str]
    summary: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]]
    reads: ClassVar[tuple[Shaped, ...]] = (Shaped("x"),)
    """Its own inputs, in order, unless `inputs` says otherwise."""
    writes: ClassVar[Shaped] = Shaped("y")
    """Its output before the epilogue, unless `output` says otherwise."""
    fuses_epilogues: ClassVar[bool] = False
    """Whether `compute` applies the workload's epilogue; workloads with one are refused if not."""
    picks: ClassVar[bool] = False
    """Whether every element of its output is one of its first input."""
    parts: ClassVar[str] = ""
    """Operators that do the same together, to name where a family has no schedule for this one."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Workload texts, tiny, odd and prime shapes among them: what the conformance tests compile."""
    varying: ClassVar[tuple[str, ...]] = ()
    """Symbolic workload texts: the conformance tests compile each once and run it at many sizes.
    `compute` of an operator with parameters that vary looks at `Workload.extent`."""

    def canonical(self, values: dict[str, ParameterValue]) -> dict[str, ParameterValue]:
        """Parameters by name, in order, checked one by one; a value that says the same as the
        default is replaced by it, so that a workload has one key."""
        return values

    def check(self, workload: Workload) -> None:
        """Raise `WorkloadError` for parameters that contradict each other: here, for extents below
        one and axes that a shape does not have.
        """
        for parameter in self.parameters:
            name = parameter.name
            if parameter.positive:
                check_extents(self.operator, name, workload.shape(name))
            elif parameter.of:
                rank, position = len(workload.shape(parameter.of)), workload.integer(name)
                if not -rank <= position < rank:
                    raise WorkloadError(
                        f"operator '{self.operator}': {name}={position} is out of range for "
                        f"{rank} axes"
                    )

    def inputs(self, workload: Workload) -> tuple[Operand, ...]:
        """The operator's own inputs, in order, logical layouts."""
        return tuple(declared.of(workload) for declared in self.reads)

    def output(self, workload: Workload) -> Operand:
        """The output; epilogues do not change its shape, but its element type (`result_dtype`)."""
        operand = self.writes.of(workload)
        return replace(operand, dtype=self.result_dtype(workload), role="output")

    def unfused_dtype(self, workload: Workload) -> str:
        """Element type of the result before the epilogue."""
        return workload.dtype

    def result_dtype(self, workload: Workload) -> str:
        """Element type of the result after the epilogue."""
        return dtypes(self.unfused_dtype(workload), workload.epilogue)[-1]

    def channel_axis(self, workload: Workload) -> int:
        """The axis of the output that `bias` and `scale` run along (the last by default)."""
        return len(self.output(workload).extents) - 1

    def operands(self, workload: Workload) -> tuple[Operand, ...]:
        """Inputs followed by the epilogue's operands."""
        extents = self.output(workload).extents
        operands = list(self.inputs(workload))
        running = dtypes(self.unfused_dtype(workload), workload.epilogue)
        for position, step in enumerate(workload.epilogue):
            name, kind = operand_name(step, position), step.kind
            if name is not None:
                shape = extents
                if kind.operand == "channel":
                    shape = (extents[self.channel_axis(workload)],)
                elif kind.operand in NUMBERS:
                    shape = (NUMBERS[kind.operand],)
                dtype = kind.dtype or running[position]
                operands.append(Operand(name, shape, dtype, "epilogue"))
        return tuple(operands)

    def index_extents(self, workload: Workload) -> Mapping[str, tuple[int, ...]]:
        """For operands whose values are indices: how many entries the axes have that they are of,
        in turns (of rows and columns, in turns: two numbers).

        What calls the operator checks them; its code only promises to touch nothing outside.
        """
        return {}

    def output_range(
        self, workload: Workload, inputs: Sequence[WholeRange | None]
    ) -> WholeRange | None:
        """Between which whole numbers the elements of the output lie before any epilogue, from
        where those of its inputs do; None where nothing is known."""
        return inputs[0] if self.picks else None

    def flops(self, workload: Workload) -> int:
        """Floating-point operations of the direct form (a multiply-add counts two); none of what
        only moves elements."""
        return 0

    @abstractmethod
    def reference(self, workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """The operator (without epilogue) in numpy; logical layouts in and out."""

    @abstractmethod
    def compute(self, workload: Workload) -> "ComputeDefinition":
        """What is computed, as stages, the epilogue applied where `fuses_epilogues`."""

    def layouts(self, workload: Workload, config: Config) -> tuple[str, str]:
        """Physical layouts (of the first input, of the output); "" means plain row-major."""
        return str(config.get("input_layout", "")), str(config.get("output_layout", ""))


templates: Registry[type[Template]] = operators


def template_of(operator: str) -> Template:
    """The template of an operator; `WorkloadError` if there is none."""
    template = signature_of(operator)
    assert isinstance(template, Template)
    return template


def compute_of(workload: Workload) -> "ComputeDefinition":
    """What a workload computes, as stages."""
    return template_of(workload.operator).compute(workload)
