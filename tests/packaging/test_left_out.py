"""Every family and capability can be left out: its folder deleted, all others are as before.

In a copy of the sources one folder is deleted with its tests. The tests of all others are
collected, a sample of theirs passes, and whoever asks for what is missing is told so in one
sentence. That takes minutes, so `make left-out` runs it; that nothing imports one of them is read
from the sources in a moment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.test_imports import ROOT, imports
from tilesmith.command_line import _COMMANDS

SAMPLES = {
    "families/lpu": "codegen/test_values.py",
    "families/systolic": "simulator/test_family.py",
    "families/trainium": "codegen/test_special.py",
    "capabilities/c_library": "test_linking.py",
    "capabilities/dashboard": "test_tally.py",
    "capabilities/exploration": "test_correction.py",
    "capabilities/fault_finding": "test_local_bytes.py",
    "capabilities/first_use": "test_exchange.py",
    "capabilities/fleet": "test_lost_cluster.py",
    "capabilities/nki": "test_words.py",
    "capabilities/packs": "test_pack_files.py",
    "capabilities/planning": "test_architectures.py",
    "capabilities/profile": "test_hardware_counters.py",
    "capabilities/pytorch": "test_from_torch.py",
    "capabilities/quantisation": "test_quantisation_numbers.py",
    "capabilities/sharding": "test_sharding_specs.py",
    "capabilities/stablehlo": "test_stablehlo_files.py",
}
"""A quick test of each, in its folder of `tests/`."""

OTHERS = {
    "families/trainium": ["simulate", "--op", "softmax shape=4x8", "--target", "trn1"],
    "families/lpu": ["simulate", "--op", "softmax shape=4x8", "--target", "lpu1"],
    "families/systolic": ["simulate", "--op", "matmul m=8 n=8 k=8", "--target", "systolic"],
    "capabilities/c_library": ["compile", "MODEL", "--emit", "object", "-o", "model.o"],
    "capabilities/fleet": ["tune", "--op", "matmul m=8 n=8 k=8", "--workers", "2"],
    "capabilities/quantisation": ["compile", "MODEL", "--precision", "int8", "-o", "model.tsm"],
    "capabilities/stablehlo": ["compile", "model.mlir", "-o", "model.tsm"],
}
"""Command lines that ask for what has no command of its own, and so are refused without it."""

API = {
    "capabilities/exploration": "sweep",
    "capabilities/first_use": "compile('model.onnx', tune='background')",
    "capabilities/pytorch": "from_torch",
    "capabilities/stablehlo": "from_jax",
}
"""A name of the Python API, or a call, that is refused, where no command line asks for it."""

FRONT_DOOR = ("tilesmith", "tilesmith.torch_backend")


def _part(module: str) -> str:
    """The family or capability that a module is of; "" for the core's, `kit` for all families."""
    words = module.split(".")
    outer = words[1:2] in (["families"], ["capabilities"]) and len(words) > 2
    return "/".join(words[1:3]) if outer else ""


def test_each_has_a_sample_and_a_page() -> None:
    folders = {
        f"{outer}/{path.name}"
        for outer in ("families", "capabilities")
        for path in (ROOT / outer).iterdir()
        if (path / "__init__.py").exists()
    }
    assert folders - {"families/kit"} == set(SAMPLES)
    pages = {folder: (ROOT / folder / "README.md").read_text() for folder in SAMPLES}
    for folder, page in pages.items():
        for heading in ("Nouns", "Commands", "Edge to the core", "Leaving it out"):
            assert f"**{heading}.**" in page, (folder, heading)


def test_nothing_imports_one_but_itself() -> None:
    edges = {
        (module, other)
        for module, others in imports().items()
        for other in others
        if _part(other) not in ("", _part(module)) and module not in FRONT_DOOR
    }
    shared = {(a, b) for a, b in edges if _part(b) == "families/kit" and "families." in a}
    assert edges - shared == set()


@pytest.fixture
def copy(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The sources without the folder of the test's parameter and its tests."""
    links = [path for path in (ROOT / "tilesmith").iterdir() if path.is_symlink()]
    caches = shutil.ignore_patterns("__pycache__")
    for name in ("tilesmith", "tests", "benchmarks", *(link.name for link in links)):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=caches)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    folder = request.getfixturevalue("folder")
    shutil.rmtree(tmp_path / folder)
    shutil.rmtree(tmp_path / "tests" / folder)
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words in a folder whose packages it imports."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.apart
@pytest.mark.parametrize("folder", SAMPLES)
def test_the_others_do_without_it(folder: str, copy: Path) -> None:
    samples = [f"tests/{other}/{file}" for other, file in SAMPLES.items() if other != folder]
    whole = ["tests/families", "tests/capabilities", "--ignore", "tests/families/test_loom.py"]
    calls = (["--collect-only", "-qq", *whole], ["-q", "-m", "not extra", *samples])
    code = f"import pytest; print([pytest.main([*words, '-n0']) for words in {calls!r}])"
    done = run(copy, "-c", code)
    assert done.stdout.endswith("[<ExitCode.OK: 0>, <ExitCode.OK: 0>]\n"), done.stdout[-3000:]


@pytest.mark.apart
@pytest.mark.parametrize("folder", SAMPLES)
def test_it_is_said_to_be_missing(folder: str, copy: Path) -> None:
    from tests.end_to_end.command import save_model

    save_model(copy / "model.onnx")
    dotted = f"tilesmith.{folder.replace('/', '.')}."
    asked = [[name] for name, home in _COMMANDS.items() if home.startswith(dotted)]
    asked += [OTHERS[folder]] if folder in OTHERS else []
    for words in asked:
        words = ["model.onnx" if word == "MODEL" else word for word in words]
        done = run(copy, "-m", "tilesmith", *words)
        assert done.returncode == 2, done.stderr
        assert re.fullmatch(r"(database: .+\n)?tilesmith: .+\n", done.stderr), done.stderr
        if folder.startswith("capabilities") and words[1:2] != ["model.mlir"]:
            name = folder.partition("/")[2]
            assert f"the capability '{name}', which is not installed" in done.stderr
    if folder in API:
        done = run(copy, "-c", f"import tilesmith; tilesmith.{API[folder]}")
        assert "DependencyError" in done.stderr and "which is not installed" in done.stderr
    assert asked or folder in API
    listed = run(copy, "-m", "tilesmith", "--help")
    assert listed.returncode == 0
    assert not any(re.search(rf"^  {name} ", listed.stdout, re.M) for (name, *_) in asked
                   if name in _COMMANDS and _COMMANDS[name].startswith(dotted))  # fmt: skip
