"""Artifacts of models whose sizes vary: read as they were written, and trusted in nothing."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.compiler.model_builder import assert_close, expected, model_of, random
from tests.compiler.varying_models import Case, compiled, joined
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.artifact.artifact import read_artifact, write_artifact
from tilesmith.compiler.artifact.artifact_file import DIGEST, digest
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.varying.executable import VaryingExecutable, load
from tilesmith.search_space.support.errors import ModelError


@cache
def ready() -> tuple[Case, VaryingExecutable]:
    case = joined()
    return case, compiled(case.model, case.shapes)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "joined.tsm"
    ready()[1].save(path)
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the manifest, sealed again as if it had been written so."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info.filename) for info in archive.infolist()}
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name != DIGEST:
                archive.writestr(zipfile.ZipInfo(name), content)
        archive.writestr(zipfile.ZipInfo(DIGEST), digest(archive))


def test_what_is_read_is_what_was_written(artifact: Path) -> None:
    case, model = ready()
    found = load(artifact)
    assert isinstance(found, VaryingExecutable)
    for name, value in vars(model.recipe).items():
        if name == "constants":
            np.testing.assert_array_equal(found.recipe.constants, value)
        else:
            assert getattr(found.recipe, name) == value, name
    inputs = case.inputs({"n": 13})
    assert_close(found.run(inputs), expected(case.model, inputs))


def test_equal_recipes_are_written_as_equal_bytes(artifact: Path, tmp_path: Path) -> None:
    again = load(artifact)
    assert isinstance(again, VaryingExecutable)
    write_artifact(again.recipe, tmp_path / "again.tsm")
    assert (tmp_path / "again.tsm").read_bytes() == artifact.read_bytes()


def last(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["variants"][-1]
    return found


def part_with(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    found: dict[str, Any] = next(part for part in last(manifest)["parts"] if key in part)
    return found


def _argue(manifest: dict[str, Any], argument: Any) -> None:
    part_with(manifest, "kernel")["arguments"][0] = argument


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a newer format": lambda m: m.update(format=5),
    "a formula of an unknown size": lambda m: last(m)["tensors"][0].update(nbytes="[4*q]"),
    "an extent below zero": lambda m: last(m)["tensors"][0]["info"].__setitem__(2, ["[n-40]"]),
    "an extent beyond memory": lambda m: last(m)["tensors"][0].update(nbytes="[n*n*n*99999999999]"),
    "a formula that is code": lambda m: last(m)["tensors"][0].update(nbytes="[open(n)]"),
    "an endless formula": lambda m: last(m)["tensors"][0].update(nbytes=f"[{'n+' * 2000}n]"),
    "a region beyond its size": lambda m: last(m)["region"][0].__setitem__(2, 31),
    "a region of nothing": lambda m: last(m).update(region=[]),
    "a size below one": lambda m: m["sizes"][0].__setitem__(1, 0),
    "no variants": lambda m: m.update(variants=[]),
    "an unknown tensor": lambda m: part_with(m, "kernel")["reads"].append("nothing"),
    "an unknown argument": lambda m: _argue(m, "nothing"),
    "an argument in no memory": lambda m: last(m)["tensors"][-1].update(device=5),
    "an argument elsewhere": lambda m: _argue(m, ["arena", 0]),
    "an argument behind the constants": lambda m: _argue(m, ["constant", 1 << 30]),
    "an argument that is held": lambda m: _argue(m, ["held", 8]),
    "unknown code": lambda m: part_with(m, "kernel").update(code=99),
    "an unknown part": lambda m: last(m)["parts"].append({"ties": [["nothing", "y", 0]]}),
    "a part before its whole": lambda m: last(m)["parts"].append({"ties": [["r", "y", "[n-40]"]]}),
    "an unknown element type": lambda m: last(m)["tensors"][0]["info"].__setitem__(1, "float7"),
    "held constants elsewhere": lambda m: last(m)["known"].append(
        {"info": ["k", "float32", [1 << 30]], "nbytes": 0, "constant": 0}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_fit_is_refused_in_a_sentence(artifact: Path, name: str) -> None:
    changed(artifact, CHANGES[name])
    with pytest.raises(ModelError) as caught:
        load(artifact)
    assert "joined.tsm" in str(caught.value)


def test_a_newer_format_is_refused_by_its_number(artifact: Path) -> None:
    changed(artifact, CHANGES["a newer format"])
    with pytest.raises(ModelError, match="the format 5; this version reads 2 to 4; install"):
        load(artifact)


def test_views_of_what_is_held_stay_inside_it(artifact: Path) -> None:
    """Offsets are looked at when a size is first run: no kernel is given a place outside."""
    case, model = ready()
    name = last(json.loads(zipfile.ZipFile(artifact).read("manifest.json")))["held"][0]

    def beyond(manifest: dict[str, Any]) -> None:
        tensor = next(t for t in last(manifest)["tensors"] if t["info"][0] != name)
        last(manifest)["parts"].insert(0, {"ties": [[tensor["info"][0], name, 1 << 30]]})

    changed(artifact, beyond)
    found = load(artifact)
    with pytest.raises(Exception, match=r"ends behind what is held|lies elsewhere"):
        found.run(case.inputs({"n": 13}))
    assert model is not found


def test_a_model_of_ranges_is_no_recipe_of_fixed_shapes(artifact: Path) -> None:
    with pytest.raises(ModelError, match="sizes vary"):
        read_artifact(artifact)


def test_the_model_at_one_size_is_not_saved_by_itself(tmp_path: Path) -> None:
    _, model = ready()
    with pytest.raises(ModelError, match="save the model itself"):
        model.at({"n": 5}).save(tmp_path / "one.tsm")
    assert not (tmp_path / "one.tsm").exists()


def test_artifacts_of_older_formats_load(tmp_path: Path) -> None:
    model = model_of(
        "g (int64[3] places) => (float[3, 5] y) { x = Gather(table, places) y = Relu(x) }",
        table=random(7, 5),
    )
    path = tmp_path / "old.tsm"
    recipe = build(import_model(model), host_target()).recipe
    write_artifact(recipe, path)

    def older(manifest: dict[str, Any]) -> None:
        manifest["format"] = 2
        for step in manifest["steps"]:
            for check in step.get("checks", ()):
                (check["extent"],) = check.pop("extents")

    changed(path, older)
    assert read_artifact(path).steps == recipe.steps
    assert any(getattr(step, "checks", ()) for step in recipe.steps)
