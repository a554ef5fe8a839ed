"""Loops that tell a core's clock and rates: what they compute, and what is made of their times."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np
import pytest

from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.programs.structures import default_of
from tilesmith.search_space.hardware.instruction_set import vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu.family import CpuSimulator, machine_of
from tilesmith.simulator.cpu.machine import contradictions
from tilesmith.simulator.cpu.microbenchmarks import chains
from tilesmith.simulator.cpu.microbenchmarks.calibration import with_calibration
from tilesmith.simulator.dispatch import judge

AVX512 = cpu_target("made-up", "avx512", "x86_64-unknown-linux-gnu")
MASK = (1 << 64) - 1


def computed(text: str, turns: int, memory: np.ndarray) -> None:
    """Run a loop of this module on the host over its first bytes of memory."""
    address = ctypes.c_void_p(memory.ctypes.data)
    code = chains.machine_code(host_target(), {"tried": text})["tried"]
    code(turns, address)


def aligned(values: np.ndarray) -> np.ndarray:
    memory = np.zeros(1 << 14, np.uint8)
    start = -memory.ctypes.data % 64
    part = memory[start : start + (1 << 13)]
    part[: values.nbytes] = values.view(np.uint8)
    return part


@pytest.mark.parametrize("turns", [1, 3])
def test_every_operation_of_the_chain_of_integers_happens(turns: int) -> None:
    memory = aligned(np.array([0x123456789ABCDEF], np.uint64))
    expected = y = z = 0x123456789ABCDEF
    for _ in range(turns * chains.DEPENDENT):
        expected = ((expected + y) & MASK) ^ z
    computed(chains.clock_loop(), turns, memory)
    assert int(memory[:8].view(np.uint64)[0]) == expected


def test_every_multiply_add_of_the_dependent_chain_happens() -> None:
    lanes = vector_width(host_target())
    values = np.linspace(0.25, 1.0, lanes).astype(np.float32)
    memory, expected = aligned(values), values.astype(np.float64)
    stored: list[np.ndarray] = []
    computed(chains.latency_loop(lanes), 2, memory)
    for _ in range(2 * chains.FUSED):
        expected = expected + values.astype(np.float64) ** 2
    stored.append(memory[: values.nbytes].view(np.float32).copy())
    np.testing.assert_allclose(stored[0], expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["loads", "stores"])
def test_the_other_loops_end_and_leave_what_they_read(name: str) -> None:
    lanes = vector_width(host_target())
    text = {
        "loads": chains.loads_loop(lanes),
        "stores": chains.stores_loop(lanes),
    }[name]
    values = np.arange(1, lanes + 1, dtype=np.float32)
    memory = aligned(values)
    computed(text, 2, memory)
    for number in range(chains.PLACES if name == "stores" else 1):
        written = memory[64 * number : 64 * number + values.nbytes].view(np.float32)
        np.testing.assert_array_equal(written, values)


def test_every_line_of_every_page_is_read_once_and_none_twice() -> None:
    lanes = vector_width(host_target())
    text = chains.pages_loop(lanes)
    offsets = re.findall(r"getelementptr i8, ptr %v1, i64 (\d+)", text)
    assert [int(offset) for offset in offsets] == list(range(0, chains.PAGE, chains.LINE))
    memory = aligned(np.zeros(2, np.int64))
    memory[:16].view(np.int64)[:] = memory.ctypes.data
    before = memory.copy()
    computed(text, 2, memory)
    np.testing.assert_array_equal(memory, before)
    seconds, read = chains.scattered(host_target(), 3 * chains.PAGE + 5, lambda run: run() or 1.0)
    assert (seconds, read) == (1.0, 3 * chains.PAGE)


def test_facts_are_what_a_described_core_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core of 2 GHz: a load and half a store a cycle, latency 5."""
    cycle, turns = 1 / 2e9, chains.ROUNDS
    seconds = {
        "clock": 2 * chains.DEPENDENT * turns * cycle,
        "latency": 5 * chains.FUSED * turns * cycle,
        "loads": chains.MOVED * turns * cycle,
        "stores": 2 * chains.MOVED * turns * cycle,
    }

    def loops(_: Target, texts: dict[str, str]) -> dict[str, Callable[[], float]]:
        assert set(texts) == set(seconds)
        return {name: lambda name=name: seconds[name] for name in texts}  # type: ignore[misc]

    monkeypatch.setattr(chains, "_ready", loops)
    assert chains.rates(AVX512, lambda run: run()) == {  # type: ignore[arg-type, return-value]
        "clock.ghz": 2.0, "fma.cycles": 5.0, "load.rate": 1.0, "store.ports": 0.5
    }  # fmt: skip


def test_what_was_measured_counts_and_a_contradiction_is_a_sentence() -> None:
    assert contradictions(AVX512) == []
    alike = with_calibration(AVX512, {"fma.rate": 1.9, "load.rate": 2.1, "fma.cycles": 4.0})
    assert contradictions(alike) == []
    halves = with_calibration(AVX512, {"fma.rate": 1.0, "load.rate": 1.0})
    assert contradictions(halves)[0] == (
        "fma.ports = 2 is assumed, and fma.rate = 1 was measured, which the simulator reckons with"
    )
    assert len(contradictions(halves)) == 2 and halves.identity == AVX512.identity
    assert (machine_of(AVX512, 1).fma_ports, machine_of(halves, 1).fma_ports) == (2.0, 1.0)
    workload = Workload.parse("matmul m=256 n=256 k=256 const=b")
    config = default_of(workload, AVX512)
    slow, fast = (judge(workload, t, [config]).latency[0] for t in (halves, AVX512))
    assert 1.7 < slow / fast < 2.1
    assert default_of(workload, halves) == config, "what was measured has no say in it"


def test_a_number_that_is_set_takes_the_place_of_what_was_measured() -> None:
    halves = with_calibration(AVX512, {"fma.rate": 1.0, "load.rate": 1.0})
    stated = CpuSimulator().with_settings(halves, {"fma.ports": "4"})
    machine = machine_of(stated, 1)
    assert (machine.fma_ports, machine.load_ports) == (4.0, 1.0)
