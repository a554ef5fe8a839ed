"""Machines in the record: who measured what, over export and merge, and how each stands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from tilesmith.records import Database
from tilesmith.records.questions.queries import Filter
from tilesmith.records.trials.record import WorkerReport

FACTS = {"model": "Big 9", "cores": 8}


def by(record, machine):
    return replace(record, result=replace(record.result, machine=machine))


def measured(database, make_record):
    """Two machines' trials, one of nobody's, and a simulated one."""
    database.note_machine(
        "a-1", host="a", target="cpu-0123abcd", facts=FACTS, calibration={"clock.ghz": 3.5}
    )
    records = [
        by(make_record(1), "a-1"),
        by(make_record(2), "b-2"),
        by(make_record(3, status="crash"), "a-1"),
        make_record(4),
        make_record(5, measured_by="simulator"),
    ]
    job = database.start_job("tilesmith tune", seed=0, strategy="random")
    database.add(records, job=job)
    return job


def test_trials_are_found_by_the_machine_that_measured_them(database, make_record):
    measured(database, make_record)
    found = database.query(Filter(machine="a-1"), sort="oldest")
    assert [record.config["tile"] for record in found] == [1, 3]
    assert {record.result.machine for record in found} == {"a-1"}
    assert {record.host for record in found} == {"a"}, "the host that measured"
    fastest = database.query(Filter(machine="-"), sort="fastest")
    assert {record.config["tile"] for record in fastest} == {1, 2}
    assert database.query(Filter(machine="_")) == []
    with database.reading() as connection:
        told = connection.execute(text("SELECT config, machine FROM trial_details ORDER BY id"))
        assert [name for _, name in told] == ["a-1", "b-2", "a-1", None, None]


def test_machines_tell_trials_pace_and_state(database, make_record):
    job = measured(database, make_record)
    worker = WorkerReport("w0", host="a", machine="a-1", state="busy", trials=2, pace=1.02)
    database.write_workers(job, [worker])
    aside = replace(worker, state="set aside", message="'w0' has slowed down", pace=1.3)
    database.write_workers(job, [aside])
    first, second = database.machines()
    assert (first.name, first.trials, first.failures) == ("a-1", 2, 1)
    assert (first.state, first.pace) == ("set aside", 1.3) and "slowed down" in first.message
    assert first.facts == FACTS and first.calibration == {"clock.ghz": 3.5}
    assert first.seen_at is not None
    assert (second.name, second.host, second.trials, second.state) == ("b-2", "", 1, "")
    database.note_machine("a-1", host="a2", target="cpu-0123abcd")
    assert database.machines()[0].facts == FACTS, "what is not told anew stays"
    assert database.machines()[0].host == "a2"


def test_machines_survive_export_and_merge(database, make_record, tmp_path):
    measured(database, make_record)
    lines = list(database.export_lines())
    with Database.open(str(tmp_path / "imported.db")) as imported:
        assert imported.import_lines(lines).added == 5
        assert [m.name for m in imported.machines()] == ["a-1", "b-2"]
        assert imported.import_lines(lines).duplicates == 5
    with Database.open(str(tmp_path / "merged.db")) as merged:
        merged.merge(database)
        merged.merge(database)
        first, second = merged.machines()
        assert (first.facts, first.trials, second.trials) == (FACTS, 2, 1)


@pytest.mark.parametrize("name", ["x" * 200, "rack 3\0", "büro"])
def test_any_name_is_kept(database, make_record, name):
    database.add([by(make_record(1), name)])
    database.add([by(make_record(2), name)])
    (machine,) = database.machines()
    assert machine.trials == 2
