"""Rows cut anew: scheduled, checked and executed, against numpy's reshape of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.compiler.recipe.program import Place
from tilesmith.families.lpu.backend.programs import recutting
from tilesmith.families.lpu.backend.programs.recutting import BoundaryTensor, cut_anew
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import Dataflow, VectorTensor
from tilesmith.families.lpu.codegen.scheduling.scheduler import schedule
from tilesmith.families.lpu.codegen.selection.graphs.chains import Chains
from tilesmith.families.lpu.codegen.selection.layout.images import content, in_rows
from tilesmith.families.lpu.codegen.verification.checker import check
from tilesmith.families.lpu.simulator.execution.functional import execute
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import ModelError

Shape = tuple[int, ...]
TARGET = load_target("lpu1")


def cut(
    written: list[tuple[int, Shape]],
    at: int,
    shape: Shape,
    dtype: str,
    block: int = 0,
    stripes: int = 1,
    beside: int = 0,
) -> Dataflow:
    """Tensors at elements of one array, read from element `at` on in a shape; what stands on lanes
    beside theirs."""
    kind = np.dtype(to_numpy(dtype))
    size = max(first + int(np.prod(extents)) for first, extents in written)
    array = np.random.default_rng(3).integers(-90, 90, size).astype(kind)
    chains, contents, helds = Chains(), {}, []
    for first, extents in written:
        part = array[first : first + int(np.prod(extents))]
        rows = contents[f"x{first}"] = in_rows(extents, dtype, part)
        rows[in_rows(extents, dtype, np.ones_like(part)) == 0] = beside
        chains.tensors[f"x{first}"] = VectorTensor(f"x{first}", len(rows), dtype, "input")
        helds.append(
            BoundaryTensor(f"x{first}", Place("arena", 64 + first * kind.itemsize), extents, dtype)
        )
    wanted = BoundaryTensor("y", Place("arena", 64 + at * kind.itemsize), shape, dtype)
    want = array[at : at + int(np.prod(shape))].reshape(shape)
    count = len(in_rows(shape, dtype, want))
    chains.tensors["y"] = tensor = VectorTensor("y", count, dtype, "output", block, stripes=stripes)
    cut_anew("reader", chains, helds, wanted, tensor)
    flow = chains.dataflow("cut")
    placed = schedule(flow, Chip.of(TARGET))
    played = execute(placed, {**contents, **chains.literals}, matching=check(placed))
    rows = np.asarray(played.tensors["y"])
    assert np.array_equal(content(shape, rows), want)
    assert beside or np.array_equal(rows, in_rows(shape, dtype, want)), "other lanes hold zeros"
    return flow


def test_lanes_beside_a_written_row_get_nowhere() -> None:
    """What stands there is anything: the norm of a row of 256 is no zero there."""
    cut([(0, (8, 256))], 0, (2048,), "float16", beside=7)


@pytest.mark.parametrize(
    ("source", "shape", "dtype"),
    [
        ((16, 64), (16, 4, 16), "float16"),
        ((16, 4, 16), (16, 64), "float16"),
        ((5, 700), (7, 500), "float16"),
        ((6, 8), (16, 3), "int8"),
        ((2, 9), (3, 6), "bool"),
        ((3, 8), (24,), "float32"),
    ],
)
def test_a_reshape_is_what_numpy_does(source: Shape, shape: Shape, dtype: str) -> None:
    cut([(0, source)], 0, shape, dtype)


@pytest.mark.parametrize(
    ("written", "shape"),
    [
        ([(0, (120, 6))], (1, 720)),
        ([(0, (1, 720))], (120, 6)),
        ([(0, (126, 1))], (42, 3)),
        ([(0, (60, 6)), (360, (30, 8))], (2, 300)),
    ],
)
def test_rows_of_few_lanes_go_by_steps(written: list[tuple[int, Shape]], shape: Shape) -> None:
    found = cut(written, 0, shape, "float16", beside=7 if shape[0] == 1 else 0)
    assert len(found.chains) <= 30


def test_parts_are_read_and_parts_side_by_side() -> None:
    cut([(0, (6, 40))], 80, (2, 40), "float16")
    cut([(0, (3, 8)), (24, (2, 12))], 4, (4, 11), "int8")


def test_more_blocks_than_slices_at_once_are_written() -> None:
    cut([(0, (64, 96))], 0, (384, 16), "float16", block=16, stripes=8)


def test_what_cannot_be_cut_anew_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="'reader' reads a part of what was never written"):
        cut([(0, (2, 8)), (20, (1, 4))], 0, (3, 8), "float16")
    monkeypatch.setattr(recutting, "MOST_MOVES", 20)
    with pytest.raises(ModelError, match="takes 37 moves of lanes; at most 20"):
        cut([(0, (37, 1))], 0, (1, 37), "float16")
    wanted = BoundaryTensor("y", Place("arena", 0), (4,), "float16")
    with pytest.raises(ModelError, match="reads float16 where int8 was written"):
        held = BoundaryTensor("x", Place("arena", 0), (8,), "int8")
        cut_anew("reader", Chains(), [held], wanted, VectorTensor("y", 1, "float16"))
