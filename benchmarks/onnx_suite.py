"""ONNX's own backend suite, compiled to native code: which of its cases pass.

    python benchmarks/onnx_suite.py [--only REGEX] [--jobs 2] [--timeout S] [--sample] [--json FILE]

All cases of `onnx.backend.test` (operators, their expansions into functions, simple models, models
of PyTorch's, and light models of whole networks) run through `tilesmith.onnx_backend`, each in a
worker process that may die without harm to the others. Printed are the cases that passed and failed
by operator, how many of those that passed ran kernels, and every failure with its reason. Cases
that cannot pass are named in `EXCLUDED`, each with why; they run all the same, and one that passes
is listed, so that the list cannot grow stale. Exit code 1 if a case failed that is not excluded.
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
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from tilesmith.onnx_backend import TilesmithBackend, TilesmithRep

EXCLUDED: dict[str, str] = {
    r"^test_bernoulli": "draws random numbers, and the case lists those of another generator",
    r"^test_gradient_of": "asks for derivatives; models are compiled to be run, not trained",
}
"""Cases that cannot pass, by a regular expression searched in their names, and why."""

if find_spec("PIL") is None:
    EXCLUDED[r"^test_image_decoder"] = "decodes images, for which Pillow has to be installed"


SAMPLED = 3
"""How many cases of an operator are in the sample."""


@dataclass(frozen=True)
class Case:
    """One case of the suite.

    Attributes:
        name: as ONNX calls it, without the device.
        category: as ONNX's runner calls it: "NodeModel", "SimpleModel", ...
        operator: what the table counts it under; a category for cases of no single operator.
        operators: every operator it is made of, those of subgraphs included.
    """

    name: str
    category: str
    operator: str
    operators: frozenset[str]

    @property
    def exclusion(self) -> str:
        """Why it cannot pass, "" if it can."""
        found = (why for pattern, why in EXCLUDED.items() if re.search(pattern, self.name))
        return next(found, "")


@dataclass(frozen=True)
class Outcome:
    """What became of a case: no reason if it passed."""

    name: str
    reason: str
    seconds: float
    kernels: int = 0
    host: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.reason


Run = Callable[[str], Outcome]
"""What a worker does with a case, by its name."""


class _Suite(BackendTest):
    """ONNX's runner, which fails at scalars in sequences: it asks how many elements they have."""

    @classmethod
    def assert_similar_outputs(
        cls, ref_outputs: Any, outputs: Any, *tolerances: Any, **more: Any
    ) -> None:
        """Raise `AssertionError` where outputs differ."""
        if isinstance(outputs, np.ndarray) and outputs.ndim == 0:
            ref_outputs, outputs = [ref_outputs], [outputs]
        super().assert_similar_outputs(ref_outputs, outputs, *tolerances, **more)


class _Watched(TilesmithBackend):
    """The backend, remembering the last model it prepared."""

    last: TilesmithRep | None = None

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> TilesmithRep:
        cls.last = None
        cls.last = super().prepare(model, device, **kwargs)
        return cls.last


@cache
def _runner() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Suite(_Watched, __name__)


@cache
def _functions() -> dict[str, Callable[[Any], None]]:
    """What runs each case; raises if it does not pass."""
    items = _runner()._test_items.values()
    return {
        name.removesuffix("_cpu"): item.func
        for cases in items
        for name, item in cases.items()
        if name.endswith("_cpu")
    }


@cache
def cases() -> tuple[Case, ...]:
    """Every case, by name within its category."""
    _runner()  # makes the cases of operators, once
    found = []
    for category, kind in (
        ("NodeModel", "node"), ("RealModel", "real"), ("SimpleModel", "simple"),
        ("PyTorchConvertedModel", "pytorch-converted"),
        ("PyTorchOperatorModel", "pytorch-operator"),
    ):  # fmt: skip
        tests = sorted(load_model_tests(kind=kind), key=lambda test: str(test.name))
        found += [_case(test, category) for test in tests]
    parents = {case.name: case.operator for case in found}
    return tuple(
        Case(c.name, c.category, parents.get(c.name.split("_expanded")[0], c.operator), c.operators)
        for c in found
    )


def _case(test: Any, category: str) -> Case:
    model = test.model
    if model is None and test.model_dir is not None:
        model = onnx.load(Path(test.model_dir) / "model.onnx")
    operators = frozenset(_operators(model.graph)) if model is not None else frozenset()
    single = category == "NodeModel" and len(model.graph.node) == 1
    return Case(test.name, category, model.graph.node[0].op_type if single else category, operators)


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _operators(attribute.g)


def sample(each: int = SAMPLED) -> tuple[Case, ...]:
    """The first `each` cases of every operator, and one more of operators that none of them has.

    Excluded cases are left out, and whole networks, which take long.
    """
    possible = [c for c in cases() if not c.exclusion and c.category != "RealModel"]
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    chosen = []
    for case in sorted(possible, key=lambda case: len(case.operators)):  # each by itself first
        if counts[case.operator] < each or not case.operators <= seen:
            counts[case.operator] += 1
            seen |= case.operators
            chosen.append(case)
    return tuple(chosen)


def run_case(name: str) -> Outcome:
    """Run one case in this process."""
    started = time.monotonic()
    _Watched.last = None
    reason = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _functions()[name](unittest.TestCase())
    except unittest.SkipTest as skipped:
        reason = f"skipped: {skipped}"
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    seconds = time.monotonic() - started
    compiled = _Watched.last.compiled if _Watched.last is not None else ()
    reports = [executable.report for executable in compiled]
    kernels = sum(r.tuned + r.stale + r.fallback + r.default for r in reports)
    return Outcome(name, reason, seconds, kernels, tuple(n for r in reports for n in r.host_nodes))


# -- worker processes -----------------------------------------------------------------------------
def _serve(connection: Connection, run: Run) -> None:
    """A worker: names in, outcomes out, until it is told None."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 (as long as the process)
    while (name := connection.recv()) is not None:
        connection.send(run(name))


@dataclass
class _Worker:
    """A process at work on one case at a time."""

    process: Any
    connection: Any
    name: str
    run: Run
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, name: str, run: Run) -> _Worker:
        context = multiprocessing.get_context("fork")  # the cases are made already
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, run), daemon=True)
        process.start()
        theirs.close()
        ours.send(name)
        return cls(process, ours, name, run)

    def outcome(self, timeout: float) -> Outcome | None:
        """What became of its case, None as long as it is at it; a dead one has an outcome."""
        seconds = time.monotonic() - self.since
        if self.connection.poll():
            try:
                return self.connection.recv()  # type: ignore[no-any-return]
            except EOFError:
                self.process.join()
                return Outcome(self.name, f"died: exit code {self.process.exitcode}", seconds)
        if seconds < timeout:
            return None
        self.process.kill()
        self.process.join()
        return Outcome(self.name, f"took more than {timeout:.0f} s", seconds)

    def go_on(self, name: str) -> _Worker:
        """The next case, in this process if it lives."""
        if not self.process.is_alive():
            return _Worker.start(name, self.run)
        self.connection.send(name)
        return _Worker(self.process, self.connection, name, self.run)

    def end(self) -> None:
        if self.process.is_alive():
            self.connection.send(None)
        self.process.join()


def run_cases(
    chosen: Sequence[Case], jobs: int, timeout: float, run: Run | None = None
) -> Iterator[Outcome]:
    """Outcomes of cases as they are finished, `jobs` at a time, each at most `timeout` seconds.

    Args:
        run: what is done with each, in a worker process; None: `run_case`.
    """
    names = iter([case.name for case in chosen])
    _functions()
    workers = [_Worker.start(name, run or run_case) for name in islice(names, jobs)]
    while workers:
        wait([worker.connection for worker in workers], timeout=1.0)
        for worker in list(workers):
            outcome = worker.outcome(timeout)
            if outcome is None:
                continue
            yield outcome
            workers.remove(worker)
            if (name := next(names, None)) is None:
                worker.end()
            else:
                workers.append(worker.go_on(name))


# -- what is printed ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Result:
    """A case and its outcome."""

    case: Case
    outcome: Outcome

    @property
    def verdict(self) -> str:
        """ "passed", "failed", "excluded", or "stale": it passed though it is excluded."""
        if self.case.exclusion:
            return "stale" if self.outcome.passed else "excluded"
        return "passed" if self.outcome.passed else "failed"


def table(results: Iterable[Result]) -> Iterator[str]:
    """Counts by operator, failures first, then the sum."""
    rows: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        rows[result.case.operator].append(result)

    def counts(of: list[Result]) -> tuple[int, int, int, int]:
        passed = [r for r in of if r.outcome.passed]
        failed = sum(r.verdict == "failed" for r in of)
        excluded = sum(r.verdict == "excluded" for r in of)
        return failed, excluded, len(passed), sum(r.outcome.kernels > 0 for r in passed)

    yield f"{'operator':32}{'failed':>8}{'excluded':>10}{'passed':>8}{'with kernels':>14}"
    ordered = sorted(rows.items(), key=lambda row: (-counts(row[1])[0], row[0]))
    everything = [result for of in rows.values() for result in of]
    for name, of in (*ordered, ("all", everything)):
        failed, excluded, passed, native = counts(of)
        yield f"{name:32}{failed:8}{excluded:10}{passed:8}{native:14}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression of the cases to run")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a case may take")
    parser.add_argument("--sample", action="store_true", help="a few cases of every operator")
    parser.add_argument("--json", metavar="FILE", help="write every outcome")
    return parser


def main() -> int:
    """Run the suite; the exit code."""
    asked = _parser().parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        os.environ.setdefault("ONNX_HOME", home)  # where ONNX puts what it makes of light models
        chosen = [
            c for c in (sample() if asked.sample else cases()) if re.search(asked.only, c.name)
        ]
        by_name = {case.name: case for case in chosen}
        results = [Result(by_name[o.name], o) for o in run_cases(chosen, asked.jobs, asked.timeout)]
    results.sort(key=lambda result: result.case.name)
    print(*table(results), sep="\n")
    for verdict in ("failed", "stale", "excluded"):
        for r in (r for r in results if r.verdict == verdict):
            why = r.case.exclusion if verdict != "failed" else r.outcome.reason
            print(f"{verdict}  {r.case.name}: {why}")
    print(f"{len(results)} cases in {time.monotonic() - started:.0f} s")
    if asked.json:
        rows = [
            {**asdict(r.outcome), "operator": r.case.operator, "verdict": r.verdict}
            for r in results
        ]
        Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(r.verdict == "failed" for r in results))


if __name__ == "__main__":
    sys.exit(main())
