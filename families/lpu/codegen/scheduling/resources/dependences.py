"""Which chains have to follow which: by the rows they write and read, in program order."""

from collections import defaultdict

import numpy as np

from tilesmith.families.lpu.codegen import dataflow


def reads_of(chain: dataflow.Chain) -> list[tuple[str, dataflow.Ints]]:
    """All rows a chain reads: operands, weights, tables."""
    reads = []
    for step in chain.steps:
        match step:
            case dataflow.Read():
                reads += [(tensor, rows) for tensor, rows, _ in read_parts(step)]
            case dataflow.Product(weights=rows):
                reads.append((rows.tensor, rows.numbers))
            case dataflow.Gather(table=table, rows=count, first=first):
                reads.append((table, dataflow.Rows.of(table, first, (count, 1)).numbers))
            case _:
                pass
    return reads


def read_parts(step: dataflow.Read) -> list[tuple[str, dataflow.Ints, dataflow.Ints | None]]:
    """(tensor, rows, vectors) that a read takes from its tensor and from its frame; vectors None:
    all of them."""
    numbers = step.rows.numbers
    if numbers.min() >= 0:
        return [(step.rows.tensor, numbers, None)]
    inside, outside = np.flatnonzero(numbers >= 0), np.flatnonzero(numbers < 0)
    framed = (step.frame, np.zeros(len(outside), np.int64), outside)
    return [framed] if not len(inside) else [(step.rows.tensor, numbers[inside], inside), framed]


def writes_of(chain: dataflow.Chain) -> list[tuple[str, dataflow.Ints]]:
    """All rows a chain writes."""
    return [(s.rows.tensor, s.rows.numbers) for s in chain.steps if isinstance(s, dataflow.Write)]


def groups_of(tensor: dataflow.VectorTensor, rows: dataflow.Ints) -> dataflow.Ints:
    """Rows with those that turned chains take in their place on other chips."""
    if tensor.parts == 1:
        return rows
    firsts = np.unique(rows // tensor.parts) * tensor.parts
    return np.asarray((firsts[:, None] + np.arange(tensor.parts)).reshape(-1))


def predecessors(flow: dataflow.Dataflow) -> list[list[int]]:
    """For every chain the earlier ones whose rows it reads, overwrites, or reads no more, and those
    whose likes send it what it receives."""
    numbers = {chain.name: number for number, chain in enumerate(flow.chains)}
    written = {tensor for chain in flow.chains for tensor, _ in writes_of(chain)}
    writer = {name: np.full(flow.tensors[name].rows, -1, np.int64) for name in written}
    readers: dict[str, list[tuple[int, dataflow.Ints]]] = defaultdict(list)
    predecessors: list[list[int]] = []
    for number, chain in enumerate(flow.chains):
        before: set[int] = set()
        for tensor, rows in reads_of(chain):
            if tensor in writer:
                rows = groups_of(flow.tensors[tensor], rows)
                before.update(_distinct(writer[tensor][rows]))
        for tensor, rows in writes_of(chain):
            before.update(_distinct(writer[tensor][rows]))
            if readers[tensor]:
                readers[tensor] = _overwritten(readers[tensor], rows, before, len(writer[tensor]))
        for tensor, rows in writes_of(chain):
            writer[tensor][rows] = number
        for tensor, rows in reads_of(chain):
            if tensor in writer:
                readers[tensor].append((number, rows))
        senders = (s.sender for s in chain.steps if isinstance(s, dataflow.Receive) and s.sender)
        before.update(map(numbers.__getitem__, senders))
        before -= {-1, number}
        predecessors.append(sorted(before))
    return predecessors


def _distinct(numbers: dataflow.Ints) -> list[int]:
    first = int(numbers[0])
    return [first] if (numbers == first).all() else np.unique(numbers).tolist()


def _overwritten(
    readers: list[tuple[int, dataflow.Ints]], rows: dataflow.Ints, before: set[int], size: int
) -> list[tuple[int, dataflow.Ints]]:
    """Add those who read overwritten rows to `before`; gives those with rows left."""
    gone = np.zeros(size, bool)
    gone[rows] = True
    kept = []
    for number, theirs in readers:
        hit = gone[theirs]
        if hit.any():
            before.add(number)
        if not hit.all():
            kept.append((number, theirs))
    return kept


def heights(flow: dataflow.Dataflow, before: list[list[int]], durations: list[int]) -> list[int]:
    """Cycles from each chain's start to the end of the last that follows from it: a chain may chase
    the one before it, so that only the longest duration on the way counts whole."""
    fill = 64
    height = list(durations)
    for number in range(len(flow.chains) - 1, -1, -1):
        for earlier in before[number]:
            chased = max(height[number] + fill, durations[earlier])
            height[earlier] = max(height[earlier], chased)
    return height


def progress(chain: dataflow.Chain, flow: dataflow.Dataflow) -> float:
    """How far down its tensor a chain writes: of equals the upper ones come first, so that whoever
    reads a part of the rows may soon begin."""
    places = [rows.mean() / flow.tensors[name].rows for name, rows in writes_of(chain)]
    return float(min(places, default=0.0))


def touched(chain: dataflow.Chain) -> set[str]:
    """Names of all tensors of a chain."""
    return {name for name, _ in reads_of(chain)} | {name for name, _ in writes_of(chain)}
