"""Collectives as instructions: written, stored, verified, executed on several cores, overlapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from tilesmith.codegen.programs.structures import default_of
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Opcode
from tilesmith.families.trainium.codegen.isa.storage import from_bytes, to_bytes
from tilesmith.families.trainium.codegen.isa.text import to_text
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.linking.draft import KernelDraft, Range
from tilesmith.families.trainium.codegen.linking.linker import link
from tilesmith.families.trainium.codegen.linking.residency import Policy
from tilesmith.families.trainium.codegen.timing.dependences import with_semaphores
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.many_cores import (
    execute_many,
    execute_many_in,
    fabric,
    timeline_many,
)
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.families.trainium.simulator.timelines.drawing import draw
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.families.trainium.simulator.timelines.trace import write_trace
from tilesmith.search_space.meshes.mesh import load_mesh
from tilesmith.search_space.support.errors import CodegenError, InputError, VerificationError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.collectives import collective_cost

MESH = load_mesh("trn1.32xlarge")
FOUR = (0, 1, 2, 3)
RNG = np.random.default_rng(7)


def kernels(cores: Iterable[int], write: Callable[[Kernel, int], None]) -> dict[int, Kernel]:
    found = {}
    for core in cores:
        found[core] = Kernel(f"on{core}", Core.of(MESH.target), fabric(MESH, core))
        write(found[core], core)
    return found


def streams(
    cores: Iterable[int], write: Callable[[Kernel, int], None]
) -> dict[int, InstructionStream]:
    return {core: kernel.finish() for core, kernel in kernels(cores, write).items()}


def one(
    kind: str, given: tuple[int, ...], made: tuple[int, ...], group: tuple[int, ...], *rest: str
) -> dict[int, InstructionStream]:
    """One collective, from an input `x` to an output `y`."""

    def write(kernel: Kernel, core: int) -> None:
        x, y = kernel.input("x", given), kernel.output("y", made)
        getattr(kernel, kind)(y, x, group, *rest)

    return streams(group, write)


def run(found: dict[int, InstructionStream], arrays: dict[int, np.ndarray]) -> list[np.ndarray]:
    done = execute_many(found, {core: {"x": x} for core, x in arrays.items()}, MESH)
    return [done[core]["y"] for core in found]


GROUPS = [(0, 1), (0, 1, 2), FOUR, (5, 3, 9), tuple(range(16)), MESH.groups(4, 8)[1]]


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_values_are_those_of_numpy(group: tuple[int, ...]) -> None:
    p, width = len(group), 384
    shapes = {
        "all_reduce": (p, width),
        "reduce_scatter": (1, width),
        "all_gather": (p, p, width),
        "all_to_all": (p, width),
    }

    def write(kernel: Kernel, core: int) -> None:
        x = kernel.input("x", (p, width))
        for kind, made in shapes.items():
            getattr(kernel, kind)(kernel.output(kind, made), x, group)

    inputs = {c: {"x": RNG.standard_normal((p, width)).astype(np.float32)} for c in group}
    done = list(execute_many(streams(group, write), inputs, MESH).values())
    whole = np.stack([one["x"] for one in inputs.values()])
    total = whole.sum(axis=0, dtype=np.float64)
    for i, found in enumerate(done):
        assert np.allclose(found["all_reduce"], total, atol=1e-5)
        assert np.array_equal(found["all_reduce"], done[0]["all_reduce"]), "the same bits"
        assert np.array_equal(found["reduce_scatter"][0], found["all_reduce"][i])
        assert np.array_equal(found["all_gather"], whole)
        assert np.array_equal(found["all_to_all"], whole[:, i])


def test_the_order_of_a_sum_is_the_algorithms() -> None:
    """Large sums go around a ring: for each part another order, which rounds otherwise."""
    group = (0, 2, 4, 6)  # a row of the torus
    size = 2**20
    cost = collective_cost(MESH, "all_reduce", 4 * size, group)
    assert cost.algorithm == "ring"
    x = {c: RNG.standard_normal(size).astype(np.float32).reshape(128, -1) for c in group}
    (first, *_) = run(one("all_reduce", (128, size // 128), (128, size // 128), group), x)
    parts = [np.array_split(a.reshape(-1), 4) for a in x.values()]
    for i, part in enumerate(np.array_split(first.reshape(-1), 4)):
        order = [(i + 1 + k) % 4 for k in range(4)]
        total = parts[order[0]][i]
        for member in order[1:]:
            total = total + parts[member][i]
        assert np.array_equal(part, total)


def test_other_operations_and_narrow_types() -> None:
    x = {c: RNG.standard_normal((4, 8)).astype(np.float32) for c in FOUR}
    found = run(one("all_reduce", (4, 8), (4, 8), FOUR, "max"), x)
    assert np.array_equal(found[2], np.stack(list(x.values())).max(axis=0))

    def write(kernel: Kernel, core: int) -> None:
        a, y = kernel.input("x", (4, 8), "bfloat16"), kernel.output("y", (4, 8), "bfloat16")
        kernel.all_reduce(y, a, FOUR)

    narrow = run(streams(FOUR, write), x)
    assert np.allclose(narrow[0].astype(np.float32), sum(x.values()), atol=0.1)


def test_sends_go_from_core_to_core() -> None:
    """A pipeline of three: each adds one and sends it on."""

    def write(kernel: Kernel, core: int) -> None:
        x, y = kernel.input("x", (8, 4)), kernel.output("y", (8, 4))
        come = kernel.temporary("come", (8, 4))
        tile = kernel.sbuf((8, 4))
        if core:
            kernel.receive(come, core - 1)
        kernel.load(tile, come if core else x)
        kernel.tensor_scalar(tile, tile, "add", 1.0)
        kernel.store(y, tile)
        if core < 2:
            kernel.send(y, core + 1)

    x = RNG.standard_normal((8, 4)).astype(np.float32)
    found = streams(range(3), write)
    assert np.allclose(run(found, dict.fromkeys(range(3), x))[2], x + 3, atol=1e-6)
    played = timeline_many(found, MESH)
    assert played.waited[2] > played.waited[1] > 0, "each waits for the one before"


def mlp(kernel: Kernel, core: int, blocks: int) -> None:
    """relu(x w1) w2 with columns of w1 and rows of w2 on each core, block of rows by block."""
    x, w1 = kernel.input("x", (128, blocks, 128)), kernel.input("w1", (128, 128))
    w2, y = kernel.input("w2", (128, 512)), kernel.output("y", (blocks, 128, 512))
    part = kernel.temporary("part", (blocks, 128, 512))
    a, b = kernel.sbuf((128, 128)), kernel.sbuf((128, 512))
    kernel.load(a, w1)
    kernel.load(b, w2)
    tokens, hidden, out = (
        kernel.buffers(2, (128, n), name=name) for name, n in (("x", 128), ("h", 128), ("y", 512))
    )
    sums = kernel.psum((128, 128), bank=0), kernel.psum((128, 512), bank=1)
    for i in range(blocks):
        here, h, o = tokens.next(), hidden.next(), out.next()
        kernel.load(here, x[:, i])
        kernel.matmul(sums[0], a, here)
        kernel.activation(h, "relu", sums[0])
        kernel.matmul(sums[1], h, b)
        kernel.copy(o, sums[1])
        kernel.store(part[i], o)
        kernel.all_reduce(y[i], part[i], FOUR)


def test_a_perceptron_in_columns_and_rows_over_four_cores() -> None:
    blocks = 12
    x = RNG.standard_normal((blocks, 128, 128)).astype(np.float32)
    w1 = RNG.standard_normal((128, 512)).astype(np.float32) / 16
    w2 = RNG.standard_normal((512, 512)).astype(np.float32) / 16
    found = streams(FOUR, lambda kernel, core: mlp(kernel, core, blocks))
    inputs = {
        c: {
            "x": x.transpose(2, 0, 1),
            "w1": w1[:, 128 * c : 128 * (c + 1)],
            "w2": w2[128 * c : 128 * (c + 1)],
        }
        for c in FOUR
    }
    done = execute_many(found, inputs, MESH)
    expected = np.maximum(x @ w1, 0) @ w2
    for core in FOUR:
        assert np.allclose(done[core]["y"], expected, rtol=1e-5, atol=1e-5)
        assert done[core]["y"].tobytes() == done[0]["y"].tobytes()

    reduce = collective_cost(MESH, "all_reduce", 128 * 512 * 4, FOUR).seconds * 1e9
    together = timeline_many(found, MESH).makespan
    alone = timeline(kernels((0,), lambda k, _: mlp(k, 0, blocks))[0].finish())
    assert alone.makespan == pytest.approx(together), "all cores do the same: none waits"
    rows = found[0].rows["op"] == Opcode.COLLECTIVE
    computing = alone.end[~rows].max()
    hidden = computing + blocks * reduce - together
    assert hidden > 0.6 * computing, "the next block is computed while this one is summed"
    assert together > blocks * reduce, "and go one after the other"


def test_streams_with_collectives_are_read_back_and_printed() -> None:
    stream = one("all_reduce", (4, 8), (4, 8), FOUR)[2]
    again = with_semaphores(from_bytes(to_bytes(stream), stream.core))
    assert to_text(again) == to_text(stream)
    assert "cc collective all_reduce add over 0 1 2 3 y[" in to_text(stream)
    assert again.immediates[0, 0] == pytest.approx(
        collective_cost(MESH, "all_reduce", 4 * 8 * 4, FOUR).seconds * 1e9
    )


def test_data_orders_collectives_and_the_rest() -> None:
    def write(kernel: Kernel, core: int) -> None:
        x, y = kernel.input("x", (8, 4)), kernel.output("y", (8, 4))
        tile = kernel.sbuf((8, 4))
        kernel.load(tile, x)
        kernel.store(y, tile)
        kernel.all_reduce(y, y, FOUR)
        kernel.load(tile, y)
        kernel.store(y, tile)

    stream = streams(FOUR, write)[0]
    row = int(np.flatnonzero(stream.rows["op"] == Opcode.COLLECTIVE)[0])
    assert stream[row].waits and any(row in i.waits for i in stream)
    played = timeline(stream)
    assert played.start[row] >= played.end[row - 1]
    # scheduling may move what is independent, never the order of collectives
    kernel = kernels((0,), write)[0]
    first, second = kernel.temporary("s", (8, 4)), kernel.temporary("t", (8, 4))
    kernel.all_reduce(first, kernel._tensor("i", (8, 4), "float32", "input"), FOUR)
    kernel.all_reduce(second, kernel._tensor("j", (8, 4), "float32", "input"), (0, 1))
    moved = kernel.finish(schedule=True)
    mine = moved.rows["op"] == Opcode.COLLECTIVE
    assert list(moved.rows["function2"][mine]) == [0, 0, 1]


def test_loads_wait_for_the_dma_engines_that_a_collective_takes() -> None:
    def write(kernel: Kernel, core: int, size: int) -> None:
        x, y = kernel.input("x", (128, 16, 512)), kernel.output("y", (128, size))
        kernel.all_reduce(y, kernel.input("z", (128, size)), FOUR)
        for i in range(16):
            kernel.load(kernel.sbuf((128, 512)), x[:, i])

    def loaded(size: int) -> float:
        stream = streams((0,), lambda kernel, core: write(kernel, core, size))[0]
        return float(timeline(stream).end[stream.rows["op"] == Opcode.LOAD].max())

    taken = collective_cost(MESH, "all_reduce", 128 * 4096 * 4, FOUR).engine_s * 1e9
    little = collective_cost(MESH, "all_reduce", 128 * 4, FOUR).engine_s * 1e9
    assert loaded(4096) - loaded(1) == pytest.approx(taken - little, rel=0.05)


def test_cores_that_do_not_meet_are_refused() -> None:
    def crossed(kernel: Kernel, core: int) -> None:
        x, y, z = (
            kernel.input("x", (4, 4)),
            kernel.output("y", (4, 4)),
            kernel.output("z", (4, 4)),
        )
        both = [lambda: kernel.all_reduce(y, x, (0, 1)), lambda: kernel.all_to_all(z, x, (0, 1))]
        for write in both if core == 0 else reversed(both):
            write()

    given = {core: {"x": np.zeros((4, 4))} for core in range(2)}
    found = streams(range(2), crossed)
    said = r"core 0 waits in instruction 0 \(cc collective all_reduce add over 0 1 .* for core 1, "
    with pytest.raises(VerificationError, match=said + "whose next is instruction 0 .*all_to_all"):
        execute_many(found, given, MESH)
    with pytest.raises(VerificationError, match="for core 1, which has no stream; the cores of"):
        timeline_many({0: found[0]}, MESH)
    less = {**one("all_reduce", (4, 4), (4, 4), (0, 1)), 1: one("all_gather", (1,), (1,), (1,))[1]}
    with pytest.raises(VerificationError, match="for core 1, which has no collective left"):
        timeline_many(less, MESH)

    def sends(kernel: Kernel, core: int) -> None:
        kernel.send(kernel.input("x", (4, 4)), 1 - core)

    with pytest.raises(VerificationError, match="core 1, whose next"):
        timeline_many(streams(range(2), sends), MESH)


def test_wrong_uses_are_refused() -> None:
    kernel = kernels((0,), lambda *_: None)[0]
    x, y = kernel.input("x", (4, 4)), kernel.output("y", (4, 4))
    with pytest.raises(CodegenError, match="which is not in the group"):
        kernel.all_reduce(y, x, (1, 2))
    with pytest.raises(CodegenError, match="cores 0 to 31 are allowed"):
        kernel.all_reduce(y, x, (0, 32))
    with pytest.raises(CodegenError, match="'subtract' sums nothing"):
        kernel.all_reduce(y, x, (0, 1), "subtract")
    with pytest.raises(CodegenError, match="belongs to no mesh"):
        Kernel("alone", kernel.core).all_reduce(y, x, (0, 1))
    kernel.all_gather(y, x, (0, 1))
    with pytest.raises(VerificationError, match="makes 16 elements of 16 over 2 cores"):
        kernel.finish()
    other = kernels((0,), lambda *_: None)[0]
    into = other.input("x", (4, 4))
    other.all_reduce(into, into, (0, 1))
    with pytest.raises(VerificationError, match="stores into 'x', an input"):
        other.finish()
    stream = one("all_reduce", (4, 4), (4, 4), (0, 1))[0]
    with pytest.raises(InputError, match="streams of all their cores are run together"):
        execute(stream, {"x": np.zeros((4, 4))})


def test_linked_programs_keep_their_collectives() -> None:
    """A product split over its reduction, the sum of its parts, what follows: one program."""
    product, after = (
        Workload.parse(text)
        for text in ("matmul m=64 n=96 k=64 dtype=float32", "softmax shape=64x96")
    )
    kernel_of = {}
    for workload in (product, after):
        config = default_of(workload, MESH.target)
        kernel_of[workload] = instruction_stream(workload, MESH.target, config)
    a, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((64, 128), (128, 96)))
    sizes = {"a": 64 * 64, "b": 64 * 96, "part": 64 * 96, "sum": 64 * 96, "y": 64 * 96}
    places, offset = {}, 0
    for name, elements in sizes.items():
        places[name] = Range("arena", offset, 4 * elements)
        offset += 4 * elements
    programs, memories = {}, {}
    for core in (2, 3):

        def middle(kernel: Kernel, core: int) -> None:
            x, y = kernel.input("x", (64, 96)), kernel.output("y", (64, 96))
            kernel.all_reduce(y, x, (2, 3))

        parts = [
            KernelDraft("product", kernel_of[product], (places["a"], places["b"], places["part"])),
            KernelDraft("sum", streams((core,), middle)[core], (places["part"], places["sum"])),
            KernelDraft("after", kernel_of[after], (places["sum"], places["y"])),
        ]
        linked = link("whole", parts, Core.of(MESH.target), (places["y"],), Policy())
        memory = np.zeros(offset, dtype=np.uint8)
        rows = slice(64 * (core - 2), 64 * (core - 1))
        memory[: 4 * sizes["a"]] = np.ascontiguousarray(a[:, rows]).reshape(-1).view(np.uint8)
        start = places["b"].offset
        memory[start : start + 4 * sizes["b"]] = b[rows].reshape(-1).view(np.uint8)
        programs[core] = linked.stream
        memories[core] = memory, [memory[r.offset : r.stop] for r in linked.ranges]
    execute_many_in(programs, {core: hbm for core, (_, hbm) in memories.items()}, MESH)
    exponents = np.exp(a @ b - (a @ b).max(axis=1, keepdims=True))
    for memory, _ in memories.values():
        found = memory[places["y"].offset :].view(np.float32).reshape(64, 96)
        assert np.allclose(found, exponents / exponents.sum(axis=1, keepdims=True), atol=1e-5)
    assert timeline_many(programs, MESH).makespan > 0


def test_traces_and_pictures_show_collectives(tmp_path: Path) -> None:
    found = streams(FOUR, lambda kernel, core: mlp(kernel, core, 2))
    played = timeline_many(found, MESH).cores[1]
    write_trace(played, tmp_path / "trace.json")
    draw(played, tmp_path / "trace.html")
    assert '"cc"' in (tmp_path / "trace.json").read_text()
    assert ">cc<" in (tmp_path / "trace.html").read_text()
    assert played.engines["cc"] > 0.5
