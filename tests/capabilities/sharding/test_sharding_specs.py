"""Specs and resharding against index sets, worked out element by element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.capabilities.sharding.layouts.mesh import LogicalMesh
from tilesmith.capabilities.sharding.layouts.specs import (
    Cut,
    Spec,
    assembled,
    legal,
    local_shape,
    parse,
    part,
)
from tilesmith.capabilities.sharding.partitioning.resharding import run_step, steps_between
from tilesmith.search_space.support.errors import InputError

MESH = LogicalMesh.of({"a": 2, "b": 3, "c": 2})
SHAPE = (12, 24)


def every_spec(mesh: LogicalMesh, shape: tuple[int, ...], partial: bool = True) -> Iterator[Spec]:
    """Every spec with blocks among a few numbers."""
    blocks = (1, 2, 3, 4, 6)
    places = [None, *itertools.product(range(len(shape)), blocks), *(["sum"] if partial else [])]
    for chosen in itertools.product(places, repeat=len(mesh.names)):
        dims: list[list[Cut]] = [[] for _ in shape]
        for axis, place in zip(mesh.names, chosen, strict=True):
            if isinstance(place, tuple):
                dims[place[0]].append(Cut(place[1], axis))
        sums = frozenset(a for a, p in zip(mesh.names, chosen, strict=True) if p == "sum")
        spec = Spec(tuple(tuple(sorted(cuts)) for cuts in dims), sums)
        if legal(spec, shape, mesh.sizes):
            yield spec


SPECS = list(every_spec(MESH, SHAPE))


def held(spec: Spec, at: dict[str, int]) -> list[list[int]]:
    """The indices a core holds along each dimension, from what a cut is."""
    found = []
    for cuts, extent in zip(spec.dims, SHAPE, strict=True):
        own = range(extent)
        for cut in cuts:
            length = extent // cut.blocks // MESH.sizes[cut.axis]
            own = [i for i in own if i // length % MESH.sizes[cut.axis] == at[cut.axis]]  # type: ignore[assignment]
        found.append(list(own))
    return found


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPECS))
def test_a_core_holds_the_elements_its_place_says(spec: Spec) -> None:
    whole = np.arange(math.prod(SHAPE)).reshape(SHAPE)
    parts = []
    for at in MESH.coordinates():
        found = part(whole, spec, SHAPE, MESH, at)
        zeros = any(at[axis] for axis in spec.partial)
        expected = whole[np.ix_(*held(spec, at))] * (0 if zeros else 1)
        np.testing.assert_array_equal(found, expected)
        assert found.shape == local_shape(spec, SHAPE, MESH.sizes)
        parts.append(found)
    np.testing.assert_array_equal(assembled(parts, spec, SHAPE, MESH), whole)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SPECS), st.sampled_from(SPECS), st.integers(0, 9))
def test_resharding_gives_every_core_its_part(source: Spec, wanted: Spec, seed: int) -> None:
    generator = np.random.default_rng(seed)
    places = list(MESH.coordinates())
    shape = local_shape(source, SHAPE, MESH.sizes)
    # Terms of a sum differ between cores; copies agree.
    values: dict[tuple[int, ...], np.ndarray] = {}
    parts = []
    for at in places:
        key = tuple(at[n] for n in MESH.names if n in source.axes or n in source.partial)
        values.setdefault(key, generator.integers(-9, 9, shape))
        parts.append(values[key])
    whole = assembled(parts, source, SHAPE, MESH)
    current = source
    for step in steps_between(source, wanted, SHAPE, MESH):
        assert step.before == current and legal(step.after, SHAPE, MESH.sizes)
        parts, current = run_step(step, parts, SHAPE, MESH), step.after
    assert current == wanted
    if wanted.partial & source.partial:
        np.testing.assert_array_equal(assembled(parts, wanted, SHAPE, MESH), whole)
    else:
        for at, found in zip(places, parts, strict=True):
            np.testing.assert_array_equal(found, part(whole, wanted, SHAPE, MESH, at))


def test_sums_are_made_in_the_order_of_the_cores() -> None:
    mesh = LogicalMesh.of({"a": 4})
    source, wanted = Spec(((),), frozenset({"a"})), Spec(((),))
    (step,) = steps_between(source, wanted, (1,), mesh)
    terms = [np.array([v], np.float32) for v in (1e8, 1.0, -1e8, 1.0)]
    found = run_step(step, terms, (1,), mesh)
    in_order = np.float32(np.float32(np.float32(1e8) + np.float32(1)) - np.float32(1e8)) + 1
    assert [float(value[0]) for value in found] == [in_order] * 4


def test_texts_of_specs() -> None:
    sizes = MESH.sizes
    for text in ("a,-", "a+b,c", "-,a/3", "-,-"):
        assert str(parse(text, SHAPE, sizes, "x")) == text
    assert parse("a", SHAPE, sizes, "x") == parse("a,-", SHAPE, sizes, "x")
    for text, sentence in (
        ("z,-", "the mesh has no axis 'z'; it has a, b, c"),
        ("a,a", "each axis may be named once"),
        ("a,-,b", "names 3 dimensions and 'x' has 2"),
        ("a+b+c/5", "do not divide; 1, 2, 3, 4, 6, 12 do"),
    ):
        with pytest.raises(InputError, match=sentence.replace("+", r"\+")):
            parse(text, SHAPE, sizes, "x")
