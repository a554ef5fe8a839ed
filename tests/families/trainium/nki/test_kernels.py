"""Kernels in NKI, written here, beside numpy: the forms of `neuronxcc.nki` and of `nki`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.families.trainium.nki.written import NEW, OLD
from tilesmith.families.trainium.codegen.isa.instructions import Opcode
from tilesmith.families.trainium.nki.kernels import trace
from tilesmith.search_space.support.errors import CodegenError, InputError, VerificationError

F32 = "float32"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("nki") / "old.py"
    file.write_text(OLD)
    return file


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("nki") / "new.py"
    file.write_text(NEW)
    return file


def test_silu_over_blocks(old: Path) -> None:
    kernel = trace(f"{old}::silu", {"x": ((128, 2, 96), F32)})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
    assert kernel.time().makespan <= kernel.time(schedule=False).makespan


def test_products_sum_in_psum(old: Path) -> None:
    kernel = trace(f"{old}::product", {"a": ((128, 256), F32), "b": ((256, 64), F32)})
    inputs = kernel.inputs()
    (c,) = kernel.run(inputs).values()
    np.testing.assert_allclose(c, inputs["a"] @ inputs["b"], rtol=1e-4, atol=1e-4)


def test_masks_cut_off_what_is_outside(old: Path) -> None:
    kernel = trace(f"{old}::masked", {"x": ((200, 32), F32), "factor": 3.0})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, 3 * x, rtol=1e-6)


def test_pooling_over_five_axes(old: Path) -> None:
    kernel = trace(f"{old}::pool", {"x": ((4, 6, 8), F32), "size": 2})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, x.reshape(4, 3, 2, 4, 2).mean(axis=(2, 4)), rtol=1e-5)


def test_instances_of_a_grid_share_their_results(old: Path) -> None:
    asked = trace(f"{old}::instances", {"x": ((64, 48), F32)}, grid=(2, 3))
    called = trace(f"{old}::caller", {"x": ((64, 48), F32)})
    for kernel in (asked, called):
        x = kernel.inputs()["x"]
        (y,) = kernel.run({"x": x}).values()
        np.testing.assert_allclose(y, x + 1)


def test_what_is_loaded_twice_is_loaded_once(old: Path) -> None:
    kernel = trace(f"{old}::twice", {"x": ((64, 48), F32)})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, 2 * x)
    assert (kernel.stream.rows["op"] == Opcode.LOAD).sum() == 1


def test_equal_tiles_are_made_once_and_changed_ones_apart(old: Path) -> None:
    kernel = trace(f"{old}::turned", {"x": ((32, 64), F32)})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, np.stack([2 * x.T + i for i in range(4)]), rtol=1e-6)
    made = [int((kernel.stream.rows["op"] == o).sum()) for o in (Opcode.TRANSPOSE, Opcode.STORE)]
    assert made == [1, 4]


def test_softmax_of_rows(old: Path) -> None:
    kernel = trace(f"{old}::softmax", {"x": ((32, 40), F32)})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    wanted = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, wanted / wanted.sum(1, keepdims=True), rtol=1e-5)


def test_a_row_is_spread_over_partitions(old: Path) -> None:
    kernel = trace(f"{old}::spread", {"x": ((64, 700), F32), "row": ((1, 700), F32)})
    inputs = kernel.inputs()
    (y,) = kernel.run(inputs).values()
    np.testing.assert_allclose(y, inputs["x"] * inputs["row"], rtol=1e-5)


def test_loop_reduce(old: Path) -> None:
    kernel = trace(f"{old}::largest", {"x": ((16, 4, 20), F32)})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y[:, 0], x.max(axis=(1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_come_first(new: Path, dtype: str) -> None:
    kernel = trace(f"{new}::product", {"lhs": ((256, 128), dtype), "rhs": ((256, 512), dtype)})
    inputs = kernel.inputs()
    (c,) = kernel.run(inputs).values()
    wanted = inputs["lhs"].astype(np.float32).T @ inputs["rhs"].astype(np.float32)
    assert np.abs(c.astype(np.float32) - wanted).max() <= (1e-3 if dtype == F32 else 0.5)


def test_causal_masks_and_iota(new: Path) -> None:
    kernel = trace(f"{new}::causal", {"x": ((32, 32), F32)})
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, np.where(np.tri(32, dtype=bool), x, -1.0) + np.arange(32))


def test_selections_and_functions_of_others(new: Path) -> None:
    shapes = {"x": ((32, 24), F32), "low": ((32, 1), F32), "high": ((32, 1), F32)}
    kernel = trace(f"{new}::ranges", shapes)
    x = kernel.inputs()["x"]
    low, high = np.full((32, 1), 3, np.float32), np.arange(32, dtype=np.float32)[:, None]
    (y,) = kernel.run({"x": x, "low": low, "high": high}).values()
    place = np.arange(24)
    np.testing.assert_array_equal(y[0], np.where((place >= low) & (place < high), x, -1.0))
    np.testing.assert_allclose(y[1], np.exp(x - low), rtol=1e-5)
    np.testing.assert_allclose(y[2, 0], x.sum(0), rtol=1e-4, atol=1e-5)
    s = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(y[3], s * (1 + x * (1 - s)), rtol=1e-4, atol=1e-6)


def test_what_does_not_fit_is_spilled_or_loaded_again(old: Path) -> None:
    kernel = trace(
        f"{old}::held", {"x": ((24, 128, 128), F32)}, settings={"sbuf.mib": "1"}
    )  # a partition has 8 KiB, the tiles take 12
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    np.testing.assert_allclose(y, 2 * x[::-1], rtol=1e-6)
    assert any(t.role == "temporary" for t in kernel.stream.tensors)


def test_sums_that_wait_leave_psum(old: Path) -> None:
    kernel = trace(f"{old}::waiting", {"x": ((128, 128), F32)})  # 12 banks of 8
    x = kernel.inputs()["x"]
    (y,) = kernel.run({"x": x}).values()
    wanted = np.arange(12)[:, None, None] * (x.T @ x)
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("unknown", {"x": ((8, 8), F32)}, "nki.language.expo is not known here (near it: exp"),
        ("wrong", {"x": ((8, 8), F32)}, "unexpected keyword argument 'speed'; it takes x"),
        ("partitions", {"x": ((256, 8), F32)}, "256 partitions; SBUF has 128"),
        ("columns", {"x": ((64, 256), F32)}, "stationary has 256 columns; the array takes 128"),
        ("unwritten", {"x": ((8, 8), F32)}, "which nothing has written"),
        ("banks", {"x": ((128, 128), F32)}, "PSUM has no room for tile"),
        ("outside", {"x": ((100, 8), F32)}, "reaches element 127 of an axis of 100"),
        ("from_hbm", {"x": ((8, 8), F32)}, "loaded into SBUF before it is used"),
        ("fails", {"x": ((8, 8), F32)}, "ZeroDivisionError"),
        ("missing", {"x": ((8, 8), F32)}, "has no kernel 'missing'; it has"),
        ("silu", {"y": ((8, 8), F32)}, "unexpected keyword argument 'y'"),
    ],
)
def test_errors_name_the_line(old: Path, function: str, arguments: dict, said: str) -> None:
    with pytest.raises((CodegenError, VerificationError, InputError)) as raised:
        trace(f"{old}::{function}", arguments)
    message = str(raised.value)
    assert said in message
    lines = OLD.splitlines()
    marked = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {function}")]
    if marked:
        assert f"old.py:{marked[0]}" in message, message


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file"):
        trace(f"{tmp_path}/none.py::kernel", {})
    with pytest.raises(InputError, match=r"form file\.py::function"):
        trace("kernel.py", {})
    broken = tmp_path / "broken.py"
    broken.write_text("import nki\n1 +\n")
    with pytest.raises(CodegenError, match="SyntaxError"):
        trace(f"{broken}::kernel", {})
