"""Loops of known turns that go through rows run natively, at any number of turns; against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.capabilities.stablehlo.stablehlo_modules import compare, compiled, run

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytestmark = pytest.mark.extra
jnp, lax = jax.numpy, jax.lax

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((80, 4)).astype(np.float32)
SQUARE = RNG.standard_normal((70, 66)).astype(np.float32)
TURNS = np.arange(80, dtype=np.int32)


def recurrent(x: Any, reverse: bool = False) -> Any:
    def step(state: Any, row: Any) -> Any:
        state = jnp.tanh(row + state * 0.5)
        return state, state

    return lax.scan(step, jnp.zeros(4), x, reverse=reverse)


def nested(x: Any) -> Any:
    def inner(total: Any, number: Any) -> Any:
        return total * 0.9 + number, (total, number * 2)

    return lax.scan(lambda total, row: lax.scan(inner, total, row), jnp.float32(0), x)


def trees(x: Any, turns: Any) -> Any:
    def step(state: Any, row: Any) -> Any:
        state = {"sum": state["sum"] + row["x"], "count": state["count"] + row["turn"]}
        return state, (state["sum"], {"twice": row["turn"] * 2, "count": state["count"]})

    start = {"sum": jnp.zeros(4), "count": jnp.int32(0)}
    return lax.scan(step, start, {"x": x, "turn": turns})


def each(body: Callable[..., Any], start: int, stop: int) -> Callable[..., Any]:
    """A loop over the rows of what it is given."""
    return lambda x: lax.fori_loop(start, stop, lambda i, a: body(i, a, x), x)


def by_two_counters(x: Any) -> Any:
    def row(i: Any, a: Any) -> Any:
        return lax.fori_loop(0, 66, lambda j, c: c.at[i, j].set(x[i, j] * i + j), a)

    return lax.fori_loop(0, 70, row, jnp.zeros_like(x))


NATIVE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rows read and written": (recurrent, (ROWS,)),
    "64 turns": (recurrent, (ROWS[:64],)),
    "65 turns": (recurrent, (ROWS[:65],)),
    "from the end": (lambda x: recurrent(x, reverse=True), (ROWS,)),
    "gradient": (jax.grad(lambda x: (recurrent(x)[1] ** 2).sum()), (ROWS,)),
    "many at once": (jax.vmap(lambda x: recurrent(x)[1]), (np.stack([ROWS, -ROWS]),)),
    "map": (lambda x: lax.map(lambda row: row * 2 + row.sum(), x), (ROWS,)),
    "nothing read": (lambda x: lax.scan(lambda c, _: (c * 0.9, c.sum()), x, length=70), (ROWS[0],)),
    "nothing written": (lambda x: lax.scan(lambda c, r: (c * 0.9 + r, None), x[0], x), (ROWS,)),
    "trees": (trees, (ROWS, TURNS)),
    "within each other": (nested, (SQUARE,)),
    "whole numbers": (lambda t: lax.scan(lambda c, i: (c + i, c * i), jnp.int32(1), t), (TURNS,)),
    "flags": (lambda x: lax.scan(lambda c, r: (c + r, c > r), jnp.zeros(4), x), (ROWS,)),
    "a row replaced": (each(lambda i, a, x: a.at[i].set(a[i] * 2 + i), 0, 80), (ROWS,)),
    "some rows": (each(lambda i, a, x: a.at[i].add(x[i] * 2), 5, 75), (ROWS,)),
    "every other row": (each(lambda i, a, x: a.at[2 * i].mul(3.0), 0, 66), (SQUARE.repeat(2, 0),)),
    "columns": (each(lambda i, a, x: a.at[:, i].set(a[:, i].cumsum()), 0, 66), (SQUARE,)),
    "a diagonal": (each(lambda i, a, x: a.at[i, i].set(x[i, 65 - i]), 0, 66), (SQUARE,)),
    "two counters": (by_two_counters, (SQUARE,)),
    "the other way": (
        each(lambda i, a, x: lax.dynamic_update_slice(a, x[79 - i][None], (i, 0)), 0, 80), (ROWS,),
    ),
    "pieces": (
        each(
            lambda i, a, x: lax.dynamic_update_slice(
                a, lax.dynamic_slice(x, (i * 2,), (2,)) * 2, (i * 2,)
            ), 0, 70,
        ), (ROWS[:35].reshape(140),),
    ),
    "windows over each other": (
        lambda x: lax.map(lambda i: lax.dynamic_slice(x, (i, 0), (3, 4)).sum(), jnp.arange(78)),
        (ROWS,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NATIVE)
def test_rows_by_turn_run_natively(name: str) -> None:
    function, arguments = NATIVE[name]
    lowered = jax.jit(function).lower(*arguments)
    executable = compiled(lowered.as_text())
    assert not executable.report.host_nodes
    wanted = [np.asarray(array) for array in jax.tree.leaves(jax.jit(function)(*arguments))]
    compare(run(executable, list(arguments)), wanted)


def before(i: Any, a: Any, x: Any) -> Any:
    return a.at[i].set(a[i - 1] * 0.5 + x[i])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(before, id="the row before"),
        pytest.param(lambda i, a, x: a.at[i // 2].add(x[i]), id="a row twice"),
        pytest.param(lambda i, a, x: a.at[i].set(a.sum(0) * 0.01), id="all of it"),
        pytest.param(lambda i, a, x: a.at[i].set(1.0).at[79 - i].set(x[i]), id="two rows"),
        pytest.param(lambda i, a, x: jnp.where(i > 70, a.at[i].set(2.0), a), id="some turns"),
        pytest.param(lambda i, a, x: a.at[x[i, 0].astype(int) * 30].add(x[i]), id="some outside"),
        pytest.param(
            lambda i, a, x: lax.dynamic_update_slice(
                a, lax.dynamic_slice(a, (3 * i - 9, 0), (2, 4)) + 1, (i, 0)
            ),
            id="clamped",
        ),
    ],
)
def test_states_that_are_no_rows_are_carried_whole(body: Callable[..., Any]) -> None:
    function = each(body, 1, 80)
    executable = compiled(jax.jit(function).lower(ROWS).as_text())
    assert not executable.report.host_nodes
    compare(run(executable, [ROWS]), [np.asarray(jax.jit(function)(ROWS))])
