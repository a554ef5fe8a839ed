"""What is computed by turns or by choice: `while`, `if`, `case`.

A loop whose turns are known and few is written out: then what it reads at each turn is known, too,
and passes see through it. One of more turns that goes through rows becomes `Scan` (`scans.py`), any
other `_Loop`, with the count of turns where that is known.
"""

from dataclasses import dataclass
from typing import Any

from tilesmith.capabilities.stablehlo.arithmetic import RealValue
from tilesmith.capabilities.stablehlo.attributes import constant_of
from tilesmith.capabilities.stablehlo.bodies import body_of, looped
from tilesmith.capabilities.stablehlo.builder import TensorValue
from tilesmith.capabilities.stablehlo.pairs import flat, packed, parts
from tilesmith.capabilities.stablehlo.rules.elementwise import word
from tilesmith.capabilities.stablehlo.rules.scans import scanned
from tilesmith.capabilities.stablehlo.translator import Translation, Values, rules
from tilesmith.search_space.support.errors import ModelError

_TURNS = 64
"""Turns up to which a loop may be written out."""

_WRITTEN = 4096
"""Operations up to which it is."""


@dataclass(frozen=True)
class _Loop:
    """A `while` operation with what it starts from."""

    translation: Translation
    operation: Any
    initial: list[TensorValue]
    outer: dict[Any, TensorValue]

    def condition(self, values: Values) -> TensorValue:
        (holds,) = self.translation.region(self.operation.regions[0], values, self.outer)
        return holds

    def body(self, values: Values) -> Values:
        return self.translation.region(self.operation.regions[1], values, self.outer)


@rules.register("stablehlo.while")
def _while(translation: Translation, operation: Any, values: Values) -> Values:
    loop = _Loop(translation, operation, list(values), translation.known)
    turns = _turns(loop)
    size = len(list(_operations(operation.regions[1])))
    if turns is not None and turns <= _TURNS and turns * size <= _WRITTEN:
        state: Values = values
        for _ in range(turns):
            state = loop.body(state)
        return state
    return _looped(loop, turns)


def _operations(region: Any) -> Any:
    for block in region.blocks:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from _operations(inner)


# -- how many turns -----------------------------------------------------------------------------
def _turns(loop: _Loop) -> int | None:
    """How often the body runs, where a counter starts, grows and ends at known numbers."""
    test, body = (next(iter(region.blocks)) for region in loop.operation.regions)
    end = list(test.operations)[-1]
    comparison = _maker(end.operands[0])
    if comparison is None or comparison.name != "stablehlo.compare":
        return None
    if word(comparison, "comparison_direction") != "LT":
        return None
    counter, limit = comparison.operands
    positions = {argument: number for number, argument in enumerate(test.arguments)}
    if counter not in positions:
        return None
    position = positions[counter]
    first = loop.translation.builder.single(loop.initial[position])
    last = _limit(loop, limit, positions, body)
    step = _step(loop, body, position)
    if first is None or last is None or step is None or step < 1:
        return None
    return max(0, -(-(int(last) - int(first)) // step))


def _maker(value: Any) -> Any:
    """The operation that gives a value; None for an argument."""
    owner = getattr(value, "owner", None)
    return getattr(owner, "operation", owner) if hasattr(owner, "operands") else None


def _number(loop: _Loop, value: Any) -> int | None:
    """The number that a value read by a region is: a constant there, or known outside."""
    if value in loop.outer:
        known = loop.translation.builder.single(loop.outer[value])
        return None if known is None else int(known)
    operation = _maker(value)
    if operation is None or operation.name != "stablehlo.constant":
        return None
    return int(constant_of(operation)[1].reshape(-1)[0])


def _limit(loop: _Loop, value: Any, positions: dict[Any, int], body: Any) -> int | None:
    """The number that a value of the condition is at every turn."""
    if value not in positions:
        return _number(loop, value)
    position = positions[value]
    if list(list(body.operations)[-1].operands)[position] != list(body.arguments)[position]:
        return None  # the body hands on another
    known = loop.translation.builder.single(loop.initial[position])
    return None if known is None else int(known)


def _step(loop: _Loop, body: Any, position: int) -> int | None:
    """What the body adds to a counter."""
    operation = _maker(list(list(body.operations)[-1].operands)[position])
    if operation is None or operation.name != "stablehlo.add":
        return None
    argument = list(body.arguments)[position]
    others = [operand for operand in operation.operands if operand != argument]
    return _number(loop, others[0]) if len(others) == 1 else None


# -- Loop ---------------------------------------------------------------------------------------
def _looped(loop: _Loop, turns: int | None) -> Values:
    b, like = loop.translation.builder, loop.initial
    place = b.place
    initial = [b.full(value) for value in flat(like)]
    kept = _kept(loop)

    def body(values: Values) -> Values:
        return flat(loop.body(packed(values, like)))

    if turns is not None:
        ends = scanned(b, initial, kept, turns, body)
        b.place = place
        if ends is not None:
            return packed(ends, like)
    changing = [value for value, stays in zip(initial, kept, strict=True) if not stays]
    start = None if turns is not None else b.full(loop.condition(like))
    if not changing:
        return like

    def turn(
        _: TensorValue, go_on: TensorValue, carried: list[TensorValue]
    ) -> tuple[TensorValue, Values]:
        results = body(_among(kept, initial, carried))
        goes = go_on if turns is not None else loop.condition(packed(results, like))
        return goes, [value for value, stays in zip(results, kept, strict=True) if not stays]

    return packed(_among(kept, initial, looped(b, turns, start, changing, turn)), like)


def _kept(loop: _Loop) -> list[bool]:
    """Which values (parts of complex ones) the body hands on as they are: it reads them from
    outside."""
    (body,) = loop.operation.regions[1].blocks
    returned = list(list(body.operations)[-1].operands)
    return [
        given == end
        for given, end, value in zip(body.arguments, returned, loop.initial, strict=True)
        for _ in parts(value)
    ]


def _among(kept: list[bool], initial: Values, changing: Values) -> list[TensorValue]:
    """All values in order: those that stay, and those that change."""
    others = iter(changing)
    return [value if stays else next(others) for value, stays in zip(initial, kept, strict=True)]


# -- choices ------------------------------------------------------------------------------------
@rules.register("stablehlo.if")
def _if(translation: Translation, operation: Any, values: Values) -> Values:
    then, otherwise = operation.regions
    return _chosen(translation, values[0], [otherwise, then], operation)


@rules.register("stablehlo.case")
def _case(translation: Translation, operation: Any, values: Values) -> Values:
    return _chosen(translation, values[0], list(operation.regions), operation)


def _chosen(
    translation: Translation, index: TensorValue, branches: list[Any], operation: Any
) -> Values:
    """The branch of a number; of those out of range, the last (and the first of flags)."""
    b, outer = translation.builder, translation.known
    known = b.single(index)
    if known is not None or len(branches) == 1:
        number = 0 if known is None else int(known)
        taken = number if 0 <= number < len(branches) else -1
        return translation.region(branches[taken], [], outer)
    place = b.place
    flag = index if index.dtype == "bool" else RealValue(b, index).equals(0).value
    if index.dtype == "bool":
        branches = branches[::-1]
    attributes: dict[str, Any] = {}
    captured: dict[str, None] = {}
    given: list[TensorValue] = []
    results: list[TensorValue] = []
    for name, rest in (("then_branch", branches[:1]), ("else_branch", branches[1:])):
        with b.scope() as nodes:
            if len(rest) == 1:
                given = list(translation.region(rest[0], [], outer))
            else:
                translation.known = outer
                below = RealValue(b, index) - 1
                given = list(_chosen(translation, below.value, rest, operation))
            results = flat(given)
            attributes[name], captures = body_of(b, name, [], nodes, results)
            captured.update(dict.fromkeys(captures))
    b.place = place
    condition = b.full(flag).name
    kept = tuple(name for name in captured if name != condition)
    shapes = [(value.dtype, value.shape) for value in results]
    if not shapes:
        raise ModelError(f"{operation.name} of '{translation.name}' chooses between nothing")
    return packed(b.add_many("If", [condition], shapes, kept, **attributes), given)
