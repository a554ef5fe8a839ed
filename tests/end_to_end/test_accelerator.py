"""Whole models for an accelerator on the command line: tune, compile, run, simulate, refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.model_builder import expected, model_of, random
from tests.end_to_end.command import refuse, succeed
from tilesmith.command_line import command_line

MODELS = {
    "mlp": model_of(
        "g (float[16, 48] x) => (float[16, 10] y) "
        "{ a = Gemm<transB = 1>(x, w0, b0) b = Relu(a) y = Gemm<transB = 1>(b, w1, b1) }",
        w0=random(64, 48), b0=random(64), w1=random(10, 64), b1=random(10),
    ),
    "cnn": model_of(
        "g (float[1, 3, 12, 12] x) => (float[1, 8] y) "
        "{ a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w0, b0) b = Relu(a) "
        "c = Conv<kernel_shape = [1, 1]>(b, w1) d = GlobalAveragePool(c) e = Flatten(d) "
        "y = Gemm<transB = 1>(e, w2, b2) }",
        w0=random(16, 3, 3, 3), b0=random(16), w1=random(24, 16, 1, 1), w2=random(8, 24),
        b2=random(8),
    ),
}  # fmt: skip
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
TRN1 = ("--target", "trn1")


def saved(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(MODELS[name], str(path))
    return path


@pytest.mark.parametrize(("name", "precision"), [("mlp", "fp32"), ("cnn", "bf16")])
def test_a_model_is_tuned_compiled_run_and_simulated(
    name: str, precision: str, tmp_path: Path
) -> None:
    model, database, artifact = saved(name, tmp_path), tmp_path / "t.db", tmp_path / "m.tsm"
    options = (*TRN1, "--database", database, "--precision", precision)
    tuned = succeed("tune", model, *options, "--trials", 4)
    assert tuned["trials"] >= len(tuned["tasks"])
    assert all(task["measured_by"] == "simulator" for task in tuned["tasks"])
    report = succeed("compile", model, *options, "-o", artifact)
    counts = report["schedules"]
    assert counts["searched"] + counts["measured"] == len(tuned["tasks"])
    assert (report["fallback"], report["host"]) == (counts["measured"], 0)
    assert report["precision"] == precision
    assert report["resident"] and report["bytes_saved"] > 0
    x = random(*(d.dim_value for d in MODELS[name].graph.input[0].type.tensor_type.shape.dim))
    np.save(tmp_path / "x.npy", x)
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path / "y.npz")
    succeed("run", artifact, *given)
    found, (wanted,) = np.load(tmp_path / "y.npz")["y"], expected(MODELS[name], {"x": x}).values()
    assert np.abs(found - wanted).max() <= TOLERANCE[precision] * np.abs(wanted).max()
    played = succeed("simulate", artifact)
    assert played["latency_us"] == pytest.approx(report["latency_us"])
    assert played["fidelity"] == "timeline"
    assert played["model_roofline_us"] <= played["latency_us"] <= played["kernels_alone_us"]
    assert sum(op["shown_us"] for op in played["ops"]) == pytest.approx(played["latency_us"])
    default = succeed("simulate", model, *TRN1, "--precision", precision)
    assert played["latency_us"] <= default["latency_us"] * (1 + 1e-9), "no slower than untuned"


def test_tables_traces_and_other_fidelities(tmp_path: Path) -> None:
    from click.testing import CliRunner

    model = saved("mlp", tmp_path)
    trace = tmp_path / "t.json"
    shown = CliRunner().invoke(command_line, ["simulate", str(model), *TRN1, "--trace", str(trace)])
    assert shown.exit_code == 0, shown.stderr
    assert "from the roofline to the timeline" in shown.stdout and "stay in SBUF" in shown.stdout
    assert trace.stat().st_size > 1000
    rough = succeed("simulate", model, *TRN1, "--fidelity", "roofline")
    exact = succeed("simulate", model, *TRN1)
    assert rough["latency_us"] == pytest.approx(exact["roofline_us"])
    faster = succeed("simulate", model, *TRN1, "--set", "dma.start_ns=300")
    assert faster["latency_us"] < exact["latency_us"]


def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path) -> None:
    model, artifact = saved("mlp", tmp_path), tmp_path / "m.tsm"
    sentence = refuse("compile", model, *TRN1, "--set", "sbuf.mib=0", "-o", artifact)
    assert "sbuf.mib" in sentence
    sentence = refuse("compile", model, *TRN1, "--set", "sbuf.size=3", "-o", artifact)
    assert "sbuf.size" in sentence
    sentence = refuse("compile", model, *TRN1, "--precision", "fp8", "-o", artifact)
    assert "fp8" in sentence
    deep = tmp_path / "deep.onnx"
    text = "g (float[1, 8, 70000] x) => (float[1, 8, o] y) { y = MaxPool<kernel_shape=[60000]>(x) }"
    onnx.save(model_of(text), str(deep))
    assert "SBUF" in refuse("compile", deep, *TRN1, "-o", artifact)
    assert "GiB" in refuse("compile", huge(tmp_path), *TRN1, "-o", artifact)
    assert not artifact.exists()
    succeed("compile", model, *TRN1, "-o", artifact)
    assert "not in this machine" in refuse("bench", artifact)
    assert "link.speed" in refuse("simulate", artifact, "--set", "link.speed=3")
    unwritable = refuse("simulate", artifact, "--trace", tmp_path / "no" / "t.json")
    assert "folder does not exist" in unwritable
    assert "target 'trn1', not 'trn2'" in refuse("simulate", artifact, "--target", "trn2")
    assert "precision 'fp32'" in refuse("simulate", artifact, "--precision", "bf16")


def huge(folder: Path) -> Path:
    """A model of 24 GiB of activations, one of them given as a shape only."""
    graph = model_of("g (float[1] x) => (float[1] y) { a = Relu(x) b = Exp(a) y = Neg(b) }")
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3 * 2**30
    path = folder / "huge.onnx"
    onnx.save(graph, str(path))
    return path
