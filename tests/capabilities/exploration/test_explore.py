"""A search for hardware: against many schedules judged, through the command, its refusals."""

from __future__ import annotations

import csv
import html
import json
import math
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from tilesmith.capabilities.exploration.job import AskedOfExploration, searched_designs
from tilesmith.capabilities.exploration.request import ExploreRequest
from tilesmith.capabilities.exploration.search import explored
from tilesmith.codegen.programs.structures import space_of
from tilesmith.command_line import command_line
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError, TargetError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.simulator.dispatch import simulators

TRN1 = load_target("trn1")
SMALL = "matmul m=64 n=128 k=128 dtype=bfloat16"
SOFTMAX = "softmax shape=256x256"
POINTS = [
    [("dma.engines", engines), ("gpsimd.ghz", ghz)]
    for ghz in ("1.4", "0.7")
    for engines in ("16", "8", "32")
]


def mlp(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(s).astype(np.float32) / 16 for s in ((256, 512), (512, 256))]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "w1"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (128, 256))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (128, 256))],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = folder / "mlp.onnx"
    onnx.save(model, path)
    return path


def test_an_operator_is_nearly_as_fast_as_of_many_schedules_on_every_design() -> None:
    found = explored(SMALL, TRN1.to_json(), POINTS, 0)
    workload = Workload.parse(SMALL)
    for point, latency in zip(POINTS, found["latency_us"], strict=True):
        target = simulators[TRN1.family].with_settings(TRN1, dict(point))
        configs = space_of(workload, target).sample(np.random.default_rng(1), 600)
        best = float(np.nanmin(judge(workload, target, configs).latency)) * 1e6
        assert latency <= 1.05 * best


def test_what_does_not_matter_is_shared_and_what_does_is_not() -> None:
    found = explored(SOFTMAX, TRN1.to_json(), POINTS, 0)
    assert found["matters"] == ["dma.engines"]
    assert found["judged"] == 3
    assert found["latency_us"][:3] == found["latency_us"][3:]
    assert len(set(found["latency_us"][:3])) > 1
    assert found == explored(SOFTMAX, TRN1.to_json(), POINTS, 0)


def test_designs_too_small_for_an_operator_say_so() -> None:
    points = [[("sbuf.mib", "24")], [("sbuf.mib", "1")]]
    found = explored("softmax shape=128x8192", TRN1.to_json(), points, 0)
    assert math.isfinite(found["latency_us"][0])
    if not found["configs"][1]:
        assert math.isnan(found["latency_us"][1])
        assert "sbuf" in found["bounds"][1].lower()


def test_a_model_from_request_to_report(tmp_path: Path) -> None:
    asked = ExploreRequest(
        "trn1",
        ("dma.engines=8,16,32", "sbuf.mib=12,24"),
        (str(mlp(tmp_path)),),
        (SMALL,),
        confirm=2,
        jobs=1,
    )
    found = searched_designs(asked)
    assert len(found.designs) == found.grid == 6
    assert found.designs[0].score == 1.0
    assert found.models == ("mlp", SMALL)
    for design in found.designs:
        ratios = [design.latency_us[m] / found.designs[0].latency_us[m] for m in found.models]
        assert design.score == pytest.approx(math.sqrt(ratios[0] * ratios[1]))
    assert found.played == 2 * 2
    assert [one.on_front for one in found.designs] == dominated_by_none(found)
    slopes = {one.name: one for one in found.sensitivities}
    assert slopes["dma.engines"].score < 0 < slopes["dma.engines"].area
    assert slopes["sbuf.mib"].area > 0
    assert "takes" in found.next_bottleneck or "no single number" in found.next_bottleneck


def dominated_by_none(found) -> list[bool]:
    def better(one, other) -> bool:
        a = (one.cost.area_mm2, one.score)
        b = (other.cost.area_mm2, other.score)
        return a != b and a[0] <= b[0] and a[1] <= b[1]

    return [not any(better(other, one) for other in found.designs) for one in found.designs]


def run(*words: str) -> Result:
    return CliRunner().invoke(command_line, ["explore", *words])


def test_the_command_prints_a_table_a_page_a_csv_and_json(tmp_path: Path) -> None:
    words = ["--target", "trn1", "--vary", "dma.engines=8,16,32", "--vary", "sbuf.mib=12,24"]
    words += ["--op", SMALL, "--budget", "power", "--jobs", "1"]
    page, table = tmp_path / "p.html", tmp_path / "d.csv"
    said = run(*words, "--page", str(page), "--csv", str(table))
    assert said.exit_code == 0, said.output
    assert "base" in said.output and "percent for each percent more" in said.output
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 6
    assert sum(row["front"] == "True" for row in rows) >= 1
    text = page.read_text()
    assert text.count("<circle") == 2 * 6
    assert "http" not in text and "<script" not in text
    typed = shlex.join(["tilesmith", "explore", *words, "--page", str(page)])
    assert html.escape(typed).replace("&#x27;", "&#39;") in text
    found = json.loads(run(*words, "--json").stdout)
    assert found["budget"] == "power"
    assert len(found["designs"]) == 6
    assert {one["name"] for one in found["sensitivities"]} == {"dma.engines", "sbuf.mib"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing is varied"),
        (("--vary", "sbuf.mib=1:9",), "nothing to run"),
        (("--vary", "nope=1,2", "--op", SMALL), "has no 'nope'"),
        (("--vary", "sbuf.mib=12,24", "--op", SMALL, "--at-most", "3"), "the cheapest takes"),
        (("--vary", "sbuf.mib=12,24", "--op", SMALL, "--at-most", "-1"), "leaves no design"),
        (("--vary", "sbuf.mib=12,24", "--model", "missing.onnx"), "does not exist"),
        (("--vary", "psum.banks=7", "--op", SMALL), "no design beside the base"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(words: tuple[str, ...], message: str) -> None:
    said = run("--target", "trn1", "--jobs", "1", *words)
    assert said.exit_code == 2
    assert message in said.output
    assert "Traceback" not in said.output
    assert len(said.output.strip().splitlines()) == 1, said.output


def test_keywords_of_the_api_are_the_fields_of_a_request() -> None:
    named = {field.name for field in fields(ExploreRequest)}
    assert set(AskedOfExploration.__annotations__) == named - {
        "target",
        "vary",
        "models",
        "operators",
    }


def test_a_family_without_costs_is_refused() -> None:
    with pytest.raises(TargetError, match="no model of area and power"):
        searched_designs(
            ExploreRequest("aarch64", ("array.rows=16,32",), operators=("matmul m=8 n=8 k=8",))
        )


def test_ranges_of_sizes_are_refused(tmp_path: Path) -> None:
    said = run("--target", "trn1", "--vary", "sbuf.mib=12,24", "--model", str(mlp(tmp_path)),
               "--shape", "x=1..8X256")  # fmt: skip
    assert said.exit_code == 2
    assert "needs one size" in said.output


def test_processes_give_the_same(tmp_path: Path) -> None:
    asked = {"vary": ("dma.engines=8,16",), "operators": (SMALL,), "confirm": 2}
    alone = searched_designs(ExploreRequest("trn1", jobs=1, **asked))
    beside = searched_designs(ExploreRequest("trn1", jobs=2, **asked))
    assert alone.to_json() == beside.to_json()
    with pytest.raises(InputError):
        searched_designs(
            ExploreRequest("trn1", ("dma.engines=8,16",), operators=(SMALL,), workers="nobody")
        )
