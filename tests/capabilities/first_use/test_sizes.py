"""Models whose sizes vary: choices of sizes that are called often get programs of their own."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import tilesmith as ts
from tests.capabilities.first_use.conftest import Arrays, Starts, right, tools, two_products
from tilesmith.capabilities.first_use.exchange import ExchangedVarying, exchanged
from tilesmith.capabilities.first_use.following import Follower
from tilesmith.capabilities.first_use.orders import OrderFolder, every, orders_folder
from tilesmith.capabilities.first_use.rounds import another
from tilesmith.search_space.support.errors import ModelError
from tilesmith.tuner.tasks.cancel import CancelToken


@pytest.fixture
def varying(tmp_path: Path) -> Path:
    path = tmp_path / "varying.onnx"
    onnx.save(two_products("rows"), str(path))
    return path


def one_size() -> OrderFolder:
    (folder,) = (f for f in every(orders_folder()) if f.order is not None and f.order.ranges)
    return folder


def test_a_size_that_is_called_often_has_a_program_of_its_own(
    varying: Path, x: Arrays, follower: Follower, starts: Starts
) -> None:
    model = ts.compile(varying, shapes={"rows": (1, 64)}, tune="background")
    assert isinstance(model, ts.VaryingExecutable)
    few = {"x": x["x"][:3]}
    for _ in range(70):
        model.run(x)
    model.run(few)
    follower.look()
    follower.look()
    order = one_size().order
    assert order is not None
    assert order.shapes == {"x": (24, 64)}
    assert order.ranges == {"rows": (1, 64)}
    before = model._of(x)
    another(one_size(), CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    assert model._of(x) is not before
    assert right(model.run(x), x)
    np.testing.assert_allclose(model.run(few)["y"], model.run(x)["y"][:3], rtol=1e-4, atol=1e-6)
    with pytest.raises(ModelError, match="compiled for 1 to 64"):
        model.run({"x": np.zeros((65, 64), np.float32)})


def test_ranges_are_tuned_too(varying: Path, x: Arrays, follower: Follower) -> None:
    model = ts.compile(varying, shapes={"rows": (1, 64)}, tune="background")
    follower.look()
    (folder,) = every(orders_folder())
    another(folder, CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    assert folder.state.version == 1
    assert right(model.run(x), x)


def test_only_what_is_called_often_is_told_and_once() -> None:
    first = ts.compile(two_products("rows"), database=None, shapes={"rows": (1, 64)})
    model = exchanged(first)
    assert isinstance(model, ExchangedVarying)
    for rows in (1, 2, 3):
        for _ in range(100 if rows == 2 else 8):
            model.run({"x": np.zeros((rows, 64), np.float32)})
    assert [size.dims for size in model.often()] == [((2, 64),)]
    assert not model.often()
    (size,) = model.ordered.values()
    with pytest.raises(ModelError, match="takes or gives other tensors"):
        size.exchange(ts.compile(two_products(), database=None))  # type: ignore[arg-type]
