"""The modules that stand in for NKI's while a kernel's file is executed.

`neuronxcc.nki` is NKI up to 0.2, whose instructions return their results; `nki` is 0.3 and later,
whose instructions take them first. Both have `language`, `isa` and `typing`. Invariant: a name that
they lack is an error that says where it stands, and what there is.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import product
from math import prod
from types import ModuleType
from typing import Any

import numpy as np

from tilesmith.families.trainium.codegen.isa.instructions import DTYPES
from tilesmith.families.trainium.nki.notation import composed, indices
from tilesmith.families.trainium.nki.notation.calls import unknown
from tilesmith.families.trainium.nki.notation.dtypes import DType
from tilesmith.families.trainium.nki.notation.errors import NkiError
from tilesmith.families.trainium.nki.notation.isa import INSTRUCTIONS
from tilesmith.families.trainium.nki.notation.language import BUFFERS
from tilesmith.families.trainium.nki.notation.tensors import HBM, ParDim
from tilesmith.families.trainium.nki.notation.tracing import current

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma", "unknown")


class JitKernel:
    """A function with `@nki.jit`; `kernel[2, 4](...)` runs eight instances, one after the other.

    Instances share the tensors in HBM that each of them declares: the first one's are returned.
    """

    def __init__(self, function: Callable[..., Any], grid: tuple[int, ...] = ()) -> None:
        inner = function.function if isinstance(function, JitKernel) else function
        self.function: Callable[..., Any] = inner
        self.grid = grid
        self.__name__, self.__doc__ = self.function.__name__, self.function.__doc__

    def __getitem__(self, grid: Any) -> "JitKernel":
        extents = grid if isinstance(grid, tuple) else (grid,)
        return JitKernel(self.function, tuple(indices.whole(n) for n in extents))

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not self.grid:
            return self.function(*args, **options)
        trace = current()
        before, trace.programs = (trace.programs, trace.program), self.grid
        result: Any = None
        first: list[Any] | None = None
        for program in product(*map(range, self.grid)):
            trace.program = program
            start, steps = len(trace.arrays), len(trace.steps)
            returned = self.function(*args, **options)
            mine = [a for a in trace.arrays[start:] if a.space == HBM and a.given is None]
            if first is None:
                first, result = mine, returned
            else:
                trace.share(steps, dict(zip(map(id, mine), first, strict=False)))
        trace.programs, trace.program = before
        return result


def jit(function: Any = None, **_: Any) -> Any:
    """`@nki.jit`, `@nki.jit(mode=...)`, `@nki.trace`, `@nki.baremetal`, ..."""
    return (
        jit
        if function is None
        else function
        if isinstance(function, JitKernel)
        else JitKernel(function)
    )


class NkiModule(ModuleType):
    """A module of NKI's; names that it lacks are told with the line that asks for them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unknown(self.__name__, name, vars(self))


class Names:
    """A group of constants, such as `nl.tile_size`."""

    def __init__(self, of: str, **values: Any) -> None:
        vars(self).update(values)
        self._of = of

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise unknown(self._of, name, vars(self))


class AnyName:
    """Directives that say how to compile, not what: every attribute and call of it is one."""

    def __getattr__(self, name: str) -> "AnyName":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getitem__(self, key: Any) -> "AnyName":
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()


class NkiMemory(AnyName):
    """`nki.compiler.sbuf`, `.psum`: a memory; `alloc(...)`, `mod_alloc(...)` are it, too: where in
    it a tile stands is found when the kernel is placed."""

    def __init__(self, space: str) -> None:
        self.space = space

    def __getattr__(self, name: str) -> "AnyName":
        return super().__getattr__(name) if name.startswith("__") else self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self


def _compiler() -> AnyName:
    """`nki.compiler`."""
    compiler = AnyName()
    vars(compiler).update({name: NkiMemory(space) for name, space in BUFFERS.items()})
    return compiler


def _language(with_dst: bool) -> NkiModule:
    module = NkiModule("nki.language")
    loops: dict[str, Any] = dict.fromkeys(("sequential_range", "static_range"), indices.NkiRange)
    loops["affine_range"] = partial(indices.NkiRange, overlaps=True)
    values: dict[str, Any] = {
        **{name: DType(name) for name in DTYPES}, "bool_": DType("uint8"),
        "tfloat32": DType("float32"), "uint32": DType("int32"), "uint16": DType("int32"),
        "float8_e4m3fn": DType("float8_e4m3"), **BUFFERS, **loops,
        "arange": indices.arange, "mgrid": indices.MeshGrid(), "ds": indices.ds, "par_dim": ParDim,
        "tile_size": Names(
            "nki.language.tile_size", pmax=128, psum_fmax=512, gemm_stationary_fmax=128,
            gemm_moving_fmax=512, bn_stats_fmax=512, psum_min_align=4, sbuf_min_align=1,
            total_available_sbuf_size=192 * 1024 - 16384,
        ),
        "finfo": np.finfo, "iinfo": np.iinfo, "dynamic_range": indices.NkiRange,
        "fp32": Names("nki.language.fp32", min=float(np.finfo(np.float32).min)),
        "nc": int, "spmd_dim": lambda *extents: prod(extents), "static_cast": lambda x, *_, **__: x,
        "device_print": lambda *_, **__: None, "NKI_VERSION": "0.3",
        "no_reorder": AnyName(),
    }  # fmt: skip
    vars(module).update(values)
    vars(module).update(language_functions())
    return module


def _instructions(with_dst: bool) -> NkiModule:
    module = NkiModule("nki.isa")
    vars(module).update(INSTRUCTIONS.functions(with_dst))
    engines = {name: name for name in ENGINES}
    vars(module)["engine"] = Names("nki.isa.engine", **engines)
    vars(module).update({f"{name}_engine": name for name in ENGINES})
    commands = ("idle", "reset", "reduce", "reset_reduce", "load_reduce")
    vars(module)["reduce_cmd"] = Names(
        "nki.isa.reduce_cmd", **dict(zip(commands, commands, strict=True))
    )
    for word in ("dge_mode", "oob_mode", "matmul_perf_mode"):
        vars(module)[word] = AnyName()
    versions = {f"gen{number}": number for number in (1, 2, 3, 4)}
    vars(module)["nc_version"] = Names("nki.isa.nc_version", **versions)
    return module


def language_functions() -> dict[str, Callable[..., Any]]:
    """NkiFunctions of the language by name, which operators of tiles call."""
    return dict(composed.FUNCTIONS.functions(with_dst=False))


def _modules(name: str, with_dst: bool) -> dict[str, ModuleType]:
    """NKI under one of its names, with its parts."""
    nki, parts = NkiModule(name), {"language": _language(with_dst), "isa": _instructions(with_dst)}
    typing = NkiModule("nki.typing")
    vars(typing).update(tensor=AnyName(), mutable_tensor=AnyName(), scalar=AnyName())
    vars(nki).update({**parts, "typing": typing, "compiler": _compiler(), "tensor": AnyName()})
    for word in ("jit", "trace", "baremetal", "benchmark", "profile", "simulate_kernel"):
        vars(nki)[word] = jit
    vars(nki)["__path__"] = []
    parts["compiler"] = vars(nki)["compiler"]
    return {name: nki, f"{name}.typing": typing, **{f"{name}.{k}": v for k, v in parts.items()}}


class AbsentModule(NkiModule):
    """A module that is not installed: drivers of a kernel may import it, and its names are empty
    until they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyName()


class AbsentFinder(MetaPathFinder, Loader):
    """Finds, after all others, what is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        inside = "." in name and not isinstance(parent, AbsentModule)
        return None if inside else ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has nothing to execute."""


@contextmanager
def standing_in() -> Iterator[None]:
    """`neuronxcc.nki` and `nki` are ours inside."""
    package = NkiModule("neuronxcc")
    vars(package)["__path__"] = []
    modules = {"neuronxcc": package, **_modules("neuronxcc.nki", False), **_modules("nki", True)}
    vars(package)["nki"] = modules["neuronxcc.nki"]
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    finder = AbsentFinder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


__all__ = ["JitKernel", "NkiError", "jit", "language_functions", "standing_in"]
