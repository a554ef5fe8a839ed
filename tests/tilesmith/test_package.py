"""The package's surface: every public name resolves, and importing it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilesmith
from tilesmith.codegen.programs.structures import default_of
from tilesmith.records import TuningRecord
from tilesmith.records.questions.gains import tasks_of
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.workloads.workload import Workload

HEAVY = ("numpy", "onnx", "sqlalchemy", "llvmlite", "sklearn", "xgboost", "scipy", "rich")


def loaded_after(statement: str) -> set[str]:
    """Top-level modules a fresh interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_every_public_name_resolves() -> None:
    for name in tilesmith.__all__:
        assert getattr(tilesmith, name) is not None
    assert dir(tilesmith) == tilesmith.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        _ = tilesmith.tuna  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["tilesmith", "tilesmith.command_line"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    assert not loaded_after(f"import {module}") & set(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    run = "from tilesmith.command_line import command_line as c"
    listing = "import click; [c.get_command(None, n) for n in c.list_commands(None)]"
    assert not loaded_after(f"{run}; {listing}") & set(HEAVY)


def test_no_command_s_own_help_loads_anything_heavy() -> None:
    code = """
import click
from tilesmith.command_line import command_line
def shown(command):
    context = click.Context(command)
    assert command.get_help(context)
    if isinstance(command, click.Group):
        names = command.list_commands(context)
        return 1 + sum(shown(command.get_command(context, name)) for name in names)
    return 1
assert shown(command_line) > 40
"""
    assert not loaded_after(f"exec({code!r})") & set(HEAVY)


def loaded_by(*words: str) -> set[str]:
    """Modules a fresh process has loaded after a command of the command line."""
    code = (
        "import sys; from tilesmith.command_line import command_line\n"
        f"try: command_line.main({list(words)!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_asking_a_database_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    location = str(tmp_path / "tuning.db")
    workload, target = Workload.parse("matmul m=8 n=8 k=8"), tilesmith.resolve_target("cpu")
    result = MeasureResult("ok", "hardware", (1e-5,))
    with tilesmith.Database.open(location) as database:
        database.add([TuningRecord.of(workload, target, default_of(workload, target), result)])
    unneeded = {"sqlalchemy.orm", "alembic", "onnx", "llvmlite", "jinja2", "multiprocessing.pool"}
    assert not loaded_by("db", "top", "--database", location) & unneeded
    for command in ("jobs", "stats"):
        assert not loaded_by("db", command, "--database", location) & {*unneeded, "numpy"}


_ALONE = """
import sys
from importlib.util import find_spec
import numpy as np
from tilesmith.entry import import_xgboost_alone
from tilesmith.tuner.surrogates.boosting import Booster
import_xgboost_alone()
x = np.arange(40, dtype=np.float32)[:, None]
model, again = (Booster({"objective": "reg:squarederror"}, 5) for _ in range(2))
model.fit(x, x[:, 0].astype(np.float64))
assert not sys.modules.keys() & {"sklearn", "scipy.stats", "pandas"}, "they take over a second"
again.restore(model.save())
assert model.predict(x)[0] < model.predict(x)[-1] == again.predict(x)[-1]
assert find_spec("sklearn"), "other models of ours are of it"
"""


def test_commands_learn_without_what_xgboost_has_for_estimators() -> None:
    subprocess.run([sys.executable, "-c", _ALONE], check=True)


def test_the_best_schedules_of_jobs_are_shown_without_their_operators(tmp_path: Path) -> None:
    """Of few trials operators are asked whether they were all there are: here there are more."""
    location = str(tmp_path / "tuning.db")
    tilesmith.tune(
        Workload.parse("matmul m=8 n=8 k=8"), database=location, trials=12, measure="simulator"
    )
    with tilesmith.Database.open(location) as database:
        (task,) = tasks_of(database.jobs()).values()
    assert task.flops == 2 * 8**3
    loaded = loaded_by("db", "top", "--database", location)
    light = {
        "numpy",
        "tomllib",
        "rich",
        "tilesmith.search_space.workloads.template",
        "tilesmith.tuner",
    }
    assert not loaded & light, "jobs tell the operations that GFLOP/s are counted from"
