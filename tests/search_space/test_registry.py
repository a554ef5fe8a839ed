"""Registries find what is in their package, and in packages in it if told so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilesmith.cli.options import registered_names
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.support.registry import Registry
from tilesmith.tuner.surrogates.cost_model import cost_models
from tilesmith.tuner.tasks.scheduler import schedulers
from tilesmith.tuner.tasks.strategy import strategies


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module `near` and, in a package of its own, a module `far`."""
    for name in ("shelf/__init__.py", "shelf/near.py", "shelf/box/__init__.py", "shelf/box/far.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shelf", "shelf.near", "shelf.box", "shelf.box.far"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "shelf"


@pytest.mark.parametrize("nested", [False, True])
def test_modules_are_imported_when_something_is_looked_up(shelf: str, nested: bool) -> None:
    registry: Registry[str] = Registry("thing", shelf, nested=nested)
    assert "shelf" not in sys.modules
    assert list(registry) == []
    assert {"shelf.near", "shelf.box"} <= set(sys.modules)
    assert ("shelf.box.far" in sys.modules) == nested


def test_what_is_absent_is_none_or_an_error_that_names_what_there_is(shelf: str) -> None:
    registry: Registry[str] = Registry("thing", shelf, TargetError)
    assert registry.register("ball")("round") == "round"
    assert (registry.find("ball"), registry.find("cube")) == ("round", None)
    assert "ball" in registry and "cube" not in registry
    with pytest.raises(TargetError, match="unknown thing 'cube'; one of ball is expected"):
        registry["cube"]
    with pytest.raises(TargetError, match="the thing name 'ball' is taken"):
        registry.register("ball")("square")


@pytest.mark.parametrize(
    ("package", "registry"),
    [("strategies", strategies), ("schedulers", schedulers), ("cost_models", cost_models)],
)
def test_names_are_read_without_importing_what_registers_them(
    package: str, registry: Registry[object]
) -> None:
    """What help texts list is what the registry holds."""
    assert registered_names(f"tilesmith.tuner.{package}") == list(registry)
