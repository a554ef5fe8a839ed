"""A file stands in for what the machine says of itself: caches, cores, features taken away."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tilesmith.codegen.host import machine as host
from tilesmith.codegen.host.machine import (
    ENVIRONMENT,
    HostDescription,
    cpu_target,
    description,
    host_target,
    narrowed,
)
from tilesmith.codegen.llvm.module import emit_module
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.programs.structures import default_of, lowered
from tilesmith.search_space.hardware.target import Target
from tilesmith.search_space.support.errors import TargetError
from tilesmith.search_space.workloads.workload import Workload

HOSTS = sorted((Path(__file__).parents[1] / "hosts").glob("*.toml"))
X86 = "x86_64-unknown-linux-gnu"
PRODUCT = Workload.parse("matmul m=32 n=64 k=128 dtype=uint8 weights=int8 const=b")


def taken_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The host as a file describes it."""
    monkeypatch.setenv(ENVIRONMENT, str(file))
    return host_target.__wrapped__()


@pytest.mark.parametrize("file", HOSTS, ids=lambda path: path.stem)
def test_a_made_up_host_lacks_features_and_has_its_own_caches(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, said = taken_for(file, monkeypatch), tomllib.loads(file.read_text())
    for name in ("l1", "l2", "l3", "reorder"):
        for part, value in said.get(name, {}).items():
            assert found.fact(f"{name}.{part}").value == value
            assert found.fact(f"{name}.{part}").source == str(file)
    assert found.text("isa.processor") == said["processor"]
    known = {f"+{name}" for name, has in llvm.get_host_cpu_features().items() if has}
    had = {name for name in found.text("isa.features").split(",") if name.startswith("+")}
    assert had <= known
    assert not [f for f in had for pattern in said["without"] if fnmatchcase(f[1:], pattern)]
    assert found.text("isa.name") == host.host_instruction_sets()[0]
    assert narrowed(found, "sse").integer("l2.kib") == found.integer("l2.kib")


@pytest.mark.parametrize("file", HOSTS, ids=lambda path: path.stem)
def test_code_for_a_made_up_host_has_no_instruction_that_it_lacks(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features bring others along (f16c brings AVX), as names of processors do."""
    found = taken_for(file, monkeypatch)
    if not found.text("isa.triple").startswith("x86_64"):
        pytest.skip("these hosts are of x86-64")
    text = emit_module(lowered(PRODUCT, found, default_of(PRODUCT, found)), found).text
    assembly = toolchain.emit_assembly(text, found)
    width = found.integer("vector.bytes")
    assert ("zmm" in assembly) == (width == 64)
    assert width >= 32 or not re.search(r"ymm|\bv[a-z]", assembly)
    assert "amx" not in assembly and "tdpb" not in assembly


def test_other_cpus_are_described_alike_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cpu_target("other", "avx512", X86)
    monkeypatch.setenv(ENVIRONMENT, str(HOSTS[0]))
    monkeypatch.setattr(host, "_cache", lambda level: (level * 1000, 3))
    monkeypatch.setattr(host.os, "cpu_count", lambda: 77)
    assert cpu_target("other", "avx512", X86) == before


def test_features_are_only_taken_away() -> None:
    asked = HostDescription(without=("avx512*", "fma"))
    known = {"avx512f": True, "avx512vl": False, "avx2": True, "fma": True}
    assert asked.features(known) == {
        "avx512f": False, "avx512vl": False, "avx2": True, "fma": False
    }  # fmt: skip
    assert HostDescription().features(known) == known


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("l9.kib = 3", "states 'l9.kib'; 'processor', 'without' and threads, "),
        ("isa.name = 'avx512'", "states 'isa.name'"),
        ("threads = 'many'", "threads = 'many' is not of type int"),
        ("threads = 0", "threads = 0 is out of range; allowed: 1 to 1024"),
        ("without = 'fma'", "without = 'fma' is no list of texts"),
        ("processor = 7", "processor = 7 is no text"),
        ("l1 = {", "is not valid TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_mistaken_file_is_refused_in_a_sentence(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "host.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(TargetError) as caught:
        taken_for(file, monkeypatch)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_without_a_file_nothing_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert description() == HostDescription()
