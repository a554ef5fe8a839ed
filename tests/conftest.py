"""What every test shares: hypothesis profiles, golden files, and an invented family of targets.

Golden files hold printed programs. A test calls `golden("name.txt", text)`; it fails when the text
is not what the file holds. `pytest --update-golden` (or `make golden`) rewrites the files; the
reviewer reads the diff.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator
from functools import wraps
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from sqlalchemy import Connection, inspect

import tests.families.loom  # noqa: F401 (registers itself; conformance tests find it)
from tilesmith.records.schema import versioning

os.environ.pop("TILESMITH_DATABASE", None)
os.environ["TILESMITH_CALIBRATION"] = "off"  # simulated latencies must not depend on the machine
os.environ["TILESMITH_CACHE_MIB"] = "0"  # what is tested is compiled
os.environ["TILESMITH_PACKS"] = "none"  # nor schedules on the packs that are installed

if "TILESMITH_CPU" in os.environ:  # a made-up machine, for commands started elsewhere too
    os.environ["TILESMITH_CPU"] = str(Path(os.environ["TILESMITH_CPU"]).resolve())

# Whoever starts the tests may ignore hangups, as nohup does; what they start must not inherit it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

GOLDEN_FOLDER = Path(__file__).parent / "golden"

_patient = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", deadline=None, max_examples=25, suppress_health_check=_patient)
settings.register_profile(
    "ci", deadline=None, max_examples=10, derandomize=True, suppress_health_check=_patient
)
settings.register_profile(
    "thorough", deadline=None, max_examples=1000, suppress_health_check=_patient
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# Hypothesis parses every module of ours for constants to draw, for seconds in each worker; what is
# drawn would change with any constant anywhere, and with the modules other tests have imported.
vars(providers)["is_local_module_file"] = lambda path: False


def _once(upgrade: Callable[..., None]) -> Callable[..., None]:
    """Hundreds of tests open a new file: migrations run for a process's first, and each further
    gets the tables and rows that they came to. `test_schema.py` runs them every time."""
    came_to: list[str] = []

    @wraps(upgrade)
    def upgraded(connection: Connection, revision: str = "head") -> None:
        sqlite = connection.dialect.name == "sqlite" and revision == "head"
        empty = sqlite and not inspect(connection).get_table_names()
        if not (empty and came_to):
            upgrade(connection, revision)
        if empty and not came_to:
            came_to.extend(connection.connection.driver_connection.iterdump())
        elif empty:
            for statement in came_to[1:-1]:  # the transaction is begun, and the caller's to end
                connection.exec_driver_sql(statement)

    return upgraded


versioning.upgrade = _once(versioning.upgrade)


EXTRA_FIXTURES = frozenset({"browser", "cluster", "postgres", "server"})
"""Fixtures that need a server or a package which `make test-extras` installs."""


_ROOT = Path(__file__).parents[1]
_FRESH = not (_ROOT / "tests/conformance/__pycache__").exists()

SUBJECTS = {
    "families/trainium": (
        "capabilities/exploration/test_explore.py", "capabilities/exploration/test_variation.py",
        "capabilities/fault_finding/test_bisection.py",
        "capabilities/fault_finding/test_iterations.py",
        "capabilities/planning/test_serving_page.py", "capabilities/planning/test_sweep.py",
        "capabilities/planning/test_windows.py", "capabilities/sharding/test_shard.py",
        "capabilities/sharding/test_sharded_streams.py", "capabilities/sharding/test_sharding.py",
        "capabilities/sharding/test_sharding_optimum.py",
        "capabilities/sharding/test_sharding_pipeline.py",
    ),
    "families/lpu": (
        "capabilities/fault_finding/test_bisection.py",
        "capabilities/fault_finding/test_iterations.py",
    ),
    "capabilities/sharding": ("families/lpu/backend/test_sharded.py",),
}  # fmt: skip
"""Tests in the folder of one family or capability whose subject is a machine or a model of another,
by that other: they are not collected where it was left out."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only what needs extras is asked for, no other file is imported."""
    for subject, files in SUBJECTS.items():
        if not (_ROOT / subject).exists() and str(collection_path).endswith(files):
            return True
    if config.option.markexpr != "extra" or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return True if not any(w in text for w in ("mark.extra", *EXTRA_FIXTURES)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses a server's fixture needs it, and is marked so."""
    for item in items:
        if EXTRA_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("extra")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected lives as long as the process: no garbage is looked for while it grows.

    In a fresh clone one worker compiles and rewrites all modules, and the others wait for its files
    in place of doing the same beside it."""
    gc.disable()
    try:
        with (_ROOT / "tests/conftest.py").open() as turn:
            if _FRESH:
                fcntl.flock(turn, fcntl.LOCK_EX)
            return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Ten thousand tests live as long as the process: let the garbage collector not walk over all
    of them again and again."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)


def pytest_runtest_setup() -> None:
    """A test that draws from PyTorch's own generator draws the same in every run."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module")
def little_to_collect() -> None:
    """For modules that call `gc.collect()`: it does not walk over what tests before them left."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: compare `text` with `tests/golden/name`, or rewrite the file."""

    def check(name: str, text: str) -> None:
        path = GOLDEN_FOLDER / name
        text = text.rstrip("\n") + "\n"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path.name} is missing; write it with: pytest --update-golden"
        assert text == path.read_text(), f"{path.name} differs; accept it with: make golden"

    return check
