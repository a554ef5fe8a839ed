"""A small model, a follower that looks when it is told to, and rounds by the simulator."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilesmith.capabilities.first_use.following import Follower
from tilesmith.capabilities.first_use.orders import OrderFolder, TuningOrder, orders_folder
from tilesmith.capabilities.first_use.priority import MachineLoad
from tilesmith.capabilities.first_use.rounds import Tools
from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.compilation.compiling import parts_of
from tilesmith.jobs.tuning.heartbeat import Pause
from tilesmith.jobs.tuning.tune_reports import TuneReport
from tilesmith.records import Database, TuningRecord
from tilesmith.records.trials.counting import TrialCounts
from tilesmith.search_space.results.measure import MeasureResult
from tilesmith.tuner.tasks.cancel import CancelToken

Arrays = dict[str, NDArray[Any]]


def two_products(rows: int | str = 24) -> onnx.ModelProto:
    """Two products with a Relu between."""
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal(s).astype(np.float32) / 8 for s in ((64, 96), (96, 40))]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("MatMul", ["r", "v"], ["y"], "second"),
    ]
    graph = helper.make_graph(
        nodes, "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 40])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, "wv", strict=True)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


@pytest.fixture
def products(tmp_path: Path) -> Path:
    path = tmp_path / "products.onnx"
    onnx.save(two_products(), str(path))
    return path


@pytest.fixture
def x() -> Arrays:
    return {"x": np.random.default_rng(5).standard_normal((24, 64)).astype(np.float32)}


def right(outputs: Arrays, x: Arrays) -> bool:
    """Whether outputs are those of ONNX's reference, to what another order of sums makes."""
    (wanted,) = ReferenceEvaluator(two_products()).run(None, x)  # type: ignore[misc]
    return np.allclose(outputs["y"], wanted, rtol=1e-4, atol=1e-5)


class Starts:
    """Stands for processes of tuners: counts those that are started, and says how they ended."""

    def __init__(self, code: int | None = None) -> None:
        self.count, self.code = 0, code

    def __call__(self, root: Path) -> Any:
        self.count += 1
        return self

    def poll(self) -> int | None:
        return self.code


class Still(Follower):
    """Looks when it is told to."""

    def watching(self) -> threading.Thread:
        return threading.current_thread()


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders and code are in a folder of the test's own."""
    monkeypatch.setenv("TILESMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TILESMITH_TUNE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
def follower(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    """In place of the process's own."""
    from tilesmith.capabilities.first_use import following

    still = Still(start=starts)
    monkeypatch.setattr(following, "_follower", still)
    yield still
    still.close()


class Quiet(MachineLoad):
    """Nobody else computes anything."""

    every_s = 0.0

    def share(self) -> float:
        return 0.0


class Clock:
    """Tells that the first of two models takes `first` seconds and the second `second`.

    Of the calls of one comparison the first two time how many turns there are (few), and then each
    turn calls it four times.
    """

    def __init__(self, first: float, second: float) -> None:
        self._now, self._calls = 0.0, 0
        self._steps = [0.0, 10.0] + 5 * [0.0, first, 0.0, second]

    def __call__(self) -> float:
        self._now += self._steps[self._calls % len(self._steps)]
        self._calls += 1
        return self._now


def by_simulator(
    order: TuningOrder, seconds: float, seed: int, token: CancelToken, pause: Pause
) -> TuneReport:
    """A round as `on_record`, whose trials the simulator judges: a fixed number of them, whatever
    the time."""
    from tilesmith.jobs.requests.request import TuneRequest
    from tilesmith.jobs.tuning.job import run_job, tuning_job

    on_record(order, seconds, seed, token, pause)  # the simulator may like defaults best
    asked = order.resolved()
    request = TuneRequest(
        order.model, asked.target, asked.database, asked.shapes, threads=asked.threads,
        trials=24, seed=seed, measure="simulator", bits=asked.bits,
    )  # fmt: skip
    return run_job(tuning_job(request, 0.0), cancel=token, pause=pause)


def on_record(
    order: TuningOrder, seconds: float, seed: int, token: CancelToken, pause: Pause
) -> TuneReport:
    """A round after which the database knows, of every workload, a schedule that is no default."""
    asked = order.resolved()
    workloads = [part.workload for part in parts_of(asked).workloads]
    with Database.open(order.database) as database:
        for workload in workloads:
            drawn = space_of(workload, asked.target).sample(np.random.default_rng(seed), 9)
            config = next(c for c in drawn if c != default_of(workload, asked.target))
            result = MeasureResult("ok", "hardware", (1e-9,))
            database.add(
                [TuningRecord(workload.key, asked.target.identity, config, result, order.threads)]
            )
    return TuneReport(TrialCounts(len(workloads)), seconds, ())


def tools(first: float, second: float, search: Callable[..., TuneReport] = on_record) -> Tools:
    """A round whose candidate takes `first` seconds where what runs takes `second`."""
    return Tools(search, Clock(first, second), Quiet)


def the_order() -> OrderFolder:
    """The only order there is."""
    (path,) = orders_folder().glob("*/order.json")
    return OrderFolder(path.parent)
