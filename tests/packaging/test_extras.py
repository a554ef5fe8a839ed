"""What `.[development]` does not bring may be absent: every test is collected without it.

A newcomer's run of the tests shows it by itself; here it is shown where more is installed.
Distributions are followed from the project's requirements to theirs, and whatever else is installed
is unimportable.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name in {absent!r} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
"""What a process runs first, so that it finds no module of the names `absent`."""


def brought(requirements: list[str]) -> set[str]:
    """Names of the installed distributions that requirements bring, with those that these need."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        mine = name == PROJECT["name"]
        if mine:  # `tilesmith[site]`: an extra of ours
            further = [line for extra in wanted.extras for line in _optional(extra)]
        elif name in found:
            continue
        else:
            found.add(name)
            further = _required(name)
        extras = {"", *wanted.extras}
        for line in further:
            one = Requirement(line)
            if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(one)
    return found


def _optional(extra: str) -> list[str]:
    return list(PROJECT["optional-dependencies"][extra])


def _required(name: str) -> list[str]:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # for another system
        return []


def others(requirements: list[str]) -> list[str]:
    """Names that can be imported here, and that requirements do not bring."""
    here = brought(requirements)
    return sorted(
        module
        for module, owners in metadata.packages_distributions().items()
        if module.isidentifier()
        and module not in ("tilesmith", "pip", "setuptools", "pkg_resources")
        and not here.intersection(map(canonicalize_name, owners))
    )


def test_what_requirements_bring_is_followed() -> None:
    plain = brought(PROJECT["dependencies"])
    assert {"numpy", "scipy", "mako", "markupsafe"} <= plain
    assert not {"pytest", "onnxruntime", "torch", "ray", "jax"} & plain
    assert {"pytest", "iniconfig", "mkdocs", "onnxruntime"} <= brought(_optional("development"))


@pytest.mark.extra
def test_every_test_is_collected_without_what_newcomers_lack() -> None:
    absent = others(PROJECT["dependencies"] + _optional("development"))
    if not absent:
        pytest.skip("nothing else is installed here: this run itself shows it")
    code = (
        WITHOUT.format(absent=absent)
        + "import pytest\n"
        + "sys.exit(pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def _skips(path: Path) -> set[str]:
    """Names of modules without which tests of a file that are not marked `extra` are skipped."""
    source = path.read_text()
    if "importorskip" not in source:
        return set()
    tree = ast.parse(source)
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)
             and ast.unparse(node.targets[0]) == "pytestmark"]  # fmt: skip
    if any("pytest.mark.extra" in mark for mark in marks):
        return set()
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            decorators = [ast.unparse(one) for one in node.decorator_list]
            if "pytest.mark.extra" in decorators or any("fixture" in one for one in decorators):
                continue
        found.update(re.findall(r"importorskip\('(\w+)'", ast.unparse(node)))
    return found


def test_what_is_skipped_without_an_extra_is_marked_so() -> None:
    here = brought(PROJECT["dependencies"] + _optional("development"))
    owners = metadata.packages_distributions()
    unmarked = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for module in _skips(path)
        if not here.intersection(map(canonicalize_name, owners.get(module, [])))
    }
    assert not unmarked, "mark these tests `extra`, so that `make test-extras` runs them"
