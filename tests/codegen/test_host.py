"""What the host is called: the answers of LLVM are made up, the names must be true."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tests.codegen.kernels import HOST
from tilesmith.codegen.host import machine as host
from tilesmith.codegen.host.machine import cpu_target, has_length, host_target
from tilesmith.codegen.native.toolchain import check_loadable
from tilesmith.compiler.backends.backend import backends
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.hardware.instruction_set import instruction_set, lanes, vector_width
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import CodegenError, TargetError

X86, ARM, RISCV = (f"{first}-unknown-linux-gnu" for first in ("x86_64", "aarch64", "riscv64"))
OLD_X86 = ("sse2", "sse3")
NEHALEM = (*OLD_X86, "sse4.1", "sse4.2")
HASWELL = (*NEHALEM, "avx", "avx2", "fma", "f16c")
SKYLAKE = (*HASWELL, "avx512f", "avx512vl")


def described(
    monkeypatch: pytest.MonkeyPatch,
    triple: str,
    features: tuple[str, ...],
    processor: str = "made-up",
    vscale: int = 0,
) -> Target:
    """The host, if LLVM answered so."""
    monkeypatch.delenv("TILESMITH_CPU", raising=False)
    answer: Mapping[str, bool] = dict.fromkeys(features, True) | {"absent": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: llvm.FeatureMap(answer))
    monkeypatch.setattr(llvm, "get_process_triple", lambda: triple)
    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: processor)
    monkeypatch.setattr(host, "_vscale", lambda *_: vscale)
    return host_target.__wrapped__()


@pytest.mark.parametrize(
    ("triple", "features", "vscale", "expected"),
    [
        (X86, SKYLAKE, 0, ("avx512", 64, 32)),
        (X86, (*HASWELL, "avx10.1"), 0, ("avx10_256", 32, 32)),
        (X86, (*HASWELL, "avx512f"), 0, ("avx2", 32, 16)),
        ("amd64-unknown-freebsd", HASWELL, 0, ("avx2", 32, 16)),
        (X86, (*NEHALEM, "avx", "avx2"), 0, ("sse", 16, 16)),
        (X86, OLD_X86, 0, ("generic", 16, 16)),
        (ARM, ("neon",), 0, ("neon", 16, 32)),
        (ARM, ("neon", "sve"), 2, ("neon", 16, 32)),
        ("arm64-apple-darwin", (), 0, ("neon", 16, 32)),
        (RISCV, ("m", "a", "f", "d", "c"), 0, ("generic", 16, 16)),
        (RISCV, ("v",), 2, ("rvv128", 16, 32)),
        (RISCV, ("v",), 4, ("rvv256", 32, 32)),
        (RISCV, ("v",), 16, ("rvv256", 32, 32)),
        ("powerpc64le-unknown-linux-gnu", ("altivec", "vsx"), 0, ("generic", 16, 16)),
    ],
)
def test_a_host_has_the_instruction_set_it_is_said_to_have(
    monkeypatch: pytest.MonkeyPatch,
    triple: str,
    features: tuple[str, ...],
    vscale: int,
    expected: tuple[str, int, int],
) -> None:
    found = described(monkeypatch, triple, features, vscale=vscale)
    name, size, registers = expected
    assert found.text("isa.name") == name
    assert found.integer("vector.bytes") == size
    assert found.integer("vector.registers") == registers
    assert found.text("isa.triple") == triple


def test_an_unknown_host_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = described(monkeypatch, "powerpc64le-unknown-linux-gnu", ("vsx",), "pwr10")
    assert found.doc == "pwr10 with generic vectors"
    assert found.text("isa.processor") == "pwr10"
    assert found.text("isa.features") == "-absent,+vsx"


def test_this_host_is_described() -> None:
    assert host_target() is host_target()
    assert (HOST.name, HOST.family) == ("cpu", "cpu")
    known = instruction_set(HOST.text("isa.name"))
    assert HOST.integer("vector.bytes") == known.vector_bytes
    assert HOST.integer("vector.registers") == known.vector_registers
    assert HOST.integer("l1.kib") <= HOST.integer("l2.kib") <= HOST.integer("l3.kib")
    assert HOST.integer("threads") >= 1


def test_other_cpus_can_be_described() -> None:
    target = cpu_target("phone", "neon", ARM)
    assert target.integer("vector.bytes") == 16
    assert target.identity != HOST.identity
    with pytest.raises(TargetError, match=r"unknown isa.name 'avx9'; one of avx10_256, avx2, "):
        cpu_target("phone", "avx9", ARM)


def test_lanes_follow_from_bytes() -> None:
    target = cpu_target("wide", "avx512", X86)
    sizes = {"int8": 64, "bfloat16": 32, "float16": 32, "float32": 16, "int64": 8, "float64": 8}
    assert {dtype: lanes(target, dtype) for dtype in sizes} == sizes
    assert vector_width(target) == 16


def test_scalable_registers_must_have_the_length_of_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact, least = instruction_set("sve256"), instruction_set("rvv256")
    for vscale, found in ((1, (False, False)), (2, (True, False)), (4, (False, True))):
        monkeypatch.setattr(host, "_vscale", lambda *_, given=vscale: given)
        assert (has_length(exact, ARM), has_length(least, RISCV)) == found
    monkeypatch.setattr(host, "_vscale", lambda *_: 1 / 0)
    assert has_length(instruction_set("avx2"), X86)  # nobody asks
    described(monkeypatch, ARM, ("neon", "sve"), vscale=1)
    monkeypatch.setattr("tilesmith.compiler.backends.cpu.backend.host_target", lambda: HOST)
    target = cpu_target("long", "sve256", HOST.text("isa.triple"))
    with pytest.raises(TargetError, match=r"registers of 32 bytes \(sve256\); this machine's have"):
        backends["cpu"].check(target)


def test_another_architectures_set_comes_with_its_processor() -> None:
    there = resolve_target("cpu", {"isa.name": "rvv256"})
    assert (there.text("isa.triple"), there.text("isa.processor")) == (RISCV, "generic")
    assert there.integer("vector.bytes") == 32
    plain = resolve_target("cpu", {"isa.name": "generic"})
    assert plain.text("isa.triple") == HOST.text("isa.triple")
    assert plain.text("isa.processor") == "generic"


def test_a_users_own_set_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    text = """
doc = "any processor, 8 bytes at a time"
source = "made up"
architectures = []
features = ""
vector = {bytes = 8, registers = 8, fused = false}
host = {order = 1, features = []}
"""
    path.write_text(text)
    found = resolve_target("cpu", {"isa.name": str(path)})
    assert (found.integer("vector.bytes"), found.text("isa.name")) == (8, str(path))
    assert Target.from_json(found.to_json()) == found
    with pytest.raises(TargetError, match=r"target 'cpu': .* file '.*' cannot be read"):
        resolve_target("cpu", {"isa.name": str(tmp_path / "absent.toml")})


@pytest.mark.parametrize(
    ("machine", "order", "name"), [(243, "little", "riscv64"), (21, "big", "the ELF machine 21")]
)
def test_code_of_another_machine_is_named(machine: int, order: str, name: str) -> None:
    head = b"\x7fELF\2" + (b"\1" if order == "little" else b"\2") + bytes(12)
    with pytest.raises(CodegenError, match=f"code for {name} cannot be loaded on"):
        check_loadable(head + machine.to_bytes(2, order))  # type: ignore[arg-type]
    check_loadable(b"\xcf\xfa\xed\xfe" + bytes(32))  # Mach-O: the loader says
