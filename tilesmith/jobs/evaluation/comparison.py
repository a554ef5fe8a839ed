"""Time our executable in turns with other runtimes, and compare the numbers they give."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.compiling import source_text
from tilesmith.jobs.compilation.reports import Comparison
from tilesmith.jobs.measures.peers import Contender, load_peer, precision_of
from tilesmith.jobs.measures.timing import Timing, at_once, interleave, pinned
from tilesmith.search_space.support.errors import ModelError

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable

Arrays = Mapping[str, NDArray[Any]]

_SHARES = 5
"""How often the share of host nodes is taken; the median is reported."""


@dataclass(frozen=True)
class Pace:
    """How a model is timed, in the terms of onnxruntime_perf_test.

    Attributes:
        warm_up: untimed runs before (of ours each contender has three at least).
        runs: timed runs of each contender, in place of a time limit (its `-r`).
        concurrency: runs in flight at once, each with inputs and outputs of its own (its `-c`).
    """

    warm_up: int = 0
    runs: int | None = None
    concurrency: int = 1

    def timed(
        self, calls: Mapping[str, Sequence[Callable[[], object]]], budget_s: float, threads: int
    ) -> dict[str, Timing]:
        """Each contender's timing; a single call each takes turns with the others."""
        if self.concurrency == 1:
            alone = {name: own[0] for name, own in calls.items()}
            return interleave(
                alone, budget_s, threads=threads, warm_up=self.warm_up, runs=self.runs
            )
        share = budget_s / len(calls)
        return {n: at_once(own, share, self.warm_up, self.runs) for n, own in calls.items()}


ONE_BY_ONE = Pace()


def compare(
    executable: Executable,
    inputs: Arrays,
    against: Sequence[str] = (),
    model: Path | None = None,
    budget_s: float = 3.0,
    precision: str = "fp32",
    pace: Pace = ONE_BY_ONE,
) -> Comparison:
    """Time the executable and its peers on the same inputs, threads and cores, in one run.

    Args:
        inputs: by name; all runtimes get the same arrays.
        against: names in `PEERS`.
        model: the ONNX file the peers run; needed with `against`.
        precision: that peers which have it compute a floating model in; the others use fp32.
        pace: how often, and how many at once; several take no turns with peers, which run after.

    Raises:
        DependencyError: a peer is not installed.
        ModelError: a peer cannot load the model.
    """
    assert model is not None or not against, "peers need the ONNX model"
    threads = executable.recipe.threads
    with pinned(threads * pace.concurrency):
        several = [
            [
                load_peer(name, model, inputs, threads, precision_of(name, precision))
                for name in against
                if model
            ]
            for _ in range(pace.concurrency)
        ]
        bounds = [executable.bind(inputs) for _ in range(pace.concurrency)]
        bound, peers = bounds[0], several[0]
        calls: dict[str, list[Callable[[], object]]] = {"tilesmith": [b.run for b in bounds]}
        calls |= {p.name: [each[n].infer for each in several] for n, p in enumerate(peers)}
        timings = pace.timed(calls, budget_s, threads)
        share = statistics.median(bound.host_share() for _ in range(_SHARES))
        outputs = bound.outputs()
    errors = [difference(outputs, peer) for peer in peers]
    return Comparison(
        own=timings.pop("tilesmith"),
        threads=threads,
        concurrency=pace.concurrency,
        host_share=share,
        host_operators=tuple((node.name, node.runtime) for node in executable.host_nodes),
        peers=timings,
        versions={peer.name: peer.version for peer in peers},
        max_abs_err=max((absolute for absolute, _ in errors), default=None),
        max_rel_err=max((relative for _, relative in errors), default=None),
    )


def difference(ours: Arrays, peer: Contender) -> tuple[float, float]:
    """Largest |a - b| of all outputs, and largest max|a - b| / max|b| of an output.

    Infinite where one side has a number that is not finite.
    """
    theirs = peer.outputs()
    absolute = relative = 0.0
    for name, value in ours.items():
        a, b = value.astype(np.float64), theirs[name].astype(np.float64)
        if a.size == 0:
            continue
        error = float(np.nan_to_num(np.abs(a - b), nan=np.inf).max())
        scale = float(np.abs(b).max())
        absolute = max(absolute, error)
        relative = max(relative, error / scale if scale else error)
    return absolute, relative


def source_of(executable: Executable, model: str, given: str | Path | None) -> Path:
    """The ONNX file that other runtimes are to run.

    Args:
        model: what was benchmarked: an ONNX file, or an artifact, which remembers its model's
            name and content; that is looked for beside the artifact and in the current folder.
        given: the user's word, if any.

    Raises:
        ModelError: the source is not known or not there.
    """
    from tilesmith.compiler.driver.front_end import format_of

    if given is not None:
        return Path(given)
    format = format_of(model) or format_of(executable.source.rpartition(" ")[0])
    if format is not None:
        raise ModelError(
            f"'{model}' is of {format.name}, which other runtimes do not read; name the same "
            "model of ONNX with --model MODEL.onnx"
        )
    if not model.endswith(".tsm"):
        return Path(model)
    name, _, held = executable.source.rpartition(" ")
    for folder in (Path(model).parent, Path()):
        if name and (path := folder / name).is_file() and source_text(path).endswith(held):
            return path
    if not name:
        raise ModelError(
            f"which model '{model}' was compiled from is not known; name it with --model MODEL.onnx"
        )
    raise ModelError(
        f"the model '{name}' that '{model}' was compiled from is neither beside it nor here; "
        "name it with --model MODEL.onnx"
    )
