"""Models as shared libraries, called as programs in C call them, against onnxruntime."""

from __future__ import annotations

import ctypes
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.capabilities.c_library.c_libraries import (
    LoadedLibrary,
    emitted,
    loaded,
    needs_compiler,
    recipe,
)
from tests.compiler.model_builder import assert_close, expected, inputs_of, model_of, random
from tests.compiler.test_control import CASES, X
from tilesmith.capabilities.c_library.code.weights import sums_of
from tilesmith.capabilities.c_library.plans.library import plan_of
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.hardware.target import load_target
from tilesmith.search_space.support.errors import InputError, ModelError, TargetError

pytestmark = needs_compiler

NETWORK = model_of(
    "net (float[2, 3, 9, 9] x) => (float[2, 5] y, float[2, 4, 7, 7] r) { c = Conv(x, w) "
    "r = Relu(c) f = Flatten(r) m = MatMul(f, b) y = Softmax(m) }",
    w=random(4, 3, 3, 3), b=random(196, 5) / 14,
)  # fmt: skip
GATHER = model_of(
    "g (float[5, 3] x, int32[2] i) => (float[2, 3] y) { t = Relu(x) y = Gather(t, i) }"
)


def agree(model: onnx.ModelProto, folder: Path, **options: Any) -> None:
    library = loaded(model, folder, **options)
    workspace = library.workspace(options.get("threads", 1))
    for seed in (1, 2):
        inputs = inputs_of(import_model(model), seed)
        assert_close(workspace(inputs), expected(model, inputs))
    workspace.end()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_network_computes_what_onnxruntime_does(tmp_path: Path, threads: int) -> None:
    agree(NETWORK, tmp_path, threads=threads)


def test_inputs_and_outputs_are_described(tmp_path: Path) -> None:
    library = loaded(GATHER, tmp_path)
    assert library.inputs == [("x", "float32", (5, 3), 60), ("i", "int32", (2,), 8)]
    assert library.outputs == [("y", "float32", (2, 3), 24)]


def test_what_kernels_never_touch_comes_out_as_well(tmp_path: Path) -> None:
    """An input as it is, a constant, an input nobody reads."""
    agree(
        model_of(
            "g (float[3] a, float[2] b) => (float[3] c, float[2] d, float[3] e) "
            "{ c = Identity(a) d = Identity(w) e = Exp(a) }",
            w=random(2),
        ),
        tmp_path,
    )


@pytest.mark.parametrize("index", [5, -6, 2**30])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_index_out_of_range_is_an_error_and_no_crash(
    tmp_path: Path, index: int, threads: int
) -> None:
    library = loaded(GATHER, tmp_path, threads=threads)
    workspace = library.workspace(threads)
    good = {"x": random(5, 3), "i": np.array([4, -5], np.int32)}
    assert_close(workspace(good), expected(GATHER, good))
    bad = [good["x"], np.array([0, index], np.int32)]
    assert workspace.run(bad, [np.zeros((2, 3), np.float32)]) == (
        6,
        f"gather 'y' takes index {index} of an axis with 5 entries; indices run from -5 to 4",
    )
    assert_close(workspace(good), expected(GATHER, good))
    workspace.end()


@pytest.mark.parametrize(("text", "inputs", "weights"), [CASES[n] for n in (0, 1, 4, 5, 6, 7, 8)])
def test_loops_and_branches_run(
    tmp_path: Path, text: str, inputs: dict[str, Any], weights: dict[str, Any]
) -> None:
    model = model_of(text, **weights)
    given = {"x": X, **inputs}
    library = loaded(model, tmp_path, threads=2)
    for threads in (1, 2):
        workspace = library.workspace(threads)
        for _ in range(2):
            assert_close(workspace(given), expected(model, given))
        workspace.end()


def test_pointers_need_no_more_than_their_elements_alignment(tmp_path: Path) -> None:
    library = loaded(NETWORK, tmp_path)
    inputs = inputs_of(import_model(NETWORK))
    wanted = expected(NETWORK, inputs)
    workspace = library.workspace()
    for skew in (1, 4, 20):  # 1: not even aligned as floats are, and copied
        raw = [
            np.zeros(nbytes + 64, np.uint8) for *_, nbytes in (*library.inputs, *library.outputs)
        ]
        views = [
            array[skew : skew + nbytes]
            for array, (*_, nbytes) in zip(raw, (*library.inputs, *library.outputs), strict=True)
        ]
        views[0][:] = inputs["x"].reshape(-1).view(np.uint8)
        assert workspace.run(views[:1], views[1:]) == (0, "")
        for view, (name, _, shape, _) in zip(views[1:], library.outputs, strict=True):
            found = np.frombuffer(view.tobytes(), np.float32).reshape(shape)
            np.testing.assert_allclose(found, wanted[name], rtol=2e-4, atol=1e-6)
        for array, view in zip(raw, views, strict=True):  # nothing beside it is written
            assert not array[:skew].any() and not array[skew + view.size :].any()
    workspace.end()


def test_wrong_calls_are_sentences(tmp_path: Path) -> None:
    library = loaded(NETWORK, tmp_path)
    workspace = library.workspace()
    x = inputs_of(import_model(NETWORK))["x"]
    y, r = np.zeros((2, 5), np.float32), np.zeros((2, 4, 7, 7), np.float32)
    assert workspace.run([0], [y, r]) == (1, "input 'x' is NULL")
    assert workspace.run([x], [y, 0]) == (1, "output 'r' is NULL")
    assert workspace.run([x], [x, r]) == (1, "output 'y' overlaps the memory of 'x'")
    assert workspace.run([x], [r, r]) == (1, "output 'r' overlaps the memory of 'y'")
    assert library.call("run", workspace.handle, None, None) == 1
    assert workspace.error() == "the array of inputs is NULL"
    assert library.call("run", None, None, None) == 1
    assert workspace.run([x], [y, r]) == (0, "")
    made = ctypes.c_void_p()
    size = library.call("workspace_bytes", result=ctypes.c_size_t)
    room = np.zeros(size + 128, np.uint8)
    start = room.ctypes.data + -room.ctypes.data % 64
    for memory, nbytes in ((0, size), (start + 8, size), (start, size - 1)):
        arguments = ctypes.c_void_p(memory), ctypes.c_size_t(nbytes), 1, ctypes.byref(made)
        assert library.call("create_in", *arguments) == 1 and not made.value
    arguments = ctypes.c_void_p(start), ctypes.c_size_t(size), 1, ctypes.byref(made)
    assert library.call("create_in", *arguments) == 0 and made.value == start
    library.call("destroy", made, result=None)
    workspace.end()


def test_callers_with_a_workspace_each_run_at_once(tmp_path: Path) -> None:
    library = loaded(NETWORK, tmp_path, threads=2)
    graph = import_model(NETWORK)
    cases = [inputs_of(graph, seed) for seed in range(3)]
    wanted = [expected(NETWORK, case) for case in cases]
    wrong: list[int] = []

    def caller(number: int) -> None:
        workspace = library.workspace(1 + number % 2)
        for _ in range(50):
            found = workspace(cases[number])
            if any(not np.allclose(found[n], v, atol=1e-5) for n, v in wanted[number].items()):
                wrong.append(number)
        workspace.end()

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_weights_of_a_file_are_mapped_and_no_others_are_taken(tmp_path: Path) -> None:
    made = emitted(recipe(NETWORK), tmp_path / "model.so", weights="file", prefix="n")
    assert made.weights is not None and made.nbytes < 40_000
    library = LoadedLibrary(tmp_path / "model.so", "n")
    handle = ctypes.c_void_p()
    assert library.call("create", 1, ctypes.byref(handle)) == 5 and not handle.value
    assert library.call("init", None) == 1
    assert library.call("init", str(tmp_path / "none").encode()) == 4
    content = (tmp_path / "model.weights").read_bytes()
    for number, wrong in enumerate((content[:-1], b"x" + content[1:], content[:40] + content[41:])):
        (tmp_path / f"wrong{number}").write_bytes(wrong)
        assert library.call("init", str(tmp_path / f"wrong{number}").encode()) == 4
    for _ in range(2):
        assert library.call("init", made.weights.encode()) == 0
    assert "model.weights" in Path("/proc/self/maps").read_text()
    workspace = library.workspace()
    inputs = inputs_of(import_model(NETWORK))
    assert_close(workspace(inputs), expected(NETWORK, inputs))
    workspace.end()
    library.call("end", result=None)
    assert "model.weights" not in Path("/proc/self/maps").read_text()


def test_weights_that_changed_are_found_when_asked(tmp_path: Path) -> None:
    made = emitted(recipe(NETWORK), tmp_path / "model.so", weights="file", prefix="v")
    content = bytearray((tmp_path / "model.weights").read_bytes())
    swapped = content[:4096] + content[4104:4112] + content[4096:4104] + content[4112:]
    content[-1] ^= 64
    (tmp_path / "changed").write_bytes(content)
    (tmp_path / "swapped").write_bytes(swapped)
    library = LoadedLibrary(Path(made.path), "v")
    assert library.call("verify") == 5
    for name, status in (("model.weights", 0), ("changed", 4), ("swapped", 4)):
        assert library.call("init", str(tmp_path / name).encode()) == 0
        assert library.call("verify") == status
        library.call("end", result=None)
    (inside := tmp_path / "inside").mkdir()
    assert loaded(NETWORK, inside).call("verify") == 0


def test_the_checksum_does_not_depend_on_pieces() -> None:
    found = plan_of(recipe(NETWORK), "p", "")
    raw = np.concatenate([np.frombuffer(piece, np.uint8) for piece in found.weights])[:-3]
    wanted = sums_of(replace(found, weights=[raw]))
    cuts = [raw[:5], raw[5:6], raw[6:21], raw[21:64], raw[64:64], raw[64:]]
    assert sums_of(replace(found, weights=cuts)) == wanted
    whole = raw.size // 8 * 8
    words = [*map(int, raw[:whole].view(np.uint64)), *map(int, raw[whole:])]
    behind = sum((len(words) - number) * word for number, word in enumerate(words))
    assert wanted == (sum(words) % 2**64, behind % 2**64)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_has_no_threads_of_its_parent(tmp_path: Path, threads: int) -> None:
    """A workspace of one thread runs on; another says what to do, and neither hangs."""
    model = model_of("g (float[64, 96] x) => (float[64, 640] y) { y = MatMul(x, w) }",
                     w=random(96, 640))  # fmt: skip
    made = emitted(recipe(model, threads=threads), tmp_path / "model.so")
    library = LoadedLibrary(Path(made.path), made.prefix)
    assert made.threads == threads and library.call("init", None) == 0
    workspace, inputs = library.workspace(threads), inputs_of(import_model(model))
    wanted = workspace(inputs)
    child = os.fork()
    if child == 0:
        outputs = [np.zeros_like(value) for value in wanted.values()]
        status, said = workspace.run([inputs["x"]], outputs)
        well = (status == 0) == (threads == 1) and ("of another process" in said) == (status == 3)
        workspace.end()
        fresh = library.workspace(threads)
        well = well and all(np.array_equal(fresh(inputs)[n], v) for n, v in wanted.items())
        fresh.end()
        os._exit(0 if well else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert_close(workspace(inputs), wanted)
    workspace.end()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_converted_inside(tmp_path: Path, precision: str) -> None:
    from tilesmith.compiler.driver.build import BuildOptions, build

    found = loaded(NETWORK, tmp_path, precision=precision)
    inputs = inputs_of(import_model(NETWORK))
    executable = build(
        import_model(NETWORK), recipe(NETWORK).target, options=BuildOptions(precision=precision)
    )
    workspace = found.workspace()
    for name, value in executable.run(inputs).items():
        np.testing.assert_array_equal(workspace(inputs)[name], value)
    workspace.end()


def test_an_updated_input_is_written_where_it_is(tmp_path: Path) -> None:
    model = model_of(
        "g (float[9, 8] c, float[1, 8] n, int64[1, 1] at) => (float[9, 8] y, float[1, 8] z) "
        "{ u = Exp(n) y = ScatterND(c, at, u) z = ReduceSum(y, axis) }", 18, axis=np.array([0]),
    )  # fmt: skip
    library = loaded(model, tmp_path, updates={"c": "y"})
    workspace = library.workspace()
    cache = random(9, 8)
    for position in (3, 8):
        step = {"c": cache.copy(), "n": random(1, 8, seed=position), "at": np.array([[position]])}
        wanted = expected(model, step)
        z = np.zeros((1, 8), np.float32)
        assert workspace.run([cache, step["n"], step["at"]], [0, z]) == (0, "")
        assert_close({"y": cache, "z": z}, wanted)
    workspace.end()


def test_what_cannot_be_a_library_is_refused(tmp_path: Path) -> None:
    host = model_of("g (string[2] x) => (string[2] y) { y = Identity(x) }")
    odd = model_of("g (float[4] x) => (float[N] y) { z = Exp(x) y = Unique(z) }")
    for model in (odd, host):
        with pytest.raises(ModelError, match="cannot become a library: "):
            emitted(recipe(model), tmp_path / "m.so")
    with pytest.raises(TargetError, match=r"'trn1' has no libraries: .* simulated"):
        emitted(recipe(GATHER, load_target("trn1")), tmp_path / "m.so")
    with pytest.raises(InputError, match="prefix 'a b' is no name"):
        emitted(recipe(GATHER), tmp_path / "m.so", prefix="a b")
    with pytest.raises(InputError, match=r"kind = 'dll' is unknown; one of library, object, arch"):
        emitted(recipe(GATHER), tmp_path / "m.so", kind="dll")
    assert not list(tmp_path.iterdir())


def test_a_model_without_inputs_gives_its_constants(tmp_path: Path) -> None:
    model = model_of("g () => (float[3] y) { y = Exp(w) }", w=random(3))
    library = loaded(model, tmp_path)
    workspace = library.workspace()
    assert_close(workspace({}), expected(model, {}))
    workspace.end()
