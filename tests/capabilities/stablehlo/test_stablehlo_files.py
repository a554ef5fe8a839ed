"""Files of StableHLO wherever the command line takes one of ONNX."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.command import refuse, succeed

pytest.importorskip("jaxlib", reason="jaxlib is not installed")
pytestmark = pytest.mark.extra

_MODULE = """module { func.func public @main(%x: tensor<4x8xf32> loc("x")) -> tensor<4x6xf32> {
  %w = stablehlo.constant dense<0.5> : tensor<8x6xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
  %t = stablehlo.tanh %y : tensor<4x6xf32>
  return %t : tensor<4x6xf32> } }"""


def test_every_command_takes_a_module(tmp_path: Path) -> None:
    model, artifact, database = (tmp_path / name for name in ("m.mlir", "m.tsm", "t.db"))
    model.write_text(_MODULE)
    tuned = succeed("tune", model, "--target", "trn1", "--database", database, "--trials", 2)
    assert tuned["trials"] == 2
    assert succeed("compile", model, "-o", artifact, "--database", database)["fallback"] >= 0
    assert succeed("run", artifact)["outputs"].keys() == succeed("run", model)["outputs"].keys()
    assert succeed("simulate", model, "--target", "trn1")["latency_us"] > 0
    assert succeed("bench", model, "--seconds", "0.1")["median_ms"] > 0


def test_wrong_modules_are_refused(tmp_path: Path) -> None:
    model, artifact = tmp_path / "m.mlir", tmp_path / "m.tsm"
    assert "does not exist" in refuse("compile", model, "-o", artifact)
    model.write_text(_MODULE.replace("tanh", "tan_h"))
    assert "is not a valid StableHLO module" in refuse("compile", model, "-o", artifact)
    model.write_text(_MODULE)
    assert "fixed shape" in refuse("run", model, "--shape", "x=5x8")
    assert "has no input 'y'" in refuse("run", model, "--shape", "y=4x8")
    assert "StableHLO" in refuse("bench", model, "--against", "onnxruntime", "--seconds", "0.1")
    assert not artifact.exists()
