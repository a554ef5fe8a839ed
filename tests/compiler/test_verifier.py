"""The graph verifier: each rule broken by hand is named, with the node and the pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import prepared
from tilesmith.compiler.driver.verifier import GRAPH_RULES, NODE_RULES, Verifier, verify
from tilesmith.compiler.graph.graph import Graph, Node, TensorInfo
from tilesmith.compiler.numerics.precision import LowerPrecision
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.passes.dead_code import RemoveDeadCode
from tilesmith.compiler.rewriting.graph_pass import Pass, apply, observed
from tilesmith.compiler.settling.chooser import ScheduleChooser
from tilesmith.compiler.settling.settlement import settle
from tilesmith.search_space.support.errors import VerificationError

MODEL = model_of(
    """g (float[1, 4, 5, 6] x) => (float[1, 8, 5, 6] y, float[1, 4, 5, 6] z) {
    a = Conv<kernel_shape=[1, 1]>(x, w) b = Add(a, r) c = Relu(x) y = Concat<axis=1>(b, c)
    z = Mul(c, c) }""",
    w=random(4, 4, 1, 1), r=random(1, 4, 5, 6),
)  # fmt: skip
IMPORTED = import_model(MODEL)
KERNELS = prepared(IMPORTED)
SPLIT = prepared(
    import_model(
        model_of(
            """g (float[1, 8, 5] x) => (float[1, 4, 5] y) {
            a = Relu(x) b, c = Split<axis=1>(a, half) y = Mul(b, c) }""",
            half=np.array([4, 4]),
        )
    )
)


def with_node(graph: Graph, kind: str, **changes: object) -> Graph:
    """The graph with its first node of a kind (or ONNX operator) changed."""
    node = next(n for n in graph.nodes if kind in (n.kind, n.operator))
    changed = replace(node, **changes)  # type: ignore[arg-type]
    return graph.with_(nodes=tuple(changed if n is node else n for n in graph.nodes))


def with_info(graph: Graph, name: str, /, **changes: object) -> Graph:
    info = replace(graph.tensors[name], **changes)  # type: ignore[arg-type]
    return graph.with_(tensors={**graph.tensors, name: info})


def with_constant(graph: Graph, name: str, value: np.ndarray) -> Graph:
    return graph.with_(constants={**graph.constants, name: value})


def without(graph: Graph, name: str) -> Graph:
    return graph.with_(tensors={n: i for n, i in graph.tensors.items() if n != name})


def without_constant(graph: Graph) -> Graph:
    """The weight comes from the caller, and the kernel still takes it for constant."""
    weight = graph.tensors["w"]
    return graph.with_(
        constants={n: v for n, v in graph.constants.items() if n != "w"},
        inputs=(*graph.inputs, weight),
    )


def swapped(graph: Graph) -> Graph:
    """The inputs of the kernel with an epilogue in another order."""
    node = next(n for n in graph.nodes if n.workload is not None and n.workload.epilogue)
    changed = replace(node, inputs=(node.inputs[0], *node.inputs[:0:-1]))
    return graph.with_(nodes=tuple(changed if n is node else n for n in graph.nodes))


EXTRA = TensorInfo("extra", "float32", (2,))

BROKEN: dict[str, tuple[Callable[[], Graph], str, str]] = {
    "undeclared": (lambda: without(IMPORTED, "a"), "declared", "Conv 'a' names 'a', which is not"),
    "misnamed": (lambda: with_info(IMPORTED, "a", name="b"), "declared", "names 'a'"),
    "unnamed": (
        lambda: IMPORTED.with_(tensors={**IMPORTED.tensors, "extra": EXTRA}),
        "declared", "'extra' is declared, and nothing names it",
    ),
    "written twice": (
        lambda: IMPORTED.with_(nodes=(*IMPORTED.nodes, replace(IMPORTED.nodes[2], name="again"))),
        "single assignment", "Relu 'again' writes 'c', which has a value already",
    ),
    "constant and input": (
        lambda: with_constant(IMPORTED, "x", random(1, 4, 5, 6)),
        "single assignment", "constant 'x' is an input, too",
    ),
    "out of order": (
        lambda: IMPORTED.with_(nodes=IMPORTED.nodes[::-1]), "order", "which nothing before it",
    ),
    "no output": (
        lambda: IMPORTED.with_(nodes=IMPORTED.nodes[:-1]), "order", "output 'z' is never written",
    ),
    "unknown type": (lambda: with_info(IMPORTED, "a", dtype="float31"), "types", "float31"),
    "negative extent": (lambda: with_info(IMPORTED, "a", shape=(-1,)), "types", "shape -1"),
    "another output": (
        lambda: with_info(IMPORTED, "z", shape=(4, 5, 6)),
        "types", r"'z' is float32\[1x4x5x6\] for the caller and float32\[4x5x6\] inside",
    ),
    "another array": (
        lambda: with_constant(IMPORTED, "w", random(4, 4)),
        "constants", r"'w' is declared float32\[4x4x1x1\] and is float32\[4x4\]",
    ),
    "another element type": (
        lambda: with_constant(IMPORTED, "w", np.zeros((4, 4, 1, 1))), "constants", "is float64",
    ),
    "unread constant": (
        lambda: with_constant(
            IMPORTED.with_(tensors={**IMPORTED.tensors, "extra": EXTRA}), "extra", random(2)
        ),
        "constants", "nothing reads the constant 'extra'",
    ),
    "unknown shape": (
        lambda: with_info(KERNELS, next(n for n in KERNELS.nodes if n.workload).outputs[0],
                          shape=None),
        "device", "touches '.*' of unknown shape",
    ),
    "two outputs": (
        lambda: with_node(SPLIT, "view", inputs=("x", ""), outputs=("b",)), "device", "leaves out",
    ),
    "operand too many": (
        lambda: with_node(KERNELS, "kernel", inputs=("x", "w", "r", "x")),
        "kernel", "has 4 inputs; 'conv2d .* 3",
    ),
    "operands swapped": (lambda: swapped(KERNELS), "kernel", "as operand weight of 'conv2d"),
    "no constant": (lambda: without_constant(KERNELS), "kernel", "'w' is no constant"),
    "view too far": (
        lambda: with_node(SPLIT, "view", attributes=(("offset", 21),)),
        "view", "shows 20 elements from 21 on, of 40",
    ),
    "view of another type": (
        lambda: with_info(SPLIT, SPLIT.nodes[1].outputs[0], dtype="int32"), "view", "as int32",
    ),
    "join of too little": (
        lambda: with_node(KERNELS, "join", inputs=("x",)),
        "join", r"has parts of 120 elements for float32\[1x8x5x6\]",
    ),
    "another shape": (
        lambda: with_info(IMPORTED, "a", shape=(1, 4, 6, 5)),
        "operator", r"Conv 'a' writes float32\[1x4x5x6\] to 'a', declared float32\[1x4x6x5\]",
    ),
    "inputs that do not go together": (
        lambda: with_node(IMPORTED, "Concat", inputs=("b", "w", "c")),
        "operator", "cannot be computed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named(name: str) -> None:
    make, rule, wrong = BROKEN[name]
    message = f"after import, graph 'g' breaks '{rule}': .*{wrong}"
    with pytest.raises(VerificationError, match=message):
        verify(make())


def test_every_rule_is_broken_by_one_of_these() -> None:
    assert {rule for _, rule, _ in BROKEN.values()} == {*GRAPH_RULES, *NODE_RULES}


def test_graphs_of_every_stage_are_right() -> None:
    for graph in (IMPORTED, KERNELS, SPLIT, LowerPrecision("bf16").run(KERNELS)):
        verify(graph)
    verify(settle(KERNELS, ScheduleChooser(host_target(), None, 1)).graph)


@dataclass(frozen=True)
class Spoil(Pass):
    """A pass that does what `change` says."""

    name = "spoil"

    change: Callable[[Graph], Graph]

    def run(self, graph: Graph) -> Graph:
        return self.change(graph)


def test_the_pass_that_did_it_is_named() -> None:
    def twice(graph: Graph) -> Graph:
        return graph.with_(nodes=(*graph.nodes, Node("Relu", ("x",), ("a",), "again")))

    def renamed(graph: Graph) -> Graph:
        return graph.with_(outputs=graph.outputs[::-1])

    wrong = (
        (twice, "after spoil, graph 'g' breaks 'single assignment': Relu 'again' writes 'a'"),
        (renamed, r"after spoil, graph 'g' breaks 'interface': the outputs were y: .*, z: .* and"),
    )
    for change, message in wrong:
        with observed(Verifier()), pytest.raises(VerificationError, match=message):
            apply(IMPORTED, (RemoveDeadCode(), Spoil(change), RemoveDeadCode()))
    with observed(Verifier()), pytest.raises(VerificationError, match="after import"):
        apply(twice(IMPORTED), (RemoveDeadCode(),))


def test_the_page_on_passes_lists_the_rules() -> None:
    page = (Path(__file__).parents[2] / "docs" / "passes.md").read_text()
    listed = re.findall(r"^\| ([a-z ]+) \| (?!says)", page, re.MULTILINE)
    assert listed == [*GRAPH_RULES, *NODE_RULES, "interface"]
