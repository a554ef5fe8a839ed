"""Artifacts: every one written loads, holds the same bytes each time, and never takes more memory
than its file has bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native.kernel import KernelCode, concrete_shape
from tilesmith.compiler.artifact.artifact import read_artifact, write_artifact
from tilesmith.compiler.artifact.artifact_file import DIGEST, digest
from tilesmith.compiler.backends.cpu import compiling as cpu_compiling
from tilesmith.compiler.driver.build import DEFAULTS, BuildOptions, build, fastest_recipe, scheduled
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.search_space.hardware.target import Target, load_target
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.support.errors import ModelError

LIGHT = Path(str(files("onnx") / "backend" / "test" / "data" / "light"))
JOINING = [
    path
    for path in sorted(LIGHT.glob("*.onnx"))
    if not any(name in path.stem for name in ("vgg19", "alexnet", "zfnet"))
]
"""Those left out are hundreds of megabytes and have no joins."""


def parts_of_a_join(first: int = 3, second: int = 5, side: int = 5) -> onnx.ModelProto:
    """Two convolutions of one pixel whose channels are joined; no part ends on a cache line."""
    return model_of(
        f"g (float[1, 4, {side}, {side}] x) => (float[1, {first + second}, {side}, {side}] y) "
        "{ a = Conv(x, v) b = Conv(x, w) c = Concat<axis=1>(a, b) y = Relu(c) }",
        v=random(first, 4, 1, 1), w=random(second, 4, 1, 1),
    )  # fmt: skip


def assert_loads(recipe: Recipe, path: Path) -> None:
    """What is read is what was written; weights in memory of their own come back among others."""
    write_artifact(recipe, path)
    found = read_artifact(path)
    assert np.array_equal(found.constants, np.concatenate([*recipe.pieces()]))
    assert found.lent == ()
    for name, value in vars(recipe).items():
        if name not in ("constants", "lent"):
            assert getattr(found, name) == value, name


def recipe_of(model: Any, target: Target, options: BuildOptions = DEFAULTS) -> Recipe:
    kernels = scheduled(import_model(model), target, options.precision)
    return fastest_recipe(kernels, ScheduleChooser(target, None, options.threads))


@given(
    first=st.integers(1, 33), second=st.integers(1, 33), third=st.integers(1, 9),
    side=st.integers(1, 7), operator=st.sampled_from(["Relu", "Neg", "Sigmoid"]),
)  # fmt: skip
def test_parts_of_a_join_may_lie_anywhere(
    tmp_path_factory: pytest.TempPathFactory,
    first: int, second: int, third: int, side: int, operator: str,
) -> None:  # fmt: skip
    whole = first + second + third
    model = model_of(
        f"g (float[1, 4, {side}, {side}] x) => (float[1, {whole}, {side}, {side}] y) "
        f"{{ a = Conv(x, u) b = Conv(x, v) c = {operator}(b) e = Conv(x, w) "
        "d = Concat<axis=1>(a, c, e) y = Relu(d) }",
        u=random(first, 4, 1, 1), v=random(second, 4, 1, 1), w=random(third, 4, 1, 1),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("artifact") / "m.tsm"
    executable = build(import_model(model), host_target())
    executable.save(path)
    inputs = inputs_of(import_model(model))
    assert_close(Executable.load(path).run(inputs), expected(model, inputs))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_join_of_odd_parts_loads(tmp_path: Path, threads: int) -> None:
    model = parts_of_a_join()
    executable = build(import_model(model), host_target(), options=BuildOptions(threads=threads))
    executable.save(tmp_path / "m.tsm")
    inputs = inputs_of(import_model(model))
    assert_close(Executable.load(tmp_path / "m.tsm").run(inputs), expected(model, inputs))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_join_of_odd_parts_loads_on_an_accelerator(tmp_path: Path, precision: str) -> None:
    recipe = recipe_of(parts_of_a_join(), load_target("trn1"), BuildOptions(precision=precision))
    assert_loads(recipe, tmp_path / "m.tsm")


class _WithoutCode:
    """A kernel whose packed weights are zeros."""

    def __init__(self, code: KernelCode) -> None:
        self._packed = [buffer for buffer in code.parameters if buffer.role == "prepared"]

    def prepare(self, constants: Any) -> dict[str, Any]:
        return {b.name: np.zeros(concrete_shape(b), b.dtype) for b in self._packed}


@pytest.mark.parametrize("path", JOINING, ids=lambda path: path.stem)
def test_the_artifact_of_every_light_model_loads(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places and sizes are all that an artifact is checked for, so no code is generated."""

    def without_code(program: Program, target: Target) -> KernelCode:
        packs = program.prologue is not None
        return KernelCode(program.parameters, program.name.encode(), b"" if packs else None, 0, 0)

    monkeypatch.setattr(cpu_compiling, "compile_program", without_code)
    monkeypatch.setattr(cpu_compiling, "NativeKernel", _WithoutCode)
    monkeypatch.setattr(cpu_compiling.object_cache, "load", lambda key: None)
    monkeypatch.setattr(cpu_compiling.object_cache, "store", lambda key, content: None)
    assert_loads(recipe_of(path, host_target()), tmp_path / "m.tsm")


_COMPILE = """
import sys
import tilesmith
for target in ("cpu", "trn1"):
    tilesmith.compile(sys.argv[1], target).save(f"{sys.argv[2]}.{target}.tsm")
"""


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    """In processes that order sets and dictionaries of texts differently."""
    model = tmp_path / "m.onnx"
    onnx.save(parts_of_a_join(), str(model))
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _COMPILE, str(model), str(tmp_path / seed)]
        subprocess.run(command, check=True, env=environment)
    for target in ("cpu", "trn1"):
        one, two = ((tmp_path / f"{seed}.{target}.tsm").read_bytes() for seed in ("1", "2"))
        assert one == two, target


def test_no_time_of_writing_is_in_an_artifact(tmp_path: Path) -> None:
    build(import_model(parts_of_a_join()), host_target()).save(tmp_path / "m.tsm")
    with zipfile.ZipFile(tmp_path / "m.tsm") as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


# -- bytes of unknown origin ----------------------------------------------------------------------
def rewritten(path: Path, compression: int, **members: bytes) -> None:
    """The artifact with members replaced or added, sealed again."""
    with zipfile.ZipFile(path) as source:
        content = {name: source.read(name) for name in source.namelist() if name != DIGEST}
    content |= {name.replace("_", "."): value for name, value in members.items()}
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, value in content.items():
            target.writestr(name, value)
        target.writestr(zipfile.ZipInfo(DIGEST), digest(target))


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    build(import_model(parts_of_a_join()), host_target()).save(tmp_path / "m.tsm")
    return tmp_path / "m.tsm"


@pytest.mark.parametrize("name", ["manifest_json", "constants_bin", "unheard_of"])
@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nothing_is_inflated(artifact: Path, name: str, compression: int) -> None:
    rewritten(artifact, compression, **{name: bytes(1 << 22)})
    with pytest.raises(ModelError, match="compressed or encrypted members"):
        Executable.load(artifact)


def test_a_member_cannot_be_larger_than_the_file(artifact: Path) -> None:
    """The sizes in the archive's directory, changed as nobody but a liar would."""
    with zipfile.ZipFile(artifact) as archive:
        size = archive.getinfo("constants.bin").file_size
    content = artifact.read_bytes()
    directory = content.index(b"PK\x01\x02")
    tail = content[directory:].replace(size.to_bytes(4, "little"), (1 << 30).to_bytes(4, "little"))
    artifact.write_bytes(content[:directory] + tail)
    with pytest.raises(ModelError, match="claim to be larger than the file"):
        Executable.load(artifact)


def test_two_members_of_one_name_are_refused(artifact: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(artifact, "a") as archive:
        archive.writestr("manifest.json", "{}")
    with pytest.raises(ModelError, match="two members of one name"):
        Executable.load(artifact)


def test_a_manifest_has_a_largest_size(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesmith.compiler.artifact.reading._MANIFEST_LIMIT", 100)
    with pytest.raises(ModelError, match="its manifest has more than"):
        Executable.load(artifact)


@given(data=st.data())
def test_damaged_bytes_are_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One byte changed anywhere, or the file cut short anywhere."""
    path = tmp_path_factory.mktemp("artifact") / "m.tsm"
    write_artifact(_known(), path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    path.write_bytes(content)
    try:
        found = read_artifact(path)
    except ModelError:
        return
    assert vars(found).keys() == vars(_known()).keys()  # a byte that says nothing


_RECIPES: list[Recipe] = []


def _known() -> Recipe:
    if not _RECIPES:
        _RECIPES.append(build(import_model(parts_of_a_join()), host_target()).recipe)
    return _RECIPES[0]
