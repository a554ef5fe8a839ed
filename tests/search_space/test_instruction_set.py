"""Instruction sets as data: what a file says is read, what is wrong with it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilesmith.search_space.hardware.instruction_set import (
    InstructionSet,
    instruction_set,
    instruction_set_files,
    parse_instruction_set,
)
from tilesmith.search_space.support.errors import TargetError

TEXT = """
doc = "invented"
source = "made up"
architectures = ["vax"]
triple = "vax-dec-vms"
elf_machine = 75
features = "+wide"
attributes = "cold"

[vector]
bytes = 32
registers = 8
vscale_bytes = 16
longest = 64

[host]
order = 3
features = ["wide"]

[assembly]
vector = "w[0-9]"

[[intrinsics]]
operation = "scale_by_power"
dtype = "float32"
lanes = 8
name = "llvm.vax.scale"
arguments = ["x", "n", "i32 4"]

[[dot_products]]
instruction = "dot"
intrinsic = "llvm.vax.dot"
inputs = ["uint8", "int8"]
accumulator = "int32"
products = 4
"""


def parsed(old: str = "", new: str = "") -> InstructionSet:
    """The file with one passage changed."""
    assert old in TEXT
    return parse_instruction_set("invented", TEXT.replace(old, new, 1))


def test_every_shipped_set_says_where_it_was_read() -> None:
    assert {"avx512", "avx2", "sse", "neon", "generic"} <= set(instruction_set_files)
    for name in instruction_set_files:
        found = instruction_set(name)
        assert found is instruction_set(name)
        assert found.name == name and found.doc and found.source


def test_sets_of_one_architecture_are_in_an_order() -> None:
    known = [instruction_set(name) for name in instruction_set_files]
    for architecture in {first for found in known for first in found.architectures}:
        orders = [found.host_order for found in known if architecture in found.architectures]
        assert len(set(orders)) == len(orders)
    assert max(known, key=lambda found: found.host_order).architectures == ()


def test_a_file_is_read() -> None:
    found = parsed()
    assert (found.vector_bytes, found.vector_registers, found.elf_machine) == (32, 8, 75)
    assert found.fits("vax-dec-vms") and not found.fits("vaxen-dec-vms")
    assert found.function_attributes == "cold vscale_range(2,4)"
    assert found.intrinsics[0].arguments == ("x", "n", "i32 4")
    assert found.dot_products[0].inputs == ("uint8", "int8")
    assert found.fused and not parsed("[vector]", "[vector]\nfused = false").fused
    assert found.assembly.vector == "w[0-9]" and found.assembly.never == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("doc =", "doc", "instruction set 'invented' is not valid TOML"),
        ('doc = "invented"', "", "instruction set 'invented' lacks doc, a text"),
        ('triple = "vax-dec-vms"', "", "lacks triple, a text"),
        ("elf_machine = 75", "elf_machine = true", "elf_machine = True; a whole number"),
        ('["vax"]', '"vax"', "architectures = 'vax'; a list of texts is expected"),
        ('["vax"]', "[7]", r"architectures = \[7\]; a list of texts is expected"),
        ("bytes = 32", "bytes = 4", "vector.bytes = 4; a whole number from 8 to 8192"),
        ("bytes = 32", "bytes = 48", "vector.bytes = 48 must be a power of two"),
        ("bytes = 32", "bytes = 128", "vector.longest = 64"),
        ("registers = 8", "", "lacks vector.registers, a whole number from 4 to 128"),
        ("registers = 8", "registers = 8\nfused = 1", "vector.fused = 1; true or false"),
        ("registers = 8", "registers = 8\nlanes = 8", "the unknown key 'vector.lanes'"),
        ("vector = ", "vectors = ", "the unknown key 'assembly.vectors'.*mean 'vector'"),
        ('"scale_by_power"', '"twist"', r"intrinsics\[0\].operation = 'twist'; one of scale_by"),
        ('"i32 4"', '"y"', r"intrinsics\[0\].arguments = 'y'; x, n or 'i32 4' is expected"),
        ('"int32"', '"int33"', r"dot_products\[0\].accumulator = 'int33'; one of float32"),
        ('["uint8", "int8"]', '["uint8"]', r"dot_products\[0\].inputs = \['uint8'\]; two of "),
        ("products = 4", "products = 0", r"dot_products\[0\].products = 0; a whole number from 1"),
        ("products = 4", "products = 4\nport = 5", r"the unknown key 'dot_products\[0\].port'"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        parsed(old, new)


def test_tables_must_be_tables() -> None:
    head = TEXT[: TEXT.index("[vector]")]
    with pytest.raises(TargetError, match="vector = 64; a table is expected"):
        parse_instruction_set("flat", head + "vector = 64")
    with pytest.raises(TargetError, match="intrinsics = \\[1\\]; a list of tables is expected"):
        parse_instruction_set("flat", "intrinsics = [1]\n" + TEXT[: TEXT.index("[[intrinsics]]")])


def test_unknown_names_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"unknown isa.name 'mmx'; one of .*avx2.* is expected"):
        instruction_set("mmx")
    with pytest.raises(TargetError, match="cannot be read: No such file"):
        instruction_set(str(tmp_path / "absent.toml"))
    (tmp_path / "picture.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TargetError, match="cannot be read: it is no text"):
        instruction_set(str(tmp_path / "picture.toml"))
