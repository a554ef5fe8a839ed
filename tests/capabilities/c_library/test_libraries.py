"""`tilesmith compile --emit`: what it writes and prints, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import tilesmith as ts
from tests.capabilities.c_library.c_libraries import LoadedLibrary, needs_compiler
from tests.end_to_end.command import invoke, refuse, save_model, succeed


def computes(path: Path, prefix: str, model: Path) -> None:
    """A library is as good as onnxruntime."""
    library = LoadedLibrary(path, prefix)
    assert library.call("init", str(path.with_suffix(".weights")).encode()) == 0
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    workspace = library.workspace()
    np.testing.assert_allclose(workspace({"x": x})["y"], wanted, atol=1e-5)
    workspace.end()


@needs_compiler
def test_a_library_and_what_is_beside_it(tmp_path: Path, model: Path) -> None:
    found = succeed("compile", model, "--emit", "library", "-o", tmp_path / "s.so")["library"]
    assert found["path"] == str(tmp_path / "s.so") and found["weights"] is None
    assert found["prefix"] == "small" and found["kind"] == "library" and found["threads"] == 1
    assert found["bytes"] == (tmp_path / "s.so").stat().st_size
    assert "small_run(" in (tmp_path / "s.h").read_text()
    computes(tmp_path / "s.so", "small", model)
    said = invoke("compile", model, "--emit", "library", "-o", tmp_path / "t.so", "--weights",
                  "file", "--prefix", "other")  # fmt: skip
    assert said.exit_code == 0, said.stderr
    assert "library of 0.0" in said.stdout and "weights of" in said.stdout
    assert "t.h has its functions, other_run" in said.stdout
    computes(tmp_path / "t.so", "other", model)


@needs_compiler
def test_artifacts_and_executables_become_libraries(tmp_path: Path, model: Path) -> None:
    succeed("compile", model, "-o", tmp_path / "m.tsm")
    succeed("compile", tmp_path / "m.tsm", "--emit", "library", "-o", tmp_path / "a.so")
    computes(tmp_path / "a.so", "small", model)
    made = ts.compile(model).emit_library(tmp_path / "b.so", prefix="b")
    computes(Path(made.path), "b", model)
    made = ts.emit_library(model, tmp_path / "c.so", prefix="c", weights="file")
    computes(Path(made.path), made.prefix, model)


@needs_compiler
def test_a_library_serves_a_range_of_sizes(tmp_path: Path) -> None:
    varying = save_model(tmp_path / "v.onnx", ("N", 8))
    ranges = ("--shape", "N=1..6")
    found = succeed("compile", varying, "--emit", "library", "-o", tmp_path / "v.so", *ranges)[
        "library"
    ]
    assert found["sizes"] == {"N": [1, 6]}
    succeed("compile", varying, "-o", tmp_path / "v.tsm", *ranges)
    succeed("compile", tmp_path / "v.tsm", "--emit", "object", "-o", tmp_path / "a.o")
    made = ts.load(tmp_path / "v.tsm").emit_library(tmp_path / "b.so", prefix="b")
    session = onnxruntime.InferenceSession(varying)
    for path, prefix in ((tmp_path / "v.so", "v"), (Path(made.path), "b")):
        library = LoadedLibrary(path, prefix)
        assert library.call("init", None) == 0
        assert library.inputs[0][2:] == ((-1, 8), 6 * 8 * 4)
        workspace = library.workspace()
        for rows in (6, 1, 3):
            x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
            (wanted,) = session.run(None, {"x": x})
            np.testing.assert_allclose(workspace.at_sizes_of({"x": x})["y"], wanted, atol=1e-5)
        workspace.end()
    said = invoke("compile", varying, "--emit", "archive", "-o", tmp_path / "v.a", *ranges)
    assert "workspace a caller at the largest sizes" in said.stdout
    assert "N is 1 to 6" in said.stdout


@needs_compiler
def test_headers_are_of_every_standard_of_c_and_cpp(tmp_path: Path, model: Path) -> None:
    varying = save_model(tmp_path / "v.onnx", ("N", 8))
    ts.emit_library(varying, tmp_path / "v.o", kind="object", shapes={"N": (1, 6)})
    ts.emit_library(model, tmp_path / "m.o", kind="object", weights="file")
    for compiler, suffix, standards in (
        ("cc", "c", ("c89", "c99", "c17")), ("c++", "cpp", ("c++98", "c++20"))
    ):  # fmt: skip
        if not shutil.which(compiler):
            continue
        source = tmp_path / f"t.{suffix}"
        source.write_text('#include "v.h"\n#include "m.h"\nint main(void) { return 0; }\n')
        for standard in standards:
            strict = ("-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror")
            chosen = strict if suffix == "c" else (*strict[:3], strict[4])
            command = [compiler, f"-std={standard}", *chosen, "-fsyntax-only", str(source)]
            subprocess.run(command, check=True)


@needs_compiler
@pytest.mark.parametrize("target", ["cpu", "cpu:neon", "cpu:rvv128"])
def test_objects_and_archives_are_made_without_tools_and_repeat(
    tmp_path: Path, model: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    for kind, name in (("object", "m.o"), ("archive", "m.a")):
        first, second = tmp_path / name, tmp_path / f"2{name}"
        for path in (first, second):
            ts.emit_library(model, path, target, kind=kind)  # type: ignore[arg-type]
        assert first.read_bytes() == second.read_bytes()
    monkeypatch.undo()
    listed = subprocess.run(
        ["ar", "t", str(tmp_path / "m.a")], capture_output=True, text=True, check=True
    )
    assert listed.stdout == "model.o\n"
    read = subprocess.run(
        ["readelf", "-Ws", str(tmp_path / "m.o")], capture_output=True, text=True, check=True
    )
    assert not read.stderr
    shown = [line.split()[-1] for line in read.stdout.splitlines() if " GLOBAL " in line]
    outside = {line.split()[-1] for line in read.stdout.splitlines() if " UND " in line}
    assert all(name.startswith("small_") for name in set(shown) - outside)


@needs_compiler
def test_two_models_are_linked_into_one_program(tmp_path: Path, model: Path) -> None:
    graph = onnx.load(model)
    onnx.save(graph, tmp_path / "second-model v2.onnx")
    for path, name in ((model, "one"), (tmp_path / "second-model v2.onnx", "two")):
        succeed("compile", path, "--emit", "archive", "-o", tmp_path / f"{name}.a")
    (tmp_path / "main.c").write_text(
        '#include "one.h"\n#include "two.h"\n#include <stdio.h>\n'
        "int main(void) {\n    float x[32], y[24], z[24];\n"
        "    const void *in[] = {x};\n    void *first[] = {y}, *second[] = {z};\n"
        "    small_workspace *s;\n    second_model_v2_workspace *t;\n"
        "    for (int i = 0; i < 32; i++) x[i] = (float)i / 8 - 2;\n"
        "    if (small_init(0) || second_model_v2_init(0)) return 1;\n"
        "    if (small_create(0, &s) || second_model_v2_create(0, &t)) return 2;\n"
        "    if (small_run(s, in, first) || second_model_v2_run(t, in, second)) return 3;\n"
        "    for (int i = 0; i < 24; i++) if (y[i] != z[i]) return 4;\n"
        "    small_destroy(s);\n    second_model_v2_destroy(t);\n"
        '    for (int i = 0; i < 24; i++) printf("%.9g\\n", y[i]);\n    return 0;\n}\n'
    )
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c99", "-fsanitize=address"]
    subprocess.run(
        ["cc", *strict, "main.c", "one.a", "two.a", "-o", "main", "-lm"], cwd=tmp_path, check=True
    )
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    x = (np.arange(32, dtype=np.float32) / 8 - 2).reshape(4, 8)
    (wanted,) = onnxruntime.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_allclose(np.array(done.stdout.split(), np.float32), wanted.ravel(), atol=1e-5)


@needs_compiler
def test_hostile_names_stay_names(tmp_path: Path) -> None:
    """In the header, in its texts and in C++ too."""
    proto = onnx.load(save_model(tmp_path / 'a"*.onnx'))
    evil = '*/ int x; /* \\ "%s%n" ??/\n#error \u2603'
    proto.graph.name = proto.graph.input[0].name = proto.graph.node[0].input[0] = evil
    path = tmp_path / '9 * "; #error %s \u2603.onnx'
    onnx.save(proto, str(path))
    made = ts.emit_library(path, tmp_path / 'l".so', weights="file")
    assert made.prefix == "m9_error_s"
    for compiler, suffix in (("cc", "c"), ("c++", "cpp")):
        if shutil.which(compiler):
            source = tmp_path / f"t.{suffix}"
            source.write_text(Path(made.header).read_text() + "\nint main(void) { return 0; }\n")
            command = [compiler, "-Wall", "-Wextra", "-Werror", "-trigraphs", "-c", str(source)]
            subprocess.run([*command, "-o", str(tmp_path / "t.o")], check=True)
    library = LoadedLibrary(Path(made.path), made.prefix)
    assert library.inputs[0][0] == evil
    assert library.call("init", str(made.weights).encode()) == 0
    workspace = library.workspace()
    status, said = workspace.run([0], [np.zeros((4, 6), np.float32)])
    assert (status, said) == (1, f"input '{evil}' is NULL")
    workspace.end()


def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = ("compile", str(model), "--emit")
    assert "'trn1' has no libraries" in refuse(
        *emit, "library", "-o", tmp_path / "m.so", "--target", "trn1"
    )
    assert "is called like an artifact" in refuse(*emit, "object", "-o", tmp_path / "m.tsm")
    assert "name the library itself" in refuse(*emit, "object", "-o", tmp_path / "m.h")
    assert "--weights-in is of libraries" in refuse(
        "compile", model, "-o", tmp_path / "m.tsm", "--weights", "file"
    )
    assert "prefix 'int 3' is no name" in refuse(
        *emit, "object", "-o", tmp_path / "m.o", "--prefix", "int 3"
    )
    assert "its folder does not exist" in refuse(*emit, "library", "-o", tmp_path / "no" / "m.so")
    (tmp_path / "d.h").mkdir()
    assert "d.h' cannot be written: it is a folder" in refuse(
        *emit, "object", "-o", tmp_path / "d.o"
    )
    assert "'/dev/null' is no file that others" in refuse(*emit, "object", "-o", "/dev/null")
    assert "'dll' is not one of" in refuse(*emit, "dll", "-o", tmp_path / "m.so")
    varying = save_model(tmp_path / "v.onnx", ("N", 8))
    assert "--shape" in refuse("compile", varying, "--emit", "object", "-o", tmp_path / "m.o")
    monkeypatch.setenv("TILESMITH_LINKER", "/no/such")
    assert "not a command that is installed" in refuse(*emit, "library", "-o", tmp_path / "m.so")
    monkeypatch.setenv("TILESMITH_LINKER", "false")
    assert "'false' cannot link 'm.so': it does not say why" in refuse(
        *emit, "library", "-o", tmp_path / "m.so", code=1
    )
    monkeypatch.setenv("TILESMITH_LINKER", "")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(
        "tilesmith.capabilities.c_library.packaging.linking.find_spec", lambda name: None
    )
    assert "pip install 'tilesmith[library]'; --emit object and --emit archive need none" in refuse(
        *emit, "library", "-o", tmp_path / "m.so"
    )
    assert not (tmp_path / "m.so").exists() and not (tmp_path / "m.o").exists()


@needs_compiler
def test_a_run_cannot_allocate(tmp_path: Path, model: Path) -> None:
    """All a library calls is known: memory comes from `posix_memalign`, which making a workspace
    alone calls, and `snprintf` writes sentences of errors."""
    always = {"memmove", "memset", "memcpy", "snprintf", "posix_memalign", "free"}
    team = {
        "pthread_create",
        "pthread_join",
        "pthread_setaffinity_np",
        "clock_gettime",
        "syscall",
        "getpid",
    }
    team |= {"sched_getaffinity", "sched_getcpu"}
    for threads, allowed in ((1, always), (2, always | team)):
        ts.emit_library(model, tmp_path / "m.o", kind="object", threads=threads)
        listed = subprocess.run(
            ["nm", "-u", str(tmp_path / "m.o")], capture_output=True, text=True, check=True
        )
        assert set(listed.stdout.split()) - {"U"} <= allowed
