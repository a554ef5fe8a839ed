"""What families tell the loop IR of their machines, and the one truth of what fits on chip."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search_space.test_verifier import COPY, buffer, loop, program
from tilesmith.search_space.hardware.memory import Allocator, Memory
from tilesmith.search_space.hardware.target import load_target, target_names
from tilesmith.search_space.ir.family import families, family_of
from tilesmith.search_space.ir.verification.verifier import verify
from tilesmith.search_space.support.errors import CodegenError, TargetError, VerificationError

TRN1 = load_target("trn1")


def test_every_shipped_target_is_of_a_family() -> None:
    for name in target_names():
        target = load_target(name)
        family = family_of(target)
        assert family.name == target.family
        absent = {"amx"} if target.family == "cpu" else set()  # not every processor has all
        for scope, memory in family.memories(target).items():
            assert scope in family.scopes
            assert (memory.bytes > 0 or scope in absent) and memory.partitions >= 0
        for spec in family.intrinsics:
            if absent.intersection(chain(*spec.scopes.values())):
                continue
            assert set(spec.limits.values()) <= set(family.limits(target))
            assert set(spec.engines) <= set(family.engines)
            assert {scope for allowed in spec.scopes.values() for scope in allowed} <= set(
                family.scopes
            )


def test_an_unknown_family_is_named_with_those_there_are() -> None:
    target = replace(TRN1, family="abacus")
    message = "unknown family of targets 'abacus'; one of " + ", ".join(families)
    with pytest.raises(TargetError, match=message):
        verify(program(loop("i", 8, COPY)), target)


@given(st.lists(st.integers(1, 700), max_size=30), st.sampled_from((0, 256)))
def test_places_never_meet_nor_straddle_banks(sizes: list[int], bank: int) -> None:
    """Against a map of which tile has each byte."""
    memory = Memory(128, 2048, bank, granule=32)
    allocator, owner = Allocator("chip", memory), np.full(memory.bytes, -1)
    for number, size in enumerate(sizes):
        at = allocator.place(size, str(number))
        if at is None:
            held = -(-size // 32) * 32
            free = [i for i in range(0, 2048 - held + 1, 32) if (owner[i : i + held] < 0).all()]
            assert not [i for i in free if not bank or i % bank == 0 or i % bank + held <= bank]
            continue
        assert (owner[at : at + size] < 0).all()
        assert not bank or size > bank or at // bank == (at + size - 1) // bank
        owner[at : at + memory.held(size)] = number
        assert allocator.used == (owner >= 0).sum()


def test_tiles_share_banks_of_psum_where_the_machine_lets_them() -> None:
    """Eight banks of 2 KiB: 32 tiles of 512 bytes, or of 65 that each take 128."""
    for elements, versions in ((128, 32), (17, 128)):
        tile = buffer("t", 128, elements, scope="psum", versions=versions)
        verify(program(loop("i", 8, COPY), tile), TRN1)
        more = replace(tile, versions=versions + 1)
        with pytest.raises(VerificationError, match=r"bytes in use to 16[0-9]+ of .*it has 16384"):
            verify(program(loop("i", 8, COPY), more), TRN1)
    wide = buffer("t", 128, 320, scope="psum", versions=9)  # one of 1280 bytes in each bank
    with pytest.raises(VerificationError, match="no tile straddles two banks of 2048 bytes"):
        verify(program(loop("i", 8, COPY), wide), TRN1)


def test_what_does_not_fit_says_what_is_in_use() -> None:
    allocator = Allocator("SBUF", Memory(128, 1024, granule=64))
    allocator.take(900, "first")
    with pytest.raises(CodegenError, match=r"'second' needs 128 .* has 1024 with 960 in use"):
        allocator.take(100, "second")
    allocator.release(0)
    assert allocator.take(100, "second") == 0
