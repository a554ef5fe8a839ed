"""Chains that one could do: who reads alone what another wrote, joins it.

    t = f(x) ; y = g(t, z)        y = g(f(x), z), and t is never written

Kernels write what they give, and an expression is cut where it has more operations than VXM has
ALUs a lane; once constants are known and programs are linked, both may fit into one chain: a
conversion behind the scales of whole numbers, the last operations of a long epilogue. What is saved
are a row's way to MEM and back, and its ports.

Invariants: rows of the tensor between are written by one chain, and read by one, in the same order;
nobody writes between the two what the first one reads, for the joined chain stands where the second
did.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilesmith.families.lpu.codegen.dataflow import (
    DTYPES,
    MOST_OPERATIONS,
    Chain,
    ChainValue,
    Compute,
    Operation,
    Product,
    Read,
    Receive,
    Send,
    Step,
    VectorTensor,
    Write,
    inputs_of,
    types_of,
)
from tilesmith.families.lpu.codegen.scheduling.resources.dependences import reads_of, writes_of
from tilesmith.families.lpu.codegen.scheduling.rewriting.normal_form import renamed

MOST_STREAMS = 24
"""Bytes a lane that operands of a joined expression come on at most: of the 32 streams of either
direction, results and weights need some."""

MORE = 4
"""Operations beyond a chain's that may go when a joined expression is made shorter."""


def merged(
    tensors: Mapping[str, VectorTensor], chains: Sequence[Chain], shorten: Callable[[Chain], Chain]
) -> list[tuple[int, Chain]]:
    """A program's chains, some joined with one before them.

    Args:
        shorten: makes the expressions of a chain shorter.

    Returns:
        Chains in order, each with the number that it had; a joined one with that of the first.
    """
    chains_by_number: dict[int, tuple[int, Chain]] = {
        n: (n, chain) for n, chain in enumerate(chains)
    }
    touching: dict[str, list[int]] = defaultdict(list)
    for number, chain in enumerate(chains):
        for name in _touched(chain):
            touching[name].append(number)
    for name, tensor in [*tensors.items()]:
        whole = tensor.role == "temporary" and tensor.parts == 1
        numbers = touching[name] if whole else []
        for first, second in _pairs(name, {n: chains_by_number[n][1] for n in numbers}):
            one, other = chains_by_number[first][1], chains_by_number[second][1]
            inputs = {tensor for tensor, _ in reads_of(one)}
            between = {n for name in inputs for n in touching[name] if first < n < second}
            if any(
                n in chains_by_number and inputs & _written(chains_by_number[n][1]) for n in between
            ):
                continue
            both = _joined(tensors, name, one, other)
            if both is None or _operations(both := shorten(both)) > MOST_OPERATIONS:
                continue
            chains_by_number[second] = chains_by_number.pop(first)[0], both
            for touched in _touched(one):
                touching[touched] = [second if n == first else n for n in touching[touched]]
    return [chains_by_number[number] for number in sorted(chains_by_number)]


def _touched(chain: Chain) -> set[str]:
    return {name for name, _ in reads_of(chain)} | _written(chain)


def _written(chain: Chain) -> set[str]:
    return {name for name, _ in writes_of(chain)}


def _operations(chain: Chain) -> int:
    return sum(len(step.operations) for step in chain.steps if isinstance(step, Compute))


def _pairs(name: str, chains: Mapping[int, Chain]) -> list[tuple[int, int]]:
    """Numbers of chains of which one writes rows of a tensor and one, alone, reads these."""
    writers: dict[bytes, int] = {}
    readers: dict[bytes, int] = {}
    rows = 0
    for number, chain in chains.items():
        for access, into in ((writes_of, writers), (reads_of, readers)):
            for tensor, numbers in access(chain):
                if tensor != name:
                    continue
                if numbers.tobytes() in into:
                    return []
                into[numbers.tobytes()] = number
                rows += len(numbers) if into is writers else 0
    if writers.keys() != readers.keys():
        return []
    held = np.concatenate(
        [np.zeros(0, np.int64), *(np.frombuffer(key, np.int64) for key in writers)]
    )
    if len(np.unique(held)) != rows:
        return []
    pairs = [(writers[key], readers[key]) for key in writers]
    return [(first, second) for first, second in pairs if first < second]


def _joined(
    tensors: Mapping[str, VectorTensor], name: str, first: Chain, second: Chain
) -> Chain | None:
    """Two chains as one; None if the second is more than an expression and what it writes, or the
    expression would have too many operations or operands."""
    *before, write = first.steps
    if not isinstance(write, Write) or write.rows.tensor != name or _writes(first) != 1:
        return None
    if any(isinstance(step, Send | Receive) for step in before):
        return None
    computes = [step for step in second.steps if isinstance(step, Compute)]
    plain = all(isinstance(step, Read | Compute | Write) for step in second.steps)
    if len(computes) != 1 or not plain or first.count != second.count:
        return None
    (expression,) = computes
    own = [n for n, s in enumerate(second.steps) if isinstance(s, Read) and s.rows.tensor == name]
    whole = ChainValue(own[0])
    takers = [s for s in second.steps if whole in inputs_of(s)]
    if len(own) != 1 or takers != [expression] or not _of_a_unit(before, write.value):
        return None
    shift = len(before)
    moved = {v: ChainValue(v.step + shift, v.output) for s in second.steps for v in inputs_of(s)}
    moved[whole] = write.value
    steps = [*before, *(renamed(step, moved) for step in second.steps)]
    return _expression(tensors, replace(first, steps=tuple(steps)), write.value)


def _writes(chain: Chain) -> int:
    return sum(isinstance(step, Write) for step in chain.steps)


def _of_a_unit(steps: Sequence[Step], value: ChainValue) -> bool:
    """Whether a value comes from MXM, or from an expression that nobody else reads."""
    step = steps[value.step]
    alone = not any(value in inputs_of(other) for other in steps)
    return alone and isinstance(step, Product | Compute)


def _expression(
    tensors: Mapping[str, VectorTensor], chain: Chain, value: ChainValue
) -> Chain | None:
    """A chain whose expression takes `value` from another expression, as one expression."""
    place, step = next((n, s) for n, s in enumerate(chain.steps) if value in inputs_of(s))
    before = chain.steps[value.step]
    assert isinstance(step, Compute), "the caller looked"
    steps = list(chain.steps)
    if isinstance(before, Compute):
        inputs = list(dict.fromkeys([*before.inputs, *(v for v in step.inputs if v != value)]))
        shift = len(before.operations)
        numbers = {n: inputs.index(v) for n, v in enumerate(before.inputs)}
        early = [_moved(o, numbers, len(before.inputs), len(inputs)) for o in before.operations]
        (output,) = before.outputs
        given = _number(output, numbers, len(before.inputs), len(inputs))
        numbers = {n: given if v == value else inputs.index(v) for n, v in enumerate(step.inputs)}
        late = [_moved(o, numbers, len(step.inputs), len(inputs) + shift) for o in step.operations]
        last = tuple(
            _number(o, numbers, len(step.inputs), len(inputs) + shift) for o in step.outputs
        )
        steps[place] = Compute(tuple(inputs), (*early, *late), last)
        steps = _without(steps, value.step)
    joined = replace(chain, steps=tuple(steps))
    types = types_of(joined, dict(tensors))
    (whole,) = (s for s in joined.steps if isinstance(s, Compute))
    streams = sum(DTYPES[types[v]] for v in whole.inputs)
    fits = streams <= MOST_STREAMS and len(whole.operations) <= MOST_OPERATIONS + MORE
    return joined if fits else None


def _number(operand: int, numbers: Mapping[int, int], inputs: int, first: int) -> int:
    """An operand's number where inputs have others and operations begin at `first`."""
    if operand < 0:
        return operand
    return numbers[operand] if operand < inputs else operand - inputs + first


def _moved(operation: Operation, numbers: Mapping[int, int], inputs: int, first: int) -> Operation:
    operands = tuple(_number(o, numbers, inputs, first) for o in operation.operands)
    return replace(operation, operands=operands)


def _without(steps: Sequence[Step], number: int) -> list[Step]:
    """Steps but for one that nothing reads."""
    kept = [*steps[:number], *steps[number + 1 :]]
    moved = {
        v: ChainValue(v.step - (v.step > number), v.output)
        for step in kept
        for v in inputs_of(step)
    }
    return [renamed(step, moved) for step in kept]
