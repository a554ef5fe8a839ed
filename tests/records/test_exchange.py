"""JSON Lines out and in, merging, comparing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilesmith.records import Database, Toolchain, TuningRecord
from tilesmith.search_space.hardware.target import Fact, Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import DatabaseError

HEADER = '{"format": "tilesmith-records", "version": 1}'
LINE = {
    "workload": "matmul m=64 n=64 k=64",
    "target": "cpu-0123abcd",
    "config": {"tile": 1},
    "status": "ok",
    "latency_s": 0.5,
    "samples": [0.25, 0.5, 0.75],
    "measured_by": "hardware",
}
_TIME_AND_HOST = ("created_at", "host", "elapsed_s")


def text(**changes):
    line = {**LINE, **changes}
    return json.dumps({name: value for name, value in line.items() if value is not ...})


def filled(path, make_record, seed=0, shuffle=False, **more):
    """A database of varied records, in an order of its own."""
    rng = np.random.default_rng(seed)
    records = [
        make_record(
            {"tile": tile, "order": order},
            float(f"{rng.uniform(1e-3, 2e-3):.12g}"),
            workload=f"matmul m={m} n=8 k=8",
            status="wrong" if rng.random() < 0.2 else "ok",
            measured_by="simulator",
            **more,
        )
        for m in (1, 2)
        for tile in range(10)
        for order in ("mn", "nm")
    ]
    if shuffle:
        records = [records[i] for i in rng.permutation(len(records))]
    database = Database.open(str(path), toolchain=Toolchain("0.1.0", simulator="1", space="1"))
    for start in range(0, len(records), 7):
        database.add(records[start : start + 7])
    return database


def test_a_line_has_the_keys_scripts_rely_on(sqlite, make_record):
    sqlite.add([make_record(3, (3e-3, 1e-3, 2e-3))])
    header, line = map(json.loads, sqlite.export_lines())
    assert header["format"] == "tilesmith-records" and header["version"] == 1
    assert line["workload"] == "matmul m=64 n=64 k=64" and line["target"] == "cpu-0123abcd"
    assert line["config"] == {"tile": 3} and line["status"] == "ok"
    assert line["latency_s"] == 2e-3 and line["samples"] == [3e-3, 1e-3, 2e-3]
    assert line["measured_by"] == "hardware"


def test_export_and_import_give_the_same_export_again(database, tmp_path, make_record, at):
    target = Target.of("box", "cpu", {"lanes": Fact(16, source="A1", trust="V")}, "a box")
    database.register_target(target)
    result = MeasureResult("ok", "hardware", (1e-3, 2e-3), "", (5e-4,), elapsed=0.5)
    database.add(
        [
            make_record(1, 1e-3, created_at=at(1)),
            make_record(1, 2e-3, created_at=at(2), message="µ"),
            make_record(2, status="crash", threads=4, message='a "b"\n\\'),
            TuningRecord(
                "future x=1", target.identity, Config.of(a="b"), result, 1, "NCHW", "NHWC"
            ),
        ]
    )
    exported = list(database.export_lines())
    with Database.open(str(tmp_path / "copy.db")) as copy:
        report = copy.import_lines(exported)
        assert (report.added, report.duplicates, report.bad_lines) == (4, 0, ())
        assert list(copy.export_lines()) == exported
        assert copy.target_facts(target.identity) == target
        best = copy.best("matmul m=64 n=64 k=64", "cpu-0123abcd")
        assert best.latency == 2e-3, "the last word is known again"
        again = copy.import_lines(exported)
        assert (again.added, again.duplicates) == (0, 4)
        assert copy.check() == []


def test_the_same_trials_export_alike_whatever_their_order_and_time(tmp_path, make_record, at):
    with (
        filled(tmp_path / "a.db", make_record, created_at=at(1), host="one") as first,
        filled(tmp_path / "b.db", make_record, shuffle=True, host="two") as second,
    ):
        one, two = list(first.export_lines()), list(second.export_lines())
    assert one != two
    assert [_timeless(line) for line in one] == [_timeless(line) for line in two]


def _timeless(line):
    return {k: v for k, v in json.loads(line).items() if k not in _TIME_AND_HOST}


def test_a_short_line_is_enough(database, key, target):
    lines = [HEADER, "", text(samples=...), text(config={"b": 2, "a": 1}, latency_s=...)]
    assert database.import_lines(lines).added == 2
    first, second = database.query(sort="oldest")
    assert first.result.samples == (0.5,) and first.threads == 1
    assert second.latency == 0.5 and second.config.key == '{"a":1,"b":2}'
    assert database.best(key, target).stale, "versions unknown: it must be measured again"


BAD_LINES = {
    "is not JSON": "{",
    "is not a JSON object": "[1]",
    "has no 'workload'": text(workload=...),
    "'workload' is 7": text(workload=7),
    "'target' is ''": text(target=""),
    "has no 'config'": text(config=[1]),
    "knob 'tile' of its 'config'": text(config={"tile": 1.5}),
    "knob 'on' of its 'config'": text(config={"on": True}),
    "'status' is 'fine'": text(status="fine"),
    "'measured_by' is 'guess'": text(measured_by="guess"),
    "'samples' is not a list": text(samples=1.0),
    "'samples' holds 'fast'": text(samples=["fast"]),
    "'samples' holds nan": text(samples=[float("nan")]),
    "'samples' holds -1": text(samples=[-1]),
    "the median of its samples": text(latency_s=0.7),
    "neither 'latency_s' nor 'samples'": text(latency_s=..., samples=...),
    "took 0 s: a clock that is too coarse": text(latency_s=0.0, samples=...),
    "is ok, but took 0 s": text(latency_s=..., samples=[0.0, 0.0, 5e-8]),
    "has a latency, but its status is 'crash'": text(status="crash"),
    "'threads' is 0": text(threads=0),
    "unknown key 'colour'": text(colour="red"),
    "'toolchain' names": text(toolchain={"gcc": "12"}),
    "'toolchain' is not an object": text(toolchain="0.1"),
    "'created_at' is 'yesterday', not a time": text(created_at="yesterday"),
    "is nested too deeply": "[" * 100_000,
    "half a character": text(host="\ud800"),
    "a text with a NUL": text(config={"a\0b": 1}),
    "'threads' is 100000": text(threads=10**30),
    "'elapsed_s' holds 100000": text(elapsed_s=10**400),
    "'input_layout' is \\['N'\\]": text(input_layout=["N"]),
}


@pytest.mark.parametrize("reason", BAD_LINES)
def test_a_bad_line_is_named_and_refuses_the_whole(sqlite, reason):
    lines = [HEADER, text(), text(config={"tile": 2}), BAD_LINES[reason], text(config={"tile": 3})]
    with pytest.raises(DatabaseError, match=f"line 4 of 'x.jsonl'.*{reason}.*nothing was imported"):
        sqlite.import_lines(lines, name="x.jsonl")
    assert sqlite.stats()["trials"] == sqlite.stats()["workloads"] == 0
    report = sqlite.import_lines(lines, skip_bad=True)
    assert report.added == 3
    ((number, why),) = report.bad_lines
    assert number == 4 and why


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ("", "not an export"),
        ("{}", "not an export"),
        (text(), "not an export"),
        ('{"format": "tilesmith-records", "version": 2}', "version 2 .*upgrade"),
        ('{"format": "tilesmith-records"}', "version None"),
        ('{"format": "tilesmith-records", "version": 1, "targets": {"a": {}}}', "describes 'a'"),
    ],
)
def test_a_bad_header_is_refused(sqlite, first, reason):
    with pytest.raises(DatabaseError, match=reason):
        sqlite.import_lines([first, text()], skip_bad=True)
    assert sqlite.stats()["trials"] == 0


def test_contradictions_are_reported_and_both_kept(database, make_record, at):
    database.add(
        [
            make_record(1, 1e-3, measured_by="simulator", created_at=at(0)),
            make_record(2, 1e-3, created_at=at(0)),
            make_record(3, 1e-3, created_at=at(0)),
            make_record(4, 1e-3, created_at=at(0)),
        ]
    )
    common = {"created_at": at(9).isoformat(), "toolchain": _versions(database)}
    report = database.import_lines(
        [
            HEADER,
            text(measured_by="simulator", samples=[1.001e-3], latency_s=..., **common),
            text(config={"tile": 2}, status="wrong", samples=..., latency_s=..., **common),
            text(config={"tile": 3}, samples=[1.5e-3], latency_s=..., **common),
            text(config={"tile": 4}, samples=[1.05e-3], latency_s=..., **common),
        ]
    )
    assert (report.added, report.conflict_count) == (4, 3)
    reasons = [conflict.reason for conflict in report.conflicts]
    assert "two latencies with the same versions" in reasons[0]
    assert "fails" in reasons[1] and "50% apart" in reasons[2]
    assert "record" in report.conflicts[0].kept and "1001.00 us" in report.conflicts[0].came
    assert database.rows() == 8
    assert database.check() == []


def _versions(database):
    return database.query(limit=1)[0].toolchain.to_dict()


def test_a_file_that_measures_twice_does_not_contradict_itself(sqlite, at):
    lines = [text(samples=[1.0 + i], latency_s=..., created_at=at(i).isoformat()) for i in range(3)]
    report = sqlite.import_lines([HEADER, *lines])
    assert (report.added, report.conflict_count) == (3, 0)


def test_merging_either_way_gives_the_same(tmp_path, make_record, at):
    def fresh(name):
        parts = [
            filled(tmp_path / f"{name}{seed}.db", make_record, seed, created_at=at(seed), host="h")
            for seed in (1, 2)
        ]
        for number, part in enumerate(parts):
            job = part.start_job(f"tune {number}", seed=number, strategy="random")
            part.add([make_record(99, 1.0 + number, created_at=at(number), host="h")], job=job)
        return parts

    one, two = fresh("a")
    report = one.merge(two).sources[two.name]
    assert report.added > 0 and report.conflict_count > 0
    assert one.check() == []
    assert sorted(job.command for job in one.jobs()) == ["tune 0", "tune 1"]
    copied = next(job for job in one.jobs() if job.command == "tune 1")
    assert [r.latency for r in one.query() if r.job == copied.id] == [2.0]
    once = list(one.export_lines())
    again = one.merge(two).sources[two.name]
    assert again.added == 0 and len(one.jobs()) == 2
    assert list(one.export_lines()) == once
    three, four = fresh("b")
    four.merge(three)
    assert [_timeless(line) for line in four.export_lines()] == [_timeless(line) for line in once]
    for database in (one, two, three, four):
        database.close()


def test_diff_names_what_either_has_and_who_is_faster(tmp_path, make_record, versions):
    now, _ = versions
    keys = [f"matmul m={m} n=8 k=8" for m in (1, 2, 3, 4)]
    with (
        Database.open(str(tmp_path / "a.db"), toolchain=now) as first,
        Database.open(str(tmp_path / "b.db"), toolchain=now) as second,
    ):
        first.add(make_record(1, 1e-3, workload=key) for key in keys[:3])
        second.add(
            [
                make_record(1, 1e-3, workload=keys[0]),
                make_record(1, 4e-3, workload=keys[1]),
                make_record(1, 1e-3, workload=keys[3], measured_by="simulator"),
            ]
        )
        found = first.diff(second)
    assert [(d.workload, d.ratio) for d in found] == [
        (keys[2], None),
        (keys[3], None),
        (keys[1], 4.0),
        (keys[0], 1.0),
    ]
    assert found[0].theirs is None and found[1].ours is None
    assert [d.comparable for d in found] == [False, False, True, True]
