"""Weights stay in the artifact: mapped, shared, verified when they have to be."""

from __future__ import annotations

import copy
import gc
import mmap
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith
from tests.compiler.model_builder import model_of, random
from tests.compiler.varying_models import compiled as compiled_varying
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.artifact import artifact_file
from tilesmith.compiler.artifact.artifact_file import CONSTANTS
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import ModelError

pytestmark = pytest.mark.usefixtures("little_to_collect")

_SIZE = 640  # squared, 1.6 MB of weights: more than are read at once


@pytest.fixture(scope="module")
def built() -> Executable:
    model = model_of(
        f"g (float[2, {_SIZE}] x) => (float[2, {_SIZE}] y) {{ y = MatMul(x, w) }}",
        w=random(_SIZE, _SIZE),
    )
    return build(import_model(model), host_target())


@pytest.fixture
def path(built: Executable, tmp_path: Path) -> Path:
    """An artifact that was written a while ago."""
    built.save(tmp_path / "m.tsm")
    _age(tmp_path / "m.tsm")
    return tmp_path / "m.tsm"


def _age(path: Path) -> None:
    before = path.stat().st_mtime - 60
    os.utime(path, (before, before))


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(artifact_file, "_RECENT_S", -1e9)  # the time of change cannot be set back
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))


def _base(model: Any) -> object:
    array = model.recipe.constants
    while isinstance(array, np.ndarray):
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


def _change(path: Path) -> None:
    """Another bit in the middle of the weights."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)


def test_weights_begin_on_a_page_and_are_mapped(built: Executable, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        with path.open("rb") as file:
            assert artifact_file._contents(file, archive.getinfo(CONSTANTS)) % 4096 == 0
    model = tilesmith.load(path)
    base = _base(model)
    assert isinstance(base, mmap.mmap)
    assert not model.recipe.constants.flags.writeable
    x = random(2, _SIZE)
    np.testing.assert_array_equal(model(x), built(x))
    copied = tilesmith.load(path, mapped=False)
    assert copied.recipe.constants.flags.writeable
    np.testing.assert_array_equal(copied(x), built(x))
    model.save(path)  # over the very file that it is mapped from
    np.testing.assert_array_equal(model(x), built(x))
    np.testing.assert_array_equal(tilesmith.load(path)(x), built(x))


@pytest.mark.parametrize("mapped", [True, False])
def test_models_of_one_file_share_weights_while_one_lives(path: Path, mapped: bool) -> None:
    gc.collect()
    one, two = (tilesmith.load(path, mapped=mapped) for _ in range(2))
    assert one.recipe.constants is two.recipe.constants
    kept = len(artifact_file._shared)
    del one, two
    gc.collect()
    assert len(artifact_file._shared) == kept - 1


def test_weights_are_verified_once_and_when_the_file_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[int] = []
    checksum = artifact_file._checksum

    def counted(memory: Any) -> int:
        verified.append(memory.size)
        return checksum(memory)

    monkeypatch.setattr(artifact_file, "_checksum", counted)
    for _ in range(3):
        tilesmith.load(path)
        gc.collect()
    assert len(verified) == 1
    os.utime(path, (1e9, 1e9))
    tilesmith.load(path)
    assert len(verified) == 2
    _change(path)
    for _ in range(2):
        with pytest.raises(ModelError, match="is not a compiled model, or it is damaged"):
            tilesmith.load(path)
    assert len(verified) == 4
    with pytest.raises(ModelError, match="damaged"):
        tilesmith.load(path, mapped=False)


def test_a_file_that_may_still_be_changing_is_verified_each_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_file, "_RECENT_S", 1e9)
    model = tilesmith.load(path)
    state = path.stat()
    _change(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    monkeypatch.setattr(artifact_file, "_identity", lambda *_: (1,))  # all times as they were
    for _ in range(2):
        with pytest.raises(ModelError, match="damaged"):
            tilesmith.load(path)
    del model


def test_executables_are_pickled_as_artifacts(built: Executable) -> None:
    x = random(2, _SIZE)
    data = pickle.dumps(built)
    found = pickle.loads(data)
    np.testing.assert_array_equal(found(x), built(x))
    again = copy.deepcopy(found)
    assert again.recipe.constants is found.recipe.constants
    varying = compiled_varying(
        model_of("g (float[n, 5] x) => (float[n, 5] y) { y = Relu(x) }"), {"n": (2, 9)}
    )
    few = random(3, 5)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(varying))(few), varying(few))
    with pytest.raises(ModelError, match="at one of its sizes"):
        pickle.dumps(varying.at({"n": 3}))


def test_processes_share_the_pages(path: Path) -> None:
    """What a process has of the weights is the file's, none of it its own."""
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("the system does not tell what memory is whose")
    script = (
        "import sys, numpy, tilesmith\n"
        "model = tilesmith.load(sys.argv[1])\n"
        f"model(numpy.ones((2, {_SIZE}), numpy.float32))\n"
        "found = open('/proc/self/smaps').read().split(sys.argv[1])[1]\n"
        "print(*[line.split()[1] for line in found.splitlines() if line.startswith(\n"
        "    ('Rss:', 'Anonymous:'))][:2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    resident, anonymous = map(int, done.stdout.split())
    assert resident >= _SIZE * _SIZE * 4 // 1024
    assert anonymous == 0
