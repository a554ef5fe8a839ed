"""Choices among a few on accelerators: no host, the values of onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.model_builder import expected, model_of, random
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import JobError
from tilesmith.search_space.workloads.scheduler import is_scheduled
from tilesmith.search_space.workloads.workload import Workload

TRN1 = load_target("trn1")
TABLE = random(8, 6, seed=3)
ROUTED = """g (float[5, 8] x) => (float[5, 3] v, float[5, 3, 6] y) {
    v, i = TopK<axis=-1, largest=LARGEST>(x, k) y = Gather<axis=0>(table, i) }"""


def _scores(kind: str) -> np.ndarray:
    x = random(5, 8, seed=7)
    if kind == "ties":
        x = np.round(x)
    if kind == "endless":
        x[:, [0, 3, 4]], x[1], x[2, 5:7] = -np.inf, -np.inf, np.inf
    if kind == "zeros":
        x = np.where(x > 0, np.float32(-0.0), np.float32(0.0))
    return x


@pytest.mark.parametrize("kind", ["random", "ties", "endless", "zeros"])
@pytest.mark.parametrize("largest", [1, 0])
def test_the_first_by_rank_need_no_host(kind: str, largest: int) -> None:
    model = model_of(ROUTED.replace("LARGEST", str(largest)), k=np.array([3]), table=TABLE)
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0, executable.report.host_nodes
    inputs = {"x": _scores(kind)}
    found, wanted = executable.run(inputs), expected(model, inputs)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("largest", [1, 0])
def test_what_is_not_a_number_stands_where_it_stands_on_the_host(largest: int) -> None:
    """Larger than all numbers, the first of several first: as CPUs' kernels have it."""
    text = ROUTED.replace("LARGEST", str(largest))
    model = model_of(text, k=np.array([3]), table=TABLE)
    x = _scores("ties")
    x[0, 2], x[1, 1:4], x[2, :], x[3, 5] = np.nan, np.nan, np.nan, np.nan
    x[3, 6] = np.inf
    found = build(import_model(model), TRN1).run({"x": x})["y"]
    wanted = build(import_model(model), host_target()).run({"x": x})["y"]
    np.testing.assert_array_equal(found, wanted)


def test_a_caller_and_the_host_see_whole_numbers() -> None:
    model = model_of(
        """g (float[5, 8] x) => (int64[5, 2] i, int64[5, 2] c) {
        v, i = TopK(x, k) flat = Reshape(i, shape) c = Reshape(flat, back) }""",
        k=np.array([2]), shape=np.array([10]), back=np.array([5, 2]),
    )  # fmt: skip
    executable = build(import_model(model), TRN1)
    assert executable.report.host == 0
    found, wanted = executable.run({"x": _scores("ties")}), expected(model, {"x": _scores("ties")})
    for name, value in wanted.items():
        assert found[name].dtype == np.int64
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_groups_are_marked_and_picked_from(precision: str) -> None:
    """As a mixture of experts in groups does; what bf16 can say is exact there, too."""
    model = model_of(
        """g (float[6, 16] x) => (float[6, 16] y, float[6, 3] w, int64[6, 3] i) {
        s = Reshape(x, groups) top, t = TopK(s, two) sums = ReduceSum<keepdims=0>(top, last)
        best, g = TopK(sums, two) mark = ScatterElements<axis=1>(zero, g, one)
        m = Reshape(mark, column) y3 = Mul(s, m) y = Reshape(y3, rows)
        some, i = TopK(y, three) w = GatherElements<axis=1>(x, i) }""",
        groups=np.array([6, 4, 4]), two=np.array([2]), three=np.array([3]), last=np.array([2]),
        zero=np.zeros((6, 4), np.float32), one=np.ones((6, 2), np.float32),
        column=np.array([6, 4, 1]), rows=np.array([6, 16]),
    )  # fmt: skip
    executable = build(import_model(model), TRN1, options=BuildOptions(precision=precision))
    assert executable.report.host == 0, executable.report.host_nodes
    x = (np.random.default_rng(5).permutation(96).reshape(6, 16) + 1).astype(np.float32)
    found, wanted = executable.run({"x": x}), expected(model, {"x": x})
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    "body",
    [
        "v, i = TopK<axis=0>(x, k) y = Identity(i)",
        "v, i = TopK(x, k) y = Add(i, i)",
        "z = Concat<axis=1>(x, x, x, x, x, x, x, x, x) v, i = TopK(z, k) y = Identity(i)",
    ],
    ids=["another axis", "arithmetic of indices", "many"],
)
def test_other_choices_stay_on_the_host(body: str) -> None:
    shape = "2, 8" if "axis=0" in body else "5, 2"
    model = model_of(f"g (float[5, 8] x) => (int64[{shape}] y) {{ {body} }}", k=np.array([2]))
    executable = build(import_model(model), TRN1)
    assert executable.report.host
    x = _scores("random")
    np.testing.assert_array_equal(executable.run({"x": x})["y"], expected(model, {"x": x})["y"])


def test_an_index_behind_a_shorter_table_is_still_refused() -> None:
    model = model_of(
        "g (float[1, 8] x) => (float[1, 1, 6] y) { v, i = TopK(x, k) y = Gather(table, i) }",
        k=np.array([1]), table=TABLE[:5],
    )  # fmt: skip
    executable = build(import_model(model), TRN1)
    x = np.zeros((1, 8), np.float32)
    np.testing.assert_array_equal(executable.run({"x": x})["y"][0, 0], TABLE[0])
    x[0, 6] = 1
    with pytest.raises(JobError, match="index 6 of an axis with 5"):
        executable.run({"x": x})


def test_floating_indices_are_for_accelerators() -> None:
    work = Workload.of("gather", {"shape": "9x4", "indices": "3", "index": "float32"})
    assert is_scheduled(work, TRN1) and not is_scheduled(work, host_target())
