"""Names of a model's nodes, carried to the kernels that compute them.

The oracle is the model's own file: what lies between a kernel's operands and its result, walked
over the names of tensors, is what the kernel computes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.models import encoder, light, mobilenet_v2
from tests.compiler.model_builder import model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.artifact.artifact import read_artifact
from tilesmith.compiler.artifact.artifact_file import write_members
from tilesmith.compiler.artifact.manifest import manifest_of, manifest_text
from tilesmith.compiler.driver.build import build, scheduled
from tilesmith.compiler.graph.graph import Graph, Node
from tilesmith.compiler.graph.sources import source_name
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import HostStep, KernelStep, LoopStep, kernels_of

MOVING = {
    "Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat",
    "Cast", "Split", "Slice", "Constant",
}  # fmt: skip
"""Operators that may cost nothing: views, joins, what is folded away."""

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "squeezenet": lambda: light("squeezenet"),
    "inception_v2": lambda: light("inception_v2"),
    "shufflenet": lambda: light("shufflenet"),
    "resnet50": lambda: light("resnet50"),
    "mobilenet_v2": mobilenet_v2,
    "encoder": lambda: encoder(layers=2, width=96, heads=3, length=32),
}


class _File:
    """A model's file: which node writes what, and what follows from the inputs."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.producers = {name: node for node in self.nodes for name in node.output if name}
        self.live = {value.name for value in model.graph.input}
        self.live -= {tensor.name for tensor in model.graph.initializer}
        for node in self.nodes:
            if self.live.intersection(node.input):
                self.live.update(node.output)

    def name(self, node: onnx.NodeProto) -> str:
        return source_name(node.name, node.output)

    def works(self, node: onnx.NodeProto) -> bool:
        return node.op_type not in MOVING and bool(self.live.intersection(node.input))

    def between(self, ends: set[str], start: str) -> list[onnx.NodeProto]:
        """The nodes walked over from a tensor back to others."""
        found: dict[str, onnx.NodeProto] = {}
        waiting = [start]
        while waiting:
            name = waiting.pop()
            node = self.producers.get(name)
            if name in ends or node is None or name not in self.live:
                continue
            if self.name(node) not in found:
                found[self.name(node)] = node
                waiting += node.input
        return list(found.values())


def _behind(graph: Graph, name: str) -> Iterator[str]:
    """The tensors whose bytes a tensor shows."""
    node = graph.producers.get(name)
    if node is not None and node.kind in ("view", "join"):
        for source in node.inputs:
            yield from _behind(graph, source)
    else:
        yield name


def _check(file: _File, graph: Graph, node: Node) -> None:
    """What a kernel says it comes from is what lies between its operands and its result."""
    (result,) = node.writes
    ends = {end for name in node.reads for end in _behind(graph, name)} | set(node.reads)
    if result not in file.producers or any(
        end not in file.producers and end in graph.producers for end in ends
    ):
        return  # a part of what a node was taken apart into
    between = file.between(ends - {result}, result)
    names = {file.name(n) for n in between}
    assert set(node.sources) <= names, (node.describe(), node.sources, names)
    working = {file.name(n) for n in between if file.works(n)}
    assert working <= set(node.sources), (node.describe(), node.sources, working)


@pytest.mark.parametrize("name", MODELS)
def test_every_node_is_named_by_the_kernels_that_compute_it(name: str) -> None:
    model = MODELS[name]()
    file, graph = _File(model), scheduled(import_model(model), host_target())
    found = {source for node in graph.nodes for source in node.sources}
    worked = {file.name(node) for node in file.nodes if file.works(node)}
    assert worked <= found
    assert found <= {file.name(node) for node in file.nodes}
    kernels = [node for node in graph.nodes if node.kind == "kernel"]
    assert all(node.sources for node in kernels)
    for node in kernels:
        _check(file, graph, node)


def _lstm() -> onnx.ModelProto:
    return model_of(
        """g (float[5,1,3] x) => (float[5,1,1,4] y, float[5,1,3] z)
        { y = LSTM <hidden_size=4> (x, w, r, b)  z = Tanh(x) }""",
        w=random(1, 16, 3), r=random(1, 16, 4), b=random(1, 32),
    )  # fmt: skip


def test_a_loop_of_what_one_node_is_made_of_names_that_node() -> None:
    model = _lstm()
    model.graph.node[0].name = "memory"
    recipe = build(import_model(model), host_target()).recipe
    (loop,) = (step for step in recipe.steps if isinstance(step, LoopStep))
    assert loop.sources == ("memory",)
    found = {step.sources for step in kernels_of(recipe.steps) if step.sources}
    assert found == {("memory",), ("z",)}  # a node without a name has its output's


def test_kernels_of_bodies_name_the_nodes_inside() -> None:
    model = model_of(
        """g (float[4] s0) => (float[4] s)
        {
            s = Loop(trips, true, s0)
                <body = b (int64 i, bool go, float[4] a) => (bool on, float[4] c)
                    { on = Identity(go)  c = Exp(a) }>
        }""",
        trips=np.array(3), true=np.array(True),
    )  # fmt: skip
    recipe = build(import_model(model), host_target()).recipe
    assert {step.sources for step in kernels_of(recipe.steps)} == {("c",)}
    (loop,) = (step for step in recipe.steps if isinstance(step, LoopStep))
    assert loop.sources == ("s",)


def test_equal_nodes_share_a_kernel_and_host_nodes_have_names(tmp_path: Path) -> None:
    model = model_of(
        """g (float[8] x, string[2] t) => (float[8] y, string[2] u)
        { a = Exp(x)  b = Exp(x)  y = Add(a, b)  u = Identity(t) }"""
    )
    executable = build(import_model(model), host_target())
    kernels = kernels_of(executable.recipe.steps)
    assert [step.sources for step in kernels] == [("a", "b"), ("y",)]
    (host,) = (step for step in executable.recipe.steps if isinstance(step, HostStep))
    assert host.sources == ("u",)
    executable.save(tmp_path / "m.tsm")
    assert read_artifact(tmp_path / "m.tsm").steps == executable.recipe.steps


def test_an_artifact_of_before_has_no_names(tmp_path: Path) -> None:
    executable = build(import_model(_lstm()), host_target())
    manifest = strip_sources(manifest_of(executable.recipe))
    assert "sources" not in json.dumps(manifest)
    write_members(tmp_path / "old.tsm", manifest_text(manifest), executable.recipe.pieces(),
                  executable.recipe.codes, ())  # fmt: skip
    steps = read_artifact(tmp_path / "old.tsm").steps
    assert not any(step.sources for step in kernels_of(steps))
    assert len(steps) == len(executable.recipe.steps)


def strip_sources(found: Any) -> Any:
    """A manifest as it was before names were in it."""
    if isinstance(found, dict):
        kept = {key: strip_sources(value) for key, value in found.items() if key != "sources"}
        return {k: v for k, v in kept.items() if not ("move" in kept and k == "name")}
    return [strip_sources(value) for value in found] if isinstance(found, list) else found


def test_conversions_come_from_nowhere_and_say_what_they_convert() -> None:
    model = light("squeezenet")
    recipe = build(import_model(model), host_target()).recipe
    names = {name for step in kernels_of(recipe.steps) for name in step.sources}
    for step in recipe.steps:
        assert isinstance(step, KernelStep)
        if step.workload.startswith("layout_transform"):
            assert not step.sources
            assert " to " in step.name
        else:
            assert step.sources and set(step.sources) <= names
