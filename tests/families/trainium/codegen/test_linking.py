"""Linking: kernels as one program compute the same, in place of tiles and tensors of their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesmith.codegen.programs.structures import default_of, inside_of, lowered
from tilesmith.families.trainium.codegen.isa.core import Core
from tilesmith.families.trainium.codegen.isa.instructions import InstructionStream, Opcode, Space
from tilesmith.families.trainium.codegen.isa.storage import from_bytes, to_bytes
from tilesmith.families.trainium.codegen.isa.verification import verify_dataflow
from tilesmith.families.trainium.codegen.linking import addresses
from tilesmith.families.trainium.codegen.linking.draft import KernelDraft, Range
from tilesmith.families.trainium.codegen.linking.linker import (
    Linked,
    given_spans,
    link,
    wanted_spans,
)
from tilesmith.families.trainium.codegen.linking.residency import Policy
from tilesmith.families.trainium.codegen.linking.strides import refactored
from tilesmith.families.trainium.codegen.selection.prologue import prepare
from tilesmith.families.trainium.codegen.selection.staging import SUFFIX, stage
from tilesmith.families.trainium.simulator.execution.functional import execute, execute_in
from tilesmith.families.trainium.simulator.family import TrainiumSimulator
from tilesmith.families.trainium.simulator.skeletons import instruction_stream
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.ir.interpreter import interpret
from tilesmith.search_space.support.errors import CodegenError, ModelError, VerificationError
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

TARGET = load_target("trn1")

CHAIN = (
    "conv2d c=24 h=14 w=14 oc=40 kh=1 kw=1 epilogue=relu",
    "conv2d c=40 h=14 w=14 oc=40 kh=3 kw=3 pad=1 epilogue=relu",
    "conv2d c=40 h=14 w=14 oc=24 kh=1 kw=1 epilogue=residual,relu",
    "softmax shape=24x196",
)
"""A residual block: the second needs a padded image, the third reads two activations."""

POLICIES = [None, Policy(copies=False), Policy(), Policy(share=0.1)]


def stream_of(text: str) -> InstructionStream:
    workload = Workload.parse(text)
    config = inside_of(workload, TARGET)
    return instruction_stream(workload, TARGET, config)


class Chain:
    """The residual block on one region of memory: tensors one after another."""

    def __init__(self) -> None:
        self.streams = [stream_of(text) for text in CHAIN]
        self.memory = np.zeros(1 << 20, dtype=np.uint8)
        rng = np.random.default_rng(0)
        self.offset = 0
        x = self.place(24 * 196)
        self.array(x)[:] = rng.standard_normal(24 * 196)
        reads = [[x], [], [], []]
        self.parts = []
        last = x
        for number, stream in enumerate(self.streams):
            places = []
            for tensor in stream.tensors:
                if tensor.name in ("data", "x"):
                    place = last
                elif tensor.name == "residual0":
                    place = reads[0][0]
                else:
                    place = self.place(tensor.elements)
                    if tensor.role == "input":
                        self.array(place)[:] = rng.standard_normal(tensor.elements) / 5
                places.append(place)
            last = places[-1]
            self.parts.append(KernelDraft(f"k{number}", stream, tuple(places)))
        self.result = last

    def place(self, elements: int) -> Range:
        found = Range("arena", self.offset, 4 * elements)
        self.offset += -(-4 * elements // 64) * 64
        return found

    def array(self, place: Range) -> np.ndarray:
        return self.memory[place.offset : place.stop].view(np.float32)

    def one_by_one(self) -> np.ndarray:
        """The result, each kernel run alone."""
        memory = self.memory.copy()
        for part in self.parts:
            execute_in(part.stream, [memory[p.offset : p.stop] for p in part.places if p])
        return memory[self.result.offset : self.result.stop].view(np.float32)

    def linked(self, policy: Policy | None, external: tuple[Range, ...] = ()) -> Linked:
        return link("chain", self.parts, Core.of(TARGET), (self.result, *external), policy)

    def run(self, program: Linked) -> np.ndarray:
        memory = self.memory.copy()
        execute_in(program.stream, [memory[r.offset : r.stop] for r in program.ranges])
        return memory


@pytest.fixture(scope="module")
def chain() -> Chain:
    return Chain()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_linked_program_computes_what_its_kernels_do(chain: Chain, policy: Policy | None) -> None:
    program = chain.linked(policy)
    memory = chain.run(program)
    found = memory[chain.result.offset : chain.result.stop].view(np.float32)
    np.testing.assert_array_equal(found, chain.one_by_one())
    assert set(program.owners.tolist()) == {0, 1, 2, 3}


HEADS = (
    "matmul m=128 n=96 k=64 dtype=float32 epilogue=bias",
    "transpose shape=128x3x32 perm=1x0x2",
    "transpose shape=3x128x32 perm=1x0x2",
    "softmax shape=128x96",
)
"""Features split into heads and joined again: with rows on partitions nothing moves."""


def test_a_resident_that_repeats_another_is_no_tensor_of_its_own() -> None:
    streams = [stream_of(text) for text in HEADS]
    rng, memory, offset, parts = np.random.default_rng(0), np.zeros(1 << 20, np.uint8), 0, []
    last = Range("arena", 0, 0)
    for number, stream in enumerate(streams):
        places = []
        for tensor in stream.tensors:
            activation = number > 0 and tensor.role == "input"
            if not activation:
                last, offset = Range("arena", offset, 4 * tensor.elements), offset + (1 << 16)
                if tensor.role == "input":
                    values = rng.standard_normal(tensor.elements).astype(np.float32)
                    memory[last.offset : last.stop] = values.view(np.uint8)
            places.append(last)
        parts.append(KernelDraft(f"k{number}", stream, tuple(places)))
    results = {}
    for policy in (None, Policy()):
        program = link("heads", parts, Core.of(TARGET), (last,), policy)
        copy = memory.copy()
        execute_in(program.stream, [copy[r.offset : r.stop] for r in program.ranges])
        results[policy] = copy[last.offset : last.stop].view(np.float32)
    np.testing.assert_array_equal(results[None], results[Policy()])
    assert set(program.owners.tolist()) == {0, 3} and len(program.residents) == 1
    assert results[None].reshape(128, 96).sum(axis=1) == pytest.approx(1.0)


def test_what_two_kernels_prepare_alike_is_prepared_once() -> None:
    """Three products of one x turn it once, and fill a tile with ones once."""
    stream = stream_of("matmul m=128 n=96 k=128 const=b,bias0 epilogue=bias dtype=bfloat16")
    rng, memory, parts = np.random.default_rng(0), np.zeros(1 << 20, np.uint8), []
    x, results = Range("arena", 0, 1 << 15), []
    for number in range(3):
        places = []
        for place, tensor in enumerate(stream.tensors):
            start = (1 << 15) * (1 + 4 * number + place)
            home = x if tensor.name == "a" else Range("arena", start, 2 * tensor.elements)
            if tensor.role == "input":
                values = rng.standard_normal(tensor.elements).astype(to_numpy("bfloat16"))
                memory[home.offset : home.stop] = values.view(np.uint8)
            places.append(home)
        results.append(places[-1])
        parts.append(KernelDraft(f"k{number}", stream, tuple(places)))
    wanted, found = memory.copy(), memory.copy()
    for part in parts:
        execute_in(part.stream, [wanted[p.offset : p.stop] for p in part.places if p])
    program = link("three", parts, Core.of(TARGET), results, Policy())
    execute_in(program.stream, [found[r.offset : r.stop] for r in program.ranges])
    np.testing.assert_array_equal(found, wanted)
    counts = {
        op: int((program.stream.rows["op"] == op).sum()) for op in (Opcode.TRANSPOSE, Opcode.MEMSET)
    }
    assert counts == {Opcode.TRANSPOSE: 1, Opcode.MEMSET: 1}


def test_residents_save_exactly_the_traffic_that_is_gone(chain: Chain) -> None:
    plain, kept = chain.linked(None), chain.linked(Policy())
    moved = [timeline(program.stream).costs.total_bytes for program in (plain, kept)]
    assert kept.residents and not plain.residents
    assert moved[0] - moved[1] == kept.saved_bytes > 0
    middle = [r for r in kept.residents if not r.kept]
    assert len(middle) == 3, "all three activations between kernels stay"
    assert timeline(kept.stream).makespan < timeline(plain.stream).makespan


def test_what_others_read_is_stored_all_the_same(chain: Chain) -> None:
    hidden = chain.parts[0].places[-1]
    assert hidden is not None
    program = chain.linked(Policy(), external=(hidden,))
    (resident,) = [r for r in program.residents if r.first == 0 and r.name.startswith("k0")]
    assert resident.kept
    memory = chain.run(program)
    alone = chain.memory.copy()
    part = chain.parts[0]
    execute_in(part.stream, [alone[p.offset : p.stop] for p in part.places if p])
    np.testing.assert_array_equal(memory[hidden.offset : hidden.stop],
                                  alone[hidden.offset : hidden.stop])  # fmt: skip


def test_linking_overlaps_kernels(chain: Chain) -> None:
    alone = sum(timeline(stream).makespan for stream in chain.streams)
    assert timeline(chain.linked(None).stream).makespan < alone


@pytest.mark.parametrize(
    "text",
    [
        "conv2d c=40 h=9 w=9 oc=70 kh=3 kw=3 pad=1 const=weight",
        "conv2d c=3 h=20 w=20 oc=20 kh=7 kw=7 stride=2 pad=3 const=weight",
        "conv2d c=130 h=5 w=5 oc=140 kh=1 kw=1 const=weight dtype=bfloat16",
        "matmul m=40 n=200 k=150 const=b epilogue=bias",
        "matmul m=140 n=200 k=150 const=b,bias0 epilogue=bias,relu",
        "layer_norm shape=140x96 const=bias,scale",
    ],
)
def test_prologues_and_staging(text: str) -> None:
    """Weights packed by numpy as by the interpreter; staged ones give the same results."""
    workload = Workload.parse(text)
    template = template_of(workload.operator)
    config = default_of(workload, TARGET)
    program = lowered(workload, TARGET, config)
    rng = np.random.default_rng(0)
    inputs = {
        o.name: rng.standard_normal(o.shape).astype(to_numpy(o.dtype))
        for o in template.operands(workload)
    }
    packed = prepare(program, inputs)
    prologue_only = interpret_prologue(program, inputs)
    for name, array in packed.items():
        np.testing.assert_array_equal(array, prologue_only[name])
    stream = instruction_stream(workload, TARGET, config)
    staged = stage(stream, {*packed, *workload.constants})
    everything = {**inputs, **packed}
    arranged = staged.arrange(everything)
    assert all(name.endswith(SUFFIX) for name in arranged)
    wanted = execute(stream, shaped(stream, everything))
    found = execute(staged.stream, shaped(staged.stream, {**everything, **arranged}))
    for name, array in wanted.items():
        np.testing.assert_array_equal(array, found[name])
    assert timeline(staged.stream).costs.total_bytes == timeline(stream).costs.total_bytes
    assert timeline(staged.stream).dma_busy <= timeline(stream).dma_busy


def test_constants_are_timed_as_a_model_has_them() -> None:
    """What tuning measures of an operator is its stream with weights laid out, as when linked."""
    workload = Workload.parse("matmul m=128 n=384 k=384 dtype=bfloat16 const=b,bias0 epilogue=bias")
    config = default_of(workload, TARGET)
    config = type(config).of({**config, "bias": "vector"})
    stream = stage(instruction_stream(workload, TARGET, config), workload.constants).stream
    measured = TrainiumSimulator().measure(workload, TARGET, [config]).latency[0]
    assert measured == pytest.approx(timeline(stream).makespan * 1e-9)
    assert [t.name for t in stream.tensors if t.name.endswith(SUFFIX)] == [f"b{SUFFIX}"]


def interpret_prologue(program, inputs):
    from dataclasses import replace

    from tilesmith.search_space.ir.program import Sequence

    given = {
        b.name: inputs[b.name].reshape([e.constant for e in b.shape])
        for b in program.parameters
        if b.role == "input"
    }
    return interpret(replace(program, body=Sequence(())), given)


def shaped(stream, arrays):
    return {t.name: arrays[t.name].reshape(t.shape) for t in stream.tensors if t.role == "input"}


def test_streams_are_stored_and_read_back() -> None:
    stream = stream_of(CHAIN[1])
    read = from_bytes(to_bytes(stream), Core.of(TARGET))
    assert to_bytes(read) == to_bytes(stream)
    assert read.tensors == stream.tensors and read.allocations == stream.allocations
    for name, column in stream.rows.items():
        np.testing.assert_array_equal(column, read.rows[name])


@pytest.mark.parametrize("name", ["op", "queue", "in0"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    stream = stream_of(CHAIN[3])
    stream.rows[name][0] = 10**6
    with pytest.raises(ModelError, match="out of range"):
        from_bytes(to_bytes(stream), Core.of(TARGET))
    with pytest.raises(ModelError, match="damaged"):
        from_bytes(to_bytes(stream)[:-9], Core.of(TARGET))


AXES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=4)


@given(AXES)
def test_strided_accesses_are_found_again(axes: list[tuple[int, int]]) -> None:
    places = np.zeros(1, dtype=np.int64)
    for count, stride in axes:
        places = (places[:, None] + np.arange(count) * stride).reshape(-1)
    table = np.arange(places.max() + 1, dtype=np.int64)
    dims = refactored(table, places)
    if dims is not None:  # a greedy search may need more axes than there were
        again = np.zeros(1, dtype=np.int64)
        for count, stride in dims:
            again = (again[:, None] + np.arange(count) * stride).reshape(-1)
        np.testing.assert_array_equal(places[0] + again, places)
    else:
        assert len(axes) > 1, "one axis is found as it was"


def test_elements_without_a_place_have_no_access() -> None:
    table = np.array([0, 1, -1, 3], dtype=np.int64)
    assert refactored(table, np.array([0, 1])) == [(2, 1)]
    assert refactored(table, np.array([1, 2])) is None
    scattered = np.array([0, 1, 5, 2, 9, 3, 4, 20, 8, 7, 40], dtype=np.int64)
    assert refactored(scattered, np.arange(11)) is None


def test_tiles_of_neighbours_are_apart(chain: Chain) -> None:
    """The next kernel's loads need not wait for this one to give its places back."""
    program = chain.linked(None)
    stream = program.stream
    spans: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(stream.rows["op"] == Opcode.LOAD):
        tile = stream.allocations[stream.accesses["allocation"][stream.rows["out"][row]]]
        assert tile.space == Space.SBUF
        spans.setdefault(int(program.owners[row]), []).append(
            (tile.offset, tile.offset + tile.bytes)
        )
    for first, second in ((0, 1), (1, 2), (2, 3)):
        for low, high in spans[first]:
            assert all(stop <= low or start >= high for start, stop in spans[second])


@pytest.mark.parametrize("policy", [None, Policy()], ids=["apart", "resident"])
def test_every_store_of_a_linked_program_is_missed(policy):
    """What a kernel after it reads, or the caller: no store can be left out unnoticed."""
    chain = Chain()
    program = chain.linked(policy)
    spans = (
        given_spans(chain.parts, program.ranges),
        wanted_spans(chain.parts, program.ranges, [chain.result]),
    )
    verify_dataflow(program.stream, *spans)
    stores = np.flatnonzero(program.stream.rows["op"] == Opcode.STORE)
    assert len(stores)
    for row in stores.tolist():
        rows = {name: np.delete(column, row) for name, column in program.stream.rows.items()}
        with pytest.raises(VerificationError, match=r"nothing has stored|no instruction"):
            verify_dataflow(replace(program.stream, rows=rows), *spans)


def test_tiles_that_fit_nowhere_else_stay_where_the_kernel_alone_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeping away from neighbours' places, and largest first, leaves gaps too small for PSUM."""
    texts = ("matmul m=197 n=512 k=64", "layer_norm shape=197x768")
    parts, offset = [], 0
    for text in texts:
        stream, places = stream_of(f"{text} dtype=bfloat16"), list[Range]()
        for tensor in stream.tensors:
            nbytes = tensor.elements * to_numpy(tensor.dtype).itemsize
            places.append(Range("arena", offset, nbytes))
            offset += nbytes
        parts.append(KernelDraft(text, stream, tuple(places)))

    def full(*_: object) -> dict[int, int]:
        raise CodegenError("no room")

    monkeypatch.setattr(addresses, "_spread", full)
    linked = link("both", parts, Core.of(TARGET))  # verified: tiles in use never overlap
    assert len(linked.stream) == sum(len(part.stream) for part in parts)
