"""Compiled libraries, called from here as a program in C would call them."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.backends.shipping import Library, LibraryRequest, emitter_of
from tilesmith.compiler.driver.build import BuildOptions, recipe_of
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.recipe.program import Recipe
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import Target

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


class TensorOfC(ctypes.Structure):
    """`tilesmith_tensor`."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    )  # fmt: skip


class SizeOfC(ctypes.Structure):
    """`tilesmith_size`."""

    _fields_ = (("name", ctypes.c_char_p), ("least", ctypes.c_int64), ("greatest", ctypes.c_int64))


class LoadedLibrary:
    """A shared library in this process."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._library, self.prefix = ctypes.CDLL(str(path)), prefix
        self.inputs, self.outputs = (self._tensors(end) for end in ("input", "output"))

    def call(self, name: str, *arguments: Any, result: Any = ctypes.c_int) -> Any:
        function = getattr(self._library, f"{self.prefix}_{name}")
        function.restype = result
        return function(*arguments)

    def _tensors(self, end: str) -> list[tuple[str, str, tuple[int, ...], int]]:
        count = self.call(f"{end}s", result=ctypes.c_size_t)
        kind = ctypes.POINTER(TensorOfC)
        assert not self.call(end, ctypes.c_size_t(count), result=kind)
        found = []
        for number in range(count):
            tensor = self.call(end, ctypes.c_size_t(number), result=kind).contents
            shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
            found.append((tensor.name.decode(), tensor.dtype.decode(), shape, tensor.bytes))
        return found

    def sizes(self) -> list[tuple[str, int, int]]:
        """Name, least and greatest of each size that varies."""
        count = self.call("sizes", result=ctypes.c_size_t)
        kind = ctypes.POINTER(SizeOfC)
        found = [self.call("size", ctypes.c_size_t(n), result=kind) for n in range(count + 1)]
        assert not found.pop()
        return [(f[0].name.decode(), f[0].least, f[0].greatest) for f in found]

    def bytes_at(self, *sizes: int) -> int:
        made = (ctypes.c_int64 * len(sizes))(*sizes)
        return int(self.call("workspace_bytes_at", made, result=ctypes.c_size_t))

    def workspace(self, threads: int = 1) -> Workspace:
        return Workspace(self, threads)


class Workspace:
    """What one caller works in; destroyed with `end`."""

    def __init__(
        self, library: LoadedLibrary, threads: int, made: ctypes.c_void_p | None = None
    ) -> None:
        self._library = library
        self.handle = made or ctypes.c_void_p()
        if made:
            return
        status = library.call("create", ctypes.c_int(threads), ctypes.byref(self.handle))
        assert status == 0 and self.handle.value

    def __call__(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        made = {n: np.full(s, 77, to_numpy(d)) for n, d, s, _ in self._library.outputs}
        status, text = self.run([inputs[n] for n, *_ in self._library.inputs], list(made.values()))
        assert (status, text) == (0, "")
        return made

    def resize(self, *shapes: Sequence[int] | None) -> tuple[int, str]:
        """Status and sentence; None: NULL."""
        kept = [None if s is None else (ctypes.c_int64 * len(s))(*s) for s in shapes]
        table = (ctypes.c_void_p * len(shapes))(
            *(None if k is None else ctypes.addressof(k) for k in kept)
        )
        return self._library.call("resize", self.handle, table), self.error()

    def at(self, end: str) -> list[tuple[str, tuple[int, ...], int]]:
        """Inputs or outputs at the sizes that are set: name, shape, bytes."""
        kind, found = ctypes.POINTER(TensorOfC), []
        while True:
            number = ctypes.c_size_t(len(found))
            tensor = self._library.call(f"{end}_at", self.handle, number, result=kind)
            if not tensor:
                return found
            one = tensor.contents
            shape = tuple(one.shape[axis] for axis in range(one.rank))
            found.append((one.name.decode(), shape, one.bytes))

    def at_sizes_of(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Resize to inputs of some shapes, and run."""
        given = [inputs[name] for name, *_ in self._library.inputs]
        assert self.resize(*(array.shape or None for array in given)) == (0, "")
        dtypes = {name: dtype for name, dtype, *_ in self._library.outputs}
        made = {n: np.full(s, 77, to_numpy(dtypes[n])) for n, s, _ in self.at("output")}
        assert [v.nbytes for v in made.values()] == [nbytes for *_, nbytes in self.at("output")]
        assert self.run(given, list(made.values())) == (0, "")
        return made

    def run(self, inputs: list[Any], outputs: list[Any]) -> tuple[int, str]:
        """Status and sentence; an array, or an address, for each."""
        tables = [
            (ctypes.c_void_p * len(ends))(
                *(end if isinstance(end, int) else end.ctypes.data for end in ends)
            )
            for ends in (inputs, outputs)
        ]
        return self._library.call("run", self.handle, *tables), self.error()

    def error(self) -> str:
        found: bytes = self._library.call("error", self.handle, result=ctypes.c_char_p)
        return found.decode()

    def end(self) -> None:
        self._library.call("destroy", self.handle, result=None)


def recipe(model: onnx.ModelProto, target: Target | None = None, **options: Any) -> Recipe:
    return recipe_of(import_model(model), target or host_target(), options=BuildOptions(**options))


def emitted(found: Recipe, path: Path, **request: Any) -> Library:
    return emitter_of(found.target).emit(found, LibraryRequest(path, **request))


def loaded(
    model: onnx.ModelProto, folder: Path, request: Mapping[str, Any] | None = None, **options: Any
) -> LoadedLibrary:
    """A model as a library in this process, ready to run."""
    made = emitted(recipe(model, **options), folder / "model.so", **(request or {}))
    library = LoadedLibrary(Path(made.path), made.prefix)
    weights = None if made.weights is None else made.weights.encode()
    assert library.call("init", weights) == 0
    return library
