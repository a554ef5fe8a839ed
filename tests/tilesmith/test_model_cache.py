"""Models that were compiled before are loaded, as long as nothing that decides them changed.

Of a fresh process it is asked whether it imported what compiles.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilesmith as ts
from tilesmith.jobs.compilation import model_cache
from tilesmith.jobs.compilation.compiling import build_executable
from tilesmith.jobs.compilation.model_cache import Inputs, cache_entry
from tilesmith.jobs.requests.request import Request

PROCESS = """
import json
import sys
import numpy as np
import tilesmith as ts
model = ts.compile(sys.argv[1], database=None)
y = model.run({"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)})["y"]
compiles = any(name in sys.modules for name in (
    "onnx", "tilesmith.compiler.driver.build", "tilesmith.codegen.llvm.emitter", "sqlalchemy"
))
print(json.dumps({"loaded": not compiles, "y": y.tolist()}))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, which keeps models."""
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TILESMITH_CACHE_MIB", "64")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "models"


def saved(path: Path, scale: float = 1.0, beside: bool = False) -> Path:
    """A product of a weight."""
    weight = (scale * np.arange(30, dtype=np.float32)).reshape(6, 5)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 5])],
        [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    name = "product.weights" if beside else None
    if beside:
        (path.parent / "product.weights").unlink(missing_ok=True)
    onnx.save(proto, path, save_as_external_data=beside, location=name, size_threshold=0)
    time.sleep(0.1)  # a file that is as new as its entry is not kept
    return path


def process(model: Path) -> dict[str, Any]:
    """What a fresh process gives, and whether it loaded the model."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(model)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def again(model: Path, database: str | None = None, **asked: Any) -> tuple[bool, Any]:
    """Whether a model would be loaded, and what it then gives once it is compiled."""
    entry = cache_entry(Request(model, database=database, **asked), False)
    loaded = entry is not None and entry.load() is not None
    executable = ts.compile(model, database=database, **asked)
    for thread in threading.enumerate():
        if thread.name == "tilesmith-cache":
            thread.join()
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    return loaded, executable.run({"x": x})["y"]


def expected(scale: float = 1.0) -> np.ndarray:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
    return x @ (scale * np.arange(30, dtype=np.float32)).reshape(6, 5)


def test_the_second_process_loads_what_the_first_compiled(tmp_path: Path, cache: Path) -> None:
    model = saved(tmp_path / "product.onnx")
    first, second = process(model), process(model)
    assert (first["loaded"], second["loaded"]) == (False, True)
    assert first["y"] == second["y"]
    np.testing.assert_allclose(second["y"], expected(), rtol=1e-5)


def test_other_options_are_other_programs(tmp_path: Path, cache: Path) -> None:
    model = saved(tmp_path / "product.onnx")
    for asked in ({}, {"threads": 2}, {"bits": "same"}, {"settings": {"l2.kib": 256}}):
        assert [again(model, **asked)[0] for _ in range(2)] == [False, True]
    assert len(list(cache.glob("*.tsm"))) == len(list(cache.glob("*.json"))) == 4
    for one in cache.glob("*.tsm"):
        assert isinstance(ts.load(one), ts.Executable)


@pytest.mark.parametrize("beside", [False, True])
def test_a_model_that_changed_is_compiled_again(tmp_path: Path, beside: bool) -> None:
    model = saved(tmp_path / "product.onnx", beside=beside)
    assert [again(model)[0] for _ in range(2)] == [False, True]
    before = model.stat()
    saved(model, scale=2.0, beside=beside)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))  # as some tools do
    loaded, y = again(model)
    assert not loaded
    np.testing.assert_allclose(y, expected(2.0), rtol=1e-5)


def test_what_the_database_learns_counts(tmp_path: Path) -> None:
    model = saved(tmp_path / "product.onnx")
    for seed in range(2):
        ts.tune(model, database="tuning.db", trials=4, measure="simulator", seed=seed)
        time.sleep(0.1)
        assert [again(model, "tuning.db")[0] for _ in range(2)] == [False, True]


def test_damaged_entries_and_those_of_others_are_not_used(tmp_path: Path, cache: Path) -> None:
    model = saved(tmp_path / "product.onnx")
    again(model)
    (artifact,) = cache.glob("*.tsm")
    (record,) = cache.glob("*.json")
    artifact.write_bytes(artifact.read_bytes()[:-200])
    assert not again(model)[0]
    for damaged in ("[]", "[" * 100_000):
        record.write_text(damaged)
        assert [again(model)[0] for _ in range(2)] == [False, True]
    cache.chmod(0o777)
    loaded, y = again(model)
    assert not loaded, "anybody could have put it there"
    np.testing.assert_allclose(y, expected(), rtol=1e-5)


def test_what_cannot_be_written_costs_the_entry_alone(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "product.onnx")
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where the folder should be")
    assert [again(model)[0] for _ in range(2)] == [False, False]
    cache.unlink()
    monkeypatch.setenv("TILESMITH_CACHE_MIB", "0")
    assert [again(model)[0] for _ in range(2)] == [False, False]
    assert not cache.exists()


def test_the_folder_is_bounded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, limit = [], 1 << 20
    monkeypatch.setattr(model_cache, "_limit", lambda: limit)
    for number in range(5):
        request = Request(saved(tmp_path / f"{number}.onnx"))
        entry = cache_entry(request, False)
        assert entry is not None
        entry._store(build_executable(request.resolved()), entry.inputs())
        entries.append(entry)
        if number == 0:
            (first,) = cache.glob("*.tsm")
            limit = int(3.5 * first.stat().st_size)
    kept = [number for number, entry in enumerate(entries) if entry.load() is not None]
    assert kept == [2, 3, 4]
    assert len(list(cache.glob("*.json"))) == len(list(cache.glob("*.tsm"))) == 3


def test_what_killed_writers_left_behind_goes(tmp_path: Path, cache: Path) -> None:
    again(saved(tmp_path / "first.onnx"))
    for name in (".a.partial", ".b.partial", "c.0123.tsm", "d.0123.tsm"):
        (cache / name).touch()
    for name in (".a.partial", "c.0123.tsm"):
        os.utime(cache / name, (1.0, 1.0))
    again(saved(tmp_path / "second.onnx"))
    left = {path.name for path in cache.iterdir()}
    assert {".b.partial", "d.0123.tsm"} < left, "somebody may be writing them"
    assert not {".a.partial", "c.0123.tsm"} & left
    assert len(left) == 2 + 2 * 2, "two models with their records are kept"


def test_what_cannot_be_known_by_files_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "product.onnx")
    assert cache_entry(Request(model), False) is not None
    assert cache_entry(Request(onnx.load(model)), False) is None
    assert cache_entry(Request(model, database="postgresql://somewhere/x"), False) is None
    assert cache_entry(Request(model, precision="int8"), False) is None
    monkeypatch.setenv("TILESMITH_TRUSTED_KEY", "key.pem")
    assert cache_entry(Request(model), False) is None


def test_a_file_that_just_changed_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "product.onnx")
    changed = model.stat().st_ctime_ns
    for seconds, settled in ((1.0, True), (0.01, False), (-60.0, False)):
        monkeypatch.setattr("time.time_ns", lambda s=seconds: changed + int(s * 1e9))
        assert Inputs.of([str(model)]).settled is settled, "whenever it is asked"
        assert Inputs.of([str(tmp_path / "nothing")]).settled
