"""A variant at one choice of sizes: an ordinary recipe, planned in its memory.

This is what a size costs the first time it is seen: formulas are evaluated, the arena is planned,
what follows from the sizes alone is computed; no code is made. Invariants: sizes outside the
variant's region never get here; a recipe's offsets are inside its memory whatever an artifact says,
for they are planned here.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tilesmith.codegen.host.memory import aligned_bytes
from tilesmith.compiler.assembly.nodes import CheckedSteps
from tilesmith.compiler.graph.graph import TensorInfo
from tilesmith.compiler.graph.indices import index_fault
from tilesmith.compiler.host.nodes import HostFunction
from tilesmith.compiler.recipe.memory import ALIGNMENT, Groups, aligned
from tilesmith.compiler.recipe.placement import planned
from tilesmith.compiler.recipe.program import (
    HostStep,
    IndexCheck,
    KernelStep,
    Place,
    Recipe,
    Step,
    TensorRef,
    view_of,
)
from tilesmith.compiler.recipe.variants import (
    AliasPart,
    HostPart,
    KernelPart,
    Variant,
    VaryingInfo,
    VaryingRecipe,
    touched_by,
)
from tilesmith.compiler.varying.forms import valued
from tilesmith.compiler.varying.sizes.fitting import Point, text_of
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.expressions.expression import Expr
from tilesmith.search_space.expressions.sizes import parse_extent
from tilesmith.search_space.support.errors import JobError, ModelError, VerificationError

_FORMULA = re.compile(r"\[([^\[\]]*)\]")


@dataclass(frozen=True, eq=False)
class Bound:
    """A variant at one choice of sizes.

    Attributes:
        recipe: places in the region "held" are in `held`.
        held: the sizes, and tensors that follow from them.
    """

    recipe: Recipe
    held: NDArray[np.uint8]


def info_at(info: VaryingInfo, point: Point) -> TensorInfo:
    """A tensor's info at some sizes."""
    if info.shape is None:
        return TensorInfo(info.name, info.dtype, None)
    return TensorInfo(info.name, info.dtype, tuple(_natural(e, point) for e in info.shape))


def _natural(extent: Expr, point: Point) -> int:
    value = int(extent.evaluate(point))
    if value < 0:
        raise ModelError(f"an extent is {value} at {text_of(point)}; it cannot be negative")
    return value


def bound(whole: VaryingRecipe, variant: Variant, point: Point) -> Bound:
    """The variant at sizes inside its region.

    Raises:
        VerificationError: the sizes are outside of it.
        JobError: what follows from the sizes cannot be computed.
    """
    if not variant.serves(point):  # an error, not an assertion: it guards memory
        raise VerificationError(f"{text_of(point)} is outside the variant's region")
    return _Binder(whole, variant, point).bound()


def arena_bytes(whole: VaryingRecipe, variant: Variant, point: Point) -> int:
    """What a variant's activations need at some sizes."""
    binder = _Binder(whole, variant, point)
    binder.held = {name: Place("held") for name in variant.held}
    binder.alias_held(sys.maxsize)
    return binder.arena()[1]


def follows(whole: VaryingRecipe, variant: Variant, point: Point) -> dict[str, NDArray[Any]]:
    """The tensors that follow from the sizes alone and that the steps read, by name.

    Raises:
        JobError: they cannot be computed.
        VerificationError: one is not what kernels take it for.
    """
    binder = _Binder(whole, variant, point)
    prologue = binder.prologue()
    for name, array in prologue.items():
        binder.check_held(name, array)
    return prologue


class _Binder:
    def __init__(self, whole: VaryingRecipe, variant: Variant, point: Point) -> None:
        self.whole, self.variant, self.point = whole, variant, point
        self.infos = {tensor.info.name: info_at(tensor.info, point) for tensor in variant.tensors}
        self.held: dict[str, Place] = {}
        self.copied: list[tuple[str, Place]] = []

    def bound(self) -> Bound:
        whole, variant = self.whole, self.variant
        held = self._held()
        self.alias_held(held.size)
        self.offsets, nbytes = self.arena()
        copies = (self._copy(name, place) for name, place in self.copied)
        steps = (*copies, *self._steps(held))
        recipe = Recipe(
            whole.name, whole.target, whole.threads,
            tuple(self._ref(name) for name in variant.inputs),
            tuple(self._ref(name) for name in variant.outputs),
            steps, whole.codes, whole.constants, nbytes, whole.opsets, variant.report, whole.source,
        )  # fmt: skip
        return Bound(recipe, held)

    # -- what follows from the sizes ----------------------------------------------------------
    def _held(self) -> NDArray[np.uint8]:
        """The sizes' values, and the tensors that follow from them, one after the other."""
        sizes = np.array([self.point[s.name] for s in self.whole.sizes], dtype=np.int64)
        arrays = {name: np.ascontiguousarray(v) for name, v in self.prologue().items()}
        total = aligned(sizes.nbytes)
        for name, array in arrays.items():
            self.check_held(name, array)
            self.held[name] = Place("held", total)
            total += aligned(array.nbytes)
        memory = aligned_bytes(max(ALIGNMENT, total))
        view_of(memory, 0, sizes.dtype, sizes.shape)[...] = sizes
        for name, array in arrays.items():
            view_of(memory, self.held[name].offset, array.dtype, array.shape)[...] = array
        return memory

    def check_held(self, name: str, array: NDArray[Any]) -> None:
        """What was computed is what kernels take it for: an error, for it guards memory."""
        info = self.infos[name]
        if array.shape != info.dims or array.dtype != to_numpy(info.dtype):
            raise VerificationError(
                f"'{name}' of '{self.whole.name}' is {array.dtype} of shape {array.shape} at "
                f"{text_of(self.point)}; {info.dtype} of shape {info.dims} was expected"
            )

    def prologue(self) -> dict[str, NDArray[Any]]:
        variant = self.variant
        values: dict[str, Any] = {v.name: valued(v, self.point) for v in variant.vectors}
        for tensor in variant.known:
            info = info_at(tensor.info, self.point)
            assert tensor.constant is not None
            values[info.name] = view_of(
                self.whole.constants, tensor.constant.offset, to_numpy(info.dtype), info.dims
            )
        for part in variant.prologue:
            function = _function(part.proto, part.reads, self.whole.opsets)
            values.update(function.run({name: values[name] for name in part.reads}))
        return {name: np.asarray(values[name]) for name in variant.held}

    def alias_held(self, total: int) -> None:
        """Views of what is held are held, too; parts of joins are copied to where they belong."""
        for part in self.variant.parts:
            if not isinstance(part, AliasPart):
                continue
            for name, base, offset in part.ties:
                if base in self.held:
                    start = self.held[base].offset + _natural(offset, self.point)
                    nbytes = _natural(self.variant.by_name[name].nbytes, self.point)
                    if start + nbytes > total:
                        raise VerificationError(f"'{name}' ends behind what is held")
                    self.held[name] = Place("held", start)
                elif name in self.held:
                    self.copied.append((name, self.held.pop(name)))

    # -- memory -------------------------------------------------------------------------------
    def arena(self) -> tuple[dict[str, int], int]:
        """Offsets of tensors in the arena, and its bytes."""
        groups = Groups()
        sizes: dict[str, int] = {}
        for tensor in self.variant.tensors:
            name = tensor.info.name
            if tensor.device and tensor.constant is None and name not in self.held:
                sizes[name] = _natural(tensor.nbytes, self.point)
                if self.infos[name].nbytes > sizes[name]:
                    raise VerificationError(f"'{name}' has more elements than bytes")
                groups.add(name, sizes[name])
        for name, base, offset in self._ties():
            if name in sizes and base in sizes and not groups.tie(name, base, offset):
                raise VerificationError(f"'{name}' lies elsewhere than behind '{base}'")
        touched = [touched_by(part) for part in self.variant.parts]
        first = (*self.variant.inputs, *(name for name, _ in self.copied))
        ends = (first, self.variant.outputs)
        placement = planned(groups, touched, *ends)
        return dict(placement.offsets), placement.nbytes

    def _ties(self) -> Iterable[tuple[str, str, int]]:
        for part in self.variant.parts:
            if isinstance(part, AliasPart):
                for name, base, offset in part.ties:
                    yield name, base, _natural(offset, self.point)

    def _place(self, name: str) -> Place:
        tensor = self.variant.by_name[name]
        if tensor.constant is not None:
            return tensor.constant
        if name in self.held:
            return self.held[name]
        if name in self.offsets:
            return Place("arena", self.offsets[name])
        return Place("value")

    def _ref(self, name: str) -> TensorRef:
        stored = self.variant.by_name[name].stored
        return TensorRef(self.infos[name], self._place(name), stored)

    def _copy(self, name: str, place: Place) -> HostStep:
        """Puts a tensor that is held where a join has it."""
        proto = helper.make_node("Identity", [f"{name} held"], [name]).SerializeToString()
        info = self.infos[name]
        source = TensorRef(TensorInfo(f"{name} held", info.dtype, info.shape), place)
        return HostStep(f"Identity '{name}'", "Identity", proto, (source,), (self._ref(name),))

    # -- steps --------------------------------------------------------------------------------
    def _steps(self, held: NDArray[np.uint8]) -> Iterable[Step]:
        steps = CheckedSteps()
        sources: dict[str, set[str]] = {}
        for part in self.variant.parts:
            if isinstance(part, AliasPart):
                for one, other, _ in part.ties:
                    both = {one, other} | sources.get(one, set()) | sources.get(other, set())
                    sources[one] = sources[other] = both
            elif isinstance(part, HostPart):
                steps.add(self._host_step(part))
            else:
                checks = (
                    (check, sources.get(check.indices.info.name, {check.indices.info.name}))
                    for check in self._checks(part, held)
                )
                steps.add_kernel(self._kernel_step(part), part.writes, checks)
        return steps.steps

    def _host_step(self, part: HostPart) -> HostStep:
        reads, writes = (tuple(map(self._ref, names)) for names in (part.reads, part.writes))
        proto = self._proto(part)
        return HostStep(part.name, part.operator, proto, reads, writes, part.sources)

    def _kernel_step(self, part: KernelPart) -> KernelStep:
        places = tuple(
            self._place(argument) if isinstance(argument, str) else argument
            for argument in part.arguments
        )
        workload = text_at(part.workload, self.point)
        return KernelStep(
            part.name, workload, part.config, part.origin, part.code, places, sources=part.sources
        )

    def _checks(self, part: KernelPart, held: NDArray[np.uint8]) -> Iterable[IndexCheck]:
        """What has to be made sure of before a kernel runs.

        Raises:
            JobError: indices that are constant, or follow from the sizes, are out of range.
        """
        for check in part.checks:
            extents = tuple(_natural(extent, self.point) for extent in check.extents)
            ref = self._ref(check.indices)
            if ref.place.region == "arena":
                yield IndexCheck(check.node, ref, extents)
            elif ref.place.region in ("held", "constant"):
                memory = held if ref.place.region == "held" else self.whole.constants
                dtype = to_numpy(ref.info.dtype)
                indices = view_of(memory, ref.place.offset, dtype, ref.info.dims)
                if fault := index_fault(indices, extents):
                    raise JobError(f"{check.node} {fault}")

    def _proto(self, part: HostPart) -> bytes:
        """The node with numbers in its attributes."""
        if not part.formulas:
            return part.proto
        proto = onnx.NodeProto.FromString(part.proto)
        values = {name: self._value(pattern) for name, pattern in part.formulas}
        for attribute in proto.attribute:
            if attribute.name in values:
                kind = attribute.type
                new = helper.make_attribute(attribute.name, values[attribute.name], attr_type=kind)
                attribute.CopyFrom(new)
        return bytes(proto.SerializeToString())

    def _value(self, pattern: Any) -> Any:
        if isinstance(pattern, Expr):
            return int(pattern.evaluate(self.point))
        if isinstance(pattern, tuple):
            return [self._value(part) for part in pattern]
        return text_at(str(pattern), self.point)


@lru_cache(maxsize=1024)
def _function(
    proto: bytes, reads: tuple[str, ...], opsets: tuple[tuple[str, int], ...]
) -> HostFunction:
    """What runs a node of a prologue; kept, for every new size runs it."""
    return HostFunction(onnx.NodeProto.FromString(proto), reads, opsets)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Expr:
    return parse_extent(text)


def text_at(text: str, point: Point) -> str:
    """A text with numbers for the formulas in its brackets."""
    return _FORMULA.sub(lambda match: str(int(_parsed(match[1]).evaluate(point))), text)
