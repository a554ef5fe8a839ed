"""Native code against the interpreter: tails, masks, guards, selects, reductions, dtypes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.kernels import HOST, LANES, native, pointwise, same, vectorized
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.search_space.expressions.expression import const, var
from tilesmith.search_space.expressions.scalar import REDUCERS, Const, Select, call, load
from tilesmith.search_space.ir.program import Block, Buffer, Loop, Program
from tilesmith.search_space.scheduling.compute import ComputeDefinition, Stage, Tensor, axis
from tilesmith.search_space.scheduling.layout import Layout
from tilesmith.search_space.scheduling.lowering import lower
from tilesmith.search_space.scheduling.schedule import Schedule
from tilesmith.search_space.support.errors import CodegenError, VerificationError

I = var("i")  # noqa: E741
FLOATS = {"x": "float32"}


def numbers(count: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, count).astype(dtype)


@given(st.integers(1, 5 * LANES), st.integers(1, LANES))
def test_masked_tails(extent: int, lanes: int) -> None:
    """Any extent, any number of lanes in use, what lies behind the output untouched."""
    value = call("add", call("multiply", load("x", I), 2.0), 1.0)
    schedule = vectorized(pointwise(extent, value, FLOATS), lanes)
    kernel = NativeKernel(compile_program(lower(schedule), HOST))
    x = numbers(extent)
    output = np.full(extent + LANES, 77, dtype=np.float32)
    kernel.run({"x": np.ascontiguousarray(x), "y": output})
    np.testing.assert_array_equal(output[:extent], 2 * x + 1)
    assert (output[extent:] == 77).all()


@given(st.integers(1, 40), st.integers(-5, 45), st.integers(-5, 45))
def test_selects_read_only_the_side_they_take(extent: int, low: int, high: int) -> None:
    """Zero padding: a lane outside must not touch memory outside."""
    inside = (I - low, high - I, I - 3, extent - 1 - (I - 3))
    value = Select(inside, load("x", I - 3), Const(-1.0))
    x = numbers(extent)
    for schedule in (
        pointwise(extent, value, FLOATS),
        vectorized(pointwise(extent, value, FLOATS)),
    ):
        same(schedule, {"x": x})


def test_uniform_selects_branch() -> None:
    i, j = axis("i", 6), axis("j", 20)
    value = Select((i.var - 2, j.var - 5), load("x", i.var - 2, j.var - 5), Const(3.0))
    compute = ComputeDefinition("s", (Tensor("x", (6, 20)),), (Stage("y", (i, j), value),))
    schedule = Schedule(compute).split("y", "j", LANES, "jo", "lane").vectorize("y", "lane")
    same(schedule, {"x": numbers(120).reshape(6, 20)})


@pytest.mark.parametrize("vector", [False, True])
def test_guards_write_only_where_they_hold(vector: bool) -> None:
    i = axis("i", 50)
    stage = Stage(
        "y",
        (i,),
        load("x", i.var),
        store=(i.var,),
        shape=(const(50),),
        guard=(37 - i.var, i.var - 3),
    )
    schedule = Schedule(ComputeDefinition("g", (Tensor("x", (50,)),), (stage,)))
    schedule = vectorized(schedule) if vector else schedule
    kernel = NativeKernel(compile_program(lower(schedule), HOST))
    output = np.full(50, 5, dtype=np.float32)
    kernel.run({"x": numbers(50), "y": output})
    expected = np.full(50, 5, dtype=np.float32)
    expected[3:38] = numbers(50)[3:38]
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("reducer", REDUCERS)
@pytest.mark.parametrize("extent", [1, 7, LANES, 2 * LANES + 3])
def test_reductions_over_lanes(reducer: str, extent: int) -> None:
    i, k = axis("i", 5), axis("k", extent)
    stage = Stage("y", (i,), load("x", i.var, k.var), (k,), reducer)
    schedule = Schedule(ComputeDefinition("r", (Tensor("x", (5, extent)),), (stage,)))
    schedule = schedule.split("y", "k", LANES, "ko", "lane").vectorize("y", "lane")
    x = np.random.default_rng(1).uniform(0.5, 1.5, (5, extent)).astype(np.float32)
    same(schedule, {"x": x}, tolerance=1e-5)
    same(schedule.cache_write("y", "register", "i"), {"x": x}, tolerance=1e-5)


@pytest.mark.parametrize("reducer", REDUCERS)
def test_reductions_along_lanes(reducer: str) -> None:
    """One accumulator a lane, then over the lanes (rfactor)."""
    i, k = axis("i", 3), axis("k", 45)
    stage = Stage("y", (i,), load("x", i.var, k.var), (k,), reducer)
    schedule = Schedule(ComputeDefinition("r", (Tensor("x", (3, 45)),), (stage,)))
    schedule = schedule.rfactor("y", "k", LANES, "part")
    schedule = schedule.reorder("part", ("i", "k.step", "k.lane")).vectorize("part", "k.lane")
    x = np.random.default_rng(1).uniform(0.5, 1.5, (3, 45)).astype(np.float32)
    same(schedule, {"x": x}, tolerance=1e-5)


@pytest.mark.parametrize("stride", [2, 3, -1])
def test_strided_and_reversed_lanes(stride: int) -> None:
    i = axis("i", 21)
    index = i.var * stride if stride > 0 else 20 - i.var
    tensor = Tensor("x", (21 * max(1, stride),))
    gather = ComputeDefinition("g", (tensor,), (Stage("y", (i,), load("x", index)),))
    same(vectorized(Schedule(gather)), {"x": numbers(tensor.shape[0])})
    stage = Stage("y", (i,), load("x", i.var), store=(index,), shape=(const(tensor.shape[0]),))
    scatter = ComputeDefinition("s", (Tensor("x", (21,)),), (stage,))
    kernel = NativeKernel(compile_program(lower(vectorized(Schedule(scatter))), HOST))
    output = kernel({"x": numbers(21)})
    places = [stride * n if stride > 0 else 20 - n for n in range(21)]
    np.testing.assert_array_equal(output[places], numbers(21))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("vector", [False, True])
def test_dtypes(dtype: str, vector: bool) -> None:
    value = call("add", load("x", I), load("z", I))
    schedule = pointwise(37, value, {"x": dtype, "z": dtype})
    x, z = np.abs(numbers(37)).astype(dtype), np.abs(numbers(37, seed=1)).astype(dtype)
    found = native(vectorized(schedule) if vector else schedule, {"x": x, "z": z})
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, x + z)


def test_layouts_of_operands_and_result() -> None:
    i, j = axis("i", 9), axis("j", 21)
    value = call("multiply", load("x", i.var, j.var), 3.0)
    compute = ComputeDefinition("l", (Tensor("x", (9, 21)),), (Stage("y", (i, j), value),))
    layout = Layout.blocked(2, 1, 8, [1, 0])
    schedule = Schedule(compute).set_layout("x", layout).set_layout("y", layout)
    schedule = schedule.split("y", "j", 8, "jo", "lane").reorder("y", ("jo", "i", "lane"))
    x = numbers(9 * 21).reshape(9, 21)
    found = native(schedule.vectorize("y", "lane"), {"x": layout.pack(x)})
    np.testing.assert_array_equal(layout.unpack(found, (9, 21)), 3 * x)


def test_literal_matrices_fold_into_the_code() -> None:
    """y = A x with A known: zeros and ones leave no multiplication."""
    matrix = np.array([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]])
    i, j, k = axis("i", 2), axis("j", 32), axis("k", 3)
    value = call("multiply", load("A", i.var, k.var), load("x", k.var, j.var))
    compute = ComputeDefinition(
        "t", (Tensor.literal("A", matrix), Tensor("x", (3, 32))),
        (Stage("y", (i, j), value, (k,), "sum"),),
    )  # fmt: skip
    schedule = Schedule(compute).split("y", "j", LANES, "jo", "lane")
    schedule = schedule.reorder("y", ("jo", "k", "i", "lane")).unroll("y", "k", "i")
    schedule = schedule.vectorize("y", "lane").cache_write("y", "register", "jo")
    x = numbers(96).reshape(3, 32)
    np.testing.assert_array_equal(native(schedule, {"x": x}), (matrix @ x).astype(np.float32))
    text = emit_module(lower(schedule), HOST).text
    assert text.count("call <") == 2  # only -1 and 2 multiply


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(1, 3))
def test_accumulator_tiles_of_any_shape(m: int, k: int, n: int, tile: int) -> None:
    i, j, r = axis("i", m), axis("j", n), axis("k", k)
    value = call("multiply", load("a", i.var, r.var), load("b", r.var, j.var))
    compute = ComputeDefinition(
        "p", (Tensor("a", (m, k)), Tensor("b", (k, n))), (Stage("c", (i, j), value, (r,), "sum"),)
    )
    schedule = Schedule(compute).split("c", "i", tile, "io", "ii").split("c", "j", LANES, "jv", "l")
    schedule = schedule.split("c", "jv", tile, "jo", "ji")
    schedule = schedule.reorder("c", ("io", "jo", "k", "ii", "ji", "l"))
    schedule = schedule.unroll("c", "ii", "ji").vectorize("c", "l")
    schedule = schedule.cache_write("c", "register", "jo")
    a, b = numbers(m * k).reshape(m, k), numbers(k * n, seed=1).reshape(k, n)
    np.testing.assert_array_equal(native(schedule, {"a": a, "b": b}), a @ b)


@given(st.integers(1, 2 * LANES + 3), st.integers(1, 2 * LANES + 3))
def test_tiles_are_transposed_in_registers(rows: int, columns: int) -> None:
    """`transpose` tiles of any size: whole vectors on both sides, nothing beyond the edges."""
    i, j = axis("i", columns), axis("j", rows)
    value = call("multiply", load("x", j.var, i.var), 2.0)
    compute = ComputeDefinition("t", (Tensor("x", (rows, columns)),), (Stage("y", (i, j), value),))
    schedule = (
        Schedule(compute).split("y", "i", LANES, "io", "ii").split("y", "j", LANES, "jo", "ji")
    )
    schedule = schedule.reorder("y", ("io", "jo", "ii", "ji")).tensorize("y", "ii", "transpose")
    schedule = schedule.unroll("y", "ii").vectorize("y", "ji")
    x = numbers(rows * columns).reshape(rows, columns)
    np.testing.assert_array_equal(native(schedule, {"x": x}), 2 * x.T)


def _one(block: Block, extent: object = 4, kind: str = "serial") -> Program:
    loop = Loop("i", extent, kind, block)  # type: ignore[arg-type]
    return Program("bad", (Buffer("x", (const(4),), role="input"),
                           Buffer("y", (const(4),), role="output")), loop)  # fmt: skip


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (_one(Block("s", "y", (I,), load("x", I)), var("n"), "unroll"), CodegenError,
         "unroll loop 'i' has the extent n, not a constant|variable 'n' is not bound"),
        (_one(Block("s", "y", (I,), load("x", var("k"))), const(4)), CodegenError,
         "variable 'k' is not bound"),
        (_one(Block("s", "y", (I,), load("x", I + 1)), const(4)), VerificationError, "can leave"),
    ],
)  # fmt: skip
def test_programs_without_code_are_refused(
    program: Program, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        compile_program(program, HOST)


def test_dtypes_without_code_are_named() -> None:
    value = call("add", load("x", I), 1.0)
    with pytest.raises(CodegenError, match="no CPU code for dtype 'float8_e8m0'; one of float32"):
        native(pointwise(4, value, {"x": "float8_e8m0"}), {"x": np.zeros(4, np.float32)})
    with pytest.raises(CodegenError, match="function 'exp' has no integer code"):
        native(
            pointwise(4, call("exp", load("x", I)), {"x": "int32"}), {"x": np.zeros(4, np.int32)}
        )


def test_modules_are_deterministic() -> None:
    schedule = vectorized(pointwise(37, call("exp", load("x", I)), FLOATS))
    first, second = (emit_module(lower(schedule), HOST) for _ in range(2))
    assert first == second
