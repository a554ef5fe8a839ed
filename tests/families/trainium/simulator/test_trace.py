"""Traces are valid, complete, cut where they say, and refuse an unwritable path in a sentence."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.families.trainium.codegen.random_kernels import random_kernel
from tilesmith.families.trainium.codegen.isa.instructions import Space
from tilesmith.families.trainium.simulator.timelines.drawing import draw, page
from tilesmith.families.trainium.simulator.timelines.timeline import timeline
from tilesmith.families.trainium.simulator.timelines.trace import bandwidth, live_bytes, write_trace
from tilesmith.search_space.support.errors import InputError


@pytest.fixture(scope="module")
def played(trn1):
    return timeline(random_kernel(trn1, 7, 60))


def test_trace_has_a_slice_for_every_instruction_and_an_arrow_for_every_semaphore(played, tmp_path):
    path = tmp_path / "trace.json"
    assert write_trace(played, path) == ""
    events = json.loads(path.read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(played.stream)
    assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(played.makespan / 1e3)
    queue = played.stream.rows["queue"]
    crossing = sum(queue[w] != queue[i.index] for i in played.stream for w in i.waits)
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == crossing
    named = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"tensor", "vector", "dma0 (load x)"} <= named
    counters = {e["name"] for e in events if e["ph"] == "C"}
    assert counters == {"SBUF KiB a partition", "PSUM KiB a partition", "DMA GB/s"}


def test_slices_of_a_track_do_not_overlap_and_hold_the_ends_of_arrows(played, tmp_path):
    write_trace(played, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for found in tracks.values():
        ends = [end for _, end in found]
        starts = [start for start, _ in found]
        assert all(start <= end for start, end in found)
        assert all(a <= b + 1e-9 for a, b in zip(ends, starts[1:], strict=False))
    for event in events:
        if event["ph"] in "sf":
            assert any(a <= event["ts"] <= b for a, b in tracks[event["tid"]])


def test_a_cut_trace_says_so(played, tmp_path):
    path = tmp_path / "trace.json"
    notice = write_trace(played, path, maximum=10)
    assert notice == f"the trace shows the first 10 of {len(played.stream)} instructions"
    found = json.loads(path.read_text())
    assert found["otherData"]["notice"] == notice
    assert sum(e["ph"] == "X" for e in found["traceEvents"]) == 10


def test_counters_add_up(played):
    times, sizes = live_bytes(played, len(played.stream), Space.SBUF)
    assert (np.diff(times) >= 0).all() and sizes[-1] == 0
    assert 0 < sizes.max() <= played.core.sbuf_bytes
    _, rates = bandwidth(played, len(played.stream), points=50)
    total = rates.sum() * played.end.max() / 50
    assert total == pytest.approx(played.costs.total_bytes)


def test_unwritable_path(played, tmp_path):
    for write in (write_trace, draw):
        with pytest.raises(InputError, match="cannot be written: No such file"):
            write(played, tmp_path / "missing" / "file")


def drawings(text):
    """Every SVG of a page, parsed."""
    parts = text.split("<svg")[1:]
    return [ElementTree.fromstring("<svg" + part[: part.index("</svg>") + 6]) for part in parts]


def test_picture_is_well_formed_and_shows_every_queue(played, tmp_path):
    draw(played, tmp_path / "timeline.html")
    text = (tmp_path / "timeline.html").read_text()
    (svg,) = drawings(text)
    assert "prefers-color-scheme: dark" in text
    assert svg.attrib["viewBox"].startswith("0 0 1290 ") and "width" not in svg.attrib
    labels = {e.text for e in svg.iter("text") if e.attrib["x"] == "0"}
    assert len(labels) == len(np.unique(played.stream.rows["queue"]))
    assert len(list(svg.iter("rect"))) > 20
    assert "matmul" in text and "0 us" in {e.text for e in svg.iter("text")}


def test_a_long_program_is_also_shown_close_up(trn1):
    played = timeline(random_kernel(trn1, 3, 3000))
    whole, close = drawings(page(played))
    bars = [len(list(svg.iter("rect"))) for svg in (whole, close)]
    assert len(played.stream) > 3000 and bars[0] < 12_000 and 200 < bars[1] < 500
    for bar in (*whole.iter("rect"), *close.iter("rect")):
        assert float(bar.attrib["x"]) + float(bar.attrib["width"]) <= 1200 + 90 + 1.1
