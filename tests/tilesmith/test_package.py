"""The package's surface: every public name resolves, and importing it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tilesmith

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
