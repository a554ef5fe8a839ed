"""Instructions that multiply and add neighbours cost what they do, not what their loops say."""

from __future__ import annotations

import pytest

from tests.codegen.test_dot_products import target_of
from tests.simulator.cpu.conftest import FIXED
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator.cpu import CpuSimulator
from tilesmith.simulator.cpu.microbenchmarks.calibration import with_calibration
from tilesmith.simulator.cpu.skeleton import BlockSite, skeleton_of

VNNI = target_of("avx512", "+avx512vnni").with_settings(FIXED)
AMX = target_of("avx512", "+avx512vnni,+amx-tile,+amx-int8").with_settings(FIXED)
INT8 = "matmul m=128 n=256 k=512 dtype=uint8 weights=int8 const=b"


def seconds(text: str, target: Target, **changed: int) -> float:
    workload = Workload.parse(text)
    config = Config.of({**dict(default_of(workload, target).items()), **changed})
    judged = CpuSimulator(weights="warm").judge(workload, target, [config])
    return float(judged.latency[0])


def update(text: str, target: Target) -> BlockSite:
    """The block that sums products."""
    workload = Workload.parse(text)
    program = lowered(workload, target, default_of(workload, target))
    return next(block for block in skeleton_of(program).blocks if block.accumulates)


@pytest.mark.parametrize("k", [512, 509])
def test_a_dot_product_is_one_operation_on_groups(k: int) -> None:
    found = update(INT8.replace("k=512", f"k={k}"), VNNI)
    assert found.arithmetic.operations == 1
    assert found.arithmetic.unit == "dot.uint8"
    memory = [access for access in found.accesses if not access.register]
    assert [access.size for access in memory] == [4, 4]


def test_a_product_of_tiles_reads_a_row_of_each_at_a_time() -> None:
    found = update(INT8, AMX)
    assert found.arithmetic.unit == "tiles"
    assert sorted(access.size for access in found.accesses if not access.register) == [4, 64]
    assert found.tile_depth >= 0


def test_bytes_take_about_a_quarter_of_the_time() -> None:
    assert 3 < seconds("matmul m=128 n=256 k=512 const=b", VNNI) / seconds(INT8, VNNI) < 4.5


def test_matrix_registers_are_faster_and_two_panels_wide() -> None:
    assert seconds(INT8, AMX) < 0.5 * seconds(INT8, VNNI)
    one, two = (seconds(INT8, AMX, m_tiles=1, n_tiles=n) for n in (1, 2))
    assert two < one


def test_the_roofline_knows_the_precision() -> None:
    def cycles(text: str, target: Target) -> int:
        simulate = CpuSimulator().simulate
        return simulate(Workload.parse(text), target, None, "roofline", None).compute_cycles

    plain = cycles("matmul m=128 n=256 k=512 const=b", VNNI)
    assert cycles(INT8, VNNI) == pytest.approx(plain / 4, abs=1)
    assert cycles(INT8, AMX) == pytest.approx(plain / 32, abs=1)
    slower = with_calibration(VNNI, {"dot.uint8.ports": 1.0})
    assert cycles(INT8, slower) == pytest.approx(plain / 2, abs=1)
    assert seconds(INT8, slower) > 1.5 * seconds(INT8, VNNI)
