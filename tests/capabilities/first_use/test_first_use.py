"""From the first call to the next process: defaults at once, exchanged only for what is faster."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts
from tests.capabilities.first_use.conftest import (
    Arrays,
    Starts,
    by_simulator,
    right,
    the_order,
    tools,
    two_products,
)
from tilesmith.capabilities.first_use.following import Follower
from tilesmith.capabilities.first_use.orders import digest_of, orders_folder
from tilesmith.capabilities.first_use.rounds import another
from tilesmith.compiler.recipe.program import KernelStep
from tilesmith.jobs.compilation.model_cache import cache_entry
from tilesmith.jobs.requests.request import Request
from tilesmith.records import Database
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.tuner.tasks.cancel import CancelToken


def test_the_first_call_is_that_of_the_default(
    products: Path, x: Arrays, follower: Follower, starts: Starts
) -> None:
    model = ts.compile(products, tune="background")
    assert isinstance(model, ts.Executable)
    plain = ts.compile(products, database=None)
    assert digest_of(model.recipe) == digest_of(plain.recipe)
    np.testing.assert_array_equal(model.run(x)["y"], plain.run(x)["y"])
    assert starts.count == 0, "nothing is started before the model is there"
    follower.look()
    assert starts.count == 1
    follower.look()
    assert starts.count == 1, "one tuner is enough"


def test_a_faster_model_is_exchanged_to_and_kept_for_the_next_process(
    products: Path, x: Arrays, follower: Follower
) -> None:
    model = ts.compile(products, tune="background")
    bound = model.bind(x)
    follower.look()
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    assert digest_of(model.recipe) == digest_of(ts.compile(products, database=None).recipe)
    follower.look()
    assert model.report.default == 0
    assert right(model.run(x), x)
    assert right({"y": model(x["x"])}, x)
    bound.run()  # it stays with what it was bound to
    assert right(bound.outputs(), x)
    assert the_order().state.ratio == pytest.approx(0.5)

    follower.close()
    next_one = ts.compile(products, tune="background")
    assert digest_of(next_one.recipe) == digest_of(model.recipe)
    assert right(next_one.run(x), x)


@pytest.mark.parametrize("ratio", [1.0, 1.5])
def test_what_is_no_faster_is_not_exchanged_to(
    products: Path, x: Arrays, follower: Follower, ratio: float
) -> None:
    model = ts.compile(products, tune="background")
    before = digest_of(model.recipe)
    follower.look()
    another(the_order(), CancelToken(), tools(first=ratio, second=1.0))
    follower.look()
    assert digest_of(model.recipe) == before
    assert the_order().state.idle == 1
    if ratio > 1:  # nor does the next process begin with it
        assert digest_of(ts.compile(products, tune="background").recipe) == before


def test_rounds_without_gain_end_the_order(products: Path, follower: Follower) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    for _ in range(2):
        another(the_order(), CancelToken(), tools(first=1.0, second=1.0))
    assert the_order().state.ended == "no gain is expected after 2 rounds"
    follower.look()
    assert not the_order().owners(), "the process has no more to wait for"
    assert model.report.default > 0


def test_jobs_are_in_the_database(products: Path, x: Arrays, follower: Follower) -> None:
    model = ts.compile(products, tune="background")
    follower.look()
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0, search=by_simulator))
    with Database.open(str(orders_folder() / "tuning.db")) as database:
        (job,) = database.jobs()
    assert job.status == "finished"
    assert f"tune {products}" in job.command
    follower.look()
    assert model.report.default == 0
    assert right(model.run(x), x)


def test_the_database_that_is_named_is_the_one(products: Path, follower: Follower) -> None:
    model = ts.compile(products, database="mine.db", tune="background")
    assert not Path("mine.db").exists(), "the first call does not wait for one"
    follower.look()
    order = the_order().order
    assert order is not None and order.database == str(Path("mine.db").resolve())
    assert model.report.default > 0


def test_the_next_process_loads_what_the_tuner_compiled(
    products: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESMITH_CACHE_MIB", "64")
    request = Request(products, database="mine.db")
    model = ts.compile(products, database="mine.db", tune="background")
    follower.look()
    time.sleep(0.1)
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    for thread in threading.enumerate():
        if thread.name == "tilesmith-cache":
            thread.join()
    entry = cache_entry(request, False)
    loaded = None if entry is None else entry.load()
    assert loaded is not None and digest_of(loaded.recipe) == digest_of(model.recipe)


def test_a_model_in_memory_is_written_with_its_weights(x: Arrays, follower: Follower) -> None:
    model = ts.compile(two_products(), tune="background")
    follower.look()
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    assert model.report.default == 0
    assert right(model.run(x), x)


def test_a_model_keeps_its_bits(products: Path, x: Arrays, follower: Follower) -> None:
    model = ts.compile(products, tune="background", bits="same")
    before = model.run(x)["y"].tobytes()
    follower.look()
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    assert model.report.default == 0
    assert model.run(x)["y"].tobytes() == before
    assert isinstance(model, ts.Executable)
    works = [step.workload for step in model.recipe.steps if isinstance(step, KernelStep)]
    assert works and all("sums=same" in work for work in works)


def test_the_environment_asks_for_it_too(
    products: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESMITH_TUNE", "background")
    ts.compile(products, tune="never")
    ts.compile(products, database=None)
    follower.look()
    assert not orders_folder().exists()
    model = ts.compile(products)
    follower.look()
    assert the_order().owners()
    monkeypatch.setenv("TILESMITH_TUNE", "sometimes")
    with pytest.raises(InputError, match="TILESMITH_TUNE = 'sometimes' is neither"):
        ts.compile(products)
    assert model.inputs


def test_what_contradicts_itself_is_refused(products: Path) -> None:
    with pytest.raises(InputError, match="tune = 'foreground' is neither 'background' nor"):
        ts.compile(products, tune="foreground")
    with pytest.raises(InputError, match="is kept in a database, and database is None"):
        ts.compile(products, database=None, tune="background")


def test_a_file_that_changes_meanwhile_is_not_exchanged_to(
    products: Path, follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    model = ts.compile(products, tune="background")
    before = digest_of(model.recipe)
    follower.look()
    products.write_bytes(products.read_bytes() + two_products().SerializeToString())
    another(the_order(), CancelToken(), tools(first=0.5, second=1.0))
    follower.look()
    assert digest_of(model.recipe) == before
    assert "has changed since it was compiled" in caplog.text


def test_only_the_same_model_is_exchanged_to(products: Path, follower: Follower) -> None:
    model = ts.compile(products, tune="background")
    other = ts.compile(two_products(8), database=None)
    with pytest.raises(ModelError, match="takes or gives other tensors"):
        model.exchange(other)
