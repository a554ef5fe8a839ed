"""Passes as values: what each states of itself, who is told of them, and the graphs dumped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.driver.pipeline import SIMPLIFICATIONS, every_pass, passes_for
from tilesmith.compiler.graph.graph import Graph
from tilesmith.compiler.graph.graph_text import graph_text
from tilesmith.compiler.numerics.precision import LowerPrecision
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.constant_folding import FoldConstants
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.rewriting.dump import Dump
from tilesmith.compiler.rewriting.graph_pass import Pass, apply, observed
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError, ModelError, TargetError

TRN1 = load_target("trn1")
MODEL = model_of(
    """g (float[2, 12] x) => (float[2, 5] y, float[2, 5] z) {
    s = Shape(x) a = Reshape(x, s) b = Gemm(a, w, c)
    d = ReduceMax<axes=[0]>(many) e = Mul(b, d)
    y = Relu(e) z = GatherElements<axis=1>(e, at) unused = Exp(z) }""",
    w=random(12, 5), c=random(5), many=random(5000),
    at=np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]),
)  # fmt: skip


@pytest.mark.parametrize("step", every_pass(TRN1), ids=lambda step: step.name)
def test_a_pass_states_what_it_does(step: Pass) -> None:
    doc = type(step).__doc__ or ""
    assert step.summary.endswith(".") and len(step.summary) < 100
    assert " before" in doc and " after" in doc, "its docstring shows before and after"
    assert step.contract.endswith(".")
    assert set(step.name) <= set("abcdefghijklmnopqrstuvwxyz-")
    with pytest.raises(FrozenInstanceError):
        step.anything = 1  # type: ignore[attr-defined]


def test_a_target_has_its_own_passes() -> None:
    cpu = [step.name for step in passes_for(host_target())]
    trn1 = [step.name for step in passes_for(TRN1, "bf16")]
    shared = [step.name for step in SIMPLIFICATIONS]
    assert trn1[0] == cpu[0] == "widen-floats" and "open-bodies" not in trn1
    assert "unroll-loops" not in cpu
    trn1.remove("unroll-loops")  # in its place: no bodies run on the core
    trn1.remove("weight-pixels")  # resizing by products: pixels are not gathered there
    assert "weight-pixels" not in cpu
    cpu.remove("add-selections")  # there attention selects before what is added for all
    assert trn1[1 : 1 + len(shared)] == shared
    folding = {"spell-quantised", "move-bytes", "unsign-bytes", "fold-integer-products"}
    own = {"open-bodies", *folding}
    assert own <= set(cpu) and not own & set(trn1)
    first = cpu.index("fold-constants")
    assert [name for name in cpu[first + 1 :] if name not in own][: len(shared) - 2] == shared[2:]
    assert cpu[-2:] == ["fuse-attention", "narrow-kernels"] and trn1[-1] == "fall-back"
    (precision,) = (step for step in passes_for(TRN1, "bf16") if step.options)
    assert precision.options == {"precision": "bf16"}
    assert passes_for(host_target(), "bf16")[-1].name == "narrow-kernels"
    with pytest.raises(ModelError, match="is for CPUs"):
        passes_for(TRN1, "fp16")
    with pytest.raises(ModelError, match="unknown precision 'fp8'"):
        LowerPrecision("fp8")
    with pytest.raises(TargetError, match="systolic"):
        passes_for(load_target("systolic"))


def test_observers_are_told_of_every_pass_in_order() -> None:
    seen: list[tuple[str, bool]] = []

    def observe(step: Pass, before: Graph, after: Graph) -> None:
        seen.append((step.name, before is after))

    graph = import_model(MODEL)
    with observed(observe):
        apply(graph, (RemoveDeadCode(), RemoveDeadCode(), FoldConstants()))
    assert seen == [
        ("remove-dead-code", False), ("remove-dead-code", True), ("fold-constants", False)
    ]  # fmt: skip
    apply(graph, (RemoveDeadCode(),))
    assert len(seen) == 3, "nobody looks any more"


def test_graphs_are_dumped_as_text(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    folder = tmp_path / "dump"
    for _ in range(2):  # a second compilation replaces what the first wrote
        with observed(Dump(folder)):
            build(import_model(MODEL), TRN1, options=BuildOptions(precision="bf16"))
    files = sorted(folder.iterdir())
    assert files[0].name == "00-import.txt" and files[-1].name.endswith("-fall-back.txt")
    assert [path.name for path in files] == sorted(path.name for path in files)
    golden("passes.txt", "\n".join(path.read_text() for path in files))


def test_a_graph_has_a_text_whatever_is_in_it() -> None:
    body = model_of("g (bool c, float[9] x) => (float[9] y) { y = Relu(x) }").graph
    del body.input[:]
    model = model_of(
        "g (bool c, float[9] x) => (float[9] y) { y = If(c) }", low=np.zeros(9, np.float32)
    )
    for name in ("then_branch", "else_branch"):
        attribute = model.graph.node[0].attribute.add()
        attribute.name, attribute.type = name, attribute.GRAPH
        attribute.g.CopyFrom(body)
    text = graph_text(import_model(model))
    assert "then_branch=<graph of " in text and "reading x" in text
    graph = import_model(MODEL)
    assert "y: ?[?] = Relu(e)" in graph_text(graph.with_(tensors={}))


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(InputError, match=r"holds 'notes.txt', which is of another kind"):
        Dump(tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        Dump(notes)
    with pytest.raises(InputError, match="around it does not exist"):
        Dump(tmp_path / "no" / "dump")
    (tmp_path / "nested" / "inner").mkdir(parents=True)
    with pytest.raises(InputError, match="holds 'inner'"):
        Dump(tmp_path / "nested")
    assert notes.read_text() == "mine"
