"""A wrong kernel: is it every schedule of it, some, and which knobs; the loop program or its code.

The kernel is run by itself (`Alone`, native or functional as in a model) on the very operands with
which it was wrong. A configuration that is right tells that the operator's definition is; the
difference between both is shrunk to the fewest knobs that still show it. The loop program of the
wrong configuration, interpreted, tells whether it was scheduled and lowered wrongly, or is right
and its code is wrong; and the schedule's primitives, applied one after the other, tell which of
them it is.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.fault_finding.bisection.finding import FaultFinding
from tilesmith.capabilities.fault_finding.bisection.unrounded import unrounded
from tilesmith.capabilities.fault_finding.bisection.walk import WrongStep, is_close
from tilesmith.capabilities.fault_finding.stepping.errors import tensor_error
from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.codegen.programs.structures import default_of, inside_of, lowered, space_of
from tilesmith.compiler.backends.backend import Compiled, backend_of
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.host.kernels import run_kernel
from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.layouts import normal, pack, physical_shape, unpack
from tilesmith.compiler.recipe.memory import ALIGNMENT
from tilesmith.compiler.recipe.program import (
    NOWHERE,
    KernelStep,
    Place,
    Recipe,
    Report,
    TensorRef,
    view_of,
)
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.ir.program import Buffer, Program
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import TilesmithError
from tilesmith.search_space.workloads.scheduler import scheduler_of
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Arrays = Mapping[str, NDArray[Any]]
_GUARD = 256
"""Bytes behind each tensor that nothing may write."""


class Alone:
    """A kernel and its operands.

    Args:
        operands: logical arrays by the template's names.
    """

    def __init__(self, workload: Workload, target: Target, threads: int, operands: Arrays) -> None:
        self.workload, self.target, self.threads = workload, target, threads
        self.template = template_of(workload.operator)
        self.operands = {
            operand.name: np.asarray(operands[operand.name])
            .reshape(operand.shape)
            .astype(to_numpy(operand.dtype))
            for operand in self.template.operands(workload)
        }
        self.result = self.template.output(workload)

    def run(self, config: Config) -> NDArray[Any]:
        """The result by the target's code; errors as `Backend.compile`."""
        backend = backend_of(self.target)
        compiled = backend.compile(self.workload, self.target, config)
        constants = {
            name: value for name, value in self.operands.items() if self.workload.is_constant(name)
        }
        arrays = {**self._physical(config), **compiled.prepare(constants)}
        places, nbytes = self._places(compiled)
        memory = RunMemory(aligned_bytes(max(64, nbytes)), aligned_bytes(64))
        memory.arena.fill(0xFF)  # no number: what a kernel leaves out is seen
        for name, place in places.items():
            if name in arrays and name != compiled.output:
                array = np.ascontiguousarray(arrays[name])
                view_of(memory.arena, place.offset, array.dtype, array.shape)[...] = array
        step = KernelStep(
            self.workload.operator, self.workload.key, config.key, "default", 0,
            tuple(places.get(name, NOWHERE) for name in compiled.parameters),
        )  # fmt: skip
        recipe = self._recipe(step, compiled, places[compiled.output], nbytes)
        backend.link_all(recipe, [step], memory)()
        return self._logical(config, memory.arena, places[compiled.output])

    def interpreted(self, config: Config, program: Program | None = None) -> NDArray[Any]:
        """The result by the interpreter of the loop IR, which is slow.

        Args:
            program: bound; the configuration's if None. One in which layouts are not yet set takes
                and gives logical arrays.
        """
        program = program or lowered(self.workload, self.target, config)
        physical = self._physical(config)
        given = {}
        for buffer in program.parameters:
            if buffer.role == "input":
                laid, plain = physical[buffer.name], self.operands[buffer.name]
                shape = _shape(buffer)
                given[buffer.name] = np.ascontiguousarray(
                    laid if laid.shape == shape or plain.shape != shape else plain
                ).reshape(shape)
        last = program.parameters[-1]
        tensor = interpret(program, given)[last.name]
        if _shape(last) == self.result.shape:
            return tensor
        return self._unpacked(config, tensor)

    # -- layouts ------------------------------------------------------------------------------
    def _pair(self, config: Config) -> tuple[str, str]:
        if self.workload.operator == "layout_transform":
            return normal(self.workload.text("src")), normal(self.workload.text("dst"))
        source, result = self.template.layouts(self.workload, config)
        return normal(source), normal(result)

    def _physical(self, config: Config) -> dict[str, NDArray[Any]]:
        """Operands as they lie in memory: the first as the kernel reads, whatever is like the
        result as it writes."""
        source, result = self._pair(config)
        physical = {}
        for number, operand in enumerate(self.template.operands(self.workload)):
            like_result = operand.role == "epilogue" and operand.shape == self.result.shape
            layout = source if number == 0 else result if like_result else ""
            physical[operand.name] = pack(layout, self.operands[operand.name])
        return physical

    def _logical(self, config: Config, arena: NDArray[np.uint8], place: Place) -> NDArray[Any]:
        shape = physical_shape(self._pair(config)[1], self.result.shape)
        view = view_of(arena, place.offset, to_numpy(self.result.dtype), shape)
        return np.array(self._unpacked(config, view))

    def _unpacked(self, config: Config, array: NDArray[Any]) -> NDArray[Any]:
        layout = self._pair(config)[1]
        shape = physical_shape(layout, self.result.shape)
        return unpack(layout, array.reshape(shape), self.result.shape)

    # -- memory -------------------------------------------------------------------------------
    def _places(self, compiled: Compiled) -> tuple[dict[str, Place], int]:
        places, total = {}, 0
        for name in compiled.parameters:
            if name in compiled.unread:
                continue
            places[name] = Place("arena", total)
            total += -(-(compiled.nbytes[name] + _GUARD) // ALIGNMENT) * ALIGNMENT
        return places, total

    def _recipe(self, step: KernelStep, compiled: Compiled, out: Place, nbytes: int) -> Recipe:
        info = TensorInfo("result", self.result.dtype, self.result.shape)
        report = Report(0, 0, 0, 1, 0, (), 0, nbytes, 0, 0.0)
        return Recipe(
            "kernel", self.target, self.threads, (), (TensorRef(info, out),), (step,),
            (compiled.code,), aligned_bytes(64), nbytes, (("", 17),), report,
        )  # fmt: skip


def _shape(buffer: Buffer) -> tuple[int, ...]:
    return tuple(extent.constant or 0 for extent in buffer.shape)


_TRIED = 12
"""Other configurations that are tried before a kernel is called wrong in all of them."""

_INTERPRETED, _BY_PRIMITIVE = 2_000_000, 200_000
"""Operations up to which a loop program is interpreted, some microseconds each: once, and for each
primitive of its schedule."""


@dataclass(frozen=True)
class _Subject:
    """A kernel that was wrong in a model.

    Attributes:
        wanted: its result by reference, logical.
        exact: that before it is rounded (`unrounded`).
        closely: whether it is looked at closely (`is_close`).
    """

    alone: Alone
    workload: Workload
    target: Target
    config: Config
    wanted: NDArray[Any]
    exact: NDArray[Any] | None = None
    closely: bool = False

    @property
    def dtype(self) -> str:
        return self.alone.result.dtype

    def is_right(self, config: Config) -> bool | None:
        """Whether a configuration computes what it should; None if no code comes of it."""
        try:
            result = self.alone.run(config)
        except TilesmithError:
            return None
        return self.is_close(result)

    def is_close(self, result: NDArray[Any]) -> bool:
        """Whether a result is right but for rounding."""
        ours = result.astype(self.wanted.dtype)
        return is_close(self.dtype, ours, self.wanted, self.exact, self.closely)


def subject_of(wrong: WrongStep, step: KernelStep, target: Target, threads: int) -> _Subject:
    """The kernel of a step."""
    workload = wrong.node.workload
    assert workload is not None
    template = template_of(workload.operator)
    names = [operand.name for operand in template.operands(workload)]
    operands = {name: wrong.operands[t] for name, t in zip(names, wrong.node.inputs, strict=True)}
    alone = Alone(workload, target, threads, operands)
    given = dict(zip(wrong.node.inputs, alone.operands.values(), strict=True))
    wanted, exact = run_kernel(wrong.node, given), unrounded(wrong.node, given)
    config = Config.from_json(step.config)
    return _Subject(alone, workload, target, config, wanted, exact, wrong.closely)


def judged(subject: _Subject, wrong: WrongStep) -> FaultFinding:
    """What about the kernel is at fault."""
    error = tensor_error(wrong.ours, wrong.wanted)
    head = (
        f"kernel '{wrong.node.name}' ({subject.workload.key}) is wrong on right inputs: largest "
        f"relative error {error.max_rel:.3g} at {list(error.worst)}"
    )
    name, tensor = wrong.node.name, wrong.node.writes[0]
    sources = wrong.node.sources
    details: dict[str, Any] = {
        "workload": subject.workload.key, "config": subject.config.key, "step": wrong.number,
        "worst_index": list(error.worst),
    }  # fmt: skip
    verdict = subject.is_right(subject.config)
    if verdict:
        sentence = f"{head}; by itself, on the same operands, it is right: its weights are packed "
        sentence += "or its arguments placed wrongly in the model"
        return FaultFinding("packing", name, tensor, sentence, sources, details)
    right, tried = right_config(subject)
    stage = stage_of(subject)
    details |= {"stage": stage}
    if right is not None:
        knobs = fewest_knobs(subject, right)
        details |= {"knobs": knobs, "right_config": right.key}
        named = ", ".join(f"{knob}={mine} (right with {other})" for knob, mine, other in knobs)
        sentence = f"{head}; its schedule is at fault: {named or 'another structure is right'}"
        name = ", ".join(knob for knob, _, _ in knobs) or name
        return _staged(
            subject, FaultFinding("schedule", name, tensor, sentence, sources, details), stage
        )
    sentence = f"{head}; so are all others of {tried} configurations that were tried"
    return _staged(subject, FaultFinding("kernel", name, tensor, sentence, sources, details), stage)


def _staged(subject: _Subject, finding: FaultFinding, stage: str) -> FaultFinding:
    """The finding with the stage of compilation that is at fault, where that is known."""
    if not stage:
        return finding
    details = dict(finding.details)
    if stage == "code generation":
        words = "its loop program, interpreted, is right: the code made of it is wrong"
    else:
        words = "its loop program, interpreted, is wrong as well"
        primitive = first_primitive(subject)
        if primitive:
            words += f", from the primitive '{primitive}' on"
            details["primitive"] = primitive
    part = finding.part if finding.part == "schedule" else stage
    sentence = f"{finding.sentence}; {words}"
    return FaultFinding(part, finding.name, finding.tensor, sentence, finding.sources, details)  # type: ignore[arg-type]


def right_config(subject: _Subject) -> tuple[Config | None, int]:
    """Another configuration that is right (the default, or of a seeded sample), and how many were
    tried."""
    workload, target = subject.workload, subject.target
    candidates: list[Config] = []
    for usual in (default_of, inside_of):
        try:
            candidates.append(usual(workload, target))
        except TilesmithError:
            continue
    with contextlib.suppress(TilesmithError, ValueError):
        candidates += space_of(workload, target).sample(np.random.default_rng(0), _TRIED)
    others = [config for config in dict.fromkeys(candidates) if config != subject.config]
    for number, config in enumerate(others, 1):
        if subject.is_right(config):
            return config, number
    return None, len(others)


def fewest_knobs(subject: _Subject, right: Config) -> list[tuple[str, Any, Any]]:
    """The knobs that make the difference: (name, wrong value, right value)."""
    space = space_of(subject.workload, subject.target)
    wrong = dict(subject.config)
    other = dict(right)
    if wrong.keys() != other.keys():
        own = [(k, v, other.get(k)) for k, v in wrong.items() if other.get(k, v) != v]
        return own or [(k, None, v) for k, v in other.items() if k not in wrong]
    for knob in wrong:
        if wrong[knob] == other[knob]:
            continue
        tried = Config.of({**wrong, knob: other[knob]})
        if tried in space and subject.is_right(tried) is False:
            wrong[knob] = other[knob]
    return [(knob, wrong[knob], other[knob]) for knob in wrong if wrong[knob] != other[knob]]


def stage_of(subject: _Subject) -> str:
    """ "lowering" or "code generation"; "" where the interpreter would take too long."""
    template = template_of(subject.workload.operator)
    if template.flops(subject.workload) > _INTERPRETED:
        return ""
    try:
        result = subject.alone.interpreted(subject.config)
    except (TilesmithError, ValueError, KeyError):
        return ""
    return "code generation" if subject.is_close(np.asarray(result)) else "lowering"


def first_primitive(subject: _Subject) -> str:
    """The first primitive of the schedule with which the loop program is wrong; "" if unknown.

    "the definition" where it is wrong before any.
    """
    workload, target = subject.workload, subject.target
    if template_of(workload.operator).flops(workload) > _BY_PRIMITIVE:
        return ""
    space = space_of(workload, target)
    structure, tiles = space.structure(subject.config), space.tiles(subject.config)
    whole = scheduler_of(workload, target).schedule(workload, target, structure)
    for number in range(len(whole.primitives) + 1):
        part = replace(whole, primitives=whole.primitives[:number])
        try:
            result = subject.alone.interpreted(subject.config, lower(part).bind(tiles))
        except (TilesmithError, ValueError, KeyError, AssertionError):
            continue  # no program yet, for primitives that are still to come
        if not subject.is_close(result):
            return _said(whole.primitives[number - 1]) if number else "the definition"
    return ""


def _said(primitive: Any) -> str:
    """A primitive in a few words: `SetLayout x`, `Split c k`."""
    parts = (getattr(primitive, name, "") for name in ("stage", "tensor", "loop"))
    return " ".join([type(primitive).__name__, *(str(part) for part in parts if part)])
