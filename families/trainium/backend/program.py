"""The program of a compiled model on an accelerator: its kernels, linked, between host steps.

A recipe's steps are cut where a host step stands; what lies between is one program for the core.
Invariants: linked once for each recipe, whoever asks (running and simulating see the same
instructions); a tensor that the caller, the host or another program reads is in HBM when its
program ends.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from weakref import WeakKeyDictionary

import numpy as np

from tilesmith.compiler.recipe.program import HostStep, KernelStep, Place, Recipe, TensorRef
from tilesmith.families.kit.simulation.compulsory import nbytes_of, read_bytes
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Space
from tilesmith.families.trainium.codegen.isa.storage import from_bytes
from tilesmith.families.trainium.codegen.linking.draft import KernelDraft, Range
from tilesmith.families.trainium.codegen.linking.linker import Linked, links
from tilesmith.families.trainium.codegen.linking.residency import Policy
from tilesmith.families.trainium.codegen.timing.scheduling import RULES, Rule
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.support.errors import ModelError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Effort:
    """What linking tries: the fastest on the timeline is taken.

    Attributes:
        policies: how far tensors may stay on chip, the first rule each.
        rules: how instructions are ordered, under the best of these policies.
        checked: whether programs are verified, as those have to be that run.
    """

    policies: tuple[Policy | None, ...]
    rules: tuple[Rule, ...]
    checked: bool = True


THOROUGH = Effort((None, Policy(), Policy(share=0.6)), RULES)
QUICK = Effort((Policy(),), RULES[:1], checked=False)
"""To know sooner; thoroughly linked, a model is no slower."""


@dataclass(frozen=True, eq=False)
class LinkedProgram:
    """Kernels that run one after another without the host.

    Attributes:
        streams: of each step alone, in order.
        compulsory: bytes of weights, inputs, and what others read, each moved once.
    """

    steps: tuple[KernelStep, ...]
    streams: tuple[InstructionStream, ...]
    linked: Linked
    compulsory: int


_programs: WeakKeyDictionary[Recipe, dict[tuple[int, int, Effort], LinkedProgram]] = (
    WeakKeyDictionary()
)


def segments(recipe: Recipe, effort: Effort = THOROUGH) -> list[LinkedProgram | HostStep]:
    """What runs, in order: programs on the core and steps on the host."""
    segments: list[LinkedProgram | HostStep] = []
    for is_kernel, steps in groupby(recipe.steps, lambda step: isinstance(step, KernelStep)):
        if is_kernel:
            kernels = [s for s in steps if isinstance(s, KernelStep)]
            segments.append(linked(recipe, kernels, effort))
        else:
            segments += [step for step in steps if isinstance(step, HostStep)]
    return segments


def linked(recipe: Recipe, steps: Sequence[KernelStep], effort: Effort = THOROUGH) -> LinkedProgram:
    """The program of a run of kernel steps of a recipe.

    Raises:
        ModelError: the recipe's code does not fit its arguments (a damaged artifact).
    """
    known = _programs.setdefault(recipe, {})
    key = id(steps[0]), len(steps), effort
    if key not in known:
        known[key] = _link(recipe, tuple(steps), effort)
    return known[key]


def _link(recipe: Recipe, steps: tuple[KernelStep, ...], effort: Effort) -> LinkedProgram:
    core = Core.of(recipe.target)
    codes = {n: from_bytes(recipe.codes[n].code, core) for n in {step.code for step in steps}}
    streams = tuple(codes[step.code] for step in steps)
    parts = [part_of(step, stream) for step, stream in zip(steps, streams, strict=True)]
    mine = set(map(id, steps))
    outside = _outside(recipe, mine)
    best = fastest(recipe.name, parts, core, outside, effort)
    _LOG.info(
        "linked %d kernels of %s: one program of %d instructions",
        len(steps), recipe.name, len(best.stream),
    )  # fmt: skip
    return LinkedProgram(steps, streams, best, _compulsory(steps, parts, best, outside))


def fastest(
    name: str, parts: Sequence[KernelDraft], core: Core, outside: Sequence[Range], effort: Effort
) -> Linked:
    """Parts linked to the program that ends first; `outside` is what others read of it."""
    return fastest_and_how(name, parts, core, outside, effort)[0]


def fastest_and_how(
    name: str, parts: Sequence[KernelDraft], core: Core, outside: Sequence[Range], effort: Effort
) -> tuple[Linked, Effort]:
    """The same, and the one thing to try to have it again."""
    candidates: list[tuple[float, Linked, Effort]] = []

    def tried(policy: Policy | None, rules: Sequence[Rule]) -> float:
        """When the fastest program under a policy ends; they join those found."""
        programs = links(name, parts, core, outside, policy, rules, effort.checked)
        ends = [timeline(one.stream).makespan for one in programs]
        for end, one, rule in zip(ends, programs, rules, strict=True):
            candidates.append((end, one, replace(effort, policies=(policy,), rules=(rule,))))
        return min(ends)

    policy = min(effort.policies, key=lambda policy: tried(policy, effort.rules[:1]))
    if len(effort.rules) > 1:
        tried(policy, effort.rules[1:])
    _, linked, how = min(candidates, key=lambda one: one[0])
    return linked, how


def _compulsory(
    steps: Sequence[KernelStep],
    parts: Sequence[KernelDraft],
    linked: Linked,
    outside: Sequence[Range],
) -> int:
    """Bytes that have to move: what the program reads first or others read, constants once.

    Constants count as the model has them, however they are laid out for loading; of constants and
    inputs counts what is read (`families.kit.simulation.compulsory`), of whichever kernels read
    one.
    """
    asked: dict[Range, int] = {}
    constants: dict[tuple[Place, ...], int] = {}
    for step, part in zip(steps, parts, strict=True):
        workload = Workload.parse(step.workload)
        reads = read_bytes(workload)
        for tensor, at in zip(part.stream.tensors, part.places, strict=True):
            if at is not None:
                asked[at] = asked.get(at, 0) + reads.get(tensor.name, at.nbytes)
        known = [
            operand
            for operand in template_of(workload.operator).operands(workload)
            if workload.is_constant(operand.name)
        ]
        places = tuple(place for place in step.arguments if place.region == "constant")
        needed = constants.get(places, 0) + sum(reads[operand.name] for operand in known)
        constants[places] = min(needed, sum(map(nbytes_of, known)))
    moved = 0
    for place, tensor in zip(linked.ranges, linked.stream.tensors, strict=True):
        if place.region == "arena":
            if any(place.meets(other) for other in outside):
                moved += place.nbytes
            elif tensor.role == "input":
                moved += min(place.nbytes, asked.get(place, place.nbytes))
    return moved + sum(constants.values())


def part_of(step: KernelStep, stream: InstructionStream) -> KernelDraft:
    """A kernel step as a part of a program.

    Raises:
        ModelError: its code takes other arguments.
    """
    table = stream.accesses
    touched = set(np.unique(table["tensor"][table["space"] == Space.HBM]).tolist())
    if len(step.arguments) != len(stream.tensors):
        raise ModelError(f"the code of kernel '{step.name}' takes other arguments; compile again")
    places: list[Range | None] = []
    for number, (place, tensor) in enumerate(zip(step.arguments, stream.tensors, strict=True)):
        nbytes = tensor.elements * size_of(tensor.dtype)
        places.append(_range(place, nbytes) if number in touched else None)
    return KernelDraft(step.name, stream, tuple(places))


def _range(place: Place, nbytes: int) -> Range:
    return Range(place.region, place.offset, nbytes)


def _outside(recipe: Recipe, mine: set[int]) -> list[Range]:
    """What others than the steps `mine` read: the caller, the host, later programs."""
    refs: list[TensorRef] = list(recipe.outputs)
    places: list[Range] = []
    for step in recipe.steps:
        if isinstance(step, HostStep):
            refs += step.inputs
        elif isinstance(step, KernelStep) and id(step) not in mine:
            # Sizes are in the other programs' code; the first byte is enough to know a tensor.
            places += [_range(place, 1) for place in step.arguments if place.region == "arena"]
    return places + places_of(refs)


def places_of(refs: Sequence[TensorRef]) -> list[Range]:
    """Where those tensors lie that are in the arena."""
    return [
        _range(ref.place, max(1, ref.info.elements * size_of(ref.stored or ref.info.dtype)))
        for ref in refs
        if ref.place.region == "arena"
    ]
