"""What the front door's jobs report, as values; `to_json` gives the keys scripts rely on.

Times are microseconds where a name ends in `_us`, milliseconds in `_ms`, seconds in `_s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tilesmith.jobs.timing import Timing
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.workload import Workload

if TYPE_CHECKING:
    from tilesmith.compiler.optimal_memory import ArenaFound
    from tilesmith.compiler.program import Report
    from tilesmith.compiler.quantisation.errors import Accuracy
    from tilesmith.compiler.shipping import Library
    from tilesmith.jobs.untuned import Untuned
    from tilesmith.search_space.ir.sizes import Size
    from tilesmith.simulator import SimulationResult


@dataclass(frozen=True)
class TaskReport:
    """What tuning came to for one workload.

    Attributes:
        workload: what was tuned.
        weight: how often the model runs it.
        default_us: latency of the untuned default; None if it could not be measured.
        best_us: latency of the best schedule found; None if none worked. Schedules within 1 % of
            each other are a tie, which a fixed rule decides: a best that ties with the default is
            given the default's latency where that is lower.
        gflops: throughput of the best, counting the direct form's operations.
        config: the best schedule's knob values.
        measured_by: "hardware" or "simulator": what the latencies come from.
        trials: configurations tried in this run, failed ones included.
    """

    workload: Workload
    weight: float
    default_us: float | None
    best_us: float | None
    gflops: float | None
    config: Config | None
    measured_by: str
    trials: int

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": str(self.workload),
            "key": self.workload.key,
            "weight": self.weight,
            "default_us": self.default_us,
            "best_us": self.best_us,
            "gflops": self.gflops,
            "config": dict(self.config) if self.config is not None else None,
            "measured_by": self.measured_by,
            "trials": self.trials,
        }


@dataclass(frozen=True)
class InModelReport:
    """What comparing schedules inside the whole model came to.

    Attributes:
        before_ms, after_ms: the model's latency with the schedules that are best alone, and with
            those pinned that make the model faster.
        pinned: workloads whose schedule in the model is not their best alone.
        compared: schedules tried in place.
        untuned_ms: the model's latency without any tuning, in turns with the tuned one; None if
            that was not compared.
        reverted: workloads that keep their untuned schedule, because the model is faster so.
        kernels_ms: what the kernels of the model take by themselves, as their trials measured them;
            None where the model was not looked at kernel by kernel.
        kernels_in_place_ms: what the same kernels take where they stand in the model.
        added_ms: what is in the model beside them: conversions of layouts, and schedules in layouts
            that no trial measured.
    """

    before_ms: float
    after_ms: float
    pinned: tuple[str, ...]
    compared: int
    untuned_ms: float | None = None
    reverted: tuple[str, ...] = ()
    kernels_ms: float | None = None
    kernels_in_place_ms: float | None = None
    added_ms: float | None = None

    @property
    def foretold_ms(self) -> float | None:
        """What the model takes if its kernels take in it what they take by themselves."""
        if self.kernels_ms is None or self.added_ms is None:
            return None
        return self.kernels_ms + self.added_ms

    def to_json(self) -> dict[str, Any]:
        lists = {"pinned": list(self.pinned), "reverted": list(self.reverted)}
        return {**vars(self), **lists, "foretold_ms": self.foretold_ms}


@dataclass(frozen=True)
class TuneReport:
    """What a tuning job did.

    Attributes:
        trials: configurations measured, failed ones included.
        simulated: configurations simulated first, to choose what hardware measures.
        wall_s: how long the job took.
        tasks: one report for each workload.
        stopped: one phrase, why it ended.
        failures: failed trials by status.
        search_s: seconds of `wall_s` that went into choosing what to measure.
        drift: largest relative change of a baseline measured again and again, hardware only.
        steady: whether that drift is within what samples are corrected for without a word.
        in_model: what comparing schedules inside the model came to; None if that was not done.
        trial_ms: what a trial on hardware cost: the `median` and the `mean` one, and what the mean
            is made up of: `compile`, `reference`, `inputs`, `flush`, `run` and `other`.
        models: what scores start from, in a sentence, by way of measuring.
        noise: how far the usual run of a chosen schedule is from its fastest, relative, of the
            middle workload; hardware only.
    """

    trials: int
    simulated: int
    wall_s: float
    tasks: tuple[TaskReport, ...]
    stopped: str = ""
    failures: dict[str, int] = field(default_factory=dict)
    search_s: float = 0.0
    drift: float = 0.0
    steady: bool = True
    in_model: InModelReport | None = None
    trial_ms: dict[str, float] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    noise: float = 0.0

    def __repr__(self) -> str:
        """A line for each workload, not every field: what a notebook or `print` shows."""
        lines = [
            f"{task.workload}: {_told(task.default_us)} -> {_told(task.best_us)}"
            for task in self.tasks
        ]
        done = f"<TuneReport of {self.trials} trials in {self.wall_s:.1f} s"
        return "\n  ".join([done, *lines]) + ">"

    @property
    def default_us(self) -> float | None:
        """Sum of the defaults' latencies, weighted; None if one is missing."""
        return _weighted([(task.weight, task.default_us) for task in self.tasks])

    @property
    def best_us(self) -> float | None:
        """Sum of the best latencies, weighted; None if one is missing."""
        return _weighted([(task.weight, task.best_us) for task in self.tasks])

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials,
            "wall_s": self.wall_s,
            "tasks": [task.to_json() for task in self.tasks],
            "default_us": self.default_us,
            "best_us": self.best_us,
            "simulated": self.simulated,
            "stopped": self.stopped,
            "failures": self.failures,
            "search_s": self.search_s,
            "drift": self.drift,
            "steady": self.steady,
            "noise": self.noise,
            "trial_ms": self.trial_ms,
            "models": self.models,
            "in_model": None if self.in_model is None else self.in_model.to_json(),
        }


@dataclass(frozen=True)
class VariantReport:
    """What became of a model's kernels in one region of its sizes.

    Attributes:
        region: (least, greatest) of each size, by name.
        tuned, nearest, default, stale, host: as of `CompileReport`.
    """

    region: dict[str, tuple[int, int]]
    tuned: int
    nearest: int
    default: int
    stale: int
    host: int

    @classmethod
    def of(cls, region: Sequence[Size], report: Report) -> VariantReport:
        ranges = {size.name: (size.low, size.high) for size in region}
        return cls(ranges, report.tuned, report.fallback, report.default, report.stale, report.host)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "region": {name: list(ends) for name, ends in self.region.items()}}


@dataclass(frozen=True)
class CompileReport:
    """How a model was compiled.

    Attributes:
        tuned: kernels with a schedule tuned for their own workload.
        nearest, default: kernels with the nearest tuned shape's schedule, or the default.
        stale: kernels with a schedule of their own that another version tuned.
        host_operators: operators that run on the host.
        host_runtimes: what runs each of them here, "onnxruntime" or "reference".
        sizes: those that vary; the counts above then are of the kernels for the largest.
        variants: what became of the kernels in each region of the sizes.
        conversions: layout conversions between kernels.
        artifact: the file written.
        compile_s: seconds from file to file.
        peak_bytes: memory planned for intermediate tensors.
        precision: of the kernels, "fp32", "bf16" or "fp16".
        simulated: on an accelerator, what the compiled model costs.
        unfolded: why products of quantised tensors are not of whole numbers, by operator.
        memory: what a search for the smallest arena came to, where one was asked for.
        untuned: workloads without a schedule of their own, and why.
        library: the files of a library, where that is what was asked for.
    """

    tuned: int
    nearest: int
    default: int
    stale: int
    host_operators: tuple[str, ...]
    conversions: int
    artifact: str
    compile_s: float
    peak_bytes: int
    precision: str = "fp32"
    simulated: SimulationResult | None = None
    host_runtimes: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()
    variants: tuple[VariantReport, ...] = ()
    unfolded: Mapping[str, str] = field(default_factory=dict)
    memory: ArenaFound | None = None
    untuned: tuple[Untuned, ...] = ()
    library: Library | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "tuned": self.tuned,
            "fallback": self.fallback,
            "nearest": self.nearest,
            "default": self.default,
            "stale": self.stale,
            "host": self.host,
            "host_operators": list(self.host_operators),
            "host_runtimes": list(self.host_runtimes),
            "conversions": self.conversions,
            "artifact": self.artifact,
            "compile_s": self.compile_s,
            "peak_bytes": self.peak_bytes,
            "precision": self.precision,
            "sizes": {size.name: [size.low, size.high] for size in self.sizes},
            "variants": [variant.to_json() for variant in self.variants],
            "unfolded": dict(self.unfolded),
            **({"memory": asdict(self.memory)} if self.memory else {}),
            "untuned": [one.to_json() for one in self.untuned],
            **({"library": self.library.to_json()} if self.library else {}),
            **self._device_json(),
        }

    def _device_json(self) -> dict[str, Any]:
        """What is known of a model on an accelerator."""
        if self.simulated is None:
            return {}
        names = ("host_us", "bytes_moved", "bytes_saved", "resident")
        details = self.simulated.details
        found = {name: details[name] for name in names if name in details}
        return {"latency_us": self.simulated.latency_us, **found}

    @property
    def fallback(self) -> int:
        return self.nearest + self.default

    @property
    def host(self) -> int:
        return len(self.host_operators)


@dataclass(frozen=True)
class Comparison:
    """Our latency beside our peers', from one interleaved run.

    Attributes:
        own: our timing.
        threads: threads each side used.
        concurrency: runs of each side in flight at once.
        host_share: the part of our time, from 0 to 1, that operators on the host take.
        host_operators: those operators, and what runs each.
        peers: the others' timings by name.
        versions: the peers' versions by name.
        max_abs_err: largest |ours - peer's| over outputs and peers; None without a peer.
        max_rel_err: largest max|ours - peer's| / max|peer's| of an output; None without a peer.
        beside_fp32: how far outputs are from those in fp32; None where that is what they are in.
    """

    own: Timing
    threads: int
    host_share: float = 0.0
    host_operators: tuple[tuple[str, str], ...] = ()
    peers: dict[str, Timing] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    max_abs_err: float | None = None
    max_rel_err: float | None = None
    beside_fp32: Accuracy | None = None
    concurrency: int = 1

    @property
    def ratio(self) -> float | None:
        """Our median over the fastest peer's; None without a peer."""
        if not self.peers:
            return None
        return self.own.median_ms / min(peer.median_ms for peer in self.peers.values())

    def to_json(self) -> dict[str, Any]:
        return {
            **self.own.to_json(),
            "threads": self.threads,
            "concurrency": self.concurrency,
            "host_share": self.host_share,
            "host_operators": [
                {"name": name, "runtime": runtime} for name, runtime in self.host_operators
            ],
            "peers": {
                name: {**timing.to_json(), "version": self.versions[name]}
                for name, timing in self.peers.items()
            },
            "ratio": self.ratio,
            "max_abs_err": self.max_abs_err,
            "max_rel_err": self.max_rel_err,
            "beside_fp32": None if self.beside_fp32 is None else self.beside_fp32.to_json(),
        }


def _told(latency_us: float | None) -> str:
    return "none" if latency_us is None else f"{latency_us:.4g} us"


def _weighted(parts: list[tuple[float, float | None]]) -> float | None:
    known = [(weight, value) for weight, value in parts if value is not None]
    return sum(w * v for w, v in known) if len(known) == len(parts) else None
