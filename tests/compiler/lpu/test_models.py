"""Whole models on an LPU-like chip: run burst by burst, against `onnx.reference`, and simulated."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tilesmith.command_line import command_line
from tilesmith.compiler.backend import backend_of
from tilesmith.compiler.backends.lpu.kernel_code import KernelCode
from tilesmith.compiler.build import build
from tilesmith.compiler.executable import Executable
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.program import HostStep
from tilesmith.search_space.errors import ModelError
from tilesmith.search_space.target import load_target

TARGET = load_target("lpu1")


def compared(model: onnx.ModelProto, tolerance: float, **inputs: np.ndarray) -> Executable:
    """Compile, run, and compare every output, errors relative to the largest value."""
    executable = build(import_model(model), TARGET)
    names = [output.name for output in model.graph.output]
    wanted = ReferenceEvaluator(model).run(None, inputs)
    got = executable.run(inputs)
    for name, want in zip(names, wanted, strict=True):
        assert got[name].shape == want.shape
        assert np.abs(got[name] - want).max() <= tolerance * max(1.0, np.abs(want).max())
    return executable


def perceptron() -> onnx.ModelProto:
    text = (
        "mlp (float[24, 400] x) => (float[24, 10] y) "
        "{ h = Gemm(x, w1, b1) r = Relu(h) g = Gemm(r, w2, b2) s = Relu(g) y = Gemm(s, w3, b3) }"
    )
    sizes = (400, 336, 64, 10)
    weights = {}
    for number, (k, n) in enumerate(pairwise(sizes), 1):
        weights |= {f"w{number}": random(k, n) / np.float32(k**0.5), f"b{number}": random(n)}
    return model_of(text, **weights)


def test_a_perceptron_runs_whole_on_the_chip_in_float16() -> None:
    executable = compared(perceptron(), 4e-3, x=random(24, 400))
    recipe = executable.recipe
    assert executable.report.precision == "fp16"
    assert not [step for step in recipe.steps if isinstance(step, HostStep)]
    played = backend_of(TARGET).simulate(recipe)
    shown = sum(op.details["shown_us"] for op in played.ops)
    assert shown == pytest.approx(played.latency_us)
    assert played.cycles == pytest.approx(played.latency_us * 900, abs=1)


def test_a_saved_model_is_the_same_program(tmp_path: Path) -> None:
    executable = build(import_model(perceptron()), TARGET)
    executable.save(tmp_path / "mlp.tsm")
    again = Executable.load(tmp_path / "mlp.tsm")
    backend = backend_of(TARGET)
    assert backend.simulate(again.recipe).cycles == backend.simulate(executable.recipe).cycles
    code = KernelCode.from_bytes(executable.recipe.codes[0].code)
    assert KernelCode.from_bytes(code.to_bytes()).to_bytes() == code.to_bytes()
    with pytest.raises(ModelError, match="compile again"):
        KernelCode.from_bytes(b"other")


def test_images_go_from_block_to_block_and_are_turned_at_the_ends() -> None:
    text = (
        "cnn (float[1, 3, 8, 8] x) => (float[1, 16, 4, 4] y) "
        "{ h = Conv<pads=[1,1,1,1]>(x, w1, b1) r = Relu(h) "
        "  y = Conv<pads=[1,1,1,1], strides=[2,2]>(r, w2, b2) }"
    )
    weights = {"w1": random(24, 3, 3, 3), "b1": random(24)}
    weights |= {"w2": random(16, 24, 3, 3), "b2": random(16)}
    executable = compared(model_of(text, **weights), 4e-3, x=random(1, 3, 8, 8))
    assert executable.report.host == 0


def test_a_model_that_does_not_fit_says_how_many_chips_would_do() -> None:
    with pytest.raises(ModelError, match=r"MiB more than the 220 MiB of MEM .*; 2 chips would"):
        backend_of(TARGET).check_size(TARGET, "large", 300 << 20)


def test_targets_are_compared_in_one_table(tmp_path: Path) -> None:
    onnx.save(perceptron(), tmp_path / "mlp.onnx")
    asked = ["simulate", str(tmp_path / "mlp.onnx"), "--target", "trn1", "--target", "lpu1"]
    lines = CliRunner().invoke(command_line, asked).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["target", "trn1", "lpu1"]
    assert [line.split()[-1] for line in lines[1:]] == ["fp32", "fp16"]
    found = json.loads(CliRunner().invoke(command_line, [*asked, "--json"]).stdout)["targets"]
    assert [one["target"] for one in found] == ["trn1", "lpu1"]
    refused = CliRunner().invoke(command_line, [*asked[:2], "--target", "lp30"])
    assert refused.exit_code != 0
