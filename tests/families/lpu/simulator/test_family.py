"""Three fidelities of one chip, pictures and traces; and a target of which a roofline is known."""

import json
from pathlib import Path

import pytest

from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import TargetError, WorkloadError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import simulate

LPU = load_target("lpu1")
PRODUCT = Workload.parse("matmul m=64 n=320 k=640 dtype=float16 const=b")


def test_fidelities_are_in_order() -> None:
    roof, near, exact = (
        simulate(PRODUCT, LPU, fidelity=name)  # type: ignore[arg-type]
        for name in ("roofline", "analytical", "timeline")
    )
    assert roof.cycles < near.cycles <= exact.cycles < 2 * near.cycles
    assert exact.details["peak_share"] == pytest.approx(
        roof.latency_us / exact.latency_us, rel=1e-3
    )
    assert 0 < exact.engines["mxm"] < 1


def test_a_figure_of_the_papers_shape() -> None:
    """fp16 [2304 x 4096][4096 x N], N of 1376 to 3500: 80 % of 184 TFLOPS, both operands given when
    it runs, and stored as they are written."""
    workload = Workload.parse("matmul m=2304 k=4096 n=1601 dtype=float16")
    found = simulate(workload, LPU, fidelity="timeline")
    assert found.details["peak_share"] >= 0.82


def test_a_roofline_is_all_that_is_known_of_some() -> None:
    target = load_target("lp30")
    found = simulate(
        Workload.parse("matmul m=512 n=512 k=512 dtype=int8"), target, fidelity="roofline"
    )
    assert found.latency_us == pytest.approx(2 * 512**3 / 1.2e15 * 1e6)
    with pytest.raises(TargetError, match="known as a roofline only"):
        simulate(PRODUCT, target, fidelity="timeline")


def test_pictures_and_traces(tmp_path: Path) -> None:
    simulate(PRODUCT, LPU, fidelity="timeline", trace=tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<svg" in page and "MXM 0" in page and "MEM E1" in page and "http" not in page
    found = simulate(PRODUCT, LPU, fidelity="timeline", trace=tmp_path / "a.json")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    bursts = [e for e in events if e["ph"] == "X" and e.get("cat") != "operator"]
    assert len(bursts) == found.details["bursts"]
    end = max(event["ts"] + event["dur"] for event in bursts)
    assert 0.9 * found.latency_us < end <= found.latency_us


def test_what_mem_cannot_hold_is_refused_before_its_chains_are_made() -> None:
    large = Workload.parse("matmul m=100000 n=100000 k=100000 dtype=float16")
    with pytest.raises(WorkloadError, match=r"220 MiB of MEM: \d+ chips would hold them"):
        simulate(large, load_target("lpu1"))
