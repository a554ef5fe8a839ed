"""Random right models of floats, integers and booleans: each compiles and is right.

    python -m benchmarks.random_graphs [--cases 1000] [--seed 0] [--first 0] [--findings FOLDER]
        [--all] [--forms]

Nodes are drawn one after the other, and kept if onnxruntime computes each alone on the values that
are there by then (`quantised_graphs.Graph`), so a graph is valid by construction. Outputs are
compared with those values. Two right runtimes round differently, and steps and differences carry
that on; so an output may differ by what it does in onnxruntime itself where every float on the way
is moved by some roundings. Where it differs by more, float64 decides: an output may be some times
as far from what ONNX's reference implementation gives there as onnxruntime is, so moved or not. The
graphs of kernels are verified. With `--all`, nodes are of every operator, opset and element type,
inputs of every rank and of no elements (`suite_steps`); with `--forms` each model is said
otherwise: parts of it in functions, branches, loops and sequences (`other_forms`). Exit code 1 if
an output is wrong or a model is not compiled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

try:
    from benchmarks.subjects.graphs.other_forms import said_otherwise
    from benchmarks.subjects.graphs.quantised_graphs import Graph, Values, random_graph
    from benchmarks.subjects.graphs.suite_steps import any_operator, draw
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None
from tilesmith.capabilities.fault_finding.references.evaluation import Evaluator
from tilesmith.capabilities.fault_finding.references.float64 import in_float64, wide
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import prepared, recipe_of
from tilesmith.compiler.driver.verifier import verify
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.compiler.runtime.executable import Executable
from tilesmith.search_space.support.errors import JobError

Array = NDArray[Any]

ROUNDINGS = {"float16": 1e-3, "float32": 2e-6, "float64": 4e-15}
"""How far floats on the way are moved, relatively: some roundings of sums of a few hundred."""

_MOVED = 4
"""How often they are, to see what comes of it."""

OPSETS = range(10, 25)
"""What wider graphs may be of."""

ONE = (
    "Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Softplus", "Softsign", "Sqrt", "Ceil",
    "Floor", "Round", "Sign", "Sin", "Cos", "Atan", "HardSigmoid", "HardSwish", "Elu", "Selu",
    "LeakyRelu", "ThresholdedRelu", "Celu", "Reciprocal", "Log", "Mish", "Gelu", "Identity", "Not",
    "Softmax", "LogSoftmax", "GlobalAveragePool", "GlobalMaxPool", "IsNaN", "Flatten",
)  # fmt: skip
TWO = (
    "Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "PRelu", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Xor", "MatMul", "Mean", "Sum",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSumExp",
    "ReduceSumSquare", "ReduceProd",
)  # fmt: skip


def _any(g: Graph) -> str:
    return g.pick(lambda value: value.size < 1 << 14)


def _floats(g: Graph, dims: int = 1) -> str:
    return g.pick(lambda v: v.dtype == np.float32 and v.ndim >= dims and v.size > 0)


def _axes(g: Graph, rank: int) -> list[int]:
    many = int(g.rng.integers(1, rank + 1))
    return sorted(int(axis) for axis in g.rng.choice(rank, many, replace=False))


def _beside(g: Graph, value: Array) -> str:
    """An operand that broadcasts with a value: one there is, or a constant of some of its axes."""
    found = g.pick(lambda other: other.dtype == value.dtype and other.shape == value.shape)
    if found and g.rng.random() < 0.5:
        return found
    shape = tuple(n if g.rng.random() < 0.6 else 1 for n in value.shape)
    shape = shape[int(g.rng.integers(len(shape) + 1)) :] if shape else ()
    drawn = g.rng.standard_normal(shape) * 2
    return g.constant(drawn > 0 if value.dtype == bool else drawn, value.dtype)


def one(g: Graph) -> object:
    name = _any(g)
    return name and g.one(str(g.rng.choice(ONE)), name)


def two(g: Graph) -> object:
    if not (name := _any(g)):
        return None
    pair = [name, _beside(g, g.value(name))]
    operator = str(g.rng.choice(TWO))
    more = {"fmod": 1} if operator == "Mod" and g.value(name).dtype.kind == "f" else {}
    turned = g.rng.random() < 0.3 and operator != "PRelu"  # whose slope has no more axes than x
    return g.one(operator, *(pair[::-1] if turned else pair), **more)


def choose(g: Graph) -> object:
    if not (name := _any(g)):
        return None
    value = g.value(name)
    flag = g.pick(lambda other: other.dtype == bool and other.shape == value.shape)
    return g.one("Where", flag or g.constant(g.rng.random(value.shape) > 0.5), name,
                 _beside(g, value))  # fmt: skip


def cast(g: Graph) -> object:
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.INT32,
             onnx.TensorProto.BOOL)  # fmt: skip
    name = _any(g)
    return name and g.one("Cast", name, to=int(g.rng.choice(kinds)))


def reduction(g: Graph) -> object:
    if not (name := g.pick(lambda value: value.ndim > 0 and value.dtype != bool)):
        return None
    axes, keep = _axes(g, g.value(name).ndim), int(g.rng.integers(2))
    operator = str(g.rng.choice(REDUCTIONS))
    if g.opset >= 18 or (operator == "ReduceSum" and g.opset >= 13):
        return g.one(operator, name, g.constant(axes, np.int64), keepdims=keep)
    return g.one(operator, name, axes=axes, keepdims=keep)


def index(g: Graph) -> object:
    if not (name := g.pick(lambda v: v.ndim > 0 and v.dtype != bool and v.size > 0)):
        return None
    value = g.value(name)
    axis = int(g.rng.integers(-value.ndim, value.ndim))
    operator = str(g.rng.choice(["ArgMax", "ArgMin", "CumSum", "TopK", "Gather"]))
    if operator in ("ArgMax", "ArgMin"):
        return g.one(operator, name, axis=axis, keepdims=int(g.rng.integers(2)))
    if operator == "CumSum":
        return g.one(operator, name, g.constant(axis, np.int64), reverse=int(g.rng.integers(2)))
    if operator == "TopK":
        most = g.constant([int(g.rng.integers(1, value.shape[axis] + 1))], np.int64)
        return g.add(operator, name, most, results=2, axis=axis)
    places = g.rng.integers(-value.shape[axis], value.shape[axis], int(g.rng.integers(1, 5)))
    return g.one(operator, name, g.constant(places, np.int64), axis=axis)


def move(g: Graph) -> object:
    if not (name := g.pick(lambda value: value.ndim > 0)):
        return None
    value = g.value(name)
    axis = int(g.rng.integers(value.ndim))
    match g.rng.integers(7):
        case 0:
            return g.one("Transpose", name, perm=[int(a) for a in g.rng.permutation(value.ndim)])
        case 1:
            return g.one("Reshape", name, g.constant([value.shape[0], -1], np.int64))
        case 2:
            return g.one("Concat", name, name, axis=axis)
        case 3:
            ends = sorted(int(n) for n in g.rng.integers(0, value.shape[axis] + 1, 2))
            stated = (ends[:1], ends[1:], [axis], [int(g.rng.choice([1, 2]))])
            return g.one("Slice", name, *(g.constant(numbers, np.int64) for numbers in stated))
        case 4:
            return g.one("Expand", name, g.constant([2, *value.shape], np.int64))
        case 5:
            return g.one("Pad", name, g.constant(g.rng.integers(0, 3, 2 * value.ndim), np.int64),
                         mode=str(g.rng.choice(["constant", "edge", "reflect"])))  # fmt: skip
        case _:
            half = value.shape[axis] // 2
            parts = g.constant([half, value.shape[axis] - half], np.int64)
            return half and g.add("Split", name, parts, results=2, axis=axis)


def product(g: Graph) -> object:
    if not (name := _floats(g, 2)):
        return None
    value = g.value(name)
    columns = int(g.rng.integers(1, 9))
    weight = g.constant(g.rng.standard_normal((value.shape[-1], columns)) * 0.5, np.float32)
    if value.ndim == 2 and g.rng.random() < 0.4:
        bias = g.constant(g.rng.standard_normal(columns), np.float32)
        return g.one("Gemm", name, weight, bias, alpha=float(g.rng.choice([1.0, 0.5])))
    return g.one("MatMul", name, weight)


def image(g: Graph) -> object:
    if not (name := _floats(g, 3)):
        return None
    channels, *sizes = g.value(name).shape[1:]
    kernel = [int(g.rng.integers(1, min(4, n) + 1)) for n in sizes]
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": [int(g.rng.integers(1, 3))] * len(
        sizes), "pads": [n // 2 for n in kernel] * 2}  # fmt: skip
    operator = str(g.rng.choice(["Conv", "depthwise", "AveragePool", "MaxPool", "ConvTranspose",
                                 "BatchNormalization", "InstanceNormalization"]))  # fmt: skip
    if operator.endswith("Pool"):
        return g.one(operator, name, **window)
    if operator.endswith("Normalization"):
        each = [g.rng.uniform(0.5, 2, channels) for _ in range(4)]
        stated = [g.constant(numbers, np.float32) for numbers in each]
        return g.one(operator, name, *(stated if operator[0] == "B" else stated[:2]))
    group = channels if operator == "depthwise" else 1
    shape = (channels, 5 if operator == "ConvTranspose" else channels // group, *kernel)
    weight = g.constant(g.rng.standard_normal(shape) * 0.5, np.float32)
    return g.one("Conv" if group > 1 or operator == "depthwise" else operator, name, weight,
                 group=group, **window)  # fmt: skip


def norm(g: Graph) -> object:
    if not (name := _floats(g, 2)):
        return None
    size = g.value(name).shape[-1]
    scale, bias = (g.constant(g.rng.uniform(0.5, 2, size), np.float32) for _ in range(2))
    return g.one("LayerNormalization", name, scale, bias)


STEPS: tuple[Callable[[Graph], object], ...] = (
    one, one, one, two, two, two, two, choose, cast, reduction, reduction, index, move, move, move,
    product, image, norm,
)  # fmt: skip


def wider_graph(rng: np.random.Generator) -> Graph:
    """A model of any operators, opset and element types."""
    return random_graph(rng, [*STEPS, *[any_operator] * len(STEPS)], draw=draw, opsets=OPSETS)


def moved(value: Array, rng: np.random.Generator) -> Array:
    """Floats that are some roundings away from where they were."""
    if value.dtype.kind != "f":
        return value
    noise = 1 + ROUNDINGS[value.dtype.name] * rng.uniform(-1, 1, value.shape)
    return np.asarray((value * noise).astype(value.dtype))


def exact(model: onnx.ModelProto, graph: Graph) -> dict[str, Array]:
    """The outputs in float64, by ONNX's reference implementation."""
    evaluator = Evaluator(in_float64(import_model(model)), sessions=False)
    given = {name: wide(value) for name, value in graph.given.items()}
    return evaluator.values(given, graph.outputs)


def far_off(ours: Array, right: Array, others: Sequence[Array], times: float) -> str:
    """How far an output is off where that is more than others are `times` over; else ""."""
    if ours.shape != right.shape or ours.dtype != right.dtype:
        return f"is {ours.dtype} {ours.shape}, not {right.dtype} {right.shape}"
    floating = right.dtype.kind == "f"
    if not right.size:
        return ""
    if not floating and any(not np.array_equal(other, right) for other in others):
        return ""  # roundings decide
    wide_right, *wides = [value.astype(np.float64) for value in (right, *others)]
    apart = max((float(np.abs(other - wide_right).max()) for other in wides), default=0.0)
    if np.isnan(apart):
        return ""  # roundings decide even whether there is a number
    least = 5 * ROUNDINGS[right.dtype.name] if floating else 0.0
    least *= max(float(np.abs(wide_right).max()), 1e-3)
    off = float(np.abs(ours.astype(np.float64) - wide_right).max())
    allowed = times * apart + least
    return "" if off <= allowed else f"is {off:.4g} off where {allowed:.4g} is allowed"


def runs(graph: Graph) -> list[Values]:
    """What comes of floats that are moved, where onnxruntime computes it: a divisor may be 0."""
    found = []
    for number in range(_MOVED):
        with suppress(Exception):  # onnxruntime has a class for each code of its own
            found.append(graph.reference(np.random.default_rng(number), moved))
    return found


def wrong(
    graph: Graph,
    others: Sequence[Values],
    said: onnx.ModelProto | None = None,
    more: Values | None = None,
) -> str:
    """Compile, run and compare a model: what is wrong, "" where nothing is.

    Args:
        others: what comes of it where floats are moved (`runs`).
        said, more: the model in another form, and the inputs that the form added.
    """
    model = onnx.load_model_from_string(graph.model().SerializeToString())
    ours = onnx.load_model_from_string((said or model).SerializeToString())
    given = {**graph.given, **(more or {})}
    shapes = {name: value.shape for name, value in given.items()}
    try:
        verify(prepared(import_model(ours, shapes)))
        found = Executable(recipe_of(import_model(ours, shapes), host_target())).run(given)
    except Exception as error:  # a valid model: nothing else than running will do
        return f"{type(error).__name__}: {error}"
    wanted = graph.reference()
    doubted = {
        name: reason
        for name in graph.outputs
        if (reason := far_off(found[name], wanted[name], [other[name] for other in others], 20))
    }
    try:
        truth = exact(model, graph) if doubted else {}
    except JobError as error:
        return f"{doubted}, and float64 cannot judge: {error}"
    for name, reason in doubted.items():
        right, theirs = np.asarray(truth[name]), [other[name] for other in (wanted, *others)]
        if far_off(found[name], right.astype(found[name].dtype), theirs, 4):
            return f"{name} {reason}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--all", action="store_true", help="every operator, opset and element type")
    parser.add_argument("--forms", action="store_true", help="each model in another form")
    asked = parser.parse_args()
    counts: Counter[bool] = Counter()
    operators: Counter[str] = Counter()
    refused, start = 0, time.monotonic()
    for number in range(asked.first, asked.first + asked.cases):
        rng = np.random.default_rng((asked.seed, number))
        graph = wider_graph(rng) if asked.all else random_graph(rng, STEPS, bytes_in=0.0)
        if not graph.steps:
            continue
        said, more = said_otherwise(graph, rng) if asked.forms else (graph.model(), {})
        operators.update({node.op_type for node in said.graph.node if node.domain != "own"})
        others = runs(graph)
        refused += _MOVED - len(others)
        reason = wrong(graph, others, said, more)
        counts[not reason] += 1
        if reason:
            print(f"{number}: {' '.join(reason.split())[:300]}", flush=True)
            asked.findings.mkdir(parents=True, exist_ok=True)
            onnx.save(said, str(asked.findings / f"{asked.seed}_{number}.onnx"))
    print(", ".join(f"{count} {name}" for name, count in sorted(operators.items())))
    seconds = time.monotonic() - start
    print(f"{refused} runs with floats moved were refused by onnxruntime, and left out")
    print(f"{counts.total()} models: {counts[True]} right, {counts[False]} wrong; {seconds:.0f} s")
    return int(counts[False] > 0)


if __name__ == "__main__":
    sys.exit(main())
