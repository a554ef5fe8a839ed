"""Selection, search, statistics and moves on chip: values against numpy, shapes, text and costs."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.codegen.isa.text import to_text
from tilesmith.families.trainium.codegen.kernel.builder import Kernel
from tilesmith.families.trainium.codegen.timing.costs import costs
from tilesmith.families.trainium.simulator.execution.functional import execute
from tilesmith.search_space.support.errors import CodegenError, VerificationError

P, F = 128, 96
FILL = -9.5


def finish(core, write, inputs, outputs):
    """A kernel that loads `inputs` (arrays by name), runs `write`, stores `outputs` (shapes)."""
    kernel = Kernel("special", core)
    tiles = {}
    for name, value in inputs.items():
        tiles[name] = kernel.sbuf(value.shape, str(value.dtype), name=name)
        kernel.load(tiles[name], kernel.input(name, value.shape, str(value.dtype)))
    for name, (shape, dtype) in outputs.items():
        tiles[name] = kernel.sbuf(shape, dtype, name=name)
    write(kernel, tiles)
    for name, (shape, dtype) in outputs.items():
        kernel.store(kernel.output(f"{name}_stored", shape, dtype), tiles[name])
    return kernel.finish()


@pytest.fixture
def run(trn1):
    def run(write, inputs, **outputs):
        stream = finish(trn1, write, inputs, outputs)
        found = execute(stream, inputs)
        return [found[f"{name}_stored"] for name in outputs]

    return run


@pytest.fixture
def x(rng):
    return rng.standard_normal((P, F)).astype(np.float32)


FULL, COLUMN = ((P, F), "float32"), ((P, 1), "float32")
EIGHT = ((P, 8), "float32")


def test_statistics_of_several_parts_give_mean_and_variance(run, rng):
    x = rng.standard_normal((P, 701)).astype(np.float32) * 3 + 1

    def write(k, t):
        parts = k.sbuf((P, 2, 6))
        k.bn_stats(parts[:, 0], t["x"][:, :512])
        k.bn_stats(parts[:, 1], t["x"][:, 512:])
        k.bn_aggr(t["y"], parts)

    (y,) = run(write, {"x": x}, y=((P, 2), "float32"))
    np.testing.assert_allclose(y[:, 0], x.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(y[:, 1], x.var(axis=1), rtol=1e-5)


def test_sixteen_largest_in_two_rounds_and_their_places(run, x):
    def write(k, t):
        rest = k.sbuf((P, F))
        k.max8(t["y"][:, :8], t["x"])
        k.match_replace8(rest, t["x"], t["y"][:, :8], -1e30)
        k.max8(t["y"][:, 8:], rest)
        k.find_index8(t["i"], t["x"], t["y"][:, 8:])

    y, i = run(write, {"x": x}, y=((P, 16), "float32"), i=((P, 8), "int32"))
    order = np.argsort(-x, axis=1)
    np.testing.assert_array_equal(y, np.take_along_axis(x, order[:, :16], 1))
    np.testing.assert_array_equal(i, order[:, 8:16])


def test_a_value_named_twice_is_replaced_twice(run):
    x = np.tile(np.array([3, 1, 3, 3, 0, 0, 0, 0, 0, 0], np.float32), (P, 1))
    values = np.tile(np.array([3, 3, 1, 7, 7, 7, 7, 7], np.float32), (P, 1))
    (y,) = run(
        lambda k, t: k.match_replace8(t["y"], t["x"], t["v"], FILL), {"x": x, "v": values},
        y=((P, 10), "float32"),
    )  # fmt: skip
    np.testing.assert_array_equal(y[0], [FILL, FILL, FILL, 3, 0, 0, 0, 0, 0, 0])


def test_selection_by_predicate_with_row_maxima(run, x):
    keep = (x > 0.3).astype(np.int8)

    def write(k, t):
        k.select_reduce(t["y"], t["x"], t["keep"], FILL, t["m"])

    y, m = run(write, {"x": x, "keep": keep}, y=FULL, m=COLUMN)
    expected = np.where(keep, x, np.float32(FILL))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(m[:, 0], expected.max(axis=1))


def test_a_predicated_copy_keeps_what_it_does_not_write(run, x):
    keep = (x > 0).astype(np.uint8)

    def write(k, t):
        k.memset(t["y"], 7.0)
        k.copy_predicated(t["y"], t["x"], t["keep"])

    (y,) = run(write, {"x": x, "keep": keep}, y=FULL)
    np.testing.assert_array_equal(y, np.where(keep, x, np.float32(7)))


def test_selection_by_range(run, x, rng):
    low = rng.integers(0, 60, (P, 1)).astype(np.float32)
    high = low + rng.integers(0, 60, (P, 1)).astype(np.float32)

    def write(k, t):
        k.range_select(t["y"], t["x"], t["low"], t["high"], FILL, start=5, maxima=t["m"])

    y, m = run(write, {"x": x, "low": low, "high": high}, y=FULL, m=COLUMN)
    place = np.arange(F) + 5
    expected = np.where((place >= low) & (place < high), x, np.float32(FILL))
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(m[:, 0], expected.max(axis=1))


@pytest.mark.parametrize(("reduce", "numpy"), [("add", np.sum), ("max", np.max)])
def test_tensor_scalar_with_its_rows_reduced(run, x, reduce, numpy):
    def write(k, t):
        k.tensor_scalar_reduce(t["y"], t["x"], "multiply", 3.0, reduce, t["r"])

    y, r = run(write, {"x": x}, y=FULL, r=COLUMN)
    np.testing.assert_allclose(y, 3 * x, rtol=1e-6)
    np.testing.assert_allclose(r[:, 0], numpy(3 * x, axis=1), rtol=1e-5, atol=1e-5)


def test_indices(run):
    (y,) = run(lambda k, t: k.iota(t["y"], 5, 100, -2), {}, y=((P, F), "int32"))
    np.testing.assert_array_equal(y, 5 + 100 * np.arange(P)[:, None] - 2 * np.arange(F))


def test_a_local_gather_shares_indices_within_16_partitions(run, x, rng):
    index = rng.integers(0, F, (P, 2)).astype(np.int32)
    (y,) = run(
        lambda k, t: k.local_gather(t["y"], t["x"], t["i"]), {"x": x, "i": index},
        y=((P, 27), "float32"),
    )  # fmt: skip
    for p in range(P):
        group = index[p // 16 * 16 : p // 16 * 16 + 16]
        picked = [group[i % 16, i // 16] for i in range(27)]
        np.testing.assert_array_equal(y[p], x[p, picked])


def test_a_shuffle_permutes_within_quarters(run, x, rng):
    mask = rng.integers(0, 32, 32).tolist()
    (y,) = run(lambda k, t: k.shuffle(t["y"], t["x"], mask), {"x": x}, y=FULL)
    expected = np.concatenate([x[q : q + 32][mask] for q in range(0, P, 32)])
    np.testing.assert_array_equal(y, expected)


def issue(core, write, **shapes):
    """ns that the last instruction of a kernel of one step occupies its engine."""
    kernel = Kernel("cost", core)
    tiles = {}
    for name, (shape, dtype) in shapes.items():
        tiles[name] = kernel.sbuf(shape, dtype, name=name)
        kernel.memset(tiles[name], 1.0)
    write(kernel, tiles)
    stream = kernel.draft()
    return costs(stream).issue[-1] * core.clocks[int(stream.rows["queue"][-1])]


def chain(k, t):
    k.scalar_tensor_tensor(t["x"], t["y"], "subtract", 1.0, "multiply", t["z"])


B16 = ((P, 512), "bfloat16")
F32 = ((P, 512), "float32")


@pytest.mark.parametrize(
    ("write", "cycles"),
    [
        (lambda k, t: k.bn_stats(t["few"], t["a"]), 512),
        (lambda k, t: k.bn_aggr(t["few"][:, :2], t["b"][:, :300]), 1300),
        (lambda k, t: k.max8(t["few"], t["a"]), 512),
        (lambda k, t: k.tensor_scalar_reduce(t["a"], t["b"], "add", 1.0, "add", t["one"]), 576),
        (lambda k, t: k.activation(t["a"], "exp", t["b"], sums=t["one"]), 576),
        (lambda k, t: k.iota(t["a"], 0, 1, 1), 662),
        (lambda k, t: k.shuffle(t["a"], t["b"], list(range(32))), 512),
        (lambda k, t: k.select_reduce(t["a"], t["b"], t["c"], 0.0), 1024),
        (lambda k, t: k.tensor_tensor(t["a"], t["b"], "add", t["c"]), 1024),
        (lambda k, t: k.tensor_tensor(t["x"], t["y"], "add", t["z"]), 512),
        (lambda k, t: k.tensor_tensor(t["x"], t["y"], "max", t["z"]), 1024),
        (lambda k, t: k.scalar_tensor_tensor(t["x"], t["y"], "add", 1.0, "add", t["z"]), 1024),
        (chain, 512),
        (lambda k, t: k.reduce(t["x"][:, :1], t["y"], "add"), 256),
        (lambda k, t: k.reduce(t["x"][:, :1], t["y"], "min"), 512),
        (lambda k, t: k.copy(t["a"][:, :128], t["b"].split(1, 128, 4)[:, :, 0]), 128),
        (lambda k, t: k.copy(t["a"][:, :64], t["b"].split(1, 64, 8)[:, :, 0]), 128),
    ],
)  # fmt: skip
def test_issue_costs_are_those_of_the_instruction_reference(trn1, write, cycles):
    shapes = {"a": F32, "b": F32, "c": F32, "x": B16, "y": B16, "z": B16}
    shapes |= {"few": EIGHT, "one": COLUMN}
    assert issue(trn1, write, **shapes) == pytest.approx(cycles)


@pytest.mark.parametrize(
    ("dtype", "cycles"),
    [("bfloat16", [256, 512, 256]), ("float16", [512, 1024, 512]), ("float32", [512, 1024, 512])],
)
def test_only_bfloat16_has_the_quick_rates(trn1, dtype, cycles):
    shapes = dict.fromkeys("xyz", ((P, 512), dtype)) | {"sum": ((P, 1), dtype)}
    writes = (
        lambda k, t: k.reduce(t["sum"], t["x"], "add"),
        lambda k, t: k.tensor_tensor(t["x"], t["y"], "add", t["z"]),
        lambda k, t: k.memset(t["x"], 0.0),
    )
    assert [issue(trn1, write, **shapes) for write in writes] == pytest.approx(cycles)


@pytest.mark.parametrize(
    ("write", "cycles"),
    [
        (lambda k, t: k.copy(t["x"], t["y"]), 128),
        (lambda k, t: k.tensor_scalar(t["x"], t["y"], "add", 1.0), 128),
        (lambda k, t: k.copy(t["x"][:, :256], t["y"].split(1, 256, 2)[:, :, 0]), 128),
        (lambda k, t: k.tensor_tensor(t["x"], t["y"], "add", t["z"]), 256),
        (lambda k, t: k.tensor_tensor(t["a"], t["b"], "add", t["c"]), 1024),
        (lambda k, t: k.copy(t["a"], t["b"]), 256),
        (lambda k, t: k.reciprocal(t["a"], t["b"]), 512),
    ],
)  # fmt: skip
def test_the_vector_engines_performance_mode_is_that_of_trainium2(trn2, write, cycles):
    shapes = {"a": F32, "b": F32, "c": F32, "x": B16, "y": B16, "z": B16}
    assert issue(trn2, write, **shapes) == pytest.approx(cycles)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda k, t: k.bn_stats(t["y"][:, :5], t["x"]), "out has 5 elements a partition; 6 are"),
        (lambda k, t: k.bn_aggr(t["y"][:, :2], t["x"][:, :7]), "3 to .*, a multiple of 3, are"),
        (lambda k, t: k.max8(t["y"], t["x"][:, :4]), "in0 has 4 elements .*; 8 to 16384"),
        (lambda k, t: k.local_gather(t["x"], t["x"], t["y"][:, :5]), "5 indices .* too few"),
        (
            lambda k, t: k.shuffle(t["z"][:40], t["x"][:40], list(range(32))),
            "40 partitions are no multiple of 32",
        ),
        (
            lambda k, t: k.range_select(t["z"], t["x"], t["y"], t["y"], 0.0),
            "in1 must have one element",
        ),
    ],
)
def test_wrong_sizes_name_instruction_and_limit(trn1, x, write, message):
    inputs = {"x": x, "z": x, "y": x[:, :8].copy()}
    with pytest.raises(VerificationError, match=message):
        finish(trn1, write, inputs, {})


def test_a_mask_outside_the_quarter_is_refused(trn1):
    kernel = Kernel("mask", trn1)
    tile = kernel.sbuf((P, 4))
    with pytest.raises(CodegenError, match="32 entries from 0 to 31"):
        kernel.shuffle(tile, tile, [32] * 32)


def test_text_names_what_each_instruction_does(trn1, x):
    mask = [31 - i for i in range(32)]

    def write(k, t):
        k.iota(t["y"], 3, 2, 1)
        k.shuffle(t["y"], t["x"], mask)
        k.range_select(t["y"], t["x"], t["x"][:, :1], t["x"][:, 1:2], FILL, start=4)

    text = to_text(finish(trn1, write, {"x": x}, {"y": FULL}))
    assert "gpsimd iota 3 + 2*p + 1*f sbuf" in text
    assert f"vector shuffle {','.join(map(str, mask))} sbuf" in text
    assert "vector range_select 4 + f sbuf" in text and text.count(f"{FILL}") == 1


def test_every_instruction_has_an_engine_and_an_execution(trn1):
    from tilesmith.families.trainium.codegen.isa.instructions import ENGINES_OF
    from tilesmith.families.trainium.simulator.execution.functional import FunctionalCore

    assert set(ENGINES_OF) == set(Opcode)
    assert all(hasattr(FunctionalCore, op.name.lower()) for op in Opcode if op != Opcode.COLLECTIVE)
