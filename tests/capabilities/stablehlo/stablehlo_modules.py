"""StableHLO modules for tests, and the comparison with jaxlib's own interpreter of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.capabilities.stablehlo.attributes import tensor_type
from tilesmith.capabilities.stablehlo.bindings import mlir, parse, stablehlo
from tilesmith.capabilities.stablehlo.importer import import_stablehlo
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.jobs.subjects.targets import resolve_target
from tilesmith.search_space.expressions.dtypes import to_numpy

Arrays = list[NDArray[Any]]


def module_of(body: str, *inputs: str, results: str) -> str:
    """A module whose main function takes `inputs` (`2x3xf32`) as %0, %1, ... and is `body`."""
    arguments = ", ".join(f"%{i}: tensor<{kind}>" for i, kind in enumerate(inputs))
    types = ", ".join(f"tensor<{kind}>" for kind in results.split())
    return f"module {{ func.func public @main({arguments}) -> ({types}) {{\n{body}\n}} }}"


def inputs_of(module: str, seed: int = 0) -> Arrays:
    """Random arrays that fit a module's main function; whole numbers are small."""
    rng = np.random.default_rng(seed)
    found = []
    for argument in _main(module).arguments:
        kind = tensor_type(argument.type, "input")
        dtype = to_numpy(kind.dtype)
        if kind.dtype.startswith(("float", "bfloat")):
            found.append(rng.standard_normal(kind.shape).astype(dtype))
        else:
            found.append(
                rng.integers(0, 2 if kind.dtype == "bool" else 5, kind.shape).astype(dtype)
            )
    return found


def _main(module: str) -> Any:
    parsed = parse(module, "test")
    main = next(op for op in parsed.body if op.operation.attributes["sym_name"].value == "main")
    _KEPT.append(parsed)
    return main


_KEPT: list[Any] = []
"""Modules whose operations are looked at."""


def interpreted(module: str, inputs: Arrays) -> Arrays:
    """What jaxlib's reference interpreter computes."""
    parsed = parse(module, "test")
    with parsed.context:
        given = [_attribute(np.array(array, order="C")) for array in inputs]
        results = stablehlo().eval_module(parsed, given)
        return [_array(result) for result in results]


def _attribute(array: NDArray[Any]) -> Any:
    """An array as MLIR keeps it; flags take a bit each."""
    ir, kind, shape = mlir(), None, list(array.shape)
    if array.dtype.kind == "u":
        kind = ir.IntegerType.get_unsigned(8 * array.dtype.itemsize)
    if array.dtype.kind == "b":
        kind, array = ir.IntegerType.get_signless(1), np.packbits(array, bitorder="little")
    return ir.DenseElementsAttr.get(array, type=kind, shape=shape)


def _array(value: Any) -> NDArray[Any]:
    kind = tensor_type(value.type, "result")
    if value.is_splat:
        return np.full(kind.shape, value.get_splat_value().value, to_numpy(kind.dtype))
    return np.array(value).reshape(kind.shape)


def compiled(module: str, target: str = "cpu") -> Executable:
    """The module, compiled with default schedules."""
    graph = import_stablehlo(module)
    verify(graph)
    return build(graph, resolve_target(target))


def run(executable: Executable, inputs: Arrays) -> Arrays:
    """Outputs in order."""
    names = [info.name for info in executable.inputs]
    return list(executable.run(dict(zip(names, inputs, strict=True))).values())


def check(module: str, inputs: Arrays | None = None, tolerance: float = 2e-5) -> Executable:
    """Compile, run, compare with the interpreter; gives what was run."""
    inputs = inputs_of(module) if inputs is None else inputs
    executable = compiled(module)
    compare(run(executable, inputs), interpreted(module, inputs), tolerance)
    return executable


def compare(found: Arrays, wanted: Arrays, tolerance: float = 2e-5) -> None:
    """Equal shapes and dtypes; equal values, relative to the largest."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.abs(b[np.isfinite(b)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)
