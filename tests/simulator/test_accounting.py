"""Accounts add up, and lanes hold what they are given, against counting moment by moment."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilesmith as ts
from tilesmith.families.kit.simulation.accounting import IDLE, Share, exclusive, lines
from tilesmith.families.kit.simulation.operator_lane import OperatorSpan, lanes, svg


@pytest.mark.parametrize("seed", range(20))
def test_exclusive_shares_are_what_counting_gives(seed: int) -> None:
    rng, whole = np.random.default_rng(seed), 60
    classes, taken, left = {}, {}, np.ones(whole, bool)
    for name in ("a", "b", "c"):
        start = rng.integers(0, whole, rng.integers(0, 9))
        end = np.minimum(start + rng.integers(0, 12, len(start)), whole)
        classes[name] = (start.astype(float), end.astype(float))
        mine = np.zeros(whole, bool)
        for first, last in zip(start, end, strict=True):
            mine[first:last] = True
        taken[name] = float((mine & left).sum())
        left &= ~mine
    found = exclusive(classes, whole)
    assert found == {**taken, IDLE: float(left.sum())}
    assert sum(found.values()) == whole


def test_an_account_names_its_parts_and_leaves_out_nothing() -> None:
    text = lines("why", [Share("a", 3.0), Share("none", 0.0), Share("b", -1.0, "less")],
                 Share("all", 2.0), subtotals=True)  # fmt: skip
    assert len(text) == 4 and "none" not in "".join(text)
    assert "-     1.00 us =     2.00  b: less" in text[2] and text[3].startswith("  =     2.00 us")


def test_lanes_do_not_overlap_and_hold_every_span() -> None:
    rng = np.random.default_rng(0)
    spans = [OperatorSpan(f"n{i}", s, s + rng.random()) for i, s in enumerate(5 * rng.random(40))]
    found = lanes(spans)
    assert sorted(s.name for lane in found for s in lane) == sorted(s.name for s in spans)
    for lane in found:
        assert all(a.end <= b.start for a, b in pairwise(lane))
    starts = [s.start for s in spans]
    assert len(found) == max(sum(s.start <= t < s.end for s in spans) for t in starts)
    assert "&lt;x&gt;" in svg([OperatorSpan("<x>", 0, 1)], (0, 1), 100, 10, 20)


def saved(path: Path) -> Path:
    """Two layers and a softmax, their nodes named."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), f"w{i}")
               for i in range(2)]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="first/MatMul"),
        helper.make_node("Relu", ["h"], ["r"], name="first/<Relu>"),
        helper.make_node("MatMul", ["r", "w1"], ["g"], name="second/MatMul"),
        helper.make_node("Softmax", ["g"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes, "named", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (64, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path


@pytest.mark.parametrize("target", ["trn1", "lpu1"])
def test_models_show_their_operators_and_where_their_time_goes(target: str, tmp_path: Path) -> None:
    model, trace, page = saved(tmp_path / "m.onnx"), tmp_path / "t.json", tmp_path / "t.html"
    found = ts.simulate(model, target=target, trace=trace)
    ts.simulate(model, target=target, trace=page)
    for account in ("chain", "time"):
        parts = found.details[account]
        assert sum(part["us"] for part in parts) == pytest.approx(found.latency_us)
    assert all(part["us"] >= 0 for part in found.details["time"])
    assert found.details["chain"][0]["us"] == pytest.approx(found.details["model_roofline_us"])
    assert found.details["model_roofline_us"] <= found.latency_us
    shown = sum(op.details["shown_us"] for op in found.ops)
    assert shown + found.details["host_us"] == pytest.approx(found.latency_us)
    lane = [event for event in json.loads(trace.read_text())["traceEvents"]
            if event.get("cat") == "operator"]  # fmt: skip
    named = [event["name"] for event in lane]
    assert sorted(named) == ["first/MatMul, first/<Relu>", "head", "second/MatMul"]
    ends = [event["ts"] + event["dur"] for event in lane]
    assert max(ends) == pytest.approx(found.latency_us, rel=0.05)
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in lane)
    text = page.read_text()
    HTMLParser().feed(text)
    assert "first/MatMul, first/&lt;Relu&gt;" in text and ">operators<" in text
