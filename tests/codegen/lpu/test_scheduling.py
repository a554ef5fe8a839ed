"""Schedules keep the laws and compute what numpy does."""

import numpy as np
import pytest

from tests.codegen.lpu.chains import chip, matmul
from tilesmith.codegen.lpu.isa.storage import from_bytes, to_bytes
from tilesmith.codegen.lpu.isa.text import to_text
from tilesmith.codegen.lpu.scheduling.scheduler import Options, schedule
from tilesmith.codegen.lpu.verification.checker import check
from tilesmith.search_space.errors import ModelError
from tilesmith.simulator.lpu.functional import execute


@pytest.mark.parametrize("dtype", ["int8", "float16"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (33, 330, 700), (70, 640, 1290)])
def test_a_matmul_is_numpy_s(dtype: str, shape: tuple[int, int, int]) -> None:
    flow, contents, expected = matmul(*shape, dtype)
    placed = schedule(flow, chip())
    found = execute(placed, contents, matching=check(placed)).tensors["y"]
    tolerance = 0 if dtype == "int8" else 2e-5
    np.testing.assert_allclose(found, expected["y"], rtol=0, atol=tolerance * np.sqrt(shape[2]))


def test_chains_in_program_order() -> None:
    flow, contents, expected = matmul(40, 320, 960, "int8")
    placed = schedule(flow, chip(), Options("program"))
    check(placed)
    np.testing.assert_array_equal(execute(placed, contents).tensors["y"], expected["y"])


def test_a_schedule_goes_to_bytes_and_back() -> None:
    placed = schedule(matmul(20, 320, 330, "float16")[0], chip())
    code = to_bytes(placed)
    again = from_bytes(code, placed.chip)
    assert to_bytes(again) == code
    assert to_text(again) == to_text(placed)
    assert again.units == placed.units
    with pytest.raises(ModelError, match="damaged"):
        from_bytes(code[:-1], placed.chip)
    with pytest.raises(ModelError, match="damaged"):
        from_bytes(code[10:], placed.chip)
