"""Scripts of `examples` and `benchmarks` parse their command lines, and say what they lack.

They are read, not started: seventy processes that import what they need are minutes.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    path
    for folder in ("examples", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]
EXTRAS = {"torch", "transformers", "jax", "jaxlib", "ray", "sympy", "matplotlib", "onnxscript"}
"""What no development extra brings."""


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) > 60


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_script_answers_help_before_it_works(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    words = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    shared = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "benchmarks.accelerator.subjects.small_models"
        for node in ast.walk(tree)
    )
    assert shared or {"parse_args", "parse_known_args", "command", "group"} & names, path
    assert "argv" not in names, "sys.argv is the parser's to read"
    assert words


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_may_be_absent_is_named_in_a_sentence(path: Path) -> None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        taken = {module.split(".")[0] for module in modules} & EXTRAS
        assert not taken, f"{path}: {taken} is imported where nothing says that it is absent"


def test_a_script_without_what_it_needs_says_so() -> None:
    program = (
        "import sys, runpy; sys.modules['torch'] = None; sys.argv = ['generate.py', '--help']\n"
        f"runpy.run_path({str(ROOT / 'examples' / 'generate.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("no module 'torch' here")
