"""docs/database.md: its SQL runs and answers, its tables and format are the real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from tilesmith.records import Database
from tilesmith.records.schema.models import metadata
from tilesmith.search_space.results.measure import STATUSES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "database.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def told(database, make_record) -> Database:
    """A database in which every question of the document has an answer."""
    job = database.start_job("tilesmith tune model.onnx", seed=0, strategy="evolutionary")
    conv = "conv2d n=1 c=64 h=56 w=56 oc=64 kh=3 kw=3"
    database.add(
        [
            make_record(tile, tile * 1e-3, workload=key, measured_by=by, input_layout=layout)
            for key in ("matmul m=512 n=512 k=512", conv)
            for by in ("hardware", "simulator")
            for layout in ("", "NCHW16c")
            for tile in (1, 2)
        ],
        job=job,
    )
    database.add([make_record(3, status="crash", message="signal 11")], job=job)
    database.add([make_record(1, 3e-3, workload=conv)], job=job)
    database.add([make_record({"89ab": "{}"}, 5e-3, workload="model digest=0123")])
    return database


EXPECTED = [
    [("matmul m=512 n=512 k=512", 1000.0), ("conv2d n=1", 1000.0)],
    [(1e-3,), (1e-3,), (1e-3,), (1e-3,), (2e-3,)],
    [("conv2d n=1", "", "", 1e-3), ("conv2d n=1", "NCHW16c", "", 1e-3)],
    [("model digest=0123", "cpu", 1, 5.0)],
    [("crash", "signal 11", 1)],
    [("matmul m=64 n=64 k=64", '{"tile":3}', "signal 11")],
    [(1, "tilesmith tune model.onnx", "running", 18)],
    [("matmul m=512", 1.0), ("matmul m=512", 1.0), ("conv2d", 0.5), ("conv2d", 1.0)],
]


def test_every_statement_answers(told):
    statements = blocks("sql")
    assert len(statements) == len(EXPECTED)
    for statement, expected in zip(statements, EXPECTED, strict=True):
        with told.reading() as connection:
            rows = [tuple(row) for row in connection.execute(text(statement))]
        assert len(rows) == len(expected), statement
        for wanted in expected:
            assert any(_agrees(row, wanted) for row in rows), (statement, wanted, rows)


def _agrees(row, wanted):
    """Whether a row holds the wanted values, in order (texts by their beginning)."""
    values = iter(row)
    return all(any(_equal(value, item) for value in values) for item in wanted)


def _equal(value, item):
    if isinstance(item, str):
        return isinstance(value, str) and value.startswith(item)
    return not isinstance(value, str) and value == pytest.approx(item)


def test_every_table_and_column_is_documented(sqlite):
    with sqlite.reading() as connection:
        inspector = inspect(connection)
        views = inspector.get_view_names()
    for name, table in metadata.tables.items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", DOCUMENT, re.MULTILINE)
        named = set(re.findall(r"`(\w+)`", row)) - {name}
        assert named == {column.name for column in table.columns} - {"id"}, name
    assert set(views) == {"bests", "trial_details"}
    assert all(f"`{name}`" in DOCUMENT for name in (*views, *STATUSES))


def test_the_example_of_the_format_is_what_is_written_and_read(sqlite):
    (example,) = blocks("json")
    lines = example.splitlines()
    assert sqlite.import_lines(lines).added == 1
    exported = list(sqlite.export_lines())
    assert [json.loads(line) for line in exported] == [json.loads(line) for line in lines]
    assert [list(json.loads(line)) for line in exported] == [list(json.loads(e)) for e in lines]


def test_the_python_example_runs(tmp_path, monkeypatch, make_record, capsys):
    monkeypatch.chdir(tmp_path)
    with Database.open("tuning.db") as database:
        database.add([make_record(1, 0.5, workload="matmul m=512 n=512 k=512")])
    (example,) = blocks("python")
    exec(compile(example, "docs/database.md", "exec"), {})
    assert capsys.readouterr().out.startswith("0.5 tile=1")
