"""Placement: where every tensor of a lowered graph lies when the graph runs.

A tensor that a kernel, view or join touches lies in the arena; one that only host nodes touch is
an array of its own; constants are arrays of the executable. Invariants: a view lies inside its
source and the parts of a join inside its result, so neither costs a copy; a tensor stays in place
from its write to its last read (to the end, for graph inputs, so that a bound run may be repeated,
and graph outputs).
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.recipe.layouts import PLAIN, normal
from tilesmith.compiler.recipe.memory import (
    Arena,
    Arrange,
    Groups,
    Interval,
    peak_alive,
    plan_arena,
)
from tilesmith.compiler.recipe.program import HeldTensor, TensorRef
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.support.errors import VerificationError


@dataclass(frozen=True)
class Placement:
    """Where everything lies.

    Attributes:
        offsets: bytes from the arena's start, by tensor name.
        nbytes: the arena's size.
        peak_alive: the least it could be.
        elsewhere: tensors outside the arena, by name: the graph's input that they lie in or are,
            and their distance in bytes from its start.
        scratch: where the memory of a control node's bodies is.
        private: inputs and outputs whose bytes are no other tensor's at any time.
    """

    offsets: Mapping[str, int]
    nbytes: int
    peak_alive: int
    elsewhere: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    scratch: Mapping[Node, int] = field(default_factory=dict)
    private: frozenset[str] = frozenset()


def place(
    graph: Graph,
    nbytes: Mapping[str, int],
    arrange: Arrange = plan_arena,
    scratch: Mapping[Node, int] | None = None,
    outside: Collection[str] = (),
    ties: Iterable[tuple[str, str]] = (),
) -> Placement:
    """Plan the arena.

    Args:
        graph: lowered; view and join nodes tie tensors together.
        nbytes: physical size of each tensor that lies in the arena (layout padding included).
        arrange: chooses the offsets.
        scratch: bytes that control nodes need while they run.
        outside: inputs that have a place outside the arena, used if nothing larger is tied to them.
        ties: tensors that are to share bytes, each to lie where the other does.
    """
    groups = Groups()
    for name in nbytes:
        groups.add(name, nbytes[name])
    for node in graph.nodes:
        if node.kind == "view" and node.inputs[0] not in graph.constants:
            info = graph.info(node.inputs[0])
            offset = int(node.attribute("offset", 0)) * size_of(info.dtype)
            _tie(groups, node.outputs[0], node.inputs[0], offset)
        elif node.kind == "join":
            offset = 0
            for name in node.inputs:
                _tie(groups, name, node.outputs[0], offset)
                offset += nbytes[name]
    for name, base in ties:
        _tie(groups, name, base, 0)
    away: dict[str, str] = {}
    for name in outside:
        if groups.span(name) == (0, nbytes[name]):
            away[groups.find(name)[0]] = name
    touched = [(*node.reads, *node.writes) for node in graph.nodes]
    inputs, outputs = ([info.name for info in ends] for ends in (graph.inputs, graph.outputs))
    lives = _intervals(groups, touched, inputs, outputs)
    intervals = [life for life in lives if life.name not in away]
    numbers = {node: step for step, node in enumerate(graph.nodes)}
    own = {node: f"\0scratch of {numbers[node]}" for node in scratch or {}}
    for node, size in (scratch or {}).items():
        intervals.append(Interval(own[node], size, numbers[node], numbers[node]))
    arena: Arena = arrange(intervals)
    elsewhere = {
        name: (away[root], -groups.span(name)[0])
        for name in groups.names()
        if (root := groups.find(name)[0]) in away
    }
    inside = {node: arena.offsets[name] for node, name in own.items()}
    private = _private([*inputs, *outputs], groups, nbytes, intervals, arena)
    return Placement(
        _offsets(groups, arena), arena.nbytes, peak_alive(intervals), elsewhere, inside, private
    )


def _private(
    ends: Sequence[str],
    groups: Groups,
    nbytes: Mapping[str, int],
    lives: Iterable[Interval],
    arena: Arena,
) -> frozenset[str]:
    """Those of `ends` whose bytes are no other tensor's at any time: of the lives that take bytes
    at all, only their own starts before they end, and does not stop before they start."""
    taken = [life for life in lives if life.nbytes]
    starts = sorted(arena.offsets[life.name] for life in taken)
    stops = sorted(arena.offsets[life.name] + life.nbytes for life in taken)
    roots = {name: groups.find(name)[0] for name in ends if name in nbytes}
    shared = Counter(groups.find(name)[0] for name in ends if name in nbytes)
    private = set()
    for name, root in roots.items():
        start = arena.offsets.get(root)
        if start is None or groups.span(name) != (0, nbytes[name]) or shared[root] > 1:
            continue
        others = bisect_left(starts, start + nbytes[name]) - bisect_right(stops, start)
        if others <= 1:
            private.add(name)
    return frozenset(private)


def planned(
    groups: Groups,
    touched: Sequence[Iterable[str]],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Placement:
    """Plan the arena of tensors that are tied together already.

    Args:
        touched: names of what each step reads and writes, in order.
        inputs, outputs: what is there before the first step, and has to be there at the end.
    """
    intervals = _intervals(groups, touched, inputs, outputs)
    arena = plan_arena(intervals)
    return Placement(_offsets(groups, arena), arena.nbytes, peak_alive(intervals))


def _offsets(groups: Groups, arena: Arena) -> dict[str, int]:
    """Of all tensors whose group lies in the arena."""
    return {
        name: arena.offsets[root] - groups.span(name)[0]
        for name in groups.names()
        if (root := groups.find(name)[0]) in arena.offsets
    }


def _tie(groups: Groups, name: str, base: str, offset: int) -> None:
    if not groups.tie(name, base, offset):  # an error, not an assertion: it guards memory
        raise VerificationError(f"'{name}' lies elsewhere than {offset} bytes after '{base}'")


def device_tensors(graph: Graph) -> set[str]:
    """Tensors that kernels, views or joins touch, constants left out."""
    names: set[str] = set()
    for node in graph.nodes:
        if node.kind != "host":
            names.update(node.reads, node.writes)
    return names - graph.constants.keys()


def _intervals(
    groups: Groups,
    touched: Sequence[Iterable[str]],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> list[Interval]:
    """Life and size of each group."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    known = set(groups.names())

    def touch(name: str, step: int) -> None:
        if name in known:
            root, _ = groups.find(name)
            first[root] = min(first.get(root, step), step)
            last[root] = max(last.get(root, step), step)

    for name in inputs:
        touch(name, -1)
    for step, names in enumerate(touched):
        for name in names:
            touch(name, step)
    for name in (*inputs, *outputs):  # inputs too: a bound run may be repeated
        touch(name, len(touched))
    spans = {root: groups.span(root) for root in first}
    return [Interval(r, spans[r][1] - spans[r][0], first[r], last[r]) for r in first]


def held_tensors(
    graph: Graph,
    layouts: Mapping[str, str],
    ends: Mapping[Node, int],
    ref: Callable[[TensorInfo], TensorRef],
) -> tuple[HeldTensor, ...]:
    """Every tensor of a graph but constants, in topological order, for those who look into a run.

    Tensors are found by their names, which passes keep: a tensor that a pass leaves under its name
    has the model's values (in another layout or element type perhaps), and one with other values
    gets another name. After its step, and before any later one, a tensor's bytes are its own;
    afterwards they may be another's.

    Args:
        layouts: of tensors that are not plain.
        ends: number of each node's last step; of views and joins any.
        ref: a tensor's place.
    """
    ready = {info.name: -1 for info in graph.inputs}
    for node in graph.nodes:
        if any(name in graph.constants for name in node.inputs) and node.kind in ("view", "join"):
            continue
        if node.kind in ("view", "join"):
            end = max(ready.get(name, -1) for name in node.inputs)
        else:
            end = ends[node]
        ready |= dict.fromkeys(node.writes, end)
    tensors = []
    for name, step in ready.items():
        info = graph.info(name)
        place = ref(info).place
        if place.region == "value" or info.known:
            layout = normal(layouts.get(name, PLAIN))
            tensors.append(HeldTensor(name, info.dtype, info.shape, place, layout, step))
    return tuple(tensors)
