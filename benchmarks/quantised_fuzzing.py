"""Random quantised models: each compiles and is right, or is refused for a reason of a list.

    python -m benchmarks.quantised_fuzzing [--cases 300] [--seed 0] [--first 0]

The models are those of `quantised_graphs`; outputs are compared with onnxruntime, node by node. Two
right runtimes round some numbers to neighbouring bytes, which later nodes carry on; so each output
may differ by twice what it does in onnxruntime itself where bytes on the way are moved by one.
`REASONS` is the list that docs/quantisation.md prints. Exit code 1 if an output is wrong, a refusal
has no reason of the list, or anything but a refusal is raised.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

try:
    from benchmarks.subjects.graphs.quantised_graphs import Graph, random_graph
    from benchmarks.subjects.graphs.quantised_steps import STEPS
except ModuleNotFoundError as absent:
    needs = f"no module '{absent.name}' here; what this needs, and how it is run, stands at its top"
    raise SystemExit(needs) from None
from tilesmith.codegen.host.machine import host_target
from tilesmith.compiler.driver.build import build
from tilesmith.compiler.onnx.importer import import_model
from tilesmith.search_space.support.errors import TilesmithError

Array = NDArray[Any]

REASONS: dict[str, str] = {
    "which is not part of ONNX": "an operator of com.microsoft that is not understood",
    "mixes dtypes": "bytes and their zero point are of two element types",
    "lacks the attribute": "an operator without what its definition asks for",
}
"""What refusals may say, and what is wrong then: the list of docs/quantisation.md."""

_MOVED = 4
"""How often bytes are moved, to see what comes of it."""


@dataclass(frozen=True)
class Outcome:
    """What became of a model: "right", "refused", "unlisted", "wrong" or "raised"."""

    verdict: str
    reason: str = ""


def outcome(graph: Graph) -> Outcome:
    """Compile, run and compare a model."""
    try:
        model = onnx.load_model_from_string(graph.model().SerializeToString())
        found = build(import_model(model), host_target()).run(graph.given)
    except TilesmithError as error:
        reason = next((name for name in REASONS if name in str(error)), "")
        return Outcome("refused" if reason else "unlisted", reason or str(error))
    except Exception as error:
        return Outcome("raised", f"{type(error).__name__}: {error}")
    return compared(graph, found)


def compared(graph: Graph, found: dict[str, Array]) -> Outcome:
    """Whether outputs are near enough to onnxruntime's."""
    wanted = graph.reference()
    moved = [graph.reference(np.random.default_rng(n)) for n in range(_MOVED)]
    for name in graph.outputs:
        if found[name].shape != wanted[name].shape or found[name].dtype != wanted[name].dtype:
            return Outcome("wrong", f"{name} is {found[name].dtype} {found[name].shape}")
        right, ours = wanted[name].astype(np.float64), found[name].astype(np.float64)
        others = [np.abs(run[name].astype(np.float64) - right) for run in moved]
        least = 1e-4 * max(float(np.abs(right).max()), 1.0)
        whole = 1.0 if wanted[name].dtype.kind != "f" else 0.0
        off = np.abs(ours - right)
        most = 2 * max(float(o.max()) for o in others) + least + whole
        mean = max(float(o.mean()) for o in others) + least + whole / right.size**0.5
        if not (off.max() <= most and off.mean() <= mean):
            return Outcome(
                "wrong",
                f"{name} is {off.max():.4g} off at most and {off.mean():.4g} on average where "
                f"{most:.4g} and {mean:.4g} are allowed",
            )
    return Outcome("right")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    asked = parser.parse_args()
    counts: Counter[str] = Counter()
    operators: Counter[str] = Counter()
    start = time.monotonic()
    for number in range(asked.first, asked.first + asked.cases):
        graph = random_graph(np.random.default_rng((asked.seed, number)), STEPS)
        if not graph.steps:
            continue
        operators.update({step.node.op_type for step in graph.steps})
        found = outcome(graph)
        counts[found.verdict] += 1
        if found.reason:
            print(f"{number} {found.verdict}: {' '.join(found.reason.split())[:300]}", flush=True)
        if found.verdict in ("unlisted", "wrong", "raised"):
            asked.findings.mkdir(parents=True, exist_ok=True)
            onnx.save(graph.model(), str(asked.findings / f"{asked.seed}_{number}.onnx"))
    print(", ".join(f"{count} {name}" for name, count in sorted(operators.items())))
    total = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"{sum(counts.values())} models: {total}; {time.monotonic() - start:.0f} s")
    return int(bool(counts["unlisted"] + counts["wrong"] + counts["raised"]))


if __name__ == "__main__":
    sys.exit(main())
