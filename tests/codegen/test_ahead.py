"""Weights fetched ahead: which lines, by whom, and that code asks for them."""

from __future__ import annotations

import itertools

import pytest

from tests.codegen.test_dot_products import target_of
from tilesmith.codegen.llvm.intrinsics.ahead import FEW, MOST, PrefetchShare, share_of
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.expressions.scalar import Const
from tilesmith.search_space.ir.program import Block, Loop
from tilesmith.search_space.workloads.workload import Workload

LINE = 64
AVX512 = target_of("avx512")


def nest(tiles: int, steps: int) -> list[Loop]:
    """Real loops over panels, tiles, and steps of the reduction, outermost first."""
    body: Loop | Block = Block("c", "c", (), Const(0.0))
    found = []
    for name, extent in (("k", steps), ("i", tiles), ("j", 5)):
        body = Loop(name, const(extent), "serial", body)
        found.insert(0, body)
    return found


def shares(loops: list[Loop], step: int, panel: int) -> list[PrefetchShare | None]:
    """What each loop asks for of a buffer read at `j*panel + k*step`, in elements of 4 bytes."""
    offset = var("j") * panel + var("k") * step
    return [share_of(offset, loops, loop, 4, LINE) for loop in loops]


@pytest.mark.parametrize(
    ("tiles", "steps", "step", "place"),
    [(11, 192, 128, 2), (42, 128, 32, 1), (3, 7, 16, 1), (2, 64, 256, 2), (2, 1, 16, 1)],
)
def test_all_tiles_together_ask_for_the_next_panel(
    tiles: int, steps: int, step: int, place: int
) -> None:
    loops, panel = nest(tiles, steps), steps * step
    found = shares(loops, step, panel)
    (share,) = [share for share in found if share is not None]
    assert found.index(share) == place
    assert share.count <= (MOST if loops[place].variable == "k" else FEW)
    inner = range(steps) if loops[place].variable == "k" else range(1)
    asked = set()
    for i, k in itertools.product(range(tiles), inner):
        numbers = {"i": const(i), "k": const(k), "j": const(3)}
        first = share.start.substitute(numbers).constant
        assert first is not None
        asked |= {first // LINE + number for number in range(share.count)}
    following = range(4 * panel * 4 // LINE, 5 * panel * 4 // LINE)
    if share.count < MOST:
        assert asked >= set(following)
    assert min(asked) == following.start
    assert len(asked) <= len(following) + tiles * max(1, steps) * share.count


def test_nothing_is_asked_for_where_nothing_is_read_again() -> None:
    loops = nest(11, 192)
    once = [loops[0], loops[2]]
    assert share_of(var("j") * 4096 + var("k") * 16, once, loops[2], 4, LINE) is None
    assert share_of(var("k") * 16, loops, loops[2], 4, LINE) is None  # the only panel
    bent = (var("j") * 4096) // 3 + var("k") * 16
    assert share_of(bent, loops, loops[2], 4, LINE) is None


def test_extents_that_vary_are_left_alone() -> None:
    outer, _, inner = nest(11, 192)
    varying = Loop("i", var("rows"), "serial", inner)
    found = share_of(var("j") * 4096 + var("k") * 16, [outer, varying, inner], inner, 4, LINE)
    assert found is None


@pytest.mark.parametrize(
    ("text", "fetches"),
    [
        ("matmul m=128 n=256 k=768 const=b", True),
        ("matmul m=128 n=256 k=768 const=b dtype=uint8 weights=int8", True),
        ("conv2d c=64 h=14 w=14 oc=128 kh=3 kw=3 pad=1 const=weight", True),
        ("matmul m=8 n=256 k=768 const=b", False),  # one tile
        ("matmul m=128 n=256 k=768", False),  # packed in the run, just before
        ("softmax shape=64x128", False),
    ],
)
def test_code_fetches_packed_weights_that_tiles_share(text: str, fetches: bool) -> None:
    workload = Workload.parse(text)
    program = lowered(workload, AVX512, default_of(workload, AVX512))
    assembly = toolchain.emit_assembly(emit_module(program, AVX512).text, AVX512)
    assert ("prefetcht1" in assembly) == fetches
