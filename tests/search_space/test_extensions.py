"""Another installed package registers what our own files do; a broken one is told by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LISTING = """
from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.ir.family import families
from tilesmith.search_space.hardware.target import load_target, target_names
from tilesmith.search_space.workloads.template import templates
from tilesmith.simulator import simulators
from tilesmith.tuner.surrogates.cost_model import cost_models
from tilesmith.tuner.measurement.runner import runners
from tilesmith.tuner.tasks.scheduler import schedulers
from tilesmith.tuner.tasks.strategy import strategies

for registry in (
    backends, families, templates, simulators, cost_models, runners, schedulers, strategies
):
    print("abacus" in registry, len(list(registry)) > 1)
print(load_target("abacus").number("beads"))
"""

MODULE = """
from importlib import resources

from tilesmith.compiler.backends.backend import backends
from tilesmith.search_space.ir.family import Family, families
from tilesmith.search_space.hardware.target import target_files
from tilesmith.search_space.workloads.template import templates
from tilesmith.simulator import simulators
from tilesmith.tuner.surrogates.cost_model import cost_models
from tilesmith.tuner.measurement.runner import runners
from tilesmith.tuner.tasks.scheduler import schedulers
from tilesmith.tuner.tasks.strategy import strategies

families.register("abacus")(Family("abacus", scopes=("beads",)))
for registry in (backends, templates, simulators, cost_models, runners, schedulers, strategies):
    registry.register("abacus")("of any kind")
target_files.register("abacus")(resources.files(__package__) / "abacus.toml")
assert "systolic" in families, "an extension may look things up itself"
"""


def installed(folder: Path, source: str) -> Path:
    """A site directory with the package `abacus`, as an installer lays it out."""
    package, information = folder / "abacus_package", folder / "abacus-1.2.dist-info"
    package.mkdir()
    information.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tilesmith.py").write_text(source)
    (package / "abacus.toml").write_text('family = "abacus"\nbeads = 7\n')
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: abacus\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text(
        "[tilesmith.extensions]\nbeads = abacus_package.tilesmith\n"
    )
    return folder


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip


def test_an_installed_package_is_found_in_every_registry(tmp_path: Path) -> None:
    done = python(installed(tmp_path, MODULE), "-c", LISTING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"] * 16 + ["7.0"]


@pytest.mark.parametrize(
    "source, reason",
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        (
            "from tilesmith.search_space.ir.family import Family, families\n"
            "list(families)\n"
            "families.register('cpu')(Family('cpu', ()))",
            "the family of targets name 'cpu' is taken",
        ),
    ],
)
def test_a_broken_package_is_told_in_a_sentence(tmp_path: Path, source: str, reason: str) -> None:
    """With the command line's exit code for wrong usage, at the first and at every look-up."""
    site = installed(tmp_path, source)
    done = python(site, "-m", "tilesmith", "operators")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "extension 'beads' of the installed package 'abacus' cannot be used" in done.stderr
    assert reason in done.stderr and "update or uninstall 'abacus'" in done.stderr
    twice = """
from tilesmith.search_space.support.errors import DependencyError
from tilesmith.search_space.workloads.template import templates
for _ in range(2):
    try:
        list(templates)
    except DependencyError as error:
        print(error)
"""
    first, second = python(site, "-c", twice).stdout.splitlines()
    assert first == second and reason in first
