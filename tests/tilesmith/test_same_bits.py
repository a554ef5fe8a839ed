"""bits="same": models compiled from different tunings compute equal bits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import parser

import tilesmith as ts
from tilesmith.codegen.host.machine import host_target
from tilesmith.command_line import command_line
from tilesmith.records import Database, TuningRecord
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.search_space.workloads.workload import Workload

MODEL = """small (float[2, 3, 12, 12] x) => (float[2, 40] y)
{
    c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, v) r = Relu(c)
    d = Conv<kernel_shape = [3, 3], strides = [2, 2]>(r, w) s = Relu(d)
    g = GlobalAveragePool(s) f = Flatten(g)
    m = MatMul(f, u) n = LayerNormalization<axis = -1>(m, one)
    y = Softmax<axis = -1>(n)
}"""


def model(graph_text: str = MODEL) -> onnx.ModelProto:
    graph = parser.parse_graph(graph_text)
    rng = np.random.default_rng(0)
    weights = {"v": (40, 3, 3, 3), "w": (24, 40, 3, 3), "u": (24, 40)}
    arrays = {name: rng.standard_normal(shape) for name, shape in weights.items()}
    for name, array in {**arrays, "one": np.ones(40)}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


def outputs(database: Path, seed: int, threads: int, given: np.ndarray) -> tuple[bytes, set[str]]:
    """The bits of a model's output after a tuning of its own, and its schedules."""
    ts.tune(model(), database=database, trials=14, measure="simulator", bits="same", seed=seed,
            strategy="random")  # fmt: skip
    with ts.Database.open(database) as opened:
        records = list(opened.query())
    assert any("sums=same" in record.workload_key for record in records)
    compiled = ts.compile(model(), database=database, bits="same", threads=threads)
    configs = {str(step.config) for step in compiled.recipe.steps if hasattr(step, "config")}
    return compiled.run({"x": given})["y"].tobytes(), configs


def test_tunings_and_threads_give_equal_bits(tmp_path: Path) -> None:
    given = np.random.default_rng(1).standard_normal((2, 3, 12, 12)).astype(np.float32)
    one, first = outputs(tmp_path / "one.db", 1, 1, given)
    two, second = outputs(tmp_path / "two.db", 2, 2, given)
    untuned = ts.compile(model(), database=None, bits="same").run({"x": given})["y"].tobytes()
    assert one == two == untuned
    assert first != second, "the tunings chose the same schedules, so nothing was tested"


def test_a_sum_is_the_same_whether_its_epilogue_is_fused() -> None:
    """The sums of a convolution that is an output itself, and of one that ends in an activation."""
    text = """two (float[1, 3, 12, 12] x) => (float[1, 40, 12, 12] y{})
    {{
        c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, v) y = Relu(c)
    }}"""
    given = np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype(np.float32)
    shapes = ("", ", float[1, 40, 12, 12] c")
    fused, apart = (
        ts.compile(model(text.format(more)), database=None, bits="same") for more in shapes
    )
    assert len(fused.recipe.steps) < len(apart.recipe.steps)
    assert fused.run({"x": given})["y"].tobytes() == apart.run({"x": given})["y"].tobytes()


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(ModelError, match="target 'trn1' promises no bits=same; processors do"):
        ts.compile(model(), target="trn1", database=None, bits="same")
    with pytest.raises(InputError, match="bits = 'equal' means nothing; use any or same"):
        ts.compile(model(), database=None, bits="equal")


def diff(folder: Path, *more: str) -> Result:
    words = ["db", "diff", str(folder / "ours"), str(folder / "theirs"), *more]
    return CliRunner().invoke(command_line, words)


@pytest.mark.parametrize(
    "theirs, bits",
    [
        ({"rows": 2, "accumulators": 4, "unroll": 1}, "equal"),
        ({"rows": 1, "accumulators": 2, "unroll": 1}, "other"),
        ({"rows": 1, "accumulators": 4, "unroll": 1, "lost": 1}, None),
    ],
)
def test_diff_says_where_bits_change(
    tmp_path: Path, theirs: dict[str, int], bits: str | None
) -> None:
    """Accumulators of a row are partial sums; rows at a time and unrolling change no sum."""
    workload, target = Workload.parse("layer_norm shape=5x600"), host_target()
    ours = {"rows": 1, "accumulators": 4, "unroll": 1}
    for name, knobs, latency in (("ours", ours, 2e-6), ("theirs", theirs, 1e-6)):
        config = Config.of({"algorithm": "loops", **knobs})
        result = MeasureResult("ok", "hardware", (latency,))
        with Database.open(str(tmp_path / name)) as opened:
            opened.register_target(target)
            opened.add([TuningRecord.of(workload, target, config, result)])
    (one,) = json.loads(diff(tmp_path, "--json").stdout)["differences"]
    assert one["bits"] == bits
    told = diff(tmp_path)
    if bits is None:
        assert "bits" not in told.stdout and "of 1 nobody can tell" in told.stderr
        return
    assert f"{bits} bits" in told.stdout
    assert ("1 of the 1 listed change the last bits" in told.stderr) == (bits == "other")
