"""A recipe whose sizes vary as the plan of a library: a body for each of its variants.

What `compiler.varying.binding` computes for a choice of sizes becomes formulas that the library
evaluates: extents, sizes and places of tensors; what follows from the sizes alone becomes tables.
Invariant: tensors that are alive at the same time never share bytes, whatever the sizes: one of
them is always behind the other.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.c_library.code import plan
from tilesmith.capabilities.c_library.plans.held import VariantTables
from tilesmith.capabilities.c_library.plans.library_parts import kernel_of, refuse_hosts
from tilesmith.capabilities.c_library.plans.varying_arena import VaryingArena, ties_of
from tilesmith.codegen.native.programs.driver import KernelCall
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.onnx.inference.inference import DTYPE_NUMBERS
from tilesmith.compiler.recipe.program import Place
from tilesmith.compiler.recipe.variants import (
    HostPart,
    KernelPart,
    Variant,
    VaryingCheck,
    VaryingInfo,
    VaryingRecipe,
)
from tilesmith.compiler.varying.sizes.fitting import text_of
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.expressions.expression import Expr, as_expr, var
from tilesmith.search_space.support.errors import ModelError

Bytes = NDArray[np.uint8]


def plan_of_varying(
    recipe: VaryingRecipe, prefix: str, about: str, file: str = ""
) -> plan.LibraryPlan:
    """The plan of a recipe without host nodes.

    Raises:
        ModelError: parts of it run on the host, in Python, or follow from sizes in ways that need
            too much memory.
    """
    hosts = {
        (part.name, part.operator)
        for variant in recipe.variants
        for part in variant.parts
        if isinstance(part, HostPart)
    }
    refuse_hosts(recipe.title, sorted(hosts))
    used = sorted(
        {part.code for v in recipe.variants for part in v.parts if isinstance(part, KernelPart)}
    )
    names = {
        part.code: part.workload.split()[0]
        for v in recipe.variants
        for part in v.parts
        if isinstance(part, KernelPart)
    }
    functions = {code: number for number, code in enumerate(used)}
    weights = _Weights(recipe.constants)
    bodies = [_Body(recipe, variant, functions, weights) for variant in recipe.variants]
    codes = [recipe.codes[code] for code in used]
    return plan.LibraryPlan(
        prefix, recipe.name, about, recipe.target, recipe.threads,
        tuple(_tensor(recipe, info) for info in recipe.inputs),
        tuple(_tensor(recipe, info) for info in recipe.outputs),
        tuple(body.body() for body in bodies),
        tuple(kernel_of(names[code], recipe.codes[code]) for code in used),
        max((code.shared_bytes for code in codes), default=0),
        max((code.local_bytes for code in codes), default=0),
        max(body.arena.most_bytes(body.held) for body in bodies), weights.pieces, file,
        recipe.sizes,
    )  # fmt: skip


class _Weights:
    """The model's weights, and tables behind them, each once."""

    def __init__(self, constants: Bytes) -> None:
        self.pieces: list[Bytes] = [constants]
        self._end = int(constants.size)
        self._known: dict[bytes, int] = {}

    def add(self, array: NDArray[np.generic]) -> int:
        """The address of values."""
        raw = array.tobytes()
        if raw not in self._known:
            start = plan.aligned(self._end)
            hole = np.zeros(start - self._end, np.uint8)
            self.pieces += [hole, np.frombuffer(raw, np.uint8)]
            self._known[raw] = start
            self._end = start + len(raw)
        return plan.address(plan.WEIGHTS, self._known[raw])


def _tensor(recipe: VaryingRecipe, info: VaryingInfo) -> plan.LibraryTensor:
    if info.shape is None or info.dtype not in DTYPE_NUMBERS:
        raise ModelError(
            f"'{recipe.title}' cannot become a library: what shape '{info.name}' has is known only "
            "when the model has run; leave it out of the outputs, or compile the model to a .tsm"
        )
    shape = tuple(e if e.constant is None else e.constant for e in info.shape)
    return plan.LibraryTensor(info.name, info.dtype, shape, DTYPE_NUMBERS[info.dtype])


class _Body:
    """One variant, as a body."""

    def __init__(
        self,
        recipe: VaryingRecipe,
        variant: Variant,
        functions: Mapping[int, int],
        weights: _Weights,
    ) -> None:
        self.recipe, self.variant, self.functions = recipe, variant, functions
        self.weights = weights
        self.slot_of: dict[str, int] = {}
        self.slots = 0
        self.held: list[plan.DerivedTensor] = []
        self.copied: list[tuple[str, int]] = []
        """Tensors that every run fills from slots of what is held."""
        self._hold(VariantTables(recipe, variant))
        copied = [name for name, _ in self.copied]
        self.arena = VaryingArena(variant, self.places.keys(), copied)
        self.ties = self.arena.ties
        self.group_of = {name: n for n, tie in enumerate(self.ties) for name in tie.members}
        for name in self.group_of:
            self._slot(name)

    def _slot(self, name: str) -> int:
        if name not in self.slot_of:
            self.slot_of[name] = self.slots
            self.slots += 1
        return self.slot_of[name]

    # -- what follows from the sizes --------------------------------------------------------------
    def _hold(self, tables: VariantTables) -> None:
        """Slots of what is held, and of what lies in it."""
        self.places: dict[str, tuple[int, Expr]] = {}
        """Which of `held`, and how far behind its start."""
        slots: list[plan.DerivedTensor] = []
        for name in self.variant.held:
            self._check_held(name, tables)
            table = tables.of(name)
            self.places[name] = (len(slots), as_expr(0))
            slots.append(
                plan.DerivedTensor(
                    self._slot(name), self.weights.add(table.array), table.offset, table.shape,
                    table.steps, table.element, self.variant.by_name[name].nbytes,
                )
            )  # fmt: skip
        members: list[list[tuple[int, Expr]]] = [[] for _ in slots]
        for name, base, offset in ties_of(self.variant):
            if base in self.places:
                number, distance = self.places[base]
                self.places[name] = (number, distance + offset)
                members[number].append((self._slot(name), distance + offset))
            elif name in self.places:
                number, distance = self.places.pop(name)
                own = f"{name} held"
                members[number].append((self._slot(own), distance))
                self.slot_of.pop(name, None)
                self.copied.append((name, self.slot_of[own]))
        self.held = [
            replace(held, members=tuple(inside))
            for held, inside in zip(slots, members, strict=True)
        ]

    def _check_held(self, name: str, tables: VariantTables) -> None:
        """Indices that follow from the sizes are in range wherever they are looked at."""
        for check in self._checks(name):
            for point, values in tables.at_points(name):
                extents = [int(extent.evaluate(point)) for extent in check.extents]
                if fault := index_fault(values, extents):
                    raise ModelError(f"{check.node} {fault} at {text_of(point)}")

    def _checks(self, name: str) -> list[VaryingCheck]:
        kernels = (part for part in self.variant.parts if isinstance(part, KernelPart))
        return [check for part in kernels for check in part.checks if check.indices == name]

    # -- what is run ------------------------------------------------------------------------------
    def body(self) -> plan.RegionBody:
        """All of it."""
        variant = self.variant
        self.numbers: list[Expr] = [var(size.name) for size in self.recipe.sizes]
        self._direct: dict[int, int] = {}
        inputs = [self._end(name, number) for number, name in enumerate(variant.inputs)]
        count = len(inputs)
        outputs = [self._output(name, count + n) for n, name in enumerate(variant.outputs)]
        counts = [end.tensor.count for end in (*inputs, *outputs)]
        for end, elements in zip((*inputs, *outputs), counts, strict=True):
            self.numbers.append(elements * size_of(end.tensor.dtype))
        self.numbers += counts
        for end in (*inputs, *outputs):
            self.numbers += [as_expr(extent) for extent in end.tensor.shape]
        stages = self._stages()
        first = []
        for name, slot in self.copied:
            first.append((self._address(name), self._in_slot(slot), len(self.numbers)))
            self.numbers.append(variant.by_name[name].nbytes)
        groups = tuple(
            plan.TensorGroup(
                tuple((self.slot_of[name], d) for name, d in tie.members.items()),
                tie.low, tie.high, behind,
            )
            for tie, behind in zip(self.ties, self.arena.behind, strict=True)
        )  # fmt: skip
        return plan.RegionBody(
            tuple(inputs), tuple(outputs), tuple(stages), variant.region, self.slots,
            groups, tuple(self.held), tuple(self.numbers), tuple(first),
        )  # fmt: skip

    def _in_slot(self, slot: int) -> int:
        ends = len(self.recipe.inputs) + len(self.recipe.outputs)
        return plan.address(plan.FIRST_END + ends + slot, 0)

    def _address(self, name: str) -> int:
        """Where a tensor is in a run; 0 where nothing in memory is."""
        group = self.group_of.get(name)
        if group is not None and group in self._direct:
            return plan.address(plan.FIRST_END + self._direct[group], 0)
        return self._home(name)

    def _home(self, name: str) -> int:
        constant = self.variant.by_name[name].constant
        if constant is not None:
            return plan.address(plan.WEIGHTS, constant.offset)
        if name in self.slot_of:
            return self._in_slot(self.slot_of[name])
        return 0

    def _end(self, name: str, number: int) -> plan.End:
        held = self.variant.by_name[name]
        tensor = _tensor(self.recipe, held.info)
        home = self._home(name)
        group = self.group_of.get(name)
        direct = group is not None and not held.stored and self._alone(name, group)
        if direct and group is not None:
            self._direct[group] = number
        return plan.End(tensor, home, direct, held.stored)

    def _alone(self, name: str, group: int) -> bool:
        """Whether a group is one end alone, and what has the very same bytes."""
        tie = self.ties[group]
        copied = [name for name, _ in self.copied]
        ends = [*self.variant.inputs, *self.variant.outputs, *copied]
        own = sum(end in tie.members for end in ends)
        distance, nbytes = tie.members[name], self.variant.by_name[name].nbytes
        plain = _tensor(self.recipe, self.variant.by_name[name].info).count
        whole = plain * size_of(self.variant.by_name[name].info.dtype) == nbytes
        return (
            own == 1 and whole
            and set(tie.members.values()) == {distance} and tie.high == (distance + nbytes,)
        )  # fmt: skip

    def _output(self, name: str, number: int) -> plan.End:
        if name in self.variant.inputs:
            return replace(self._end(name, number), source=self.variant.inputs.index(name))
        end = self._end(name, number)
        if not end.home:
            raise ModelError(
                f"'{self.recipe.title}' cannot become a library: its output '{name}' is no array "
                "of kernels; compile the model to a .tsm"
            )
        return end

    def _stages(self) -> list[plan.CallStage]:
        """Kernels in runs, at whose start alone something has to be checked."""
        runs: list[tuple[list[plan.Check], list[KernelCall]]] = []
        for part in self.variant.parts:
            if isinstance(part, KernelPart):
                checks = [c for check in part.checks if (c := self._check(check)) is not None]
                if checks or not runs:
                    runs.append((checks, []))
                places = tuple(self._argument(argument) for argument in part.arguments)
                runs[-1][1].append(KernelCall(self.functions[part.code], places))
        return [plan.CallStage(tuple(checks), tuple(calls)) for checks, calls in runs]

    def _argument(self, argument: str | Place) -> int:
        if isinstance(argument, str):
            return self._address(argument)
        match argument.region:
            case "held":
                return plan.address(plan.NUMBERS, argument.offset)
            case "constant":
                return plan.address(plan.WEIGHTS, argument.offset)
        return 0

    def _check(self, check: VaryingCheck) -> plan.Check | None:
        """What a run has to look at; None where the sizes tell."""
        indices = self.variant.by_name[check.indices]
        if indices.constant is not None or check.indices in self.places:
            return None
        count = _tensor(self.recipe, indices.info).count
        number = len(self.numbers)
        self.numbers += [count, *check.extents]
        extents = tuple(0 for _ in check.extents)
        dtype = indices.stored or indices.info.dtype
        return plan.Check(check.node, self._address(check.indices), dtype, 0, extents, number)
