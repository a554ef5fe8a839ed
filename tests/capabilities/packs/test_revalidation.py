"""A pack on a machine that it was not made on: what is faster there is kept, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.capabilities.packs.made_up import (
    FAR,
    MATMUL,
    NEAR,
    machine,
    other_than_default,
    pack_with,
    schedule,
)
from tilesmith.capabilities.packs.file_format import lines_of, read_pack, write_pack
from tilesmith.capabilities.packs.revalidation import Trialled, proven, trialled
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.command_line import command_line
from tilesmith.records import Database
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.results.origin import Origin
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.tuner.measurement.runner import Candidate
from tilesmith.tuner.runners.simulator import SimulatorRunner

HERE = machine()
TWIN = machine(threads=64)

FAST, SLOW = (other_than_default(MATMUL, HERE, number) for number in (3, 4))


class Told(SimulatorRunner):
    """Takes so many seconds for each configuration, and fails for those it is not told."""

    def __init__(self, seconds: Mapping[Config, float]) -> None:
        self._seconds = seconds

    def compare(self, batch: Sequence[Candidate], cancel: object = None) -> list[MeasureResult]:
        assert batch[0][1] == default_of(batch[0][0], HERE), "beside the default"
        return [
            MeasureResult("ok", "hardware", (self._seconds[config],) * 3)
            if config in self._seconds
            else MeasureResult("wrong", "hardware", message="off by 1")
            for _, config in batch
        ]

    def close(self) -> None:
        """Nothing."""


def outcome(workload: Workload, seconds: Mapping[Config, float], *configs: Config) -> Trialled:
    pack = pack_with((TWIN, schedule(workload, TWIN, config=configs[0])), *(
        (machine(threads=count), schedule(workload, machine(threads=count), config=config))
        for count, config in enumerate(configs[1:], start=65)
    ))  # fmt: skip
    usual = {default_of(workload, HERE): 1e-4}
    (done,) = trialled([pack], HERE, 1, Told({**usual, **seconds}))
    return done


def test_what_beats_the_default_here_is_kept_with_what_was_timed_here() -> None:
    done = outcome(MATMUL, {FAST: 5e-5, SLOW: 2e-4}, FAST, SLOW)
    (kept,) = done.schedules
    assert (kept.record.config, kept.latency, kept.default_s) == (FAST, 5e-5, 1e-4)
    assert kept.record.target_identity == HERE.identity
    assert kept.origin is Origin.MEASURED, "two trials here are no search"
    assert len(done.records) == 3 and done.why == ""
    pack = proven("p.jsonl", HERE, "a model", [done])
    assert [one.identity for one in pack.machines] == [HERE.identity]
    assert len(list(lines_of(pack))) == 3


@pytest.mark.parametrize(
    ("seconds", "why"),
    [({FAST: 9.9e-5}, "the default is as fast"), ({}, "it fails: off by 1")],
)
def test_what_loses_or_fails_is_dropped(seconds: dict[Config, float], why: str) -> None:
    done = outcome(MATMUL, seconds, FAST)
    assert (done.schedules, done.why) == ((), why)


def test_a_search_of_this_very_machine_stays_one() -> None:
    pack = pack_with((HERE, schedule(MATMUL, HERE, config=FAST)))
    runner = Told({default_of(MATMUL, HERE): 1e-4, FAST: 5e-5})
    (done,) = trialled([pack], HERE, 1, runner)
    assert done.schedules[0].origin is Origin.SEARCHED


def test_what_is_of_other_machines_or_threads_takes_no_time() -> None:
    stranger = machine("neon", "generic")
    pack = pack_with((stranger, schedule(NEAR, stranger)), (HERE, schedule(FAR, HERE, threads=2)))
    assert list(trialled([pack], HERE, 1, Told({}))) == []


def test_configurations_of_a_wider_machine_are_moved_into_the_space() -> None:
    wide = machine("avx512", "haswell")
    space = space_of(MATMUL, HERE)
    strange = next(c for c in space_of(MATMUL, wide) if c not in space)
    pack = pack_with((TWIN, schedule(MATMUL, TWIN, config=strange)))
    for done in trialled([pack], HERE, 1, Told({default_of(MATMUL, HERE): 1e-4})):
        assert all(record.config in space for record in done.records)


def test_the_command_times_on_this_machine(tmp_path: Path) -> None:
    here, file, out = host_target(), tmp_path / "p.jsonl", tmp_path / "q.jsonl"
    write_pack(pack_with((here, schedule(MATMUL, here))), file)
    words = ["pack", "revalidate", str(file), "-o", str(out), "--json"]
    done = CliRunner().invoke(command_line, [*words, "--database", str(tmp_path / "t.db")])
    assert done.exit_code == 0, done.output
    (workload,) = json.loads(done.stdout)["workloads"]
    assert workload["workload"] == MATMUL.key and workload["default_us"] > 0
    assert workload["kept"] == len(read_pack(out).schedules)
    with Database.open(str(tmp_path / "t.db"), create=False) as opened:
        assert opened.stats()["trials"] == 2
    none = CliRunner().invoke(command_line, [*words[:-1], "--threads", "2", "--database", "none"])
    assert none.exit_code == 2 and "no pack has a schedule for" in none.output
