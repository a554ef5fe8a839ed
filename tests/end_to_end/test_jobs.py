"""Jobs on the command line: one that runs is not resumed into, one that was killed is."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import numpy as np

from tests.end_to_end.command import SMALL, invoke, save_model, start, succeed, trials_in
from tilesmith.records import Database


def test_a_running_job_is_not_resumed_into_and_a_killed_one_is(tmp_path: Path) -> None:
    database = tmp_path / "tuning.db"
    job = ["tune", "--op", SMALL, "--database", database, "--measure", "hardware", "--resume"]
    process = start(*job)
    deadline = time.monotonic() + 300
    while trials_in(database) < 3:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    refused = invoke(*job, "--trials", 5)
    assert refused.exit_code == 1
    assert f":{process.pid} since " in refused.stderr and "job 1 is run by" in refused.stderr
    process.kill()
    process.communicate()
    kept = trials_in(database)
    more = succeed(*job, "--trials", kept + 2)
    assert more["trials"] == kept + 2
    with Database.open(str(database)) as opened:
        (found,) = opened.jobs()
        assert found.status == "finished" and found.progress["trials"] == kept + 2
        configurations = {record.config for record in opened.query(limit=None)}
        assert len(configurations) == kept + 2, "none was measured anew but to confirm the best"


def test_a_job_is_told_as_a_command_that_asks_for_it_again(tmp_path: Path) -> None:
    model, database = save_model(tmp_path / "m.onnx", ("batch", 8)), tmp_path / "tuning.db"
    np.save(tmp_path / "data.npy", np.ones((2, 8), np.float32))
    few = ["--database", database, "--measure", "simulator", "--trials", 1]
    asked = ["--precision", "int8", "--calibration", f"{tmp_path / 'data.npy'}", "--shape"]
    done = invoke("tune", model, *asked, "batch=2", *few)
    assert done.exit_code == 0, done.stderr
    assert "1 of 2 workloads had no turn in 1 trial" in done.stderr, "they did not fail"
    (job,) = succeed("db", "jobs", "--database", database)["jobs"]
    words = shlex.split(job["command"], comments=True)
    assert words[:3] == ["tilesmith", "tune", str(model)]
    assert " ".join([*asked, "batch=2"]) in job["command"]
    again = succeed(*words[1:], "--database", database, "--trials", 2, "--resume")
    assert again["trials"] == 2
