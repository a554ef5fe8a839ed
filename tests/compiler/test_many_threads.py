"""Runs from many threads at once: each has memory of its own, and gets what one thread gets."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.compiler.model_builder import model_of, random
from tests.compiler.test_updates import compiled as compiled_cache
from tests.compiler.test_updates import model as cache_model
from tests.compiler.test_updates import start as new_cache
from tests.compiler.test_updates import step as cache_step
from tests.compiler.varying_models import compiled as compiled_varying
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.host.memory import aligned_copy
from tilesmith.codegen.native.programs.driver import _driver
from tilesmith.compiler.driver.build import BuildOptions, build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime import pool as pools
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.compiler.runtime.pool import Area, Pool
from tilesmith.search_space.support.errors import JobError

pytestmark = pytest.mark.usefixtures("little_to_collect")

_THREADS, _RUNS = 8, 25

Arrays = dict[str, NDArray[Any]]

_MODELS = {
    "kernels": "a = MatMul(x, w) b = Relu(a) y = Softmax<axis = 1>(b)",
    "a host node": "a = MatMul(x, w) n = NonZero(a) m = Cast<to = 1>(n) "
    "s = ReduceSum<keepdims = 0>(m) r = Relu(a) y = Add(r, s)",
    "a loop": "a = MatMul(x, w) n = Constant<value_int = 3>() y = Loop(n, , a) <body = step "
    "(int64 i, bool c, float[48, 64] before) => (bool d, float[48, 64] after) "
    "{ d = Identity(c) after = Sin(before) }>",
}


def _built(name: str, threads: int = 1) -> Executable:
    model = model_of(
        f"g (float[48, 64] x) => (float[48, 64] y) {{ {_MODELS[name]} }}", w=random(64, 64)
    )
    return build(import_model(model), host_target(), None, BuildOptions(threads=threads))


def _inputs(number: int, rows: int = 48) -> Arrays:
    rng = np.random.default_rng(number)
    return {"x": aligned_copy(rng.standard_normal((rows, 64)).astype(np.float32))}


def _at_once(jobs: Iterable[Callable[[], None]]) -> None:
    """All of them, started together; raises what one of them raised."""
    jobs = list(jobs)
    start = threading.Barrier(len(jobs))

    def begin(job: Callable[[], None]) -> None:
        start.wait()
        job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        for done in [threads.submit(begin, job) for job in jobs]:
            done.result(timeout=60)


def _check(run: Callable[[Arrays], Arrays], given: Callable[[int], Arrays] = _inputs) -> None:
    """Each thread runs inputs of its own, again and again, and gets the very bits that one thread
    alone gets."""
    wanted = [run(given(number)) for number in range(_THREADS)]

    def job(number: int) -> None:
        inputs = given(number)
        for _ in range(_RUNS):
            found = run(inputs)
            for name, array in wanted[number].items():
                np.testing.assert_array_equal(found[name], array)

    _at_once(partial(job, number) for number in range(_THREADS))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", list(_MODELS))
def test_runs_at_once_are_those_of_one_thread(name: str, threads: int) -> None:
    executable = _built(name, threads)
    _check(executable.run)
    assert executable._pool.size <= executable._pool.limit
    for number in (1, 2, 3):  # cores // number teams at most, whatever was run before
        teams = _driver().teams.of(number)
        assert len(teams) <= max(1, pools.cores() // number)


@pytest.mark.parametrize("name", ["a host node", "a loop"])
def test_host_nodes_in_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESMITH_HOST", "reference")
    executable = _built(name)
    assert executable.host_nodes or name == "a loop"
    _check(executable.run)


def test_sizes_that_vary() -> None:
    model = model_of("g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w) y = Relu(a) }",
                     w=random(64, 64))  # fmt: skip
    varying = compiled_varying(model, {"n": (2, 400)})
    _check(varying.run, lambda number: _inputs(number, rows=7 + 40 * (number % 5)))
    assert varying._pool.size <= varying._pool.limit


def test_caches_are_each_thread_s_own() -> None:
    executable = compiled_cache(cache_model())

    def generated(_: object = None) -> NDArray[Any]:
        cache = new_cache()
        for position in range(_RUNS):
            executable.run(cache_step(cache, position % 9))
        return cache

    wanted = generated()
    found: list[NDArray[Any]] = []
    _at_once([lambda: found.append(generated())] * _THREADS)
    assert len(found) == _THREADS
    for cache in found:
        np.testing.assert_array_equal(cache, wanted)


def test_a_binding_has_memory_of_its_own_while_it_lives() -> None:
    executable = _built("kernels")
    bindings = [executable.bind(_inputs(number)) for number in range(3)]
    wanted = [executable.run(_inputs(number))["y"] for number in range(3)]
    for _ in range(2):
        for binding, array in zip(bindings, wanted, strict=True):
            binding.run()
            np.testing.assert_array_equal(binding.outputs()["y"], array)
    most = executable._pool.limit
    assert executable._pool.size == 1
    del bindings, binding
    gc.collect()
    assert executable._pool.size == min(most, 4)


def test_a_run_that_fails_gives_its_memory_back() -> None:
    model = model_of(
        "g (float[4, 8] x, int64[2] at) => (float[2, 8] y) { a = Relu(x) y = Gather(a, at) }"
    )
    executable = build(import_model(model), host_target())
    x = np.ones((4, 8), np.float32)
    for _ in range(2 * executable._pool.limit + 1):
        with pytest.raises(JobError, match="index"):
            executable.run({"x": x, "at": np.array([0, 9])})
    assert executable._pool.size == 1
    np.testing.assert_array_equal(executable.run({"x": x, "at": np.array([0, 3])})["y"], x[:2])


def test_a_pool_makes_what_is_needed_waits_and_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "limit", 3)
    pool = Pool()
    taken = [pool.take() for _ in range(3)]
    got: list[Area] = []
    waiter = threading.Thread(target=lambda: got.append(pool.take()), daemon=True)
    waiter.start()
    waiter.join(0.05)
    assert waiter.is_alive()
    assert not got
    pool.give(taken[1])
    waiter.join(30)
    assert got == [taken[1]]
    for area in taken:
        pool.give(area)
    assert pool.take() is taken[2]  # the last one used is the warmest
    pool.give(taken[2])
    assert pool.size == 3
    monkeypatch.setattr(pools, "IDLE_S", -1.0)
    for left in (2, 1, 1):
        pool.give(pool.take())
        assert pool.size == left
    held = [pool.hold() for _ in range(5)]  # nobody waits for those who keep what they have
    assert pool.size == 0
    for area in held:
        pool.release(area)
    assert pool.size == 3


def test_an_executable_is_gone_with_its_last_user() -> None:
    """No cycle keeps arenas and weights until the collector comes round."""
    gc.collect()
    gc.disable()
    try:
        executable = _built("kernels")
        executable.run(_inputs(0))
        before = {id(pool) for pool in pools._pools}
        key = id(executable._pool)
        assert key in before
        del executable
        assert key not in {id(pool) for pool in pools._pools}
    finally:
        gc.enable()
