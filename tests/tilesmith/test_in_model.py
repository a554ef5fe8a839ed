"""Schedules pinned inside a model: compiled with while they hold, forgotten when they do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import tilesmith as ts
from tilesmith.capabilities.dashboard.report.job_report import gather
from tilesmith.capabilities.dashboard.report.page import page
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.jobs.compilation.in_model import keep, model_key, pinned
from tilesmith.records import TuningRecord
from tilesmith.records.questions.queries import Filter
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config

CPU = ts.resolve_target("cpu")


def model(rows: int = 4) -> onnx.ModelProto:
    text = f"small (float[{rows}, 8] x) => (float[{rows}, 32] y) {{ y = MatMul(x, w) }}"
    graph = parser.parse_graph(text)
    weight = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )


def kernels(rows: int = 4) -> Graph:
    return prepared(import_model(model(rows)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.fixture
def database(path: Path) -> Iterator[ts.Database]:
    with ts.Database.open(str(path)) as opened:
        yield opened


def workload() -> ts.Workload:
    (found,) = [node.workload for node in kernels().nodes]
    assert found is not None
    return found


def configs() -> tuple[Config, Config]:
    """The default and another one."""
    default = default_of(workload(), CPU)
    space = space_of(workload(), CPU)
    other = next(c for c in space if c != default and dict(c).keys() == dict(default).keys())
    return default, other


def measured(config: Config, seconds: float) -> TuningRecord:
    result = MeasureResult("ok", "hardware", (seconds,))
    return TuningRecord.of(workload(), CPU, config, result)


def compiled_config(path: Path) -> str:
    (step,) = [
        step for step in ts.compile(model(), database=path).recipe.steps if hasattr(step, "config")
    ]
    return step.config


def test_a_pinned_schedule_is_compiled_with_until_a_better_one_is_measured(
    database: ts.Database, path: Path
) -> None:
    default, other = configs()
    database.add([measured(default, 1e-6), measured(other, 2e-6)])
    before = compiled_config(path)
    keep(database, kernels(), CPU, 1, {workload(): other}, 5e-6)
    assert pinned(database, kernels(), CPU, 1) == {workload(): other}
    assert compiled_config(path) != before
    database.add([measured(default, 0.9e-6)])
    assert pinned(database, kernels(), CPU, 1) == {}
    assert compiled_config(path) == before


def test_pins_are_of_one_model_thread_count_and_of_today_s_space(database: ts.Database) -> None:
    _, other = configs()
    keep(database, kernels(), CPU, 1, {workload(): other}, 5e-6)
    assert pinned(database, kernels(5), CPU, 1) == {}
    assert pinned(database, kernels(), CPU, 2) == {}
    keep(database, kernels(), CPU, 1, {workload(): Config.of(m_tile=10**6)}, 5e-6)
    assert pinned(database, kernels(), CPU, 1) == {}, "the newest word counts, legal or not"


def test_pins_of_other_versions_are_not_used(path: Path) -> None:
    _, other = configs()
    with ts.Database.open(str(path)) as opened:
        keep(opened, kernels(), CPU, 1, {workload(): other}, 5e-6)
        today = opened.toolchain
    later = replace(today, codegen=today.codegen + ".next")
    with ts.Database.open(str(path), toolchain=later) as opened:
        assert pinned(opened, kernels(), CPU, 1) == {}


def test_tuning_a_model_leaves_a_record_of_it_that_verify_leaves_alone(
    tmp_path: Path, path: Path
) -> None:
    file = tmp_path / "small.onnx"
    onnx.save(model(), str(file))
    report = ts.tune(file, database=path, trials=4, measure="hardware")
    assert report.in_model is not None
    assert report.in_model.compared >= 1
    with ts.Database.open(str(path)) as opened:
        (record,) = opened.query(Filter(operator="model"))
        assert record.is_of_model
        assert record.workload_key == model_key(kernels())
        assert record.latency == pytest.approx(report.in_model.after_ms / 1e3)
        assert json.loads(record.result.message) == report.in_model.to_json()
        (told,) = gather(opened).in_model
        assert told.latencies_ms["before_ms"] == report.in_model.before_ms
        assert (told.compared, told.pinned) == (report.in_model.compared, report.in_model.pinned)
        assert "The whole model" in page(gather(opened))
        assert opened.verify(_same, np.random.default_rng(0), count=None)
        lines = list(opened.export_lines())
    with ts.Database.open(str(tmp_path / "other.db")) as other:
        assert other.import_lines(lines).added == len(lines) - 1


def _same(records: Any) -> Any:
    assert not any(record.is_of_model for record in records)
    return records
