"""Products run at the pace of their passes, in the memory there is."""

import pytest

from tests.families.lpu.codegen.chains import chip
from tilesmith.codegen.programs.structures import default_of
from tilesmith.families.lpu.codegen.dataflow import Dataflow, VectorTensor
from tilesmith.families.lpu.codegen.isa.bursts import BurstSchedule
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board
from tilesmith.families.lpu.codegen.scheduling.resources.memory import Words
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.selected import selected
from tilesmith.search_space.workloads.workload import Workload


def _placed(text: str, **settings: int) -> BurstSchedule:
    machine = chip(**settings)
    workload = Workload.parse(text)
    config = default_of(workload, machine.target)
    placed = schedule(selected(workload, machine.target, config).dataflow, machine)
    check(placed)
    return placed


@pytest.mark.parametrize(("k", "n"), [(320, 640), (640, 640), (1280, 640), (640, 1280)])
def test_each_row_of_a_product_takes_its_passes_and_no_cycle_more(k: int, n: int) -> None:
    """Half-tiles of 160 x 320 by two float16 units: exactly, beyond what filling takes."""
    text = f"matmul k={k} n={n} dtype=float16 tb=1"
    long, short = (_placed(f"{text} m={m}").cycles for m in (512, 256))
    passes = (k // 160) * (n // 320)
    assert long - short == 256 * passes // 2
    assert short - 256 * passes // 2 < 300


def test_columns_that_fill_no_tile_take_hardly_more_than_their_own_vectors() -> None:
    text = "matmul m=1280 k=1280 dtype=float16 tb=1"
    whole, more, tile = (_placed(f"{text} n={n}").cycles for n in (640, 720, 960))
    assert tile - whole > 1280 * 8 // 2  # a tile more
    vectors = 80 * 8 * 4 + 1280
    assert more - whole < vectors // 2 + 1500


def test_turning_spends_a_cycle_on_a_lane() -> None:
    """160 lanes at once, of which one is picked: 320 rows a block of 320 x 320, by two units."""
    text = "matmul m=640 k=1280 n=1280 dtype=float16"
    turned, plain = (_placed(f"{text} tb={tb}").cycles for tb in (0, 1))
    assert turned - plain < 1.1 * 1280 * 4 / 2 + 800


def test_a_product_whose_sums_do_not_fit_side_by_side_goes_tile_by_tile() -> None:
    text = "matmul m=192 k=1280 n=2560 dtype=float16 tb=1"
    roomy, tight = _placed(text), _placed(text, mem__words=384)
    assert tight.cycles < 1.01 * roomy.cycles


def test_a_full_hemisphere_leaves_what_is_new_to_the_other() -> None:
    machine = chip()
    new = Dataflow("new", {"new": VectorTensor("new", 1600, "float16")}, ())
    board = Board.of(new, machine)
    assert board.side("new", 0, False) == (False,)
    for number in range(machine.half):
        board.memory.take([Words(number, bank, 0, 3000) for bank in range(2)])
    assert board.side("new", 0, False) == (True,)
    assert board.side("new", 0, True) == (True,)
