"""Which linker is taken, and names and archives that need none."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import pytest

from tilesmith.capabilities.c_library.packaging import linking
from tilesmith.capabilities.c_library.packaging.elf import RELOCATION, Merged, blob, read
from tilesmith.capabilities.c_library.packaging.files import write_archive
from tilesmith.capabilities.c_library.packaging.names import check_prefix, prefix_of
from tilesmith.codegen.host.machine import cpu_target, host_target
from tilesmith.codegen.native import toolchain
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import CodegenError, DependencyError, InputError

ARM, RISCV = load_target("aarch64"), cpu_target("r", "rvv128", "riscv64-unknown-linux-gnu")


def tool(folder: Path, name: str) -> str:
    """A program of that name."""
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_the_systems_compiler_comes_first_then_zig_then_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found: list[object] = [object()]
    monkeypatch.setattr(linking, "find_spec", lambda name: found[0])
    zig = (sys.executable, "-m", "ziglang", "cc", "-target")
    assert linking.linker_of(RISCV) == (*zig, "riscv64-linux-gnu")
    clang = tool(tmp_path, "clang")
    assert linking.linker_of(host_target()) == (clang,)
    compiler = tool(tmp_path, "cc")
    assert linking.linker_of(host_target()) == (compiler,)
    assert linking.linker_of(RISCV) == (*zig, "riscv64-linux-gnu")
    cross = tool(tmp_path, "riscv64-linux-gnu-gcc")
    assert linking.linker_of(RISCV) == (cross,)
    monkeypatch.setenv("CC", f"{clang} -fuse-ld=lld")
    assert linking.linker_of(host_target()) == (clang, "-fuse-ld=lld")
    assert linking.linker_of(RISCV) == (cross,)
    monkeypatch.setenv("TILESMITH_LINKER", f"{compiler} -v")
    assert linking.linker_of(RISCV) == (compiler, "-v")
    monkeypatch.delenv("TILESMITH_LINKER")
    found[0] = None
    Path(cross).unlink()
    with pytest.raises(DependencyError, match="links shared libraries for riscv64: install"):
        linking.linker_of(RISCV)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("resnet50-v1.7", "resnet50_v1_7"), ("3dnet", "m3dnet"), ("__x__", "x"), ("", "model"),
        ("☃", "model"), ("a" * 99, "a" * 64), ("main graph", "main_graph"),
    ],
)  # fmt: skip
def test_prefixes_are_identifiers(name: str, prefix: str) -> None:
    assert prefix_of(name) == prefix == check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["", "_x", "3d", "a-b", "é", "a" * 65, "a\nb"])
def test_other_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(InputError, match="is no name that functions of C can begin with"):
        check_prefix(prefix)


def object_of(text: str, triple: str = "x86_64-unknown-linux-gnu") -> bytes:
    isa = {"x": "sse", "a": "neon", "r": "rvv128"}[triple[0]]
    return toolchain.emit_object(text, cpu_target("t", isa, triple))


CALLER = (
    "declare void @run(ptr)\ndefine void @shown(ptr %p) {\n  call void @run(ptr %p)\n  ret void\n}"
)
CALLED = "define void @run(ptr %p) {\n  store float 0x3FF3333340000000, ptr %p\n  ret void\n}"


@pytest.mark.parametrize("triple", ["x86_64", "aarch64", "riscv64"])
def test_calls_between_parts_are_resolved_and_all_else_is_hidden(triple: str) -> None:
    caller, called = (object_of(t, f"{triple}-unknown-linux-gnu") for t in (CALLER, CALLED))
    parts = [(read(caller), {}), (read(called), {"run": "inner"}), (read(called), {"run": "run"})]
    merged, stream = Merged(parts, frozenset({"shown"})), io.BytesIO()
    merged.write(stream)
    assert len(stream.getvalue()) == merged.nbytes and merged.undefined == ()
    again = read(stream.getvalue())
    shown = {s.name: s.is_global for s in again.symbols if s.kind == 2}
    assert shown == {"shown": True, "inner": False, "run": False}
    targets = {
        again.symbols[info >> 32].name
        for section in again.sections.values()
        for _, info, _ in RELOCATION.iter_unpack(section.relocations)
        if again.symbols[info >> 32].kind == 2
    }
    assert targets == {"run"}
    assert RELOCATION.size == 24


def test_parts_that_do_not_fit_are_refused() -> None:
    parts = [read(object_of(CALLED)), read(object_of(CALLED, "aarch64-unknown-linux-gnu"))]
    with pytest.raises(CodegenError, match="of several machines"):
        Merged([(part, {}) for part in parts], frozenset())
    with pytest.raises(CodegenError, match="two parts of a library define 'run'"):
        Merged([(parts[0], {}), (parts[0], {})], frozenset())
    with pytest.raises(CodegenError, match="64-bit little-endian ELF objects"):
        read(b"\xcf\xfa\xed\xfe" + bytes(100))


def test_an_archive_names_what_its_member_defines() -> None:
    merged = Merged([(blob("w", [b"12345"], 64, 62, large=True), {})], frozenset({"w"}))
    stream = io.BytesIO()
    write_archive(stream, "model.o", merged, ("w",))
    content = stream.getvalue()
    assert content.startswith(b"!<arch>\n/ ")
    count, start = struct.unpack_from(">2I", content, 68)
    assert count == 1 and content[start : start + 8] == b"model.o/"
    size = int(content[start + 48 : start + 58])
    assert read(content[start + 60 : start + 60 + size]).symbols[-1].name == "w"
    assert len(content) % 2 == 0
