"""Executables that are exchanged: the reference is read once a call, and calls may be under way."""

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.capabilities.first_use.conftest import Arrays, right, two_products
from tilesmith.capabilities.first_use.exchange import exchanged
from tilesmith.search_space.support.errors import ModelError


def test_calls_from_many_threads_meet_one_program_each(x: Arrays) -> None:
    first, second = (ts.compile(two_products(), database=None) for _ in range(2))
    model = exchanged(first)
    wrong: list[int] = []
    ended = threading.Event()

    def call() -> None:
        while not ended.is_set():
            if not right(model.run(x), x):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        model.exchange(second)  # type: ignore[arg-type]
        model.exchange(first)  # type: ignore[arg-type]
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_is_saved_and_pickled_as_what_it_is_now(tmp_path: Path, x: Arrays) -> None:
    model = exchanged(ts.compile(two_products(), database=None))
    model.exchange(ts.compile(two_products(), database=None))  # type: ignore[arg-type]
    model.save(tmp_path / "saved.tsm")
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is ts.Executable
    for other in (again, ts.load(tmp_path / "saved.tsm")):
        np.testing.assert_array_equal(other.run(x)["y"], model.run(x)["y"])
    with pytest.raises(ModelError, match="'z'"):
        model.run({**x, "z": x["x"]})


def test_sizes_that_vary_are_exchanged_too(x: Arrays) -> None:
    first, second = (
        ts.compile(two_products("rows"), database=None, shapes={"rows": (1, 64)}) for _ in range(2)
    )
    model = exchanged(first)
    assert right(model.run(x), x)
    model.exchange(second)  # type: ignore[arg-type]
    assert right(model.run(x), x)
    assert isinstance(model, ts.VaryingExecutable)
    few = {"x": x["x"][:3]}
    np.testing.assert_array_equal(model.at({"rows": 3}).run(few)["y"], model.run(few)["y"])
    with pytest.raises(ModelError, match="takes or gives other tensors"):
        model.exchange(ts.compile(two_products(), database=None))  # type: ignore[arg-type]
