"""Cost models of a database: trained by one command, used where they are better, never trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from tilesmith.codegen.host.machine import cpu_target
from tilesmith.codegen.programs.structures import space_of
from tilesmith.command_line import command_line
from tilesmith.jobs.tuning import models as jobs
from tilesmith.jobs.tuning.known import chosen, starting_point
from tilesmith.jobs.tuning.models import train_models
from tilesmith.records import Database, TuningRecord
from tilesmith.records.learning import cost_models
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.support.errors import InputError
from tilesmith.search_space.workloads.workload import Workload
from tilesmith.simulator import judge
from tilesmith.tuner.pretrained import pretrained
from tilesmith.tuner.pretrained.model_fitting import FittingRecipe

TARGET = cpu_target("made-up", "avx512", "x86_64-unknown-linux-gnu")
QUICK = (FittingRecipe("trees", 3, 30, 0.2),)
SIZES = ((64, 64, 64), (128, 48, 96), (32, 256, 64), (96, 96, 32), (48, 128, 128))


def records(target: Target) -> Iterator[TuningRecord]:
    """Of a machine that dislikes packing far more than the judge thinks."""
    for m, n, k in SIZES:
        workload = Workload.parse(f"matmul m={m} n={n} k={k} const=b")
        drawn = space_of(workload, target).sample(np.random.default_rng(3), 40)
        configs = list(dict.fromkeys(drawn))
        for config, latency in zip(
            configs, judge(workload, target, configs).latency.tolist(), strict=True
        ):
            seconds = latency * (3.0 if config["pack_b"] == "panels" else 1.0)
            result = MeasureResult("ok", "hardware", (seconds,))
            yield TuningRecord.of(workload, target, config, result)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with one active model of `TARGET`, as a file's bytes."""
    path = tmp_path_factory.mktemp("models") / "tuning.db"
    with pytest.MonkeyPatch.context() as patch, Database.open(str(path)) as database:
        patch.setattr(jobs, "TREES", QUICK)
        database.register_target(TARGET)
        database.add(list(records(TARGET)))
        (report,) = train_models(database)
        assert report.active and report.id == 1, report.reason
        assert report.workloads == len(SIZES) and report.subject.target == TARGET.identity
        database.compact()
    return path.read_bytes()


@pytest.fixture
def path(trained: bytes, tmp_path: Path) -> Path:
    found = tmp_path / "tuning.db"
    found.write_bytes(trained)
    return found


def invoke(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(command_line, [str(a) for a in arguments])
    assert result.exit_code == code, result.stderr
    return result.stdout if code == 0 else result.stderr


def test_a_job_starts_from_the_model_of_its_machine(path: Path) -> None:
    with Database.open(str(path)) as database:
        known, said = chosen(database, TARGET, "hardware")
        assert known.model is not None and known.name == "1"
        assert said.startswith("cost model 1 of the database (")
        assert chosen(database, TARGET, "simulator")[0].model is None, "labels are never mixed"
        other = TARGET.with_settings({"l1.kib": 16})
        none, said = chosen(database, other, "hardware")
        assert none.model is None and said == "the analytical latency, where there is one"


def test_a_resumed_job_goes_on_with_what_it_began_with(path: Path) -> None:
    with Database.open(str(path)) as database:
        began = {"models": {"hardware": "1"}}
        cost_models.activate(database, 1, active=False)
        known, said = starting_point(database, began, TARGET, "hardware")
        assert known.model is not None and "as when it began" in said
        for before in ({}, {"models": {"hardware": ""}}):
            assert starting_point(database, before, TARGET, "hardware")[0].model is None
        with pytest.raises(InputError, match=r"began with cost model 7, .*without resume=True"):
            starting_point(database, {"models": {"hardware": "7"}}, TARGET, "hardware")


def test_a_model_that_is_no_better_here_is_not_used(path: Path) -> None:
    with Database.open(str(path)) as database:
        worse = {**cost_models.stored(database, 1).scores[TARGET.identity], "better": False}
        for found, because in (
            ({}, "tested on too few workloads of this machine"),
            ({TARGET.identity: worse}, "workloads no better"),
            ({TARGET.identity: 3}, "too few workloads"),
        ):
            with database.writing() as connection:
                values = {"scores": json.dumps(found)}
                connection.execute(text("UPDATE cost_models SET scores = :scores"), values)
            known, said = chosen(database, TARGET, "hardware")
            assert known.model is None
            assert re.search(f"not cost model 1 .*{because}", said), said


def test_a_model_of_other_versions_is_never_used(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretrained, "FEATURES", "of another time")
    with Database.open(str(path)) as database:
        known, said = chosen(database, TARGET, "hardware")
    assert known.model is None and "1 was made for another version of: features" in said
    listed = invoke("models", "list", "--database", path)
    assert "not used: features was 4, is of another time" in listed


def hostile() -> list[str]:
    return [
        "",
        "[" * 200_000,
        '{"versions": ' + "9" * 5000 + "}",
        "{}",
        '{"kind": "trees"}',
        "\x00\x01",
        "x" * (pretrained.MOST_BYTES + 1),
    ]


@pytest.mark.parametrize("number", range(len(hostile())))
def test_a_hostile_text_is_refused_in_a_sentence(path: Path, number: int) -> None:
    with Database.open(str(path)) as database:
        with database.writing() as connection:
            values = {"model": hostile()[number]}
            connection.execute(text("UPDATE cost_models SET model = :model"), values)
        known, said = chosen(database, TARGET, "hardware")
        assert known.model is None and "is not a pretrained cost model" in said, said
    assert "is not a pretrained cost model" in invoke("models", "list", "--database", path)


@pytest.mark.parametrize("name", ["roots", "children", "limits", "columns", "knobs", "residual"])
def test_a_damaged_model_never_ends_a_job(path: Path, name: str) -> None:
    with Database.open(str(path)) as database:
        saved = json.loads(cost_models.text_of(database, 1))
        for value in (None, [], {}, "AAAA", -1, 1e300, True, "[[1]]", '{"m_tile": [true, [3]]}'):
            with database.writing() as connection:
                values = {"model": json.dumps({**saved, name: value})}
                connection.execute(text("UPDATE cost_models SET model = :model"), values)
            known, said = chosen(database, TARGET, "hardware")
            assert known.model is not None or "is not a pretrained cost model" in said


def test_texts_of_rows_that_are_too_long_are_not_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_models, "MOST_BYTES", 2000)
    with Database.open(str(path)) as database:
        known, said = chosen(database, TARGET, "hardware")
        assert known.model is None and "2,000 at most are read" in said
        monkeypatch.setattr(cost_models, "MOST_BYTES", 10)
        assert cost_models.listed(database) == []


def test_models_are_listed_shown_and_chosen(path: Path, tmp_path: Path) -> None:
    (found,) = json.loads(invoke("models", "list", "--database", path, "--json"))["models"]
    assert (found["id"], found["state"], found["target"]) == (1, "active", TARGET.identity)
    shown = json.loads(
        invoke("models", "show", 1, "--database", path, "--json", "-o", tmp_path / "m.json")
    )
    assert len(shown["workload_keys"]) == len(SIZES) and shown["trials"] > 100
    assert pretrained.Pretrained.parsed((tmp_path / "m.json").read_text(), "m", "hardware")[0]
    assert "30 trees of depth 3" in invoke("models", "show", 1, "--database", path)
    off = json.loads(invoke("models", "use", 1, "--off", "--database", path, "--json"))
    assert off["state"] == "not active"
    with Database.open(str(path)) as database:
        assert chosen(database, TARGET, "hardware")[0].model is None
    assert "has no cost model 9" in invoke("models", "use", 9, "--database", path, code=2)


def test_training_anew_takes_the_place_of_the_one_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TREES", QUICK)
    asked = ("models", "train", "--database", path, "--target", "made-up", "--samples", 24)
    (report,) = json.loads(invoke(*asked, "--json"))["models"]
    assert report["id"] == 2 and report["trials"] == 24 * len(SIZES)
    with Database.open(str(path)) as database:
        states = {model.id: model.active for model in cost_models.listed(database)}
    assert states == {1: not report["active"], 2: report["active"]}


def test_nothing_to_learn_from_is_a_sentence(tmp_path: Path) -> None:
    with Database.open(str(tmp_path / "empty.db")):
        pass
    said = invoke("models", "train", "--database", tmp_path / "empty.db", code=2)
    assert "holds nothing to learn from" in said
