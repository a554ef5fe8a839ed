"""Which operators run on the host: ONNX's backend suite as exporters write models.

    python -m benchmarks.host_operators [--target trn1] [--only REGEX] [--every N] [--jobs 2]
        [--json FILE]

The suite hands an operator everything as an input of the run: axes, shapes, counts, too. Here what
decides shapes is a constant, as it is in exporters' models, and the rest stays an input. Each case
is compiled for the target (this machine, if none is given), run, and compared with the suite's
outputs. Printed: cases without host nodes, host nodes by operator with the element types they read
and write, and every case whose values are wrong. Models of strings, sequences and optionals have no
kernels and are left out, and so are random numbers. Exit code 1 if a case is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

import tilesmith

Array = NDArray[Any]

PARAMETERS: Mapping[str, frozenset[str]] = {
    name: frozenset(inputs.split())
    for name, inputs in {
        "": "axes axis shape k repeats starts ends steps split sizes scales roi depth target_shape "
        "output_shape block_shape image_shape pads size dft_length frame_step frame_length "
        "training_mode tensor_sizes num_mel_bins sample_rate lower_edge_hertz upper_edge_hertz "
        "ratio",
        "Range": "start limit delta",
        "NonMaxSuppression": "max_output_boxes_per_class iou_threshold score_threshold",
    }.items()
}
"""Inputs by which shapes are decided, by operator and ("") of any, as the standard names them."""

RANDOM = r"^test_(bernoulli|.*dropout.*ratio|.*image_decoder|gradient)|train|adagrad|adam|momentum"


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    name: str
    host: tuple[str, ...] = ()
    kernels: int = 0
    wrong: str = ""


@cache
def _cases() -> dict[str, Any]:
    return {str(test.name): test for test in load_model_tests(kind="node")}


def _names() -> list[str]:
    return [
        name for name, test in _cases().items() if _is_plain(test) and not re.search(RANDOM, name)
    ]


def _is_plain(test: Any) -> bool:
    """Whether everything is a tensor of numbers."""
    ends = (*test.model.graph.input, *test.model.graph.output)
    return all(
        end.type.HasField("tensor_type")
        and end.type.tensor_type.elem_type != onnx.TensorProto.STRING
        for end in ends
    )


def exported(
    model: onnx.ModelProto, values: Mapping[str, Array]
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model with its parameters in the file, and what is left for a run."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    fixed = set()
    for node in model.graph.node:
        names = PARAMETERS[""] | PARAMETERS.get(node.op_type, frozenset())
        if not onnx.defs.has(node.op_type, versions.get(node.domain, 1), node.domain):
            continue
        schema = onnx.defs.get_schema(node.op_type, versions.get(node.domain, 1), node.domain)
        stated = zip(node.input, schema.inputs, strict=False)
        fixed |= {given for given, said in stated if said.name in names and given in values}
    for name in fixed:
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(values[name]), name))
    left = [end for end in made.graph.input if end.name not in fixed]
    del made.graph.input[:]
    made.graph.input.extend(left)
    return made, {name: value for name, value in values.items() if name not in fixed}


def run(name: str, target: str = "cpu") -> Outcome:
    """Compile, run and compare a case; what it raises is what is wrong."""
    test = _cases()[name]
    inputs, outputs = test.data_sets[0]
    ends = (test.model.graph.input, test.model.graph.output)
    values, wanted = (
        {end.name: _array(value) for end, value in zip(of, given, strict=False)}
        for of, given in zip(ends, (inputs, outputs), strict=True)
    )
    model, left = exported(test.model, values)
    executable = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            executable = tilesmith.compile(model, target)
            found = executable.run(left)
        for end, value in wanted.items():
            assert found[end].dtype == value.dtype, f"{found[end].dtype}, not {value.dtype}"
            wide = (
                np.asarray(v, np.float64) if v.dtype.kind in "fV" else v
                for v in (found[end], value)
            )
            narrow = "bfloat16" in str(value.dtype) or value.dtype == np.float16
            least = (2e-2, 1e-2) if narrow else (1e-3, 1e-5)
            limits = {"rtol": max(test.rtol, least[0]), "atol": max(test.atol, least[1])}
            np.testing.assert_allclose(*wide, **limits)
    except Exception as error:
        wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Outcome(name, () if executable is None else _hosts(executable), 0, wrong)
    report = executable.report
    kernels = report.tuned + report.stale + report.fallback + report.default
    return Outcome(name, _hosts(executable), kernels)


def _array(value: Any) -> Array:
    """An array of the suite's, some of which are protocol buffers."""
    return (
        numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    )


def _hosts(executable: Any) -> tuple[str, ...]:
    """Host nodes: the operator, what it reads and writes."""
    steps = [step for step in executable.recipe.steps if hasattr(step, "proto")]
    return tuple(
        f"{step.operator} {','.join(r.info.dtype for r in step.inputs)} -> "
        f"{','.join(r.info.dtype for r in step.outputs)}"
        for step in steps
    )


def main() -> int:
    """Count; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cpu", help="what the cases are compiled for")
    parser.add_argument("--every", type=int, default=1, help="every so many of them")
    parser.add_argument("--only", default="", help="regular expression of the cases to run")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--json", metavar="FILE", help="write every outcome")
    asked = parser.parse_args()
    chosen = [name for name in _names() if re.search(asked.only, name)][:: asked.every]
    context = multiprocessing.get_context("fork")
    with context.Pool(asked.jobs) as pool:
        outcomes = pool.map(partial(run, target=asked.target), chosen, chunksize=8)
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(set(outcome.host))
    for text, count in counts.most_common():
        print(f"{count:5}  {text}")
    for outcome in outcomes:
        if outcome.wrong:
            print(f"wrong  {outcome.name}: {outcome.wrong}")
    native = sum(not outcome.host for outcome in outcomes)
    nodes = sum(len(outcome.host) for outcome in outcomes)
    print(f"{len(outcomes)} cases, {native} without host nodes; {nodes} host nodes")
    if asked.json:
        Path(asked.json).write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    return int(any(outcome.wrong for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
