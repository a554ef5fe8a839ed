"""The code cache: keyed by content, harmless when broken, full or read-only."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.kernels import HOST, narrowed, pointwise
from tilesmith.codegen.host import object_cache
from tilesmith.codegen.native import toolchain
from tilesmith.codegen.native.kernel import NativeKernel, compile_program
from tilesmith.search_space.expressions.expression import var
from tilesmith.search_space.expressions.scalar import call, load
from tilesmith.search_space.ir.program import Program
from tilesmith.search_space.scheduling.lowering import lower


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(object_cache.ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache"


def program(addend: float) -> Program:
    return lower(pointwise(5, call("add", load("x", var("i")), addend), {"x": "float32"}))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Module texts handed to LLVM from now on."""
    seen: list[str] = []
    emit = toolchain.emit_object

    def counted(text: str, target: object) -> bytes:
        seen.append(text)
        return emit(text, target)  # type: ignore[arg-type]

    monkeypatch.setattr(toolchain, "emit_object", counted)
    return seen


def test_the_second_compilation_reads_the_first_ones_object(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = compiles(monkeypatch)
    first, second = compile_program(program(1), HOST), compile_program(program(1), HOST)
    assert first == second
    assert len(seen) == len(files(folder)) == 1


def test_other_content_or_target_is_another_object(folder: Path) -> None:
    compile_program(program(1), HOST)
    compile_program(program(2), HOST)
    compile_program(program(1), narrowed("sse"))
    assert len(files(folder)) == 3


def test_key_covers_text_target_and_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    key = toolchain.content_key("text", HOST)
    assert key == toolchain.content_key("text", HOST)
    assert key != toolchain.content_key("text ", HOST)
    assert key != toolchain.content_key("text", narrowed("sse"))
    monkeypatch.setattr(toolchain, "OPTIONS", ("-other",))
    assert key != toolchain.content_key("text", HOST)


def test_a_truncated_object_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_program(program(3), HOST)
    (path,) = files(folder)
    path.write_bytes(path.read_bytes()[:100])
    seen = compiles(monkeypatch)
    kernel = NativeKernel(compile_program(program(3), HOST))
    assert len(seen) == 1
    np.testing.assert_array_equal(kernel({"x": np.zeros(5, np.float32)}), np.full(5, 3.0))


@pytest.mark.parametrize("content", [b"", b"not an object", b"\0" * 4096])
def test_a_corrupt_object_is_made_anew(folder: Path, content: bytes) -> None:
    compile_program(program(4), HOST)
    (path,) = files(folder)
    path.write_bytes(content)
    kernel = NativeKernel(compile_program(program(4), HOST))
    np.testing.assert_array_equal(kernel({"x": np.zeros(5, np.float32)}), np.full(5, 4.0))


def test_an_object_under_anothers_name_is_made_anew(folder: Path) -> None:
    """All of these files are whole; whoever may rename them must not choose what is run."""
    compile_program(program(7), HOST)
    (seven,) = files(folder)
    compile_program(program(8), HOST)
    (eight,) = set(files(folder)) - {seven}
    eight.write_bytes(seven.read_bytes())
    kernel = NativeKernel(compile_program(program(8), HOST))
    np.testing.assert_array_equal(kernel({"x": np.zeros(5, np.float32)}), np.full(5, 8.0))


def test_an_object_that_others_may_write_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_program(program(9), HOST)
    (path,) = files(folder)
    seen = compiles(monkeypatch)
    compile_program(program(9), HOST)
    assert not seen
    path.chmod(0o666)
    compile_program(program(9), HOST)
    assert len(seen) == 1
    assert path.stat().st_mode & 0o077 == 0, "written anew, for this user alone"


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(object_cache.ENVIRONMENT, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    object_cache.store("aa", b"object")
    assert object_cache.load("aa") is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("in the way")
    monkeypatch.setenv(object_cache.ENVIRONMENT, str(blocked / "cache"))
    kernel = NativeKernel(compile_program(program(5), HOST))
    np.testing.assert_array_equal(kernel({"x": np.zeros(5, np.float32)}), np.full(5, 5.0))


def test_a_full_disk_leaves_no_half_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    compile_program(program(6), HOST)
    assert files(folder) == []


def test_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(object_cache.ENVIRONMENT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert object_cache.folder() == tmp_path / "tilesmith" / "objects"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert object_cache.folder() == tmp_path / ".cache" / "tilesmith" / "objects"
    assert os.environ["HOME"] == str(tmp_path)
