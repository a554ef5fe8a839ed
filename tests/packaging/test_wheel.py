"""What is installed is one name, `tilesmith`, whatever modules stand beside a user's script.

The wheel is built from the checkout and installed into an environment of its own, which finds the
libraries Tilesmith depends on, but no checkout, in the environment the tests run in.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import tilesmith

ROOT = Path(__file__).parents[2]

FLOORS = sorted(path.name for path in (ROOT / "tilesmith").iterdir() if path.is_symlink())

TAKEN = "raise ImportError('a module of the user was imported by the package')\n"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the checkout holds links")


def done(words: list[str | Path], folder: Path) -> str:
    """Standard output of a command that has to succeed, run outside the checkout."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TILESMITH_CALIBRATION": "off"}
    run = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as `pip install .` builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    words += ["--disable-pip-version-check", "--wheel-dir", str(folder), str(_copy(folder))]
    done([sys.executable, *words], folder)
    (found,) = folder.glob("*.whl")
    return found


def _copy(folder: Path) -> Path:
    """The tracked files, so that building leaves nothing in the checkout."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    copy = folder / "checkout"
    for name in filter(None, files):
        source, place = ROOT / name, copy / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            place.symlink_to(source.readlink())
        elif source.exists():
            place.write_bytes(source.read_bytes())
    return copy


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel alone."""
    folder = tmp_path_factory.mktemp("environment")
    done([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    words = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    words += ["--disable-pip-version-check"]
    done([sys.executable, *words, "--target", site, wheel], folder)
    names = {path.name for path in site.iterdir() if path.suffix != ".dist-info"} - {"bin"}
    assert names == {"tilesmith"}
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def test_the_wheel_holds_plain_files_of_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tilesmith"}
    for floor in FLOORS:
        assert f"tilesmith/{floor}/__init__.py" in names
    shipped = {name for name in names if not name.endswith(".py") and ".dist-info/" not in name}
    tracked = {str(path.relative_to(ROOT)) for floor in (*FLOORS, "tilesmith")
               for path in _data(ROOT / floor)}  # fmt: skip
    assert shipped == {n if n.startswith("tilesmith/") else f"tilesmith/{n}" for n in tracked}
    assert "tilesmith/py.typed" in shipped


def _data(folder: Path) -> list[Path]:
    """Files of a folder (not through links) that are no Python, no pages to read and no caches."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix not in (".py", ".pyc", ".md")
        and not any(parent.is_symlink() for parent in path.parents)
    ]


def test_a_users_modules_of_our_folders_names_change_nothing(python: Path, tmp_path: Path) -> None:
    for name in FLOORS:
        (tmp_path / f"{name}.py").write_text(TAKEN)
    (tmp_path / "script.py").write_text(
        "import tilesmith as ts\n"
        "report = ts.tune(ts.Workload.parse('matmul m=16 n=16 k=16'), database='of_script.db',\n"
        "                 trials=3)\n"
        "print(report.trials, ts.__version__, ts.__file__)\n"
    )
    trials, version, file = done([python, "script.py"], tmp_path).split()
    assert int(trials) >= 3
    assert version == tilesmith.__version__
    assert str(python.parents[1]) in file
    tune = ["tune", "--op", "matmul m=16 n=16 k=16", "--database", "tuning.db", "--trials", "3"]
    assert "matmul" in done([python, "-m", "tilesmith", *tune], tmp_path)
    assert "matmul" in done([python, "-m", "tilesmith", "operators"], tmp_path)


def test_the_checkout_runs_as_it_is(tmp_path: Path) -> None:
    code = "import tilesmith.tuner.tasks.task as task; print(task.__name__, task.__file__)"
    name, file = done([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
                       + code], tmp_path).split()  # fmt: skip
    assert (name, Path(file)) == (
        "tilesmith.tuner.tasks.task",
        ROOT / "tilesmith/tuner/tasks/task.py",
    )
