"""Every ONNX operator, each of its opsets, each of its element types, against onnxruntime.

    python benchmarks/operator_sweep.py [--only REGEX] [--cases 3] [--jobs 2] [--seconds S]
        [--json FILE]

Inputs and attributes are those of ONNX's own cases (`onnx.backend.test`), so many of an operator;
each is asked in every version of the operator's schema that can say it (what is an input
now and was an attribute once is moved there), and in every element type that the schema allows for
its first input; operators with bodies only in the types of their case. Host nodes run in the
reference, so that nothing is compared with itself; what onnxruntime does not take is
compared with ONNX's reference where that has the version. Printed are, by operator, how many
variants agree (of those, how many run kernels), are refused in a sentence, are wrong (which any
other failure is), or cannot be run by either; then each sentence, and each wrong one.
Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from tilesmith.compiler.driver.build import build
from tilesmith.compiler.host.nodes import RANDOM
from tilesmith.onnx_backend import prepare
from tilesmith.search_space.support.errors import TilesmithError

CASES = 3
"""How many of ONNX's cases of an operator are taken, the first by name."""

SKIPPED = {*RANDOM, "Dropout", "ImageDecoder"}
"""Operators that draw numbers, or want what need not be installed."""

BODIES = {"If", "Loop", "Scan", "SequenceMap"}
"""Operators that run graphs, which are for the element types that they were written with."""

DIFFERENT: dict[str, str] = {
    r"^BatchNormalization .*training": "the reference gives statistics of x's type",
    r"^Cast(Like)? .*uint": "negative numbers as unsigned ones are undefined",
    r"^Resize ": "onnxruntime rounds lengths before positions are made of them",
    r"^MaxUnpool ": "onnxruntime takes output_shape otherwise than the standard",
    r"^(DFT|STFT) ": "onnxruntime sums products one by one",
    r"^TopK .*(float16)": "of equal numbers onnxruntime may give any",
}
"""Variants in which both may be right, or onnxruntime is wrong, and why."""

ENDED = ("took too long", "ended the process")  # reasons where a process did not come to its end
_DTYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "int64": np.int64, "int32": np.int32, "int16": np.int16,
    "int8": np.int8, "uint64": np.uint64, "uint32": np.uint32, "uint16": np.uint16,
    "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip
_TOLERANCES = {"float32": 2e-4, "float64": 1e-6, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Case:
    """A node of ONNX's suite and its inputs, by name."""

    name: str
    node: onnx.NodeProto
    inputs: dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Outcome:
    """What became of a variant: "agree", "refused", "wrong", "different" or "peer cannot"."""

    variant: str
    verdict: str
    reason: str = ""
    native: bool = False


@cache
def cases(most: int = CASES) -> dict[str, list[Case]]:
    """ONNX's cases of one plain node, so many of them, by operator."""
    warnings.filterwarnings("ignore")
    found: dict[str, list[Case]] = defaultdict(list)
    for entry in sorted(load_model_tests(kind="node"), key=lambda c: str(c.name)):
        model = entry.model or onnx.load(str(Path(str(entry.model_dir)) / "model.onnx"))
        if len(model.graph.node) != 1 or model.graph.node[0].domain not in ("", "ai.onnx"):
            continue
        node = model.graph.node[0]
        if node.op_type in SKIPPED or len(found[node.op_type]) >= most:
            continue
        inputs = _inputs(entry, model)
        if inputs is not None:
            found[node.op_type].append(Case(str(entry.name), node, inputs))
    return found


def _inputs(entry: Any, model: onnx.ModelProto) -> dict[str, NDArray[Any]] | None:
    """The first data set's inputs; None where one is no plain tensor."""
    names = [value.name for value in model.graph.input]
    if any(not value.type.HasField("tensor_type") for value in model.graph.input):
        return None
    if entry.data_sets:
        values = list(entry.data_sets[0][0])
    else:
        folder = Path(str(entry.model_dir)) / "test_data_set_0"
        paths = [folder / f"input_{number}.pb" for number in range(len(names))]
        if not all(path.exists() for path in paths):
            return None
        values = [onnx.load_tensor(str(path)) for path in paths]
    protos = onnx.TensorProto
    arrays = [numpy_helper.to_array(v) if isinstance(v, protos) else np.asarray(v) for v in values]
    return dict(zip(names, arrays, strict=True)) if len(arrays) == len(names) else None


# -- variants -----------------------------------------------------------------------------------
def variants(case: Case) -> Iterator[tuple[str, onnx.ModelProto, dict[str, NDArray[Any]]]]:
    """(what it is, a model, its inputs) for each opset and element type that can say the case."""
    newest = defs.onnx_opset_version()
    versions = [s for s in defs.get_all_schemas_with_history() if s.name == case.node.op_type]
    for schema in sorted(versions, key=lambda s: s.since_version):
        if schema.domain or schema.deprecated:
            continue
        opset = min(schema.since_version, newest)
        said = as_said_in(case, schema)
        if said is None:
            continue
        for kind in ("",) if schema.name in BODIES else kinds(schema):
            each = typed(said, schema, kind)
            if each is not None:
                name = f"{schema.name} {case.name} opset={opset} {kind or 'as it is'}"
                yield name, _model(each, schema, opset), each.inputs


def as_said_in(case: Case, schema: Any) -> Case | None:
    """The case as a version of the operator has it; None where that has other attributes."""
    node, inputs = onnx.NodeProto(), dict(case.inputs)
    node.CopyFrom(case.node)
    newest = defs.get_schema(node.op_type)
    formals = [formal.name for formal in newest.inputs]
    for position in range(len(node.input) - 1, 0, -1):
        formal = formals[min(position, len(formals) - 1)]
        attribute = schema.attributes.get(formal)
        if attribute is None or position >= len(formals):
            continue
        name = node.input[position]
        if name:
            value = inputs.pop(name)
            plain = value.tolist() if value.ndim else value.item()
            wants_list = attribute.type.name.endswith("S")
            plain = [plain] if wants_list and not isinstance(plain, list) else plain
            plain = plain[0] if not wants_list and isinstance(plain, list) else plain
            kind = attribute.type.value
            if attribute.type.name == "FLOAT":
                plain = float(plain)
            node.attribute.append(helper.make_attribute(formal, plain, attr_type=kind))
        del node.input[position]
    while node.input and not node.input[-1]:
        del node.input[-1]
    kinds = {name: a.type.value for name, a in schema.attributes.items()}
    if any(kinds.get(attribute.name) != attribute.type for attribute in node.attribute):
        return None
    required = {name for name, a in schema.attributes.items() if a.required}
    if required - {attribute.name for attribute in node.attribute}:
        return None
    fits = schema.min_input <= len(node.input) <= schema.max_input
    fits &= schema.min_output <= len(node.output) <= schema.max_output
    return Case(case.name, node, inputs) if fits else None


def kinds(schema: Any) -> Sequence[str]:
    """Element types its first input may have, "" where it is of one alone."""
    if not schema.inputs:
        return ("",)
    constraint = schema.inputs[0].type_str
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    kinds = [re.sub(r"^tensor\((.*)\)$", r"\1", text) for text in allowed.get(constraint, ())]
    return [kind for kind in kinds if kind in _DTYPES] or ("",)


def typed(case: Case, schema: Any, kind: str) -> Case | None:
    """The case with inputs of the first one's type converted to another."""
    if not kind or not case.node.input:
        return case
    dtype, inputs = np.dtype(_DTYPES[kind]), dict(case.inputs)
    first = schema.inputs[0].type_str
    before = inputs[case.node.input[0]].dtype
    if before.kind in "OSUT":
        return None
    for position, name in enumerate(case.node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if name and formal.type_str == first:
            inputs[name] = _converted(inputs[name], dtype)
    if case.node.op_type in ("Div", "Mod") and dtype.kind not in "fV":
        divisor = case.node.input[1]  # onnxruntime ends the process where one is 0
        inputs[divisor] = np.where(inputs[divisor] == 0, 1, inputs[divisor]).astype(dtype)
    return Case(case.name, case.node, inputs)


def _converted(value: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array in another type, what does not fit brought to where it does."""
    if dtype.kind in "iu" and value.dtype.kind in "fV":
        value = np.nan_to_num(np.asarray(value, np.float64), posinf=50, neginf=-50)
        value = np.clip(np.round(value * (3 if np.abs(value).max(initial=0) < 4 else 1)), -100, 100)
    if dtype.kind == "u":
        value = np.abs(value.astype(np.int64)) if value.dtype.kind != "u" else value
    return np.asarray(value).astype(dtype)


def varied(case: Case, schema: Any) -> set[str]:
    """The inputs that are of the first one's type; others say how it is computed."""
    first = schema.inputs[0].type_str if schema.inputs else ""
    found = set(case.inputs)
    for position, name in enumerate(case.node.input):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if name and position and formal.type_str != first:
            found.discard(name)
    return found


def _model(case: Case, schema: Any, opset: int) -> onnx.ModelProto:
    """A model of the node: what is not of the first input's type is a constant."""
    inputs = varied(case, schema)
    given = [
        helper.make_tensor_value_info(name, _number(value), value.shape)
        for name, value in case.inputs.items()
        if name in inputs
    ]
    weights = [
        numpy_helper.from_array(v, name) for name, v in case.inputs.items() if name not in inputs
    ]
    results = [onnx.ValueInfoProto(name=name) for name in case.node.output if name]
    graph = helper.make_graph([case.node], "variant", given, results, weights)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=max(8, min(10, opset)))
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    for declared, found in zip(model.graph.output, inferred.graph.output, strict=True):
        declared.type.CopyFrom(found.type)
        if not declared.type.WhichOneof("value"):
            declared.type.tensor_type.elem_type = _number(case.inputs[case.node.input[0]])
    return model


def _number(value: NDArray[Any]) -> int:
    if value.dtype == object or value.dtype.kind in "SUT":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(value.dtype))


# -- running ------------------------------------------------------------------------------------
def outcome(name: str, model: onnx.ModelProto, inputs: dict[str, NDArray[Any]]) -> Outcome:
    """Run a variant on both sides."""
    fed = {value.name: inputs[value.name] for value in model.graph.input}
    expected = _peer(model, fed)
    operator, opset = model.graph.node[0].op_type, model.opset_import[0].version
    if isinstance(expected, str) and opset >= defs.get_schema(operator).since_version:
        expected = _reference(model, fed)
    if isinstance(expected, str):
        return Outcome(name, "peer cannot", expected)
    try:
        rep = prepare(model)
        found = list(rep.run(fed))
    except TilesmithError as error:
        return Outcome(name, "refused", " ".join(str(error).split()))
    except Exception as error:  # a fault, whatever it is
        return Outcome(name, "wrong", f"{type(error).__name__}: {' '.join(str(error).split())}")
    native = any(e.report.default for e in rep.compiled)
    wrong = next(filter(None, map(_difference, found, expected)), "")
    if not wrong:
        return Outcome(name, "agree", native=native)
    why = next((why for pattern, why in DIFFERENT.items() if re.search(pattern, name)), "")
    return Outcome(name, "different" if why else "wrong", why or wrong, native)


def _peer(model: onnx.ModelProto, inputs: dict[str, NDArray[Any]]) -> list[Any] | str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return list(session.run(None, inputs))
    except Exception as error:  # onnxruntime has a class for each code of its own
        return " ".join(str(error).split())[:200]


def _reference(model: onnx.ModelProto, inputs: dict[str, NDArray[Any]]) -> list[Any] | str:
    try:
        return list(ReferenceEvaluator(model).run(None, inputs))
    except Exception as error:  # it raises whatever numpy does
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _difference(found: Any, expected: Any) -> str:
    """What is different of an output; "" if nothing is."""
    if isinstance(expected, list):
        pairs = zip(found, expected, strict=False)
        parts = [_difference(a, b) for a, b in pairs]
        return next(filter(None, parts), "") if len(found) == len(expected) else "its length"
    ours, theirs = np.asarray(found), np.asarray(expected)
    if ours.dtype != theirs.dtype and theirs.dtype != object:
        return f"dtype {ours.dtype}, theirs {theirs.dtype}"
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, theirs {theirs.shape}"
    if theirs.dtype == object or theirs.dtype.kind in "iub":
        alike = ours == theirs
    else:
        limit = _TOLERANCES.get(theirs.dtype.name, 1e-2)
        wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
        a, b = ours.astype(wide), theirs.astype(wide)
        sizes = np.abs(b[np.isfinite(b)])
        scale = max(1e-3, float(sizes.max(initial=0.0)))
        alike = np.isclose(a, b, rtol=limit, atol=limit * scale, equal_nan=True)
    if np.all(alike):
        return ""
    place = int(np.flatnonzero(~np.asarray(alike).reshape(-1))[0])
    return (
        f"{int(np.sum(~np.asarray(alike)))} of {theirs.size} values, the first "
        f"{ours.reshape(-1)[place]}, theirs {theirs.reshape(-1)[place]}"
    )


def swept(operator: str, path: str, most: int = CASES) -> None:
    """Write the outcomes of an operator, a line each, as they come."""
    warnings.filterwarnings("ignore")
    with Path(path).open("a", encoding="utf-8") as file:
        everything = (variant for case in cases(most)[operator] for variant in variants(case))
        for name, model, inputs in everything:
            file.write(json.dumps({"begun": name}) + "\n")
            file.flush()
            with np.errstate(all="ignore"):
                found = outcome(name, model, inputs)
            file.write(json.dumps(asdict(found)) + "\n")
            file.flush()


def sweep(
    operators: Sequence[str], jobs: int, seconds: float, swept: Callable[..., None], *more: Any
) -> Iterator[tuple[str, list[Outcome]]]:
    """Outcomes by operator, each in a process of its own that may die without harm to others;
    `swept` writes them into a file, as the function of that name does, and is given `more`."""
    assert callable(build)  # imported before any process starts, that all have the same
    context = multiprocessing.get_context("fork")
    running: dict[str, tuple[Any, str, float]] = {}
    waiting = list(operators)
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                operator = waiting.pop(0)
                path = str(Path(folder) / operator)
                process = context.Process(target=swept, args=(operator, path, *more))
                process.start()
                running[operator] = (process, path, time.monotonic())
            for operator, (process, path, start) in list(running.items()):
                process.join(0.02)
                late = time.monotonic() - start > seconds
                if process.is_alive() and not late:
                    continue
                process.kill()  # if it is late
                process.join()
                del running[operator]
                yield operator, _read(path, ENDED[0 if late else 1])


def _read(path: str, ended: str) -> list[Outcome]:
    """The outcomes in a file; of the last variant, if it was not finished, how it ended."""
    found: list[Outcome] = []
    begun = ""
    lines = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    for entry in map(json.loads, lines):
        if "begun" in entry:
            begun = entry["begun"]
        else:
            found.append(Outcome(**entry))
            begun = ""
    return [*found, Outcome(begun, "wrong", ended)] if begun else found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--cases", type=int, default=CASES, help="of ONNX's, an operator")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="that an operator may take")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    os.environ.setdefault("TILESMITH_HOST", "reference")
    names = sorted(name for name in cases(asked.cases) if re.search(asked.only, name))
    found = dict(sweep(names, asked.jobs, asked.seconds, swept, asked.cases))
    columns = ("agree", "native", "refused", "wrong", "different", "peer cannot")
    print(f"{'operator':28}" + "".join(f"{column:>13}" for column in columns))
    whole = Counter[str]()
    for operator in names:
        counts = Counter(entry.verdict for entry in found[operator])
        counts["native"] = sum(e.native for e in found[operator] if e.verdict == "agree")
        whole += counts
        print(f"{operator:28}" + "".join(f"{counts[column]:13}" for column in columns))
    print(f"{'all':28}" + "".join(f"{whole[column]:13}" for column in columns))
    every = [entry for entries in found.values() for entry in entries]
    for verdict in ("refused", "wrong"):
        for entry in (entry for entry in every if entry.verdict == verdict):
            print(f"{verdict:8} {entry.variant}: {entry.reason[:240]}")
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(entry) for entry in every], indent=1))
    return 1 if whole["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
