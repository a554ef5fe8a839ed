"""Operators that read, write or find elements by index, compiled, beside onnxruntime.

    python benchmarks/indexing.py [--only REGEX] [--seconds-each 1] [--json]

Each case is a model of one operator, with default schedules: inputs and outputs stand in place on
both sides (`bind`, `io_binding`), indices are inputs and are checked. Both are timed in turns on
one pinned core; printed are the medians of one run and their ratio. Exit code 1 if an operator runs
on the host.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.display.output import note, table
from tilesmith.jobs.measures.timing import interleave, pinned

Array = NDArray[Any]
RNG = np.random.default_rng(0)
_OPSET = 18


@dataclass(frozen=True)
class Case:
    """One operator on given inputs.

    Attributes:
        constants: positions of the inputs that are known while compiling.
        outputs: how many there are.
    """

    name: str
    operator: str
    inputs: tuple[Array, ...]
    attributes: dict[str, Any]
    constants: tuple[int, ...] = ()
    outputs: int = 1


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def distinct(axis: int, count: int, *shape: int) -> Array:
    """Indices of an axis, no two the same: `count` of them along it."""
    order = np.argsort(RNG.random(shape), axis=axis)
    return np.ascontiguousarray(np.take(order, np.arange(count), axis=axis))


def cases() -> Iterator[Case]:
    yield from gathers()
    yield from scatters()
    yield from positions()


def gathers() -> Iterator[Case]:
    table_, ids = normal(30522, 384), RNG.integers(-30522, 30522, (1, 128))
    yield Case("embeddings 30522x384, 128 rows", "Gather", (table_, ids), {"axis": 0})
    x, i = normal(12, 128, 512), RNG.integers(-512, 512, (12, 128, 128))
    yield Case("12x128 rows of 512, 128 each", "GatherElements", (x, i), {"axis": 2})
    i = np.repeat(RNG.integers(0, 8400, (1, 300, 1)), 4, 2)
    yield Case("300 boxes of 8400", "GatherElements", (normal(1, 8400, 4), i), {"axis": 1})
    x, i = normal(32, 256, 64), RNG.integers(0, 256, (32, 64, 64))
    yield Case("32x256x64 along 256", "GatherElements", (x, i), {"axis": 1})
    i = RNG.integers(0, 64, (2000, 2))
    yield Case("2000 rows of 64x64x256", "GatherND", (normal(64, 64, 256), i), {})
    i = RNG.integers(0, 256, (20000, 2))
    yield Case("20000 elements of 256x256", "GatherND", (normal(256, 256), i), {})


def scatters() -> Iterator[Case]:
    x, u = normal(1536, 512), normal(1536, 128)
    i = distinct(1, 128, 1536, 512)
    for how in ("none", "add", "max"):
        attributes = {"axis": 1, "reduction": how}
        yield Case(f"1536 rows of 512, 128 each, {how}", "ScatterElements", (x, i, u), attributes)
    x, u = normal(32, 256, 64), normal(32, 64, 64)
    i = distinct(1, 64, 32, 256, 64)
    yield Case("32x256x64 along 256", "ScatterElements", (x, i, u), {"axis": 1})
    x, u, i = normal(2048, 256), normal(512, 256), RNG.permutation(2048)[:512, None]
    for how in ("none", "add"):
        name = f"512 rows of 2048x256, {how}"
        yield Case(name, "ScatterND", (x, i, u), {"reduction": how})
    places = np.unravel_index(RNG.permutation(512 * 512)[:20000], (512, 512))
    inputs = (normal(512, 512), np.stack(places, 1), normal(20000))
    yield Case("20000 elements of 512x512", "ScatterND", inputs, {})


def positions() -> Iterator[Case]:
    for shape, axis in (((1, 32000), 1), ((64, 1000), 1), ((8, 80, 8400), 1), ((300, 80), 1)):
        yield Case(_named(shape, axis), "ArgMax", (normal(*shape),), {"axis": axis})
    for shape, k in (((128, 64), 8), ((16, 1000), 50), ((1, 8400), 300), ((1, 100000), 1000)):
        inputs = (normal(*shape), np.array([k]))
        yield Case(f"{k} of {_named(shape, 1)}", "TopK", inputs, {"axis": 1}, (1,), 2)
    for shape in ((4, 2048), (64, 1024), (2, 512, 256)):
        yield Case(_named(shape, 1), "CumSum", (normal(*shape), np.array(1)), {}, (1,))
    mask = RNG.integers(0, 2, (8, 512))
    yield Case("int64 8x512 along 512", "CumSum", (mask, np.array(1)), {}, (1,))
    yield Case("12x512x512", "Trilu", (normal(12, 512, 512),), {"upper": 1})
    inputs = (normal(1024, 1024), np.array(0))
    yield Case("1024x1024, k at run time", "Trilu", inputs, {"upper": 0})
    values = np.float32([0, 1])
    for name, i, depth, axis in (
        ("256x1000", RNG.integers(0, 1000, 256), 1000, -1),
        ("1x21x262144", RNG.integers(0, 21, (1, 262144)), 21, 1),
    ):
        yield Case(name, "OneHot", (i, np.array(depth), values), {"axis": axis}, (1, 2))


def _named(shape: tuple[int, ...], axis: int) -> str:
    return f"{'x'.join(map(str, shape))} along {shape[axis]}"


def model_of(case: Case) -> onnx.ModelProto:
    """A model of the operator alone."""
    names = [f"x{n}" for n in range(len(case.inputs))]
    outputs = [f"y{n}" for n in range(case.outputs)]
    node = helper.make_node(case.operator, names, outputs, **case.attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, (name, x) in enumerate(zip(names, case.inputs, strict=True))
        if n not in case.constants
    ]
    known = [onnx.numpy_helper.from_array(case.inputs[n], f"x{n}") for n in case.constants]
    empty = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph([node], "benchmark", given, empty, known)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def theirs(model: onnx.ModelProto, inputs: dict[str, Array]) -> Callable[[], None]:
    """A call of onnxruntime on inputs and outputs in place."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    names = [output.name for output in session.get_outputs()]
    for name, array in zip(names, session.run(names, inputs), strict=True):
        binding.bind_ortvalue_output(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding)


def measure(case: Case, seconds: float) -> tuple[float, float, Executable]:
    """(our median, theirs) in microseconds, and what was compiled."""
    model = model_of(case)
    given = {f"x{n}": x for n, x in enumerate(case.inputs) if n not in case.constants}
    executable = build(import_model(model), host_target())
    contenders = {"ours": executable.bind(given).run, "theirs": theirs(model, given)}
    with pinned(1):
        found = interleave(contenders, seconds)
    return found["ours"].median_ms * 1e3, found["theirs"].median_ms * 1e3, executable


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of operator and case")
    parser.add_argument("--seconds-each", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[tuple[str, str, float, float, int]] = []
    for case in cases():
        if not re.search(options.only, f"{case.operator} {case.name}"):
            continue
        ours, others, executable = measure(case, options.seconds_each)
        rows.append((case.operator, case.name, ours, others, executable.report.host))
        note(f"{case.operator} {case.name}: {ours / others:.2f} of onnxruntime's time")
    if options.json:
        fields = ("operator", "case", "ours_us", "onnxruntime_us", "host")
        print(json.dumps([dict(zip(fields, row, strict=True)) for row in rows], indent=2))
    else:
        printed = [(o, n, f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}") for o, n, a, b, _ in rows]
        heads = ("operator", "case", "us", "onnxruntime", "ratio")
        print(table(heads, printed))
    return 1 if any(row[-1] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
