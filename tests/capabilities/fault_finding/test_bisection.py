"""Faults injected into the compiler are found and named, and end in a model that shows them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.capabilities.fault_finding.defect_models import GATED, LAYERS
from tests.capabilities.fault_finding.defects import (
    DEFECTS,
    Defect,
    another_function,
    another_number,
    cleared,
    code_without_a_tail,
)
from tests.compiler.model_builder import model_of, random
from tests.end_to_end.command import invoke, refuse
from tilesmith.capabilities.fault_finding.bisecting import BisectOptions, bisected
from tilesmith.capabilities.fault_finding.comparing import CompareOptions, compared
from tilesmith.capabilities.fault_finding.comparison_table import comparison_text
from tilesmith.codegen.llvm.functions.vector_math import VectorMath
from tilesmith.families.trainium.codegen.isa.memory import Tile
from tilesmith.families.trainium.codegen.kernel.builder import Kernel as TrainiumKernel
from tilesmith.families.trainium.codegen.kernel.emitter import Scalar
from tilesmith.jobs.requests.request import Request
from tilesmith.search_space.support.errors import VerificationError


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a broken compiler makes is in no other test's cache."""
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    cleared()
    yield
    cleared()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_fault_is_found_and_named(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.patch(monkeypatch)
    report = bisected(Request(defect.model, defect.target), BisectOptions(reference="onnxruntime"))
    assert report.finding is not None
    assert report.finding.part == defect.part, report.finding.sentence
    assert defect.named in f"{report.finding.name} {report.finding.sentence}"
    assert report.small is not None and len(report.small.nodes) <= defect.nodes


def test_what_is_within_tolerance_is_looked_at_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong number in bfloat16, and in float32 where a smaller tolerance is asked for."""
    activation = TrainiumKernel.activation

    def broken(
        self: TrainiumKernel, out: Tile, function: str, data: Tile,
        bias: Scalar = 0.0, scale: Scalar = 1.0, sums: Tile | None = None,
    ) -> None:  # fmt: skip
        if function == "tanh" and isinstance(scale, float):
            scale *= 1.02
        activation(self, out, function, data, bias, scale, sums)

    monkeypatch.setattr(TrainiumKernel, "activation", broken)
    report = bisected(Request(GATED_BY_TANH, "trn1", precision="bf16"), BisectOptions())
    assert report.finding is not None and report.finding.part == "code generation"
    assert report.error < 0.15 and "tanh" in report.finding.sentence
    monkeypatch.undo()
    tanh = VectorMath.tanh

    def off(self: VectorMath, x: object) -> object:
        return self.builder.fmul(tanh(self, x), self._number(x, 1.0005))  # type: ignore[arg-type]

    cleared()
    monkeypatch.setattr(VectorMath, "tanh", off)
    report = bisected(Request(GATED_BY_TANH), BisectOptions(tolerance=1e-4, reduce=False))
    assert report.finding is not None and report.finding.part == "code generation"
    assert 1e-4 < report.error < 1e-3


def test_nothing_is_found_in_a_right_compiler() -> None:
    report = bisected(Request(LAYERS), BisectOptions())
    assert report.clean and report.small is None and report.error < 1e-5


def test_a_folder_shows_the_fault_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code_without_a_tail(monkeypatch)
    model, folder = tmp_path / "layers.onnx", tmp_path / "found"
    onnx.save(LAYERS, str(model))
    result = invoke("bisect", model, "--output", folder, "--json")
    assert result.exit_code == 1, result.stderr
    found = json.loads(result.stdout)
    assert found["finding"]["part"] == "code generation"
    assert (found["nodes"], found["whole_nodes"]) == (1, 8)
    small = onnx.load(str(folder / "model.onnx"))
    onnx.checker.check_model(small)
    assert [node.op_type for node in small.graph.node] == ["Gemm"]
    inputs = {"x": np.load(folder / "input_0.npy")}
    (wanted,) = ReferenceEvaluator(small).run(None, inputs)
    np.testing.assert_allclose(np.load(folder / "expected_0.npy"), wanted, rtol=1e-4, atol=1e-5)
    text = (folder / "README.txt").read_text()
    assert found["finding"]["sentence"] in text and "tilesmith bisect model.onnx" in text
    command = found["command"].partition(" && ")[2]
    assert command in text
    monkeypatch.chdir(folder)
    again = invoke(*shlex.split(command)[1:])
    assert again.exit_code == 1 and "at fault: code generation 'a'" in again.stdout
    monkeypatch.undo()
    assert "is there already" in refuse("bisect", model, "--output", folder)


def test_a_targets_description_goes_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_function(monkeypatch)
    model, here, folder = tmp_path / "layers.onnx", tmp_path / "mine.toml", tmp_path / "found"
    onnx.save(LAYERS, str(model))
    here.write_text('like = "trn1"\ndoc = "another"\n')
    monkeypatch.chdir(tmp_path)
    result = invoke("bisect", model, "--target", "mine.toml", "--output", folder, "--json")
    assert result.exit_code == 1, result.stderr
    here.unlink()
    command = json.loads(result.stdout)["command"].partition(" && ")[2]
    monkeypatch.chdir(folder)
    again = invoke(*shlex.split(command)[1:], "--no-reduce")
    assert again.exit_code == 1 and "at fault" in again.stdout


GATED_BY_TANH = model_of(
    """g (float[16, 32] x) => (float[16, 32] y) {
    a = MatMul(x, w) b = Tanh(a) c = MatMul(b, w) y = Softmax(c) }""",
    w=random(32, 32) / 4,
)  # fmt: skip
LARGE = model_of(
    "g (float[4, 60] x) => (float[4, 50] y) { a = Gemm(x, w) y = Relu(a) }", w=random(60, 50)
)
DRAWN = model_of(
    """g (float[4] x) => (float[4] y, float[4] z) {
    n = RandomNormalLike(x) y = Add(n, x) z = Neg(x) }""",
    opset=22,
)


def test_large_weights_are_computed_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    code_without_a_tail(monkeypatch)
    report = bisected(Request(LARGE), BisectOptions(reference="onnxruntime"))
    assert report.small is not None and report.small.seeded == ("w",)
    assert report.small.proto.ByteSize() < 1500 < LARGE.ByteSize()
    (wanted,) = ReferenceEvaluator(report.small.proto).run(None, report.small.inputs)
    (name,) = report.small.wanted
    np.testing.assert_allclose(report.small.wanted[name], wanted, rtol=1e-4, atol=1e-5)


def test_random_numbers_are_nobodys_fault() -> None:
    report = bisected(Request(DRAWN), BisectOptions())
    assert report.clean and "outputs y are made of random numbers" in report.notes[0]


def test_a_comparison_ends_in_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    another_number(monkeypatch)
    report = compared(Request(GATED, "trn1"), CompareOptions(reference="onnx"))
    assert report.instruction is not None and not report.clean
    assert report.instruction.repair == "right with 0.5 in place of a number"
    assert report.instruction.sentence in comparison_text(report)
    assert report.to_json()["instruction"]["engine"] in ("scalar", "vector", "gpsimd")


def test_a_kernel_that_breaks_a_law_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(self: object) -> None:
        raise VerificationError("instruction 3 writes over instruction 2")

    monkeypatch.setattr(TrainiumKernel, "finish", lambda self, *_, **__: refusing(self))
    report = compared(Request(GATED, "trn1"), CompareOptions(reference="onnx"))
    assert report.clean and any("breaks a law" in note for note in report.notes)
    found = bisected(Request(GATED, "trn1"), BisectOptions(reference="onnx"))
    assert found.clean and any("breaks a law" in note for note in found.notes)


def test_sequences_are_inputs_too() -> None:
    sequence = onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    output = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])
    node = onnx.helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)
    opsets = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph([node], "g", [sequence], [output])
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    given = {"s": [random(1, 3), random(2, 3)]}
    assert bisected(Request(model), BisectOptions(inputs=given)).clean
    assert compared(Request(model), CompareOptions(inputs=given)).clean


def test_what_a_model_is_not_made_of_is_refused(tmp_path: Path) -> None:
    onnx.save(LAYERS, str(tmp_path / "layers.onnx"))
    said = refuse("compare", tmp_path / "layers.onnx", "--model", tmp_path / "layers.onnx")
    assert "leave --model out" in said


def test_what_is_compiled_already_is_refused(tmp_path: Path) -> None:
    assert "name its .onnx file" in refuse("bisect", tmp_path / "model.tsm")
