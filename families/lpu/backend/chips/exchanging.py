"""Exchanges between chips as chains: what moves, or is summed, between kernels of one program.

    source ─ cut into parts, rows side by side ─► sent, received ─► in parts ─► as readers want

Every chip runs the same program. What differs from chip to chip (which part is its own) is which of
the rows side by side a turned chain begins with (`VectorTensor.parts`); what differs otherwise,
weights, is the contents of tensors. Views of an exchange cost nothing where rows are alike:
elements that stand apart in memory (`BoundaryTensor.offsets`) are cut anew by whoever reads them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilesmith.compiler.backends.many_cores import Exchange, View
from tilesmith.families.lpu.backend.programs.joining import Joining
from tilesmith.families.lpu.backend.programs.recutting import BoundaryTensor
from tilesmith.families.lpu.codegen.dataflow import LANES, ChainBuilder, Ints, Rows, VectorTensor
from tilesmith.families.lpu.codegen.exchange import ChipExchange as Moved
from tilesmith.families.lpu.codegen.exchange import RowRange, added_by_both, copied, exchange
from tilesmith.families.lpu.codegen.fabric import ChipFabric, ChipGroup
from tilesmith.search_space.support.errors import ModelError

SUMMED = ("float16", "float32")


def group_of(step: Exchange, fabric: ChipFabric, first: int) -> ChipGroup:
    """The group of an exchange, from the chips it names.

    Args:
        first: the number of the fabric's first chip.

    Raises:
        ModelError: they do not stand along axes of the fabric.
    """
    places = [fabric.places[core - first] for core in step.group]
    axes = [a for a in range(len(fabric.extents)) if len({place[a] for place in places}) > 1]
    group = fabric.group(axes)
    chips = [fabric.there(step.group[0] - first, way) for way in group.ways]
    if not axes or [step.group[0] - first, *chips] != [core - first for core in step.group]:
        raise ModelError(f"{step.name}: chips {step.group} are no group of {fabric.extents}")
    return group


@dataclass
class Exchanging:
    """Adds exchanges to a program in the making.

    Attributes:
        first: the number of the fabric's first chip.
        flight: cycles from a send to its receive.
        widths: lanes of rows of what the caller gives, by place.
    """

    joining: Joining
    fabric: ChipFabric
    first: int
    flight: int
    widths: dict[int, int]

    def add(self, number: int, steps: Sequence[Exchange]) -> None:
        """What all chips do for one exchange.

        Args:
            number: of the step.
            steps: of each chip.

        Raises:
            ModelError: chips do not do the same, or nothing that chains do.
        """
        one, name = steps[0], f"{number}.{steps[0].kind}"
        kinds = {step.kind for step in steps}
        firsts = [step.source.first for step in steps]
        if one.source.dtype != one.result.dtype or len({len(s.source.dims) for s in steps}) > 1:
            raise ModelError(f"{one.name}: chips do not exchange the same")
        if kinds == {"copy"} and len(set(firsts)) == 1:
            self._copied(name, one)
        elif kinds <= {"copy", "zero"}:
            self._chosen(name, steps)
        elif len(kinds) == 1:
            self._collective(name, one)
        else:
            raise ModelError(f"{one.name}: chips do different things, {', '.join(sorted(kinds))}")
        self.joining.owners += [number] * (len(self.joining.chains) - len(self.joining.owners))

    def _collective(self, name: str, step: Exchange) -> None:
        group = group_of(step, self.fabric, self.first)
        match step.kind:
            case "all_reduce":
                self._summed(name, step, group)
            case "all_gather":
                self._gathered(name, step, group)
            case "reduce_scatter" | "all_to_all":
                self._scattered(name, step, group)
            case _:
                raise ModelError(
                    f"{step.name}: stages of a pipeline are no single program of these chips; "
                    "'--chips' cuts a model into one"
                )

    # -- kinds --------------------------------------------------------------------------------
    def _summed(self, name: str, step: Exchange, group: ChipGroup) -> None:
        _check_sum(step)
        held = self._dense(step.source)
        own = self.joining.tensors[held.tensor]
        rows, size = _rows(held.shape), group.size
        if size == 2:
            total = self._tensor(f"{name}.sum", rows, own, 1)
            both = RowRange(own, 0, rows), RowRange(total, 0, rows)
            self._take(added_by_both(name, both[0], group, self.flight, both[1]))
        else:
            own = self._in_parts(name, own, rows, size)
            total = self._tensor(f"{name}.whole", own.rows, own, size)
            parts = self._out(name, own, group)
            self._take(
                exchange("all_reduce", name, parts, group, self.flight, "temporary"), total, group
            )
        self.joining.stands(replace(held, tensor=total.name, place=step.result.place))

    def _gathered(self, name: str, step: Exchange, group: ChipGroup) -> None:
        held = self._dense(step.source)
        own = replace(self.joining.tensors[held.tensor], copies=2)  # sent to both sides
        self.joining.tensors[own.name] = own
        rows, size = _rows(held.shape), group.size
        whole, part = self._tensor(f"{name}.whole", rows * size, own, size), RowRange(own, 0, rows)
        moved = exchange("all_gather", name, [part], group, self.flight, "temporary")
        self._take(moved, whole, group)
        self._stands(whole, step.result, size, held.shape[-1])

    def _scattered(self, name: str, step: Exchange, group: ChipGroup) -> None:
        size = group.size
        given, last = self._cut(name, (step.source,), size)
        parts = self._out(name, given, group)
        if step.kind == "reduce_scatter":
            _check_sum(step)
            moved = exchange("reduce_scatter", name, parts, group, self.flight, "temporary")
            self._take(moved)
            shape, own = (step.result.elements // last, last), moved.results[0].tensor
            self.joining.stands(
                BoundaryTensor(own.name, step.result.place, shape, step.result.dtype)
            )
            return
        whole = self._tensor(f"{name}.whole", given.rows, given, size)
        moved = exchange("all_to_all", name, parts, group, self.flight, "temporary")
        self._take(moved, whole, group)
        self._stands(whole, step.result, size, last)

    def _chosen(self, name: str, steps: Sequence[Exchange]) -> None:
        """Each chip keeps a part of what all have; or the first of each group all, others zeros."""
        zeros = any(step.kind == "zero" for step in steps)
        marks = [(step.kind, 0 if zeros else step.source.first) for step in steps]
        axes = _axes_of(self.fabric, marks)
        group = self.fabric.group(axes)
        chosen = dict[int, View]()
        for chip, step in enumerate(steps):
            chosen.setdefault(self.fabric.member(chip, axes, 0), step.source)
        views = [chosen[member] for member in range(group.size)]
        if zeros:
            given, last = self._with_zeros(name, views[0], group.size)
        else:
            given, last = self._cut(name, views, group.size)
        own = self._tensor(f"{name}.own", given.rows // group.size, given, 1)
        own_part = RowRange(own, 0, own.rows)
        self.joining.chains.append(copied(name, _parts(given)[0], own_part, group))
        result = steps[0].result
        self.joining.stands(
            BoundaryTensor(own.name, result.place, (result.elements // last, last), result.dtype)
        )

    def _copied(self, name: str, step: Exchange) -> None:
        """The same on all chips: what is read there lies where it was made."""
        view = step.source
        if view.first or len(view.dims) > 1:
            given, last = self._cut(name, (view,), 1)
            held = BoundaryTensor(given.name, view.place, (view.elements // last, last), view.dtype)
        else:
            held = self._dense(view)
        if self.joining.tensors[held.tensor].role not in ("temporary", "output"):
            rows = _rows(held.shape)
            own = self.joining.tensors[held.tensor]
            copy = self._tensor(f"{name}.copy", rows, own, 1)
            self._copy(name, RowRange(own, 0, rows), RowRange(copy, 0, rows))
            held = replace(held, tensor=copy.name)
        self.joining.stands(replace(held, place=step.result.place))

    # -- tensors ------------------------------------------------------------------------------
    def _take(
        self, moved: Moved, whole: VectorTensor | None = None, group: ChipGroup | None = None
    ) -> None:
        """The chains of a collective; its results copied into a tensor in parts."""
        self.joining.tensors.update({tensor.name: tensor for tensor in moved.tensors})
        self.joining.chains += moved.chains
        if whole is not None and group is not None:
            pairs = zip(moved.results, _parts(whole), strict=True)
            self.joining.chains += [
                copied(f"{whole.name}.{far}", *both, group) for far, both in enumerate(pairs)
            ]

    def _out(self, name: str, given: VectorTensor, group: ChipGroup) -> list[RowRange]:
        """Parts in tensors of their own: sent at once, they want slices of their own."""
        parts = []
        for far, part in enumerate(_parts(given)):
            own = self._tensor(f"{name}.own.{far}", part.count, replace(given, block=0), 1)
            parts.append(RowRange(own, 0, part.count))
            self.joining.chains.append(copied(own.name, part, parts[-1], group))
        return parts

    def _tensor(self, name: str, rows: int, like: VectorTensor, parts: int) -> VectorTensor:
        tensor = VectorTensor(name, rows, like.dtype, "temporary", like.block, parts=parts)
        self.joining.tensors[name] = tensor
        return tensor

    def _copy(self, name: str, given: RowRange, into: RowRange) -> None:
        b = ChainBuilder(f"{name}: as it is", given.count)
        b.write(b.read(given.rows()), into.rows())
        self.joining.chains.append(b.chain())

    def _width(self, view: View) -> int:
        """Lanes of the rows that a tensor lies in already."""
        met = [held for held in self.joining.written.values() if held.meets(_flat(view, 1))]
        return met[-1].shape[-1] if met else self.widths.get(view.place.offset, LANES)

    def _dense(self, view: View) -> BoundaryTensor:
        """All of a tensor, as it lies."""
        last = math.gcd(self._width(view), view.elements)
        held = _flat(view, last)
        met = [h for h in self.joining.written.values() if h.place == view.place]
        block = self.joining.tensors[met[-1].tensor].block if met else 0
        tensor = VectorTensor(held.tensor, _rows(held.shape), view.dtype, "input", block)
        return replace(held, tensor=self.joining.operand("exchange", held, tensor))

    def _cut(self, name: str, views: Sequence[View], size: int) -> tuple[VectorTensor, int]:
        """Parts of a tensor row by row side by side, and the lanes of a row. One view has the parts
        outermost; several are one each."""
        view, parts = views[0], [_elements(one) for one in views]
        offsets = parts[0].reshape(size, -1) if len(parts) == 1 else np.stack(parts)
        last = math.gcd(math.gcd(view.dims[-1][0], self._width(view)), offsets.shape[1])
        shape = (offsets.shape[1] // last, size, last)
        placed = offsets.reshape(size, -1, last).swapaxes(0, 1).reshape(-1)
        held = BoundaryTensor(f"{name}.given", view.place, shape, view.dtype, placed)
        tensor = VectorTensor(held.tensor, _rows(shape), view.dtype, "input", parts=size)
        gathered = self.joining.operand(name, held, tensor)
        return self.joining.tensors[gathered], last

    def _with_zeros(self, name: str, view: View, size: int) -> tuple[VectorTensor, int]:
        """A tensor as the first of so many parts, all others of which are zeros."""
        held = self._dense(view)
        own, rows = self.joining.tensors[held.tensor], _rows(held.shape)
        padded = replace(self._tensor(f"{name}.given", rows * size, own, size), zeros=True)
        self.joining.tensors[padded.name] = padded
        self._copy(name, RowRange(own, 0, rows), _parts(padded)[0])
        return padded, held.shape[-1]

    def _in_parts(self, name: str, own: VectorTensor, rows: int, size: int) -> VectorTensor:
        """A tensor whose rows are parts in turn: itself, or a copy with some rows more."""
        simple = own.role == "temporary" and own.stripes == 1 and own.parts in (1, size)
        if simple and rows % size == 0:
            tensor = replace(own, parts=size)
            self.joining.tensors[own.name] = tensor
            return tensor
        wanted = rows + -rows % size
        tensor = replace(self._tensor(f"{name}.given", wanted, own, size), zeros=wanted > rows)
        self.joining.tensors[tensor.name] = tensor
        self._copy(name, RowRange(own, 0, rows), RowRange(tensor, 0, rows))
        return tensor

    def _stands(self, whole: VectorTensor, view: View, size: int, last: int) -> None:
        """A tensor in parts is what a view sees, parts outermost."""
        each = view.elements // size
        offsets = _elements(view).reshape(size, -1, last).swapaxes(0, 1).reshape(-1)
        shape = (each // last, size, last)
        self.joining.stands(BoundaryTensor(whole.name, view.place, shape, view.dtype, offsets))


def _parts(tensor: VectorTensor) -> list[RowRange]:
    each = tensor.rows // tensor.parts
    return [RowRange(tensor, part, each, tensor.parts) for part in range(tensor.parts)]


def _flat(view: View, last: int) -> BoundaryTensor:
    """A whole tensor in rows of so many lanes."""
    name = f"{view.place.region}.{view.place.offset}"
    return BoundaryTensor(name, view.place, (view.elements // last, last), view.dtype)


def _rows(shape: Sequence[int]) -> int:
    """Vectors of a tensor that lies in rows of its last axis."""
    *lead, last = shape
    return math.prod(lead) * -(-last // LANES)


def _elements(view: View) -> Ints:
    """Where each element of a view stands, in its order."""
    return Rows.of("", view.first, *view.dims).numbers


def _axes_of(fabric: ChipFabric, marks: Sequence[object]) -> tuple[int, ...]:
    """Axes along which marks of chips differ."""
    axes = []
    for axis in range(len(fabric.extents)):
        for chip, place in enumerate(fabric.places):
            start = (*place[:axis], 0, *place[axis + 1 :])
            if marks[chip] != marks[fabric.number(start)]:
                axes.append(axis)
                break
    return tuple(axes)


def _check_sum(step: Exchange) -> None:
    if step.source.dtype not in SUMMED:
        raise ModelError(f"{step.name}: VXM adds {' and '.join(SUMMED)}, not {step.source.dtype}")
