"""What a kind of CPU is described to have takes the place of what is assumed, of nothing else."""

import pytest

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.search_space.hardware.target import Target, load_target, target_files
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate
from tilesmith.simulator.cpu.family import CpuSimulator, machine_of
from tilesmith.simulator.cpu.machine import KIN, CpuCore, contradictions, described
from tilesmith.simulator.cpu.microbenchmarks.calibration import with_calibration

X86 = "x86_64-unknown-linux-gnu"
KINDS = sorted(
    name
    for name in target_files
    if load_target(name).family == "cpu" and load_target(name).text("isa.processor") != "generic"
)


def cpu(processor: str, isa: str = "avx512") -> Target:
    return cpu_target("made-up", isa, X86, processor)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_called_as_llvm_calls_its_processor(name: str) -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    kind = load_target(name)
    processor = kind.text("isa.processor")
    assert processor.replace("-", "_") == name
    llvm.Target.from_triple(kind.text("isa.triple")).create_target_machine(
        cpu=processor, features=kind.text("isa.features")
    )
    assert described(kind) == kind
    assert all(fact.source for _, fact in kind.facts)


@pytest.mark.parametrize(("processor", "kind"), KIN.items())
def test_kin_have_the_core_of_a_known_kind(processor: str, kind: str) -> None:
    assert kind in KINDS and processor not in target_files
    assert described(cpu(processor)).number("l2.kib") == load_target(kind).number("l2.kib")


def test_wide_vectors_are_begun_as_their_bytes_allow() -> None:
    halves, whole = machine_of(cpu("znver4"), 1), machine_of(cpu("znver4", "avx2"), 1)
    assert (halves.fma_ports, halves.load_ports, halves.store_ports) == (1.0, 1.0, 0.5)
    assert (whole.fma_ports, whole.load_ports, whole.store_ports) == (2.0, 2.0, 1.0)
    assert machine_of(cpu("znver5"), 1).fma_ports == 2.0


def test_an_element_for_all_lanes_is_loaded_as_fast_as_a_port_is_free() -> None:
    assert machine_of(cpu("znver4"), 1).narrow_loads == 0.5
    assert machine_of(cpu("znver5"), 1).narrow_loads == machine_of(cpu("generic"), 1).narrow_loads
    assert machine_of(cpu("znver5"), 1).narrow_loads == 1.0
    config = Config.of(
        algorithm="blocked", block_order="n,m,k", tile_order="nm", pack_b="panels", m_tile=16,
        n_vectors=1, m_block=1, n_block=1, k_unroll=4, k_block=64,
    )  # fmt: skip
    found = simulate(Workload.parse("matmul m=96 n=64 k=256 const=b"), cpu("znver4"), config)
    assert found.engines["l1"] < 0.65 * found.engines["compute"], "16 elements, a vector"


def test_a_cpu_that_nobody_described_is_as_assumed_and_its_identity_is_its_own() -> None:
    plain = cpu("generic")
    assert described(plain) is plain
    known = cpu("znver4")
    assert known.identity != plain.identity, "another processor"
    assert known.number("fma.ports") == 2, "the target itself says what it said"
    assert described(known).number("reorder.buffer") == 320


def test_what_was_measured_or_stated_counts_before_the_kind() -> None:
    known = cpu("znver4")
    measured = with_calibration(known, {"fma.rate": 0.9, "store.ports": 0.7})
    assert (CpuCore.of(measured).fma_ports, CpuCore.of(measured).store_ports) == (0.9, 0.7)
    for target in (measured, load_target("znver4")):
        stated = CpuSimulator().with_settings(target, {"fma.ports": "4"})
        assert CpuCore.of(stated).fma_ports == 4.0
    stated = CpuSimulator().with_settings(known, {"l2.kib": "256"})
    assert CpuCore.of(stated).lines[1] == 256 * 1024 // 64


def test_a_machine_that_is_not_like_its_kind_is_a_contradiction() -> None:
    known = cpu("znver4")
    assert contradictions(with_calibration(known, {"fma.rate": 1.02, "load.rate": 0.93})) == []
    (sentence,) = contradictions(with_calibration(known, {"fma.rate": 1.9}))
    assert sentence.startswith("fma.ports = 1 is as znver3: SOG 2.11: pipes 0 and 1, and ")
