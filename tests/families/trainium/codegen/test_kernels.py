"""The measured kernels: right values at small sizes, published latency and traffic at full size."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import published
import pytest
from subjects import kernels, tutorials

from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.search_space.hardware.target import load_target


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def close(got, expected):
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.fixture
def normal(rng):
    return lambda *shape: rng.standard_normal(shape).astype(np.float32)


def test_silu(trn1, normal):
    x = normal(256, 2048)
    close(execute(kernels.silu(trn1, 256, 2048), {"x": x})["y"], x * sigmoid(x))


def test_transpose_matmul_with_a_cut_block(trn1, normal):
    lhs, rhs = normal(256, 256), normal(256, 1664)
    stream = kernels.transpose_matmul(trn1, 256, 256, 1664)
    close(execute(stream, {"lhs": lhs, "rhs": rhs})["out"], lhs.T @ rhs)


def test_matmul(trn1, normal):
    a, b = normal(256, 384), normal(384, 1024)
    close(execute(kernels.matmul(trn1, 256, 384, 1024), {"a": a, "b": b})["out"], a @ b)


def test_bmm(trn1, normal):
    lhs, rhs = normal(2, 512, 64), normal(2, 64, 1024)
    stream = kernels.bmm(trn1, 2, 512, 64, 1024)
    close(execute(stream, {"lhs": lhs, "rhs": rhs})["out"], lhs @ rhs)


def test_bmm_turns_its_left_operand_once(trn1, normal):
    """Four strips in two places: each turned once, and what is reloaded is what was spilled."""
    lhs, rhs = normal(1, 2048, 64), normal(1, 64, 2048)
    stream = kernels.bmm(trn1, 1, 2048, 64, 2048, block=512)
    close(execute(stream, {"lhs": lhs, "rhs": rhs})["out"], lhs @ rhs)
    assert (stream.rows["op"] == Opcode.TRANSPOSE).sum() == 2048 // 128
    read, _ = published.traffic(stream)
    assert read * 1e6 == rhs.nbytes + lhs.nbytes * (1 + 8 / 4)


def test_adamw(trn1, normal):
    p, g, m = (normal(200, 1024) for _ in range(3))
    v = normal(200, 1024) ** 2
    stream = kernels.adamw(trn1, 200, 1024, 512)
    m1, v1 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    update = m1 / (1 - 0.9**10) / (np.sqrt(v1 / (1 - 0.999**10)) + 1e-8)
    inputs = {"parameter": p, "gradient": g, "m": m, "v": v}
    close(execute(stream, inputs)["new_parameter"], p - 1e-2 * update - 1e-4 * p)


def test_rope_single_freq(trn1, normal):
    x, cos, sin = normal(2, 64, 384), normal(32, 384), normal(32, 384)
    stream = kernels.rope_single_freq(trn1, 2, 384, 64)
    low, high = x[:, :32], x[:, 32:]
    expected = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1)
    close(execute(stream, {"x": x, "cos": cos, "sin": sin})["y"], expected)


def test_kernels_are_compared_after_scheduling(trn1):
    """Instructions change places, not engines, and compute the same; a finished kernel will do."""
    stream = kernels.swiglu(trn1, 512, 1024, 1024)
    written, played = timeline(stream), timeline(stream, schedule=True)
    assert played.makespan < written.makespan
    assert played.occupied == pytest.approx(written.occupied)
    assert timeline(played.stream, schedule=True).makespan == played.makespan
    sorted_rows = [np.sort(s.rows["op"] * 64 + s.rows["queue"]) for s in (stream, played.stream)]
    np.testing.assert_array_equal(*sorted_rows)


def test_swiglu(trn1, normal):
    x, gate, up, down = normal(128, 256), normal(256, 1024), normal(256, 1024), normal(1024, 512)
    down = down[:, :512]
    x, gate, up = 0.1 * x, gate, up
    stream = kernels.swiglu(trn1, 128, 512, 1024, 512)
    x, gate, up = (np.concatenate([t, t], axis=a) for t, a in ((x, 1), (gate, 0), (up, 0)))
    g = x @ gate
    expected = (g * sigmoid(g) * (x @ up)) @ down
    inputs = {"x": x, "gate": gate, "up": up, "down": down}
    close(execute(stream, inputs)["out"], expected)


@pytest.mark.parametrize(("left", "right"), [(1, 1), (2, 1), (4, 2)])
def test_gemm_of_the_tutorial(trn1, normal, left, right):
    lhs, rhs = 0.1 * normal(256, 512), normal(256, 1024)
    stream = tutorials.gemm(trn1, 4, 2, left, right, k=256, m=512, n=1024)
    out = execute(stream, {"lhs": lhs, "rhs": rhs})["out"]
    assert np.abs(out - lhs.T @ rhs).max() < 0.02 * np.abs(lhs.T @ rhs).max()


def test_staged_attention_of_the_tutorial(trn1, normal):
    q, k, v = (normal(128, 512) for _ in range(3))
    out = execute(tutorials.staged_attention(trn1, 512), {"q": q, "k": k, "v": v})["out"]
    scores = np.exp(q.T @ k - (q.T @ k).max(axis=1, keepdims=True))
    expected = scores / scores.sum(axis=1, keepdims=True) @ v.T
    assert np.abs(out - expected).max() < 0.03 * np.abs(expected).max()


def test_late_attention_of_the_tutorial_overlaps_where_instructions_move(trn1, normal):
    """In the order of its source every step waits for the one before."""
    q, k, v = (0.2 * normal(128, 512) for _ in range(3))
    stream = tutorials.late_attention(trn1, 512)
    scores = np.exp(q.T @ k)
    expected = scores / scores.sum(axis=1, keepdims=True) @ v.T
    out = execute(stream, {"q": q, "k": k, "v": v})["out"]
    assert np.abs(out - expected).max() < 0.03 * np.abs(expected).max()
    assert timeline(stream, schedule=True).makespan < 0.6 * timeline(stream).makespan


@pytest.mark.parametrize(("left", "right", "measured"), [(1, 1, 8.07), (2, 1, 7.62), (4, 2, 6.96)])
def test_products_whose_loads_differ_in_rows_alone_are_as_measured(trn1, left, right, measured):
    """An eighth of the kernel that was measured, whose blocks of rows are alike."""
    played = timeline(tutorials.gemm(trn1, 4, 2, left, right, m=512))
    assert 8 * played.makespan / 1e6 == pytest.approx(measured, rel=0.06)


PROFILED = sorted(name for name, known in published.PUBLISHED.items() if known.read is not None)


@pytest.mark.parametrize("name", PROFILED)
def test_latency_and_traffic_are_as_published(trn1, name):
    known = published.PUBLISHED[name]
    stream = known.kernel(trn1)
    read, written = published.traffic(stream)
    played = timeline(stream, schedule=True)
    assert played.makespan / 1e6 == pytest.approx(known.latency, rel=0.15)
    assert read + written == pytest.approx(known.read + known.written, rel=0.05)


def test_only_calibratable_constants_are_fitted():
    target = load_target("trn1")
    assert all(target.fact(name).calibratable for name in published.FITS)
    fitting = {kernel for kernel, _, _ in published.FITS.values()}
    calibrating = {name for name, p in published.PUBLISHED.items() if p.calibrates}
    assert calibrating == fitting | {name for name in calibrating if name.startswith("gemm 4x2")}


def test_the_kernel_of_the_documentation_runs():
    text = (Path(__file__).parents[4] / "docs" / "accelerators.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict[str, object] = {}
    exec(code, names)
    stream = names["stream"]
    x = np.linspace(-4, 4, 1024 * 512, dtype=np.float32).reshape(1024, 512)
    close(execute(stream, {"x": x})["y"], x * sigmoid(x))


def test_the_example_runs_and_more_copies_are_faster(capsys, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    monkeypatch.setattr(sys, "argv", ["accelerator_kernel.py", str(page)])
    path = Path(__file__).parents[4] / "examples" / "accelerator_kernel.py"
    runpy.run_path(str(path), run_name="__main__")
    text = capsys.readouterr().out
    times = [float(t) for t in re.findall(r"copies of each tile: ([\d.]+) us", text)]
    assert times == sorted(times, reverse=True) and len(times) == 3
    assert page.read_text().endswith("</html>\n")
