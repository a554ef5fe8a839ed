"""Libraries of models whose sizes vary, called as programs in C call them, against onnxruntime."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.capabilities.c_library.c_libraries import (
    LoadedLibrary,
    Workspace,
    emitted,
    needs_compiler,
)
from tests.compiler.model_builder import assert_close, expected, model_of
from tests.compiler.varying_models import CASES, Case, compiled
from tilesmith.capabilities.c_library.plans.varying_library import plan_of_varying
from tilesmith.compiler.recipe.variants import VaryingRecipe
from tilesmith.search_space.support.errors import ModelError

pytestmark = needs_compiler


@cache
def compiled_case(name: str) -> tuple[Case, VaryingRecipe]:
    case = CASES[name]()
    return case, compiled(case.model, case.shapes).recipe


def ready(name: str, folder: Path) -> tuple[Case, VaryingRecipe, LoadedLibrary]:
    case, recipe = compiled_case(name)
    made = emitted(recipe, folder / "model.so")
    library = LoadedLibrary(Path(made.path), made.prefix)
    assert library.call("init", None) == 0
    return case, recipe, library


@pytest.mark.parametrize("name", CASES)
def test_a_workspace_goes_from_size_to_size(tmp_path: Path, name: str) -> None:
    case, recipe, library = ready(name, tmp_path)
    assert library.sizes() == [(s.name, s.low, s.high) for s in recipe.sizes]
    rng = np.random.default_rng(1)
    points = [{s.name: getattr(s, end) for s in recipe.sizes} for end in ("low", "high")]
    points += [
        {s.name: int(rng.integers(s.low, s.high + 1)) for s in recipe.sizes} for _ in range(8)
    ]
    workspace = library.workspace()
    whole = library.call("workspace_bytes", result=ctypes.c_size_t)
    for point in points:
        inputs = case.inputs(point)
        assert_close(workspace.at_sizes_of(inputs), expected(case.model, inputs))
        assert 0 < library.bytes_at(*point.values()) <= whole
    workspace.end()


def test_memory_ends_where_arrays_do(tmp_path: Path) -> None:
    """Arrays end at a page that cannot be touched, and the workspace where `bytes_at` says."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

    def guarded(nbytes: int) -> int:
        whole = -(-nbytes // 4096) * 4096
        start = libc.mmap(None, whole + 4096, 3, 0x22, -1, 0)
        assert libc.mprotect(ctypes.c_void_p(start + whole), 4096, 0) == 0
        return int(start) + whole - nbytes

    for name in ("attention", "joined"):
        (folder := tmp_path / name).mkdir()
        case, recipe, library = ready(name, folder)
        for step in (0, 1, 4):
            point = {s.name: min(s.low + step, s.high) for s in recipe.sizes}
            needed = library.bytes_at(*point.values())
            handle = ctypes.c_void_p()
            room = (ctypes.c_void_p(guarded(needed)), ctypes.c_size_t(needed), 1)
            assert library.call("create_in", *room, ctypes.byref(handle)) == 0
            workspace = Workspace(library, 1, handle)
            inputs = case.inputs(point)
            assert workspace.resize(*(inputs[n].shape for n, *_ in library.inputs)) == (0, "")
            given = [guarded(inputs[n].nbytes) for n, *_ in library.inputs]
            for at, (n, *_) in zip(given, library.inputs, strict=True):
                ctypes.memmove(at, inputs[n].tobytes(), inputs[n].nbytes)
            outputs = [(n, s, guarded(nbytes), nbytes) for n, s, nbytes in workspace.at("output")]
            assert workspace.run(given, [at for *_, at, _ in outputs]) == (0, "")
            found = {
                n: np.frombuffer(ctypes.string_at(at, nbytes), np.float32).reshape(s)
                for n, s, at, nbytes in outputs
            }
            assert_close(found, expected(case.model, inputs))
            workspace.end()


def test_what_is_wrong_with_sizes_is_a_sentence(tmp_path: Path) -> None:
    case, _, library = ready("cache", tmp_path)
    workspace = library.workspace()
    good = {"b": 2, "p": 5, "n": 3}
    inputs = case.inputs(good)
    given = [inputs[name] for name, *_ in library.inputs]
    outputs = [np.zeros((2, 3, 8), np.float32), np.zeros((2, 8, 6), np.float32)]
    assert workspace.run(given, outputs) == (
        9, f"no sizes are set; call {library.prefix}_resize first"
    )  # fmt: skip
    assert workspace.at("output") == []
    shapes = [array.shape for array in given]
    assert workspace.resize(*shapes) == (0, "")
    told = workspace.at("output")
    assert [shape for _, shape, _ in told] == [(2, 3, 8), (2, 8, 6)]
    for number, shape, sentence in (
        (0, (2, 31, 6), "input 'before': axis 1 (p) is 31; it may be 2 to 30"),
        (0, (2, -1, 6), "input 'before': axis 1 (p) is -1; it may be 2 to 30"),
        (0, (2, 2**62, 6), f"input 'before': axis 1 (p) is {2**62}; it may be 2 to 30"),
        (1, (3, 3, 6), "input 'new': axis 0 is 3; 2 is expected"),
        (1, (2, 3, 5), "input 'new': axis 2 is 5; 6 is expected"),
        (2, (2, 9), "input 'weights': axis 1 is 9; 8 is expected"),
    ):
        bad = [shape if n == number else s for n, s in enumerate(shapes)]
        assert workspace.resize(*bad) == (9, sentence)
        assert workspace.at("output") == told, "what is refused changes nothing"
    assert workspace.resize(shapes[0], None, shapes[2]) == (1, "the shape of input 'new' is NULL")
    assert library.call("resize", workspace.handle, None) == 1
    assert workspace.error() == "the array of shapes is NULL"
    assert library.call("resize", None, None) == 1
    assert workspace.run(given, [outputs[0], outputs[0]])[0] == 1, "they overlap"
    assert workspace.run(given, outputs) == (0, "")
    assert_close(dict(zip(("scores", "after"), outputs, strict=True)), expected(case.model, inputs))
    workspace.end()
    assert library.bytes_at(2, 31, 1) == library.bytes_at(0, 0, 0) == 0
    assert library.call("workspace_bytes_at", None, result=ctypes.c_size_t) == 0


def test_a_small_workspace_serves_small_sizes(tmp_path: Path) -> None:
    case, _, library = ready("attention", tmp_path)
    nbytes, most = library.bytes_at(2, 3), library.bytes_at(6, 40)
    assert nbytes < most <= library.call("workspace_bytes", result=ctypes.c_size_t)
    room = np.zeros(nbytes + 64, np.uint8)
    start, handle = room.ctypes.data + -room.ctypes.data % 64, ctypes.c_void_p()
    arguments = (ctypes.c_void_p(start), ctypes.c_size_t(nbytes), 1, ctypes.byref(handle))
    assert library.call("create_in", *arguments) == 0
    workspace = Workspace(library, 1, handle)
    assert workspace.resize((6, 40)) == (
        9, f"'attention' needs {most} bytes at these sizes; the workspace has {nbytes}"
    )  # fmt: skip
    inputs = case.inputs({"b": 2, "s": 3})
    assert_close(workspace.at_sizes_of(inputs), expected(case.model, inputs))
    workspace.end()


def test_an_index_out_of_range_is_told_with_the_extent_that_it_has(tmp_path: Path) -> None:
    model = model_of("g (float[n, 3] x, int64[2] i) => (float[2, 3] y) { t = Relu(x) "
                     "y = Gather(t, i) }")  # fmt: skip
    made = emitted(compiled(model, {"n": (2, 9)}).recipe, tmp_path / "m.so", weights="file")
    library = LoadedLibrary(Path(made.path), made.prefix)
    assert library.call("init", str(made.weights).encode()) == 0
    workspace, y = library.workspace(), np.zeros((2, 3), np.float32)
    x, i = np.ones((4, 3), np.float32), np.array([3, 4])
    assert workspace.resize(x.shape, i.shape) == (0, "")
    assert workspace.run([x, i], [y]) == (
        6, "gather 'y' takes index 4 of an axis with 4 entries; indices run from -4 to 3"
    )  # fmt: skip
    assert workspace.run([x, np.array([3, -4])], [y]) == (0, "") and y.all()
    workspace.end()


def test_tables_of_what_follows_from_sizes_are_of_the_largest_alone() -> None:
    from tilesmith.capabilities.c_library.plans.held import VariantTables

    _, recipe = compiled_case("attention")
    variant = recipe.variants[-1]
    tables = VariantTables(recipe, variant)
    for name in variant.held:
        table = tables.of(name)
        assert table.offset.constant == 0 and table.array.nbytes <= 4 * 40 * 40
    _, recipe = compiled_case("clipped")
    variant = recipe.variants[-1]
    (count,) = (VariantTables(recipe, variant).of(name) for name in variant.held)
    size = variant.region[0]
    assert count.array.view(np.float32).ravel().tolist() == [*range(size.low, size.high + 1)]


def test_too_much_that_follows_from_sizes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilesmith.capabilities.c_library.plans import held

    monkeypatch.setattr(held, "MOST_BYTES", 10)
    _, recipe = compiled_case("clipped")
    with pytest.raises(ModelError, match=r"'count' follows from the sizes, .* give smaller ranges"):
        plan_of_varying(recipe, "m", "")


def test_nodes_of_the_host_are_named(tmp_path: Path) -> None:
    odd = model_of("g (float[n, 3] x) => (float[n, 3] y) { z = Exp(x) y = Mod<fmod=1>(z, x) }")
    with pytest.raises(ModelError, match=r"Mod 'y' runs on the host, in Python, for there are"):
        plan_of_varying(compiled(odd, {"n": (1, 5)}).recipe, "m", "")
