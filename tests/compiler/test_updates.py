"""Inputs that a run updates: a cache in the caller's memory, written where it is."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tests.codegen.kernels import HOST
from tests.compiler.model_builder import model_of
from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.compiler.artifact.artifact_file import DIGEST, digest
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.support.errors import ModelError

UPDATES = {"c": "y"}
STEP = (
    "u = Exp(n) t = Transpose<perm=[1, 0, 2]>(c) k = Unsqueeze(at, one) "
    "v = Transpose<perm=[1, 0, 2]>(u) s = ScatterND(t, k, v) y = Transpose<perm=[1, 0, 2]>(s) "
)


def model() -> onnx.ModelProto:
    """A cache [heads, positions, features], one position of which is written, and sums of it."""
    return model_of(
        "g (float[3, 9, 8] c, float[3, 1, 8] n, int64[1] at) => "
        f"(float[3, 9, 8] y, float[3, 1, 8] z) {{ {STEP} z = ReduceSum(y, one) }}",
        18, one=np.array([1]),
    )  # fmt: skip


def compiled(
    found: onnx.ModelProto, target: Target = HOST, updates: dict[str, str] | None = None
) -> Executable:
    options = BuildOptions(updates=UPDATES if updates is None else updates)
    return build(import_model(found), target, options=options)


def step(cache: NDArray[Any], number: int) -> dict[str, NDArray[Any]]:
    new = np.random.default_rng(number).standard_normal((3, 1, 8)).astype(np.float32)
    return {"c": cache, "n": new, "at": np.array([number])}


def follow(executable: Executable, cache: NDArray[Any]) -> None:
    """Run some steps; the cache has to hold what numpy's would."""
    wanted = cache.copy()
    for number in (4, 0, 8):
        inputs = step(cache, number)
        wanted[:, number] = np.exp(inputs["n"][:, 0])
        found = executable.run(inputs)
        assert found["y"] is cache
        np.testing.assert_allclose(cache, wanted, rtol=1e-6)
        np.testing.assert_allclose(found["z"], wanted.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)


def start() -> NDArray[np.float32]:
    return aligned_copy(np.random.default_rng(0).standard_normal((3, 9, 8)).astype(np.float32))


def region(executable: Executable) -> str:
    return executable.recipe.inputs[0].place.region


def test_a_cache_is_written_where_it_is() -> None:
    executable = compiled(model())
    assert region(executable) == "caller"
    assert not any("transpose" in getattr(s, "workload", "") for s in executable.recipe.steps)
    for _ in range(3):  # another cache each time
        follow(executable, start())


def test_a_cache_that_stays_is_linked_once() -> None:
    executable, cache = compiled(model()), start()
    follow(executable, cache)
    with executable.workspace() as work:
        memory = work.memory
    follow(executable, cache[:])  # another array over the same memory
    assert work.memory is memory
    follow(executable, start())
    assert work.memory is not memory


@pytest.mark.parametrize("how", ["unaligned", "strided"])
def test_arrays_that_lie_otherwise_are_updated_too(how: str) -> None:
    memory = np.zeros(2 * 3 * 9 * 8 + 16, np.float32)
    cache = {
        "unaligned": memory[1 : 1 + 216].reshape(3, 9, 8),
        "strided": memory[: 2 * 216].reshape(3, 9, 16)[..., ::2],
    }[how]
    cache[...] = start()
    follow(compiled(model()), cache)


def test_a_cache_that_is_read_afterwards_is_copied() -> None:
    found = model_of(
        "g (float[3, 9, 8] c, float[3, 1, 8] n, int64[1] at) => "
        f"(float[3, 9, 8] y, float[3, 1, 8] z) {{ {STEP} d = Sub(y, c) z = ReduceSum(d, one) }}",
        18, one=np.array([1]),
    )  # fmt: skip
    executable = compiled(found)
    assert region(executable) == "arena"
    cache, inputs = start(), step(start(), 5)
    before = cache.copy()
    result = executable.run({**inputs, "c": cache})
    assert result["y"] is cache
    written = np.exp(inputs["n"])
    np.testing.assert_allclose(result["z"], written - before[:, 5:6], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(cache[:, 5:6], written, rtol=1e-6)


def test_updates_that_no_scatter_makes_are_copied() -> None:
    found = model_of("g (float[4] c, float[4] n) => (float[4] y) { y = Add(c, n) }")
    executable = compiled(found)
    cache = np.zeros(4, np.float32)
    for _ in range(3):
        executable.run({"c": cache, "n": np.ones(4, np.float32)})
    assert cache.tolist() == [3, 3, 3, 3]


def test_accelerators_update_by_copying() -> None:
    executable = compiled(model(), load_target("trn1"))
    assert region(executable) != "caller"
    follow(executable, start())


def test_artifacts_keep_updates(tmp_path: Path) -> None:
    compiled(model()).save(tmp_path / "m.tsm")
    loaded = Executable.load(tmp_path / "m.tsm")
    assert region(loaded) == "caller"
    follow(loaded, start())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"caller_bytes": 1 << 20}, "caller_bytes"),
        ({"updates": []}, "caller_bytes is 896"),
        ({"updates": [["c", "z"]]}, "another kind"),
        ({"updates": [["nothing", "y"]]}, "'nothing'"),
        ({"updates": [["c", "y"], ["c", "y"]]}, "twice"),
        ({"caller_bytes": 0}, "behind the caller"),
    ],
)
def test_manipulated_updates_are_refused(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    compiled(model()).save(tmp_path / "m.tsm")
    with zipfile.ZipFile(tmp_path / "m.tsm") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"]) | change
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(tmp_path / "bad.tsm", "w") as archive:
        for name, content in members.items():
            if name != DIGEST:
                archive.writestr(zipfile.ZipInfo(name), content)
        archive.writestr(zipfile.ZipInfo(DIGEST), digest(archive))
    with pytest.raises(ModelError, match=words):
        Executable.load(tmp_path / "bad.tsm")


@pytest.mark.parametrize(
    ("updates", "words"),
    [
        ({"x": "y"}, "no input 'x'"),
        ({"c": "x"}, "no output 'x'"),
        ({"n": "y"}, r"'n' float32\[3x1x8\] and 'y' float32\[3x9x8\]"),
    ],
)
def test_impossible_updates_are_refused(updates: dict[str, str], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        compiled(model(), updates=updates)


def test_an_array_that_cannot_be_written_is_refused() -> None:
    cache = start()
    cache.setflags(write=False)
    with pytest.raises(ModelError, match=r"input 'c' .* can be written"):
        compiled(model()).run(step(cache, 1))


def test_indices_out_of_range_leave_the_cache_alone() -> None:
    cache = start()
    before = cache.copy()
    with pytest.raises(Exception, match="9"):
        compiled(model()).run({**step(cache, 1), "at": np.array([9])})
    np.testing.assert_array_equal(cache, before)
