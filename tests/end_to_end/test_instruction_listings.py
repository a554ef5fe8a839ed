"""`tilesmith db show --instructions`: what a record of an accelerator stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.command import refuse, succeed
from tilesmith.codegen.programs.structures import default_of
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.workload import Workload


@pytest.mark.parametrize("target, dtype", [("trn1", "float32"), ("lpu1", "float16")])
def test_show_prints_the_instruction_stream_on_accelerators(
    target: str, dtype: str, tmp_path: Path
) -> None:
    path, machine = tmp_path / "t.db", load_target(target)
    workload = Workload.parse(f"matmul m=64 n=64 k=64 dtype={dtype}")
    config = default_of(workload, machine)
    with Database.open(str(path)) as opened:
        result = MeasureResult("ok", "simulator", (1e-6,))
        opened.add([TuningRecord.of(workload, machine, config, result)])
    shown = succeed("db", "show", 1, "--database", path, "--instructions")["instructions"]
    assert len(shown.splitlines()) > 5
    assert "matmul" in shown or "mxm.0.move" in shown
    assert "instruction stream (--instructions)" in refuse(
        "db", "show", 1, "--database", path, "--assembly"
    )
