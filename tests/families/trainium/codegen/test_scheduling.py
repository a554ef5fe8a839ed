"""Orders and places of linked programs: what conflicts keeps its order, what is alive its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.families.trainium.codegen.random_kernels import F, P, unfinished
from tilesmith.families.trainium.codegen.isa.core import ENGINES, Core
from tilesmith.families.trainium.codegen.isa.footprints import footprints
from tilesmith.families.trainium.codegen.isa.instructions import (
    OPERANDS,
    InstructionStream,
    Opcode,
    Space,
)
from tilesmith.families.trainium.codegen.isa.verification import verify_synchronisation
from tilesmith.families.trainium.codegen.kernel.builder import Kernel, pipelined
from tilesmith.families.trainium.codegen.linking.draft import Draft, KernelDraft, Range, concatenate
from tilesmith.families.trainium.codegen.linking.spreading import (
    HeldBytes,
    life,
    spread,
    stands_alone,
    units,
)
from tilesmith.families.trainium.codegen.timing.dependences import (
    READS,
    Dependences,
    dependences,
    with_semaphores,
)
from tilesmith.families.trainium.codegen.timing.ordering import ending, in_grant_order
from tilesmith.families.trainium.codegen.timing.scheduling import RULES, Rule, scheduled
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.expressions.dtypes import size_of
from tilesmith.search_space.hardware.target import load_target

CORE = Core.of(load_target("trn1"))

SEEDS = st.integers(0, 10_000)


def touched(stream: InstructionStream, row: int) -> tuple[set[tuple[int, ...]], ...]:
    """(read, written) by a row: (space, tensor, partition, byte), one by one."""
    found: tuple[set[tuple[int, ...]], ...] = (set(), set())
    for name, access in stream[row].operands.items():
        side = found[1 if name in ("out", "out2") else 0]
        size = size_of(access.dtype)
        for index in product(*(range(count) for count, _ in access.dims)):
            steps = [i * stride for i, (_, stride) in zip(index, access.dims, strict=True)]
            partition = 0 if access.space == Space.HBM else access.partition + index[0]
            first = access.offset + size * sum(steps[0 if access.space == Space.HBM else 1 :])
            side |= {
                (int(access.space), access.tensor, partition, first + byte) for byte in range(size)
            }
    return found


def boxes(seed: int, steps: int) -> Kernel:
    """A kernel that moves small boxes of tensors and of tiles, which share bytes."""
    rng = np.random.default_rng(seed)
    kernel = Kernel("boxes", CORE)
    spill, x = kernel.temporary("spill", (12, 10)), kernel.input("x", (12, 10))
    tiles = [kernel.sbuf((12, 10), address=address) for address in (0, 20, 64)]
    tiles += [kernel.sbuf((12, 10), "bfloat16", address=100), kernel.psum((12, 10))]

    def box(rows: int, columns: int) -> tuple[slice, slice]:
        corner = rng.integers(0, (13 - rows, 11 - columns))
        return tuple(
            slice(int(c), int(c) + n) for c, n in zip(corner, (rows, columns), strict=True)
        )  # type: ignore[return-value]

    for _ in range(steps):
        one, other = (tiles[int(i)] for i in rng.integers(0, len(tiles), 2))
        size = int(rng.integers(1, 7)), int(rng.integers(1, 6))
        match int(rng.integers(0, 5)):
            case 0:
                kernel.load(tiles[0][box(*size)], x[box(*size)])
            case 1:
                kernel.load(tiles[1][box(*size)], spill[box(*size)])
            case 2:
                kernel.store(spill[box(*size)], tiles[2][box(*size)])
            case 3:
                kernel.memset(one[box(*size)], 0.0)
            case _:
                kernel.copy(one[box(*size)], other[box(*size)])
    return kernel


def ordered(stream: InstructionStream, found: Dependences | None = None) -> np.ndarray:
    """Whether row i has to come before row j, perhaps by way of others, shape (n, n)."""
    n = len(stream)
    before = np.zeros((n, n), dtype=bool)
    found = dependences(stream) if found is None else found
    for later in range(n):
        for earlier in found.earlier[found.later == later]:
            before[:, later] |= before[:, earlier]
            before[earlier, later] = True
    return before


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_every_conflict_is_found(seed: int) -> None:
    stream = boxes(seed, 24).draft()
    before = ordered(stream)
    sets = [touched(stream, row) for row in range(len(stream))]
    for later, (reads, writes) in enumerate(sets):
        for earlier in range(later):
            read, written = sets[earlier]
            common = (reads & written) | (writes & read) | (writes & written)
            assert before[earlier, later] or not common, (earlier, later)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_what_reads_waits_for_what_it_reads(seed: int) -> None:
    """A row reads from whoever wrote a byte last, or from one that follows it: memory is looked at
    in cells and boxes, of which another may have written the rest."""
    stream = boxes(seed, 24).draft()
    found = dependences(stream)
    before = ordered(stream, found) | np.eye(len(stream), dtype=bool)
    writer: dict[tuple[int, ...], int] = {}
    for row in range(len(stream)):
        reads, writes = touched(stream, row)
        sources = found.earlier[(found.later == row) & (found.flow == READS)]
        for byte in reads & set(writer):
            assert before[writer[byte], sources].any()
        writer.update(dict.fromkeys(writes, row))


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_tiles_in_one_place_stay_apart(seed: int) -> None:
    stream = unfinished(CORE, seed, 40).draft()
    before = ordered(stream, dependences(stream, tiles=True))
    users: dict[int, list[int]] = {}
    for row in range(len(stream)):
        for name in OPERANDS:
            if (access := int(stream.rows[name][row])) >= 0:
                users.setdefault(int(stream.accesses["allocation"][access]), []).append(row)
    places: dict[tuple[Space, int], list[int]] = {}
    for tile in sorted(users.keys() - {-1}):
        place = stream.allocations[tile]
        places.setdefault((place.space, place.offset), []).append(tile)
    for tiles in places.values():
        for one, two in pairwise(tiles):
            assert all(before[earlier, later] for earlier in users[one] for later in users[two])


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_a_scheduled_kernel_computes_the_same_and_takes_no_longer(seed: int) -> None:
    kernel = unfinished(CORE, seed, 60)
    stream, moved = kernel.finish(), kernel.finish(schedule=True)
    assert ending(moved) <= ending(stream)
    x = np.random.default_rng(seed).standard_normal((4 * P, F)).astype(np.float32)
    (wanted,), (found,) = (execute(one, {"x": x}).values() for one in (stream, moved))
    np.testing.assert_array_equal(found, wanted)


def test_a_kernel_written_item_by_item_is_scheduled_by_one_call() -> None:
    """Two places for each tile let the next item's load pass the last one's computation."""
    kernel = Kernel("silu", CORE)
    x, y = kernel.input("x", (8 * P, F)), kernel.output("y", (8 * P, F))
    tiles, results = (kernel.buffers(2, (P, F), name=name) for name in ("tile", "result"))
    for i in range(8):
        tile, result = tiles.next(), results.next()
        kernel.load(tile, x[i * P : (i + 1) * P])
        kernel.activation(result, "sigmoid", tile)
        kernel.tensor_tensor(result, result, "multiply", tile)
        kernel.store(y[i * P : (i + 1) * P], result, queue=0)
    plain, moved = kernel.finish(), kernel.finish(schedule=True)
    assert timeline(moved).makespan <= timeline(plain).makespan
    data = np.random.default_rng(0).standard_normal((8 * P, F)).astype(np.float32)
    for stream in (plain, moved):
        found = execute(stream, {"x": data})["y"]
        np.testing.assert_allclose(found, data / (1 + np.exp(-data)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("newest_first", [False, True])
def test_stages_of_a_pipeline_overlap(newest_first: bool) -> None:
    seen: list[tuple[str, int]] = []

    def stage(name: str) -> Callable[[int], int]:
        def run(item: int) -> int:
            seen.append((name, item))
            return item

        return run

    pipelined(range(3), stage("a"), stage("b"), newest_first=newest_first)
    steps = [[("a", 0)], [("b", 0), ("a", 1)], [("b", 1), ("a", 2)], [("b", 2)]]
    assert seen == [each for step in steps for each in (step[::-1] if newest_first else step)]


@given(SEEDS, st.sampled_from(RULES))
@settings(max_examples=15, deadline=None)
def test_an_order_that_keeps_pairs_has_the_same(seed: int, rule: Rule) -> None:
    stream = unfinished(CORE, seed, 40).draft()
    moved = scheduled(stream, rule)
    known = dependences(stream).reordered(moved.rows["position"])
    found = dependences(moved)
    for pairs in (known, found):
        assert (pairs.earlier < pairs.later).all() and (np.diff(pairs.later) >= 0).all()
        np.testing.assert_array_equal(np.repeat(np.arange(len(moved)), np.diff(pairs.start)),
                                      pairs.later)  # fmt: skip
    assert _set(known) == _set(found)
    for one, other in zip(
        with_semaphores(moved, known).waits, with_semaphores(moved).waits, strict=True
    ):
        assert one == other


def _set(pairs: Dependences) -> set[tuple[int, ...]]:
    table = np.stack([pairs.earlier, pairs.later, pairs.flow], axis=1).tolist()
    return {tuple(row) for row in table}


@given(SEEDS, st.sampled_from(RULES))
@settings(max_examples=20, deadline=None)
def test_another_order_computes_the_same(seed: int, rule: Rule) -> None:
    kernel = unfinished(CORE, seed, 60)
    stream = kernel.draft()
    written = {**stream.rows, "position": np.arange(len(stream), dtype=np.int64)}
    moved = with_semaphores(scheduled(replace(stream, rows=written), rule))
    assert sorted(moved.rows["position"].tolist()) == list(range(len(stream)))
    verify_synchronisation(moved)
    rng = np.random.default_rng(seed)
    x = {t.name: rng.standard_normal(t.shape).astype(np.float32)
         for t in stream.tensors if t.role == "input"}  # fmt: skip
    wanted = execute(with_semaphores(stream), x)
    for name, array in execute(in_grant_order(moved), x).items():
        np.testing.assert_array_equal(array, wanted[name])


def residual_kernel(tiles: int) -> InstructionStream:
    """Scalar, vector and scalar engine in turn on one tile after another."""
    kernel = Kernel("residual", CORE)
    x, y = kernel.input("x", (128, 256 * tiles)), kernel.output("y", (128, 256 * tiles))
    image, out = kernel.sbuf((128, 256 * tiles)), kernel.sbuf((128, 256 * tiles))
    kernel.load(image, x)
    places = kernel.buffers(2, (128, 256), name="place")
    for i in range(tiles):
        part, place = slice(256 * i, 256 * (i + 1)), places.next()
        kernel.activation(place, "tanh", image[:, part])
        kernel.tensor_tensor(place, place, "add", image[:, part])
        kernel.activation(out[:, part], "relu", place)
    kernel.store(y, out)
    return kernel.draft()


def test_a_copy_goes_to_an_engine_that_is_free() -> None:
    """Eight copies of one tile each: a vector engine alone makes them one after the other."""
    kernel = Kernel("copies", CORE)
    x = kernel.input("x", (128, 4096))
    image, out = kernel.sbuf((128, 4096)), kernel.sbuf((128, 4096))
    kernel.load(image, x)
    for i in range(8):
        part = slice(512 * i, 512 * (i + 1))
        kernel.copy(out[:, part], image[:, part], engine="vector")
    kernel.store(kernel.output("y", (128, 4096)), out)
    stream = kernel.draft()
    engines, ends = {}, {}
    for movable in (False, True):
        moved = scheduled(stream, Rule(movable=movable))
        copies = moved.rows["queue"][moved.rows["op"] == Opcode.COPY]
        engines[movable] = {ENGINES[queue] for queue in copies}
        ends[movable] = ending(with_semaphores(moved))
    assert engines[False] == {"vector"} and len(engines[True]) > 1
    assert ends[True] < ends[False] - 1000  # of 3700 ns of copies


def test_what_is_urgent_goes_before_what_is_there_already() -> None:
    """A long copy nobody waits for is there when a chain's next step is 100 ns away."""
    kernel = Kernel("urgent", CORE)
    x, y = kernel.input("x", (128, 64)), kernel.output("y", (128, 64))
    chain, other = kernel.sbuf((128, 64)), kernel.sbuf((128, 4096))
    kernel.load(chain, x)
    kernel.memset(other[:, :2048], 0.0, engine="gpsimd")
    for _ in range(4):
        kernel.tensor_scalar(chain, chain, "add", 1.0, engine="vector")
        kernel.activation(chain, "relu", chain)
    kernel.store(y, chain)
    for _ in range(4):
        kernel.tensor_scalar(other[:, 2048:], other[:, :2048], "add", 1.0, engine="vector")
    kernel.store(kernel.output("z", (128, 2048)), other[:, 2048:])
    ends = {
        swaps: ending(with_semaphores(scheduled(kernel.draft(), Rule(False, swaps))))
        for swaps in (False, True)
    }
    assert ends[True] <= ends[False]


def test_neighbouring_partitions_are_told_apart_however_long_the_program() -> None:
    kernel = Kernel("rows", CORE)
    x = kernel.input("x", (6000, 64))
    tile = kernel.sbuf((128, 64))
    for row in range(6000):
        kernel.load(tile[3 * (row % 18) : 3 * (row % 18) + 1], x[row : row + 1])
    found = dependences(kernel.draft())
    np.testing.assert_array_equal(found.later - found.earlier, 18)
    assert footprints(kernel.draft()).groups == 18


def placed(draft: Draft) -> list[tuple[Space, int, int, tuple[int, ...]]]:
    """One group for each place that tiles of a kernel rotate over."""
    homes: dict[tuple[Space, int, int], list[int]] = {}
    first, last = life(draft)
    for tile, found in enumerate(draft.allocations):
        if first[tile] <= last[tile]:
            key = (found.space, found.offset, found.offset + found.bytes)
            homes.setdefault(key, []).append(tile)
    return [(*key, tuple(tiles)) for key, tiles in homes.items()]


def drafted(stream: InstructionStream) -> Draft:
    ranges, offset = [], 0
    for tensor in stream.tensors:
        ranges.append(Range("arena", offset, 4 * tensor.elements))
        offset += 4 * tensor.elements
    return concatenate("draft", [KernelDraft("k", stream, tuple(ranges))], CORE)


def test_engines_take_turns_and_spread_tiles_let_them() -> None:
    def makespan(stream: InstructionStream) -> float:
        return timeline(in_grant_order(with_semaphores(stream))).makespan

    stream = residual_kernel(12)
    draft = drafted(stream)
    shifts = spread(draft, units(draft, placed(draft)), [])
    assert len({shifts[t] + draft.allocations[t].offset for t in shifts}) > 12, (
        "places of their own"
    )
    moved = replace(
        stream,
        allocations=tuple(replace(a, offset=a.offset + shifts.get(i, 0))
                          for i, a in enumerate(stream.allocations)),
        accesses={**stream.accesses, "offset": stream.accesses["offset"] + np.array(
            [shifts.get(int(a), 0) for a in stream.accesses["allocation"]])},
    )  # fmt: skip
    usual, ordered_only = makespan(stream), makespan(scheduled(stream))
    both = makespan(scheduled(moved))
    assert both < ordered_only < usual


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_tiles_alive_together_are_apart(seed: int) -> None:
    draft = drafted(unfinished(CORE, seed, 40).draft())
    first, last = life(draft)
    held = [
        HeldBytes(0, 1 << 12, 0, 30),
        HeldBytes(CORE.sbuf_bytes - 4096, CORE.sbuf_bytes, 10, 10**6),
    ]
    shifts = spread(draft, units(draft, placed(draft)), held)
    spans = {t: (a.offset + shifts[t], a.offset + shifts[t] + a.bytes, a.space)
             for t, a in enumerate(draft.allocations) if t in shifts}  # fmt: skip
    for one, (low, high, space) in spans.items():
        assert low >= 0 and high <= (CORE.sbuf_bytes if space == Space.SBUF else CORE.psum_bytes)
        for two, (start, stop, other) in spans.items():
            together = first[one] <= last[two] and first[two] <= last[one]
            apart = space != other or high <= start or stop <= low
            assert one == two or apart or not together
        if space == Space.SBUF:
            for taken in held:
                together = first[one] <= taken.last and taken.first <= last[one]
                assert not together or high <= taken.start or taken.stop <= low


def test_what_reads_an_earlier_tile_does_not_stand_alone() -> None:
    kernel = Kernel("frames", CORE)
    y = kernel.output("y", (128, 8))
    framed = kernel.sbuf((128, 8))
    kernel.memset(framed, 0.0)
    kernel.store(y, framed)
    again = kernel.again(framed)  # counts on what the first left at its ends
    kernel.memset(again[:, 1:7], 1.0)
    kernel.store(y, again)
    draft = drafted(kernel.draft())
    users = draft.users()
    assert stands_alone(draft, framed.allocation, users[framed.allocation])
    assert not stands_alone(draft, again.allocation, users[again.allocation])
