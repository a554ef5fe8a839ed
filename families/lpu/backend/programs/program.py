"""The program of a compiled model on an LPU-like chip: chains of all its kernels, placed as one.

A recipe's steps are cut where a host step stands; what lies between is one program for the chip.
Kernels' tensors that are the same bytes of the arena are one tensor of the program, so that chains
of a kernel start as soon as the rows they read are there, whoever writes them. Weights are
resident.

Invariants: linked once for each recipe, whoever asks; the schedule is proved free of conflicts
before anybody sees it; a tensor that the caller, the host or another program reads is an output.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, get_args
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from tilesmith.compiler.recipe.areas import RunMemory
from tilesmith.compiler.recipe.program import HostStep, KernelStep, Recipe, TensorRef
from tilesmith.families.lpu.backend.programs.entrance import entering, hand_over, leaving
from tilesmith.families.lpu.backend.programs.joining import Joined, join
from tilesmith.families.lpu.backend.programs.kernel_code import ChainKernelCode
from tilesmith.families.lpu.backend.programs.out_of_range import warn
from tilesmith.families.lpu.backend.programs.recutting import BoundaryTensor
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.rewriting.likeness import likeness
from tilesmith.families.lpu.codegen.scheduling.rewriting.simplifying import simplified
from tilesmith.families.lpu.codegen.scheduling.scheduler import Order, SchedulerOptions, ordered
from tilesmith.families.lpu.codegen.selection.layout.images import content, in_rows
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.codegen.verification.tokens import Matching
from tilesmith.families.lpu.simulator.execution.functional import execute
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import CodegenError, ModelError, NoRoomError


@dataclass(frozen=True, eq=False)
class ChipProgram:
    """Kernels that run one after another without the host.

    Attributes:
        steps: that run on the chip, in order.
        before, after: that the host does as it hands tensors over (`entrance`), with their codes.
        joined: their chains as one program.
        schedule: where and when these happen.
        matching: which token each instruction takes, as the checker found it.
    """

    steps: tuple[KernelStep, ...]
    joined: Joined
    schedule: BurstSchedule
    matching: Matching
    before: tuple[tuple[KernelStep, ChainKernelCode], ...] = ()
    after: tuple[tuple[KernelStep, ChainKernelCode], ...] = ()

    def run(self, memory: RunMemory) -> None:
        """Execute the bursts on what stands in memory, and leave the results there."""
        for step, code in self.before:
            hand_over(step, code, memory)
        contents: dict[str, NDArray[Any]] = dict(self.joined.literals)
        for held in self.joined.inputs:
            contents[held.tensor] = in_rows(held.shape, held.dtype, _view(memory, held))
        played = execute(self.schedule, contents, matching=self.matching)
        warn(self.joined, self.steps, contents, played.tensors)
        for held in self.joined.outputs:
            _view(memory, held)[:] = content(held.shape, played.tensors[held.tensor])
        for step, code in self.after:
            hand_over(step, code, memory)


def _view(memory: RunMemory, held: BoundaryTensor) -> NDArray[Any]:
    return memory.view(held.place, np.dtype(to_numpy(held.dtype)), held.shape)


_LOG = logging.getLogger(__name__)

Key = tuple[int, int, Target, int]
Placed = tuple[Joined, BurstSchedule]
_programs: WeakKeyDictionary[Recipe, dict[Key, ChipProgram]] = WeakKeyDictionary()
Likes = dict[tuple[bytes, str, str], SchedulerOptions]
"""How programs of a recipe were scheduled, by the tries, their `likeness` and their chip."""

_likes: WeakKeyDictionary[Recipe, Likes] = WeakKeyDictionary()
_codes: WeakKeyDictionary[Recipe, dict[int, ChainKernelCode]] = WeakKeyDictionary()


def segments(recipe: Recipe, target: Target | None = None) -> list[ChipProgram | HostStep]:
    """What runs, in order: programs on the chip and steps on the host.

    Args:
        target: another chip to place the same chains on (a what-if); the recipe's if None.
    """
    segments: list[ChipProgram | HostStep] = []
    for is_kernel, steps in groupby(recipe.steps, lambda step: isinstance(step, KernelStep)):
        if is_kernel:
            kernels = [s for s in steps if isinstance(s, KernelStep)]
            segments.append(linked(recipe, kernels, target))
        else:
            segments += [step for step in steps if isinstance(step, HostStep)]
    return segments


def linked(
    recipe: Recipe,
    steps: Sequence[KernelStep],
    target: Target | None = None,
    tries: Sequence[SchedulerOptions] = (),
) -> ChipProgram:
    """The program of a run of kernel steps of a recipe.

    Args:
        target: as `segments`.
        tries: ways of scheduling it, of which the shortest schedule is kept; `TRIES` if none.

    Raises:
        ModelError: the recipe's code does not fit its arguments (a damaged artifact).
        CodegenError: its tensors do not fit into MEM at once.
        VerificationError: a law is broken.
    """
    target = target or recipe.target
    known = _programs.setdefault(recipe, {})
    key = id(steps[0]), len(steps), target, len(tries)
    if key not in known:
        codes = codes_of(recipe, steps)
        first, last = entering(recipe, steps), leaving(recipe, steps)
        inner = tuple(steps)[len(first) : len(steps) - len(last)]
        likes = _likes.setdefault(recipe, {})

        def placed_of(apart: bool) -> Placed:
            joined = joined_of(recipe, inner, codes, apart)
            few = len(joined.flow.chains) < MANY
            ways = tries or [way for way in TRIES if few or way.order == "critical"]
            return joined, _shortest(joined.flow, Chip.of(target), ways, likes, insist=apart)

        joined, placed = _with_room(placed_of)
        ends = [tuple((step, codes[step.code]) for step in part) for part in (first, last)]
        known[key] = ChipProgram(inner, joined, placed, check(placed), *ends)
        _LOG.info("linked %d kernels of %s: one schedule for the chip", len(inner), recipe.name)
    return known[key]


def _with_room(placed_of: Callable[[bool], Placed]) -> Placed:
    """A program as placed with its chains joined, or apart where MEM has no room for it so.

    Constants take words that nobody wrote before: temporaries of early chains may leave too few of
    them together if chains are joined, and enough if they are not.

    Args:
        placed_of: places it, with chains apart or not.

    Raises:
        ModelError: MEM has no room for it either way (what is said is of chains joined).
    """
    try:
        return placed_of(False)
    except ModelError as error:
        if isinstance(error.__cause__, NoRoomError):
            with suppress(ModelError):
                return placed_of(True)
        raise


def joined_of(
    recipe: Recipe,
    steps: Sequence[KernelStep],
    codes: Mapping[int, ChainKernelCode],
    apart: bool = False,
) -> Joined:
    """The chains of a run of kernel steps, not yet placed.

    Args:
        apart: leave chains that one could do as they are.
    """
    parts = [(step, codes[step.code]) for step in steps]
    constants = RunMemory(np.empty(0, np.uint8), recipe.constants, lent=recipe.lent)
    joined = join(recipe.name, parts, _outside(recipe, steps), constants)
    return simplified_program(joined, constants, apart)


TRIES = tuple(SchedulerOptions(order, window) for window in (8, 16) for order in get_args(Order))
"""Ways in which chains are taken by the list scheduler: none is the best for all programs."""

MANY = 1000
"""Chains from which on they are taken by the longest way to the end alone, which is hardly ever the
worse one there: scheduling takes seconds for each thousand of them."""


def _shortest(
    flow: Dataflow, chip: Chip, tries: Sequence[SchedulerOptions], likes: Likes, insist: bool
) -> BurstSchedule:
    """The shortest schedule that is found, or that of a program which is alike.

    Args:
        insist: try all ways though MEM has no room by the first: that one has tried chains in both
            orders, so that others hardly ever find any, and a large program's tries take minutes.

    Raises:
        ModelError: there is none.
    """
    schedules: list[tuple[BurstSchedule, SchedulerOptions]] = []
    reason: CodegenError | None = None
    key = likeness(flow), repr(chip), repr(tuple(tries))
    if key in likes:
        with suppress(CodegenError):  # it is found as ever then
            return ordered(flow, chip, likes[key])[0]
    for options in tries:
        try:
            schedules.append(ordered(flow, chip, options))
        except CodegenError as error:
            reason = reason or error
            if isinstance(error, NoRoomError) and not (schedules or insist):
                break
    if not schedules:
        advice = "; cut it over several (--chips), or take a smaller one"
        if isinstance(reason, NoRoomError):  # says it itself
            advice = ""
        raise ModelError(
            f"'{flow.name}' has no schedule on a chip of '{chip.target.name}': {reason}{advice}"
        ) from reason
    best, likes[key] = min(schedules, key=lambda one: one[0].cycles)
    return best


def simplified_program(joined: Joined, constants: RunMemory, apart: bool = False) -> Joined:
    """A program with shorter expressions, for its constants are known.

    Args:
        constants: those that are not known of all chips are left alone.
        apart: leave chains that one could do as they are.
    """
    held = {one.tensor: one for one in joined.inputs if one.place.region == "constant"}

    def content(tensor: str) -> NDArray[Any] | None:
        if tensor in joined.literals or tensor not in held:
            return joined.literals.get(tensor)
        one = held[tensor]
        if not constants.alike(one.place, one.nbytes):
            return None
        return in_rows(one.shape, one.dtype, _view(constants, one))

    simpler = simplified(joined.flow, content, apart)
    owners = tuple(joined.owners[number] for number in simpler.numbers)
    literals = {**joined.literals, **simpler.contents}
    return replace(joined, flow=simpler.flow, literals=literals, owners=owners)


def codes_of(recipe: Recipe, steps: Sequence[KernelStep]) -> Mapping[int, ChainKernelCode]:
    """The chains of the kernels of some steps, by the number of their code; each is read once.

    Raises:
        ModelError: one cannot be read (a damaged artifact).
    """
    known = _codes.setdefault(recipe, {})
    wanted = {step.code for step in steps}
    for number in sorted(wanted - known.keys()):
        known[number] = ChainKernelCode.from_bytes(recipe.codes[number].code)
    return {number: known[number] for number in wanted}


def _outside(recipe: Recipe, steps: Sequence[KernelStep]) -> tuple[BoundaryTensor, ...]:
    """What others than these steps read in the arena: the caller, the host, other programs."""
    mine = set(map(id, steps))
    seen = [_seen(ref) for ref in recipe.outputs]
    others: list[KernelStep] = []
    for step in recipe.steps:
        if isinstance(step, HostStep):
            seen += [_seen(ref) for ref in step.inputs]
        elif isinstance(step, KernelStep):
            others += [step] if id(step) not in mine else []
        else:
            raise ModelError(
                f"'{recipe.title}' has compiled loops, which family 'lpu' does not run; "
                "compile the model again"
            )
    codes = codes_of(recipe, others)
    for step in others:
        for parameter, place in zip(codes[step.code].parameters, step.arguments, strict=True):
            seen.append(BoundaryTensor(parameter.name, place, parameter.shape, parameter.dtype))
    return tuple(held for held in seen if held.place.region == "arena")


def _seen(ref: TensorRef) -> BoundaryTensor:
    """What the host or the caller reads; of no known shape where it is no tensor of the arena."""
    shape = ref.info.shape or () if ref.place.region == "arena" else ()
    return BoundaryTensor(ref.info.name, ref.place, shape, ref.stored or ref.info.dtype)
