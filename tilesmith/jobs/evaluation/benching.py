"""Timing a model, alone or in turns with other runtimes: what `tilesmith bench` and `bench` do.

All run on the same inputs, threads and cores, in one run, and the numbers they give are compared.
In a lower precision outputs are compared with those of the same model in fp32, too: what the
precision costs in accuracy.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tilesmith.jobs.compilation.compiling import (
    at_one_size,
    executable_of,
    random_inputs,
    source_text,
)
from tilesmith.jobs.compilation.reports import Comparison
from tilesmith.jobs.compilation.seeded_inputs import FILLS, given_or_filled
from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.measures.peers import PEERS, Contender, load_peer, precision_of
from tilesmith.jobs.measures.timing import Timing, at_once, interleave, pinned
from tilesmith.jobs.requests.request import Asked, Request
from tilesmith.jobs.subjects.calibration_data import Data, ExpectedInput, samples_of
from tilesmith.jobs.subjects.subject import (
    executable_words,
    is_artifact,
    is_compiled,
    is_model,
    model_of,
)
from tilesmith.search_space.expressions.dtypes import to_numpy
from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.support.errors import InputError, ModelError
from tilesmith.search_space.support.suggestions import did_you_mean

if TYPE_CHECKING:
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.jobs.compilation.reports import Comparison
    from tilesmith.jobs.measures.output_errors import Accuracy
    from tilesmith.jobs.requests.request import Request
    from tilesmith.jobs.subjects.subject import Compiled, Model


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
    executable: "Executable",
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


def source_of(executable: "Executable", model: str, given: str | Path | None) -> Path:
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


@dataclass(frozen=True)
class BenchOptions:
    """How a model is timed.

    Attributes:
        inputs: arrays by name; what is missing is filled.
        fill: one of `FILLS`; None: random, where no inputs are given.
        against: names in `PEERS`.
        source: the ONNX file that peers run, where it is not known.
        time_limit: seconds to measure, where `pace` has no number of runs.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    fill: str | None = None
    against: Sequence[str] = ()
    source: str | Path | None = None
    time_limit: float = 3.0
    pace: Pace = field(default_factory=Pace)


class AskedOfBench(Asked, total=False):
    """What a bench may be told; see `bench`."""

    fill: str | None
    source: str | Path | None
    time_limit: float
    runs: int | None
    warm_up: int
    concurrency: int


_PACE = ("warm_up", "runs", "concurrency")


@takes(AskedOfBench)
def bench(
    model: "Model | Compiled",
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    inputs: Mapping[str, Any] | None = None,
    against: Sequence[str] = (),
    **asked: Unpack[AskedOfBench],
) -> Comparison:
    """Time a model, alone or in turns with other runtimes on the same inputs, threads and cores.

        ts.bench("model.onnx", against=["onnxruntime"], threads=2).own.median_ms

    Args:
        model: as `compile`; or an executable, or the path of an artifact.
        inputs: arrays by name; seeded random ones if None.
        against: "onnxruntime", "openvino", "iree".
        asked: `threads`, `precision`, `shapes`, `settings`, as `tune`, and

            fill: "random", "zeros", "ones" or "iota": what inputs hold that have no array.
            source: the ONNX file that others run, where an artifact's own is gone or was moved.
            time_limit: seconds to measure, 3 unless given, where `runs` does not say.
            runs: timed runs of each.
            warm_up: untimed runs before.
            concurrency: runs in flight at the same time, each on threads of its own.

    Raises:
        InputError: model, inputs, target, database or an option are wrong; a machine that is only
            described.
        DependencyError: a peer is not installed.
    """
    rest: dict[str, Any] = {**asked}
    pace = {name: rest.pop(name) for name in _PACE if name in rest}
    own = {name: rest.pop(name) for name in ("fill", "source", "time_limit") if name in rest}
    options = BenchOptions(inputs or {}, against=tuple(against), pace=Pace(**pace), **own)
    return benched(Request(model, target, here(database), **rest), options)


def benched(request: Request, options: BenchOptions) -> Comparison:
    """Time a request's model; errors as `bench`."""
    from tilesmith.compiler.backends.backend import measures_models

    _check(request, options)
    executable = at_one_size(executable_of(request), request.shapes or {})
    words = executable_words(request.subject)
    if not measures_models(executable.recipe.target, "hardware"):
        raise InputError(
            f"target '{executable.recipe.target.name}' is not in this machine, so nothing can be "
            f"timed; 'tilesmith simulate {words}' tells what the model costs on it"
        )
    path = None
    if options.against:
        known = model_of(request.subject) if is_compiled(request.subject) else None
        path = source_of(executable, words, options.source or known)
    arrays = given_or_filled(request, executable, options.inputs, options.fill)
    result = compare(
        executable, arrays, options.against, path, options.time_limit, request.precision,
        options.pace,
    )  # fmt: skip
    return replace(result, beside_fp32=beside_fp32(request, executable))


def _check(request: Request, options: BenchOptions) -> None:
    if not is_model(request.subject):
        raise InputError("a bench is of a model; 'tilesmith measure' times single operators")
    for kind, given, known in (
        ("peer", options.against, PEERS), ("fill", filter(None, [options.fill]), FILLS)
    ):  # fmt: skip
        for name in given:
            if name not in known:
                there = did_you_mean(name, known) or f"; one of {', '.join(known)} is expected"
                raise InputError(f"unknown {kind} '{name}'{there}")
    pace = options.pace
    for name, number, least in (
        ("runs", pace.runs, 1), ("warm-up", pace.warm_up, 0), ("concurrency", pace.concurrency, 1)
    ):  # fmt: skip
        if number is not None and number < least:
            raise InputError(f"--{name} = {number} is out of range; at least {least}")


_SAMPLES = 16
"""Samples that are compared: of the data, or random."""


def beside_fp32(request: Request, executable: "Executable") -> "Accuracy | None":
    """How far an executable's outputs are from those of the request in fp32.

    They are compared on the data that int8 is calibrated with, where it is given, else on seeded
    random inputs. None where there is no model in fp32: an artifact, or a quantised model.
    """
    if request.precision == "fp32" or is_artifact(request.subject):
        return None
    if request.precision == "int8" and request.calibration is None:
        return None
    from tilesmith.jobs.measures.output_errors import accuracy

    in_fp32 = replace(request, precision="fp32", calibration=None)
    plain = at_one_size(executable_of(in_fp32), request.shapes or {})
    samples = _samples(executable, request.calibration)
    return accuracy(executable.run, samples, [plain.run(sample) for sample in samples])


def _samples(executable: "Executable", data: Data | None) -> Sequence[Mapping[str, NDArray[Any]]]:
    if data is None:
        return [random_inputs(executable, seed) for seed in range(_SAMPLES)]
    expected = [
        ExpectedInput(info.name, info.dims, np.dtype(to_numpy(info.dtype)))
        for info in executable.inputs
    ]
    samples = samples_of(expected, data)
    chosen = np.random.default_rng(0).permutation(len(samples))[:_SAMPLES]
    return [samples[number] for number in sorted(chosen)]
