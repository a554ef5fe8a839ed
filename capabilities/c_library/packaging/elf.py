"""Relocatable ELF objects, read, and put together as one (what `ld -r` does, and `objcopy`).

LLVM gives one object a kernel; a library is one object with few names to be seen. Sections are not
merged: each goes into the new object as it is, beside others of its name, so that its relocations
keep their offsets, and linkers put them together later. What was global becomes local unless it is
exported. Invariant: the same parts give the same bytes.

Source: System V Application Binary Interface, Edition 4.1, chapter 4 ("Object Files"), 64 bits.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple

from tilesmith.search_space.support.errors import CodegenError

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")

_PROGBITS, _SYMTAB, _STRTAB, _RELA, _NOBITS = 1, 2, 3, 4, 8
_ATTRIBUTES = 0x70000003
"""SHT_RISCV_ATTRIBUTES, SHT_ARM_ATTRIBUTES, SHT_AARCH64_ATTRIBUTES: linkers want one of them."""
_KEPT = (_PROGBITS, _NOBITS, _ATTRIBUTES)
_LEFT_OUT = (".eh_frame", ".note.", ".comment", ".llvm_addrsig")
"""Nothing of ours throws or unwinds; the one note that matters is written anew."""
_UNDEFINED, _FIRST_SPECIAL = 0, 0xFF00
_LOCAL, _GLOBAL = 0, 1
_OF_SECTION, _OF_FILE = 3, 4
WRITE, ALLOC, EXECUTE, LARGE = 1, 2, 4, 0x10000000
X86_64 = 62


class Symbol(NamedTuple):
    """A name of an object: what kind of thing it is, the section it is in (`_UNDEFINED` for none),
    and where there."""

    name: str
    kind: int
    section: int
    value: int
    size: int
    is_global: bool


@dataclass(frozen=True)
class Section:
    """Bytes under a name.

    Attributes:
        content: pieces, one after the other; none where there is nothing but room.
        nbytes: of all of them.
        relocations: a table of places whose bytes a linker computes from a symbol.
    """

    name: str
    kind: int
    flags: int
    align: int
    entry: int
    nbytes: int
    content: Sequence[Any] = ()
    relocations: bytes = b""


@dataclass(frozen=True)
class ObjectFile:
    """One object: sections by their numbers, and symbols, to which relocations point."""

    machine: int
    flags: int
    sections: Mapping[int, Section]
    symbols: tuple[Symbol, ...]


def read(content: bytes) -> ObjectFile:
    """The parts of an object that LLVM wrote.

    Raises:
        CodegenError: it is no relocatable object of ELF, of 64 bits and little-endian.
    """
    if content[:6] != b"\x7fELF\2\1" or len(content) < HEADER.size:
        raise CodegenError(
            "libraries are made of 64-bit little-endian ELF objects; this target's are others"
        )
    _, _, machine, _, _, _, start, flags, _, _, _, size, count, names = HEADER.unpack_from(content)
    rows = [SECTION.unpack_from(content, start + i * size) for i in range(count)]
    inside = [b"" if row[1] == _NOBITS else content[row[4] : row[4] + row[5]] for row in rows]
    tables = {row[7]: table for row, table in zip(rows, inside, strict=True) if row[1] == _RELA}
    kept: dict[int, Section] = {}
    symbols: list[Symbol] = []
    for number, (row, own) in enumerate(zip(rows, inside, strict=True)):
        name, relocations = _text(inside[names], row[0]), tables.get(number, b"")
        if row[1] in _KEPT and not name.startswith(_LEFT_OUT):
            pieces = (own,) if own else ()
            kept[number] = Section(
                name, row[1], row[2], row[8], row[9], row[5], pieces, relocations
            )
        if row[1] == _SYMTAB:
            texts = inside[row[6]]
            symbols = [
                Symbol(_text(texts, at), info & 15, section, value, size, info >> 4 != _LOCAL)
                for at, info, _, section, value, size in SYMBOL.iter_unpack(own)
            ]
    return ObjectFile(machine, flags, kept, tuple(symbols))


def _text(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def blob(name: str, pieces: Sequence[Any], align: int, machine: int, *, large: bool) -> ObjectFile:
    """An object of read-only bytes alone, under one name.

    Args:
        pieces: buffers of bytes.
        large: it may be so large that it is kept apart from code, which reaches 2 GiB on x86-64
            (the psABI's large sections).
    """
    apart = large and machine == X86_64
    nbytes = sum(memoryview(piece).nbytes for piece in pieces)
    flags = ALLOC | (LARGE if apart else 0)
    section = ".lrodata" if apart else ".rodata"
    contents = Section(f"{section}.{name}", _PROGBITS, flags, align, 0, nbytes, pieces)
    return ObjectFile(machine, 0, {1: contents}, (Symbol(name, 1, 1, 0, nbytes, True),))


class _Texts:
    """A table of names that grows."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0")
        self._known: dict[str, int] = {"": 0}

    def at(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = len(self.content)
            self.content += name.encode() + b"\0"
        return self._known[name]


class Merged:
    """One object made of several; see the module's docstring.

    Args:
        parts: with, for each, what its symbols are called from now on (by what they were).
        exported: names that stay global.

    Raises:
        CodegenError: they are of several machines, or there are too many sections.
    """

    def __init__(
        self, parts: Sequence[tuple[ObjectFile, Mapping[str, str]]], exported: frozenset[str]
    ) -> None:
        if len({part.machine for part, _ in parts}) != 1:
            raise CodegenError("the code of a library is of several machines; compile it again")
        self.parts, self.exported = parts, exported
        self._texts, self._symbols = _Texts(), [SYMBOL.pack(0, 0, 0, 0, 0, 0)]
        self._sections: list[tuple[Section, int]] = []
        self._at: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        for number, (part, _) in enumerate(self.parts):
            for own, section in part.sections.items():
                if section.kind == _ATTRIBUTES and any(
                    s.kind == _ATTRIBUTES for s, _ in self._sections
                ):
                    continue
                self._sections.append((section, number))
                self._at[number, own] = len(self._sections)
        if 2 * len(self._sections) + 5 >= _FIRST_SPECIAL:
            raise CodegenError(
                f"a library of {len(self.parts)} kernels has more sections than an object may have"
            )
        self._number_symbols()
        self._rows = self._laid_out()

    def _number_symbols(self) -> None:
        defined: dict[str, tuple[int, int]] = {}
        outside: dict[str, int] = {}
        local: list[tuple[tuple[int, int], Symbol, str]] = []
        shown: list[tuple[tuple[int, int], Symbol, str]] = []
        for key, symbol, name in (every := list(self._named())):
            left_out = symbol.section and (key[0], symbol.section) not in self._at
            if symbol.kind == _OF_FILE or symbol.section == _UNDEFINED or left_out:
                continue
            (shown if name in self.exported else local).append((key, symbol, name))
            if symbol.is_global and defined.setdefault(name, key) != key:
                raise CodegenError(f"two parts of a library define '{name}'")
        for key, symbol, name in local:
            self._add(key, symbol, name, _LOCAL)
        self._first_global = len(self._symbols)
        for key, symbol, name in shown:
            self._add(key, symbol, name, _GLOBAL)
        for key, symbol, name in every:
            if symbol.section != _UNDEFINED or not name:
                continue
            if name not in defined and name not in outside:
                outside[name] = len(self._symbols)
                undefined = (self._texts.at(name), _GLOBAL << 4, 0, _UNDEFINED, 0, 0)
                self._symbols.append(SYMBOL.pack(*undefined))
            known = self._numbers[defined[name]] if name in defined else outside[name]
            self._numbers[key] = known
        self.undefined = tuple(sorted(outside))

    def _named(self) -> Iterator[tuple[tuple[int, int], Symbol, str]]:
        """Part and number there, symbol, and its name from now on."""
        for number, (part, names) in enumerate(self.parts):
            for own, symbol in enumerate(part.symbols):
                yield (number, own), symbol, names.get(symbol.name, symbol.name)

    def _add(self, key: tuple[int, int], symbol: Symbol, name: str, binding: int) -> None:
        section = symbol.section
        if section < _FIRST_SPECIAL:
            section = self._at[key[0], section]
        self._numbers[key] = len(self._symbols)
        text = 0 if symbol.kind == _OF_SECTION else self._texts.at(name)
        info = binding << 4 | symbol.kind
        self._symbols.append(SYMBOL.pack(text, info, 0, section, symbol.value, symbol.size))

    def _relocated(self, section: Section, part: int) -> bytes:
        return b"".join(
            RELOCATION.pack(at, self._numbers[part, info >> 32] << 32 | info & 0xFFFFFFFF, addend)
            for at, info, addend in RELOCATION.iter_unpack(section.relocations)
        )

    def _laid_out(self) -> list[tuple[bytes, int, Sequence[Any], int]]:
        """Rows of the section header table: all but the place, the place, content, its size."""
        texts = self._texts
        plain = [(s, s.content, s.nbytes, 0, 0) for s, _ in self._sections]
        symbols_at = len(self._sections) + 1
        tables: list[tuple[Section, Sequence[Any], int, int, int]] = []
        for number, (section, part) in enumerate(self._sections, start=1):
            if section.relocations:
                content = self._relocated(section, part)
                header = Section(
                    f".rela{section.name}", _RELA, 0x40, 8, RELOCATION.size, len(content)
                )
                tables.append((header, (content,), len(content), symbols_at, number))
        symbols = b"".join(self._symbols)
        table = Section(".symtab", _SYMTAB, 0, 8, SYMBOL.size, len(symbols))
        strings = Section(".strtab", _STRTAB, 0, 1, 0, 0)
        note = Section(".note.GNU-stack", _PROGBITS, 0, 1, 0, 0)
        every = [*plain, (table, (symbols,), len(symbols), symbols_at + 1, self._first_global)]
        every += [(strings, (), 0, 0, 0), (note, (), 0, 0, 0), *tables]
        names = [texts.at(section.name) for section, *_ in every]
        every[symbols_at] = (strings, (bytes(texts.content),), len(texts.content), 0, 0)
        rows, position = [], HEADER.size
        for name, (section, pieces, nbytes, link, info) in zip(names, every, strict=True):
            position = -(-position // section.align) * section.align if section.align else position
            kept = 0 if section.kind == _NOBITS else nbytes
            row = SECTION.pack(
                name, section.kind, section.flags, 0, position, nbytes, link, info, section.align,
                section.entry,
            )  # fmt: skip
            rows.append((row, position, pieces, kept))
            position += kept
        self._table_at = -(-position // 8) * 8
        return rows

    @cached_property
    def nbytes(self) -> int:
        """Size of the object."""
        return self._table_at + SECTION.size * (len(self._rows) + 1)

    def write(self, stream: BinaryIO) -> None:
        """Write the object; errors are the stream's."""
        part = self.parts[0][0]
        flags = max(part.flags for part, _ in self.parts)
        head = HEADER.pack(
            b"\x7fELF\2\1\1" + bytes(9), 1, part.machine, 1, 0, 0, self._table_at, flags,
            HEADER.size, 0, 0, SECTION.size, len(self._rows) + 1, len(self._sections) + 2,
        )  # fmt: skip
        position = stream.write(head)
        for _, start, pieces, kept in self._rows:
            position += stream.write(bytes(start - position))
            for piece in pieces if kept else ():
                view = memoryview(piece).cast("B")
                stream.write(view)
                position += view.nbytes
        stream.write(bytes(self._table_at - position) + bytes(SECTION.size))
        stream.writelines(row for row, *_ in self._rows)
