"""Loops and branches whose bodies are compiled: values against onnxruntime, memory, artifacts."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.compiler.model_builder import assert_close, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build, extract_tasks, scheduled
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.graph.graph_text import graph_text
from tilesmith.compiler.host.reference import run_reference
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import ModelError

X = random(3, 4)
W = random(4, 4)
GO = np.array(True)
FOR = """
    g (float[3,4] x) => (float[3,4] y, float[N,3,4] z) {
        y, z = Loop(n, go, x) <body = b (int64 i, bool c, float[3,4] s)
            => (bool d, float[3,4] t, float[3,4] r) {
                d = Identity(c)
                f = Cast<to=1>(i)
                m = MatMul(s, w)
                q = Add(m, f)
                t = Tanh(q)
                r = Mul(t, x)
            }>
    }"""
WHILE = """
    g (float[3,4] x, int64 n) => (float[3,4] y) {
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[3,4] s) => (bool d, float[3,4] t) {
            m = MatMul(s, w)
            t = Tanh(m)
            a = ReduceSum<keepdims=0>(t)
            d = Less(a, k)
        }>
    }"""
IF = """
    g (float[3,4] x, bool c) => (float[3,4] y, float[3,4] z) {
        y, z = If(c) <
            then_branch = b () => (float[3,4] t, float[3,4] r) {
                m = MatMul(x, w)
                t = Tanh(m)
                r = Identity(x)
            },
            else_branch = e () => (float[3,4] p, float[3,4] q) { p = Add(x, x) q = Sub(p, x) }
        >
    }"""
SCAN = """
    g (float[3,4] x) => (float[4] a, float[4] b, float[4,3] z) {
        a, b, z = Scan(u, v, x) <
            num_scan_inputs=1, scan_output_axes=[1], scan_input_directions=[1],
            body = b (float[4] p, float[4] q, float[4] s) => (float[4] q2, float[4] p2, float[4] r)
                { q2 = Identity(q) p2 = Add(p, q) r = Add(p2, s) }
        >
    }"""
ACROSS = """
    g (float[3,4] x) => (float[3,2] y) {
        y = Scan(x, k) <
            num_scan_inputs=2, scan_input_axes=[1, 0], scan_output_axes=[-1],
            scan_output_directions=[1],
            body = b (float[3] p, float[3] q) => (float[3] r) { r = Mul(p, q) }
        >
    }"""
NESTED = """
    g (float[3,4] x) => (float[3,4] y) {
        y = Loop(n, go, x) <body = b (int64 i, bool c, float[3,4] s) => (bool d, float[3,4] t) {
            d = Identity(c)
            t = Loop(n, go, s) <body = b2 (int64 j, bool c2, float[3,4] s2)
                => (bool d2, float[3,4] t2) {
                    d2 = Identity(c2)
                    f = Cast<to=1>(i)
                    f2 = Cast<to=1>(j)
                    q = Add(f, f2)
                    t1 = Add(s2, q)
                    t2 = Sin(t1)
                }>
        }>
    }"""
SWAP = """
    g (float[3,4] x) => (float[3,4] y, float[3,4] z) {
        y, z = Loop(n, go, x, k)
            <body = b (int64 i, bool c, float[3,4] s, float[3,4] u)
                => (bool d, float[3,4] t, float[3,4] v)
                { d = Identity(c) t = Identity(u) v = Identity(s) }>
    }"""
FLAG = np.array(True)
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (FOR, {}, {"n": np.array(5), "go": GO, "w": W}),
    (WHILE, {"n": np.array(7)}, {"go": GO, "w": W, "k": np.array(0.5, np.float32)}),
    (WHILE, {"n": np.array(0)}, {"go": GO, "w": W, "k": np.array(0.5, np.float32)}),
    (WHILE, {"n": np.array(9)}, {"go": GO, "w": W, "k": np.array(99, np.float32)}),
    (IF, {"c": np.array(True)}, {"w": W}),
    (IF, {"c": np.array(False)}, {"w": W}),
    (SCAN, {}, {"u": random(4), "v": random(4)}),
    (NESTED, {}, {"n": np.array(3), "go": GO}),
    (SWAP, {}, {"n": np.array(5), "go": GO, "k": random(3, 4, seed=5)}),
]


def peer(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("text", "inputs", "weights"), CASES)
def test_values(
    text: str, inputs: dict[str, Any], weights: dict[str, Any], threads: int, tmp_path: Path
) -> None:
    model = model_of(text, **weights)
    graph = import_model(model)
    kernels = scheduled(graph, host_target())
    verify(kernels)
    executable = build(graph, host_target(), options=BuildOptions(threads=threads))
    assert executable.report.host == 0, graph_text(kernels)
    given = {"x": X, **inputs}
    expected = peer(model, given)
    assert_close(run_reference(kernels, given), expected)
    for _ in range(2):  # what a run leaves behind does not matter to the next
        assert_close(executable.run(given), expected)
    executable.save(tmp_path / "m.tsm")
    loaded = Executable.load(tmp_path / "m.tsm")
    assert loaded.recipe.steps == executable.recipe.steps
    assert_close(loaded.run(given), expected)


def test_scans_along_other_axes() -> None:
    model = model_of(ACROSS.replace("[3,2]", "[3,4]"), k=random(4, 3))
    executable = build(import_model(model), host_target())
    assert executable.report.host == 0
    assert_close(executable.run({"x": X}), peer(model, {"x": X}))


def test_what_stays_on_the_host() -> None:
    """States that grow, rows that nobody can count, and what no kernel computes."""
    grows = """
        g (float[N] x, int64 n) => (float[M] y) {
            y = Loop(n, go, x) <body = b (int64 i, bool c, float[K] s) => (bool d, float[L] t)
                { d = Identity(c) t = Concat<axis=0>(s, s) }>
        }"""
    model = model_of(grows, go=GO)
    executable = build(import_model(model, {"x": (2,)}), host_target())
    assert [name.split()[0] for name in executable.report.host_nodes] == ["Loop"]
    given = {"x": random(2), "n": np.array(3)}
    assert_close(executable.run(given), peer(model, given))
    counted = FOR.replace("(float[3,4] x)", "(float[3,4] x, int64 n)", 1)
    executable = build(import_model(model_of(counted, go=GO, w=W)), host_target())
    assert executable.report.host == 1


def test_a_loop_s_kernels_are_tuned_as_often_as_they_run() -> None:
    graph = import_model(model_of(FOR, n=np.array(5), go=GO, w=W))
    weights = {t.workload.operator: t.weight for t in extract_tasks(graph, host_target())}
    assert weights["matmul"] == 5


def test_weights_of_a_body_are_stored_once() -> None:
    model = model_of(FOR, n=np.array(5), go=GO, w=W)
    report = build(import_model(model), host_target()).report
    assert report.constant_bytes <= 4 * 64 + W.nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loop: loop.update(trips=1 << 40), "ends behind the arena"),
        (lambda loop: loop.update(counter=["arena", 1 << 30]), "lies behind the arena"),
        (lambda loop: loop.update(counter=["constant", 0]), "names the region 'constant'"),
        (lambda loop: loop["steps"][0].update(host="x"), "has steps on the host"),
    ],
)
def test_damaged_loops_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.tsm"
    build(import_model(model_of(FOR, n=np.array(5), go=GO, w=W)), host_target()).save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    loop = next(step for step in manifest["steps"] if "loop" in step)
    change(loop)
    members["manifest.json"] = json.dumps(manifest).encode()
    _write(path, members)
    with pytest.raises(ModelError, match=message):
        Executable.load(path)


def _write(path: Path, members: dict[str, bytes]) -> None:
    from tilesmith.compiler.artifact.artifact_file import DIGEST, digest

    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name != DIGEST:
                archive.writestr(zipfile.ZipInfo(name), content)
        archive.writestr(zipfile.ZipInfo(DIGEST), digest(archive))
