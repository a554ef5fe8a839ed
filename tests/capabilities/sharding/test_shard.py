"""`tilesmith shard`: tables and JSON, and one sentence for each thing that cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

import tilesmith.families.trainium.meshes
from tests.capabilities.sharding.sharded_models import mlp
from tests.end_to_end.command import invoke, refuse, succeed

MESHES = Path(tilesmith.families.trainium.meshes.__path__[0])
MESH = ("--mesh", "trn1.32xlarge")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "mlp.onnx"
    onnx.save(mlp(64, 48, 96), path)
    return path


def test_specs_are_propagated_and_collectives_named(model: Path) -> None:
    found = succeed("shard", model, *MESH, "--data", 2, "--tensor", 4,
                    "--spec", "x=data", "--spec", "w0.up=-,tensor")  # fmt: skip
    specs = {row["name"]: row["spec"] for row in found["tensors"] if row["role"] != "output"}
    assert specs["w0.down"] == "tensor,-" and specs["y"] == "data,-"
    assert [(row["kind"], row["axes"]) for row in found["collectives"]] == [
        ("all_reduce", ["tensor"])
    ]
    assert found["cores"] == 8 and found["gap"] is None
    whole = 4 * (48 * 96 * 2 + 96)
    assert found["weight_bytes"] == whole / 4
    assert found["communication_us"] == found["collectives"][0]["us"] > 0


def test_the_best_sharding_says_how_far_it_may_be_from_the_best(model: Path) -> None:
    pytest.importorskip("ortools")
    found = succeed("shard", model, *MESH, "--tensor", 4)
    assert found["bound_us"] == found["objective_us"] and found["gap"] == 0
    text = invoke("shard", model, *MESH, "--tensor", 4)
    assert text.exit_code == 0 and "no sharding takes less than" in text.stdout


def test_a_pipeline_is_cut_where_stages_are_even(model: Path) -> None:
    asked = ("shard", model, *MESH, "--tensor", 2, "--pipeline", 2, "--microbatches", 8,
             "--spec", "w0.up=-,tensor")  # fmt: skip
    whole = succeed(*asked)
    assert whole["cores"] == 4 and whole["axes"] == {"tensor": 2, "pipeline": 2}
    found = whole["pipeline"]
    first, second = found["stages"]
    assert whole["weight_bytes"] == max(first["weight_bytes"], second["weight_bytes"])
    assert first["last"] == second["first"] and found["interval_us"] == max(
        first["us"], second["us"]
    )
    assert "8 microbatches in" in invoke(*asked).stdout
    assert "at most 5 are possible" in refuse("shard", str(model), *MESH, "--pipeline", "16",
                                              "--spec", "x=-")  # fmt: skip


def test_annotations_may_be_a_file(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "specs.json"
    path.write_text(json.dumps({"w0.up": "-,tensor"}))
    found = succeed("shard", model, *MESH, "--tensor", 8, "--annotations", path)
    assert [row["kind"] for row in found["collectives"]] == ["all_reduce"]


def test_bad_input_is_refused_in_a_sentence(model: Path, tmp_path: Path) -> None:
    assert "1, 2, 4, 8, 16, 32" in refuse("shard", str(model), *MESH, "--tensor", "5")
    assert "unknown mesh 'trn9'" in refuse("shard", str(model), "--mesh", "trn9")
    cut = ("shard", str(model), *MESH, "--tensor", "32")
    assert "do not divide; 1, 2, 3, 4, 6, 8, 12, 16, 24, 48 do" in refuse(
        *cut, "--spec", "w0.up=tensor"
    )
    assert "no tensor 'z'" in refuse(*cut, "--spec", "z=tensor")
    assert "no axis 'data'" in refuse(*cut, "--spec", "x=data")
    assert "no output" not in refuse("shard", str(tmp_path / "no.onnx"), *MESH)
    broken = tmp_path / "broken.json"
    broken.write_text("[1")
    assert "are not JSON" in refuse(*cut, "--annotations", str(broken))
    assert "24 cores do not divide the 32" in refuse("shard", str(model), *MESH, "--cores", "24")


def test_a_model_that_does_not_fit_says_what_is_missing(model: Path, tmp_path: Path) -> None:
    text = (MESHES / "trn1.2xlarge.toml").read_text()
    small = tmp_path / "small.toml"
    small.write_text(re.sub(r"\ngib = .*", "\ngib = 0.00002", text, count=1))
    asked = ("shard", str(model), "--mesh", str(small), "--tensor", "2")
    for more in (("--spec", "w0.up=-,tensor"), ()):
        said = refuse(*asked, *more)
        assert "more than the 10.49 KiB there are" in said
        assert "the smallest mesh that would do is 'inf2.xlarge' with 2 cores" in said
