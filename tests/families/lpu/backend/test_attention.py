"""Attention on an LPU-like chip: one kernel, heads beside each other, exact maxima."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.compiler.model_builder import model_of, random
from tests.families.lpu.codegen.selection_checks import TARGET, run
from tilesmith.codegen.programs.structures import default_of
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import HostStep, KernelStep
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.families.lpu.codegen.chip import Chip
from tilesmith.families.lpu.codegen.dataflow import (
    ChainBuilder,
    Dataflow,
    Rows,
    Transpose,
    VectorTensor,
)
from tilesmith.families.lpu.codegen.scheduling import residents
from tilesmith.families.lpu.codegen.scheduling.resources.board import Board
from tilesmith.families.lpu.simulator.family import selected
from tilesmith.search_space.workloads.workload import Workload

HEADS = (
    "q0 = Reshape(q, apart) q1 = Transpose<perm=[0, 2, 1, 3]>(q0) "
    "k0 = Reshape(k, apart) k1 = Transpose<perm=[0, 2, 3, 1]>(k0) "
    "v0 = Reshape(v, apart) v1 = Transpose<perm=[0, 2, 1, 3]>(v0) "
    "s = MatMul(q1, k1) r = Mul(s, scale) "
)
MIXED = "y0 = MatMul(p, v1) "
BESIDE = "Transpose<perm=[0, 2, 1, 3]>(y0) y = Reshape(y1, beside) }"
NUMBERS = {
    "apart": np.array([2, 24, 3, 16]),
    "beside": np.array([2, 24, 48]),
    "scale": np.array(0.25, np.float32),
}


def built(text: str, **constants: np.ndarray) -> tuple[onnx.ModelProto, Executable]:
    """A model compiled with nothing on the host."""
    model = model_of(text, **NUMBERS, **constants)
    executable = build(import_model(model), TARGET)
    assert not [s.name for s in executable.recipe.steps if isinstance(s, HostStep)]
    return model, executable


def operators(executable: Executable) -> list[str]:
    steps = executable.recipe.steps
    return [Workload.parse(s.workload).operator for s in steps if isinstance(s, KernelStep)]


def given() -> dict[str, np.ndarray]:
    return {name: random(2, 24, 48) for name in "qkv"}


def test_heads_beside_each_other_are_not_moved() -> None:
    signature = "packed (float[2, 24, 48] q, float[2, 24, 48] k, float[2, 24, 48] v) => "
    text = f"{signature}(float[2, 24, 48] y) {{ {HEADS} p = Softmax(r) {MIXED} y1 = {BESIDE}"
    model, executable = built(text)
    assert operators(executable) == ["packed_attention"]
    inputs = given()
    (want,) = ReferenceEvaluator(model).run(None, inputs)
    assert np.abs(executable.run(inputs)["y"] - want).max() <= 3e-3 * np.abs(want).max()


def test_attention_is_quantised_behind() -> None:
    """What a quantised model's attention gives is rounded to bytes where its heads are packed."""
    signature = "bytes (float[2, 24, 48] q, float[2, 24, 48] k, float[2, 24, 48] v) => "
    text = (
        f"{signature}(uint8[2, 24, 48] y) {{ {HEADS} p = Softmax(r) {MIXED} "
        f"b0 = QuantizeLinear(y0, step, zero) y1 = {BESIDE.replace('(y0)', '(b0)')}"
    )
    model, executable = built(text, step=np.array(0.01, np.float32), zero=np.array(128, np.uint8))
    assert operators(executable) == ["packed_attention", "elementwise"]
    inputs = given()
    (want,) = ReferenceEvaluator(model).run(None, inputs)
    got = executable.run(inputs)["y"]
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def test_the_least_number_of_float32_masks_and_stays_finite() -> None:
    """Times zero it is zero, which minus infinity would not be."""
    least = np.array(np.finfo(np.float32).min)
    signature = "mask (float[2, 40] m, float[2, 40] x) => (float[2, 40] y)"
    text = f"{signature} {{ h = Mul(m, low) y = Add(h, x) }}"
    executable = build(import_model(model_of(text, low=least)), TARGET)
    x, m = random(2, 40), np.zeros((2, 40), np.float32)
    m[:, 30:] = 1
    got = executable.run({"m": m, "x": x})["y"]
    assert np.abs(got[:, :30] - x[:, :30]).max() <= 1e-3 * np.abs(x).max()
    assert (got[:, 30:] < -6e4).all()


@pytest.mark.parametrize("shape", ["70x50", "96x330", "64x700", "80x160"])
def test_largest_values_of_rows_are_taken_sixteen_at_a_time(shape: str) -> None:
    """Lanes that fill no superlane, rows that fill no sixteen, several rows side by side; all far
    below zero, where lanes beyond them hold zeros."""
    workload = Workload.parse(f"softmax shape={shape} dtype=float16")
    config = default_of(workload, TARGET)
    x = (random(*workload.shape("shape")) - 50).astype(np.float16)
    powers = np.exp(x.astype(np.float32) - x.max(axis=1, keepdims=True).astype(np.float32))
    want = powers / powers.sum(axis=1, keepdims=True)
    assert np.abs(run(workload, config, {"x": x}) - want).max() <= 1e-3
    flow = selected(workload, TARGET, config).dataflow
    assert any(isinstance(step, Transpose) for chain in flow.chains for step in chain.steps)


def test_constants_that_fill_mem_are_placed_first() -> None:
    chip = Chip.of(TARGET)
    rows = int(0.8 * chip.slices * 2 * chip.bank_words / 2 / 20) // 320 * 320
    weights = {
        f"w{n}": VectorTensor(f"w{n}", rows, "float16", "constant", block=320) for n in range(20)
    }
    x, y = VectorTensor("x", 8, "float16", "input"), VectorTensor("y", 8, "float16", "output")
    chain = ChainBuilder("copy", 8)
    chain.write(chain.read(Rows.of("x", 0, (8, 1))), Rows.of("y", 0, (8, 1)))
    flow = Dataflow("full", {**weights, "x": x, "y": y}, (chain.chain(),))
    board = Board.of(flow, chip)
    residents.place_constants(board)
    placed = [key for key in board.homes if key[0] in weights]
    assert len(placed) == 20 * rows // 320
    taken = np.array(board.memory.words)
    assert taken.sum() == 20 * rows * 2 and taken.max() <= 2 * chip.bank_words
    assert np.ptp(taken.reshape(2, -1).sum(axis=1)) <= 320 * 2
