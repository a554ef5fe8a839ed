"""Routines: compiled code on addresses, beside what Python computes of the same bytes."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilesmith.codegen.compiled.routines import (
    Address,
    External,
    Int32,
    Routine,
    atomic_load32,
    atomic_store32,
    exchange32,
    joined,
    load8,
    load32,
    load64,
    replace64,
    room,
    routine,
    routines_text,
    store8,
    store32,
    store64,
)
from tilesmith.codegen.host.machine import host_target
from tilesmith.codegen.native import toolchain
from tilesmith.search_space.support.errors import TranslationError

FACTOR, WIDE = 3, 0
getpid = External("getpid", "i32 ()")
snprintf = External("snprintf", "i32 (ptr, i64, ptr, ...)")
at_address = External("", "i32 (i32)")


@routine
def thrice(n: Int32) -> Int32:
    return n * FACTOR


@routine
def mixed(data: Address, n: int) -> int:
    total = 0
    for i in range(n):
        byte = load8(data + i)
        if byte & 1 and byte >> 4 != 3:
            total = total ^ (byte << (i & 7))
    store8(data, total)
    return total | (load32(data + 4) & -256)


@routine
def through(data: Address) -> Int32:
    box = room(8)
    store64(box, load64(data))
    store32(data + 8, at_address(thrice, load32(box)))
    if WIDE and load64(data + 1000000000) == 0:
        return -1
    return getpid()


@routine
def swapped(data: Address) -> int:
    old = exchange32(data, 7)
    if replace64(data + 8, 5, 6):
        atomic_store32(data, atomic_load32(data) + 1)
    return old


@routine
def written(data: Address, text: Address) -> Int32:
    return snprintf(data, 64, text, 42, load64(data))


def built(*routines: Routine, **names: int | str) -> Any:
    """The functions, loaded."""
    visible = {one.symbol: one.symbol for one in routines}
    text = joined(
        f'target triple = "{host_target().text("isa.triple")}"',
        routines_text((*routines, thrice), names, visible),
    )
    jit = toolchain.linker(host_target())
    builder = llvm.JITLibraryBuilder().add_ir(text).add_current_process()
    for name in visible:
        builder = builder.export_symbol(name)
    library = builder.link(jit, f"routines.{routines[0].symbol}.{len(names)}")
    kinds = {name: [ctypes.c_void_p, ctypes.c_int64] for name in visible}
    loaded = {n: ctypes.CFUNCTYPE(ctypes.c_int64, *kinds[n])(library[n]) for n in visible}
    return loaded, (jit, library)


def test_bytes_and_bits_are_as_in_python() -> None:
    data = np.random.default_rng(0).integers(0, 256, 64, np.uint8)
    total = 0
    for i, byte in enumerate(data[:40].tolist()):
        if byte & 1 and byte >> 4 != 3:
            total ^= byte << (i & 7)
    wanted = total | (int(data[4:8].view(np.int32)[0]) & -256)
    functions, kept = built(mixed)
    assert functions["mixed"](data.ctypes.data, 40) == wanted
    assert data[0] == total & 255 and kept


def test_functions_are_called_by_symbol_and_by_address() -> None:
    data = np.array([-5, 0], np.int64)
    functions, _kept = built(through, FACTOR=4)
    assert functions["through"](data.ctypes.data, 0) & 0xFFFFFFFF == os.getpid()
    assert int(data[1]) & 0xFFFFFFFF == -20 & 0xFFFFFFFF


@pytest.mark.parametrize("there", [5, 4])
def test_atomic_operations_say_what_was_there(there: int) -> None:
    data = np.array([3, there], np.int64)
    functions, _kept = built(swapped)
    assert functions["swapped"](data.ctypes.data, 0) == 3
    assert data.tolist() == ([8, 6] if there == 5 else [7, there])


def test_any_number_of_arguments_is_passed_on() -> None:
    data, text = ctypes.create_string_buffer(64), ctypes.create_string_buffer(b"%lld and %lld")
    ctypes.c_int64.from_buffer(data).value = -1
    functions, _kept = built(written)
    address = ctypes.cast(text, ctypes.c_void_p).value
    functions["written"](ctypes.cast(data, ctypes.c_void_p), address)
    assert data.value == b"42 and -1"


def test_a_side_that_constants_rule_out_is_not_translated() -> None:
    assert "1000000000" not in routines_text((through,))
    assert "1000000000" in routines_text((through,), {"WIDE": 1})


def test_what_is_defined_or_declared_is_declared_no_more() -> None:
    text = joined(
        "declare i32 @f()", "define i32 @f() {", "}", "declare i32 @g()", "declare i32 @g()"
    )
    assert text.count("declare") == 1 and text.count("@g") == 1


@routine
def few() -> Int32:
    return thrice()


def test_too_few_arguments_are_refused() -> None:
    with pytest.raises(TranslationError, match="1 arguments are expected"):
        routines_text((few,))
