"""What the front door's jobs report, as values; `to_json` gives the keys scripts rely on.

Times are microseconds where a name ends in `_us`, milliseconds in `_ms`, seconds in `_s`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilesmith.jobs.measures.timing import Timing
from tilesmith.search_space.support.json_object import JsonObject

if TYPE_CHECKING:
    from tilesmith.compiler.backends.shipping import Library
    from tilesmith.compiler.recipe.optimal_memory import ArenaFound
    from tilesmith.compiler.recipe.program import Report
    from tilesmith.jobs.compilation.untuned import Untuned
    from tilesmith.jobs.measures.output_errors import Accuracy
    from tilesmith.search_space.expressions.sizes import Size
    from tilesmith.simulator import SimulationResult


@dataclass(frozen=True)
class VariantReport(JsonObject):
    """What became of a model's kernels in one region of its sizes.

    Attributes:
        region: (least, greatest) of each size, by name.
        tuned, nearest, default, stale, host, schedules: as of `CompileReport`.
    """

    region: dict[str, tuple[int, int]]
    tuned: int
    nearest: int
    default: int
    stale: int
    host: int
    schedules: Mapping[str, int]

    @classmethod
    def of(cls, region: "Sequence[Size]", report: "Report") -> "VariantReport":
        ranges = {size.name: (size.low, size.high) for size in region}
        return cls(ranges, host=report.host, **report.counts)


@dataclass(frozen=True)
class CompileReport(
    JsonObject,
    keys="tuned fallback nearest default stale schedules host host_operators host_runtimes "
    "conversions artifact compile_s peak_bytes precision sizes:_ranges variants unfolded "
    "memory? untuned library? *_costs",
):
    """How a model was compiled.

    Attributes:
        tuned: kernels with a schedule that a search of their own workload found.
        nearest, default: kernels with a schedule of another shape or machine; with a default, which
            may have been measured.
        stale: kernels with a schedule of their own that another version found.
        schedules: kernels by the `Origin` of their schedule, every one of which is counted.
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
    schedules: Mapping[str, int]
    precision: str = "fp32"
    simulated: "SimulationResult | None" = None
    host_runtimes: tuple[str, ...] = ()
    sizes: "tuple[Size, ...]" = ()
    variants: tuple[VariantReport, ...] = ()
    unfolded: Mapping[str, str] = field(default_factory=dict)
    memory: "ArenaFound | None" = None
    untuned: "tuple[Untuned, ...]" = ()
    library: "Library | None" = None

    @property
    def _ranges(self) -> dict[str, tuple[int, int]]:
        return {size.name: (size.low, size.high) for size in self.sizes}

    @property
    def _costs(self) -> dict[str, Any]:
        """What is known of a model on an accelerator."""
        if self.simulated is None:
            return {}
        names = ("host_us", "bytes_moved", "bytes_saved", "resident")
        details = self.simulated.details
        shown = {name: details[name] for name in names if name in details}
        return {"latency_us": self.simulated.latency_us, **shown}

    @property
    def fallback(self) -> int:
        return self.nearest + self.default

    @property
    def host(self) -> int:
        return len(self.host_operators)


@dataclass(frozen=True)
class Comparison(
    JsonObject,
    keys="*own threads concurrency host_share host_operators:_hosts peers:_peers ratio max_abs_err "
    "max_rel_err beside_fp32",
):
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
    beside_fp32: "Accuracy | None" = None
    concurrency: int = 1

    @property
    def ratio(self) -> float | None:
        """Our median over the fastest peer's; None without a peer."""
        if not self.peers:
            return None
        return self.own.median_ms / min(peer.median_ms for peer in self.peers.values())

    @property
    def _hosts(self) -> list[dict[str, str]]:
        return [{"name": name, "runtime": runtime} for name, runtime in self.host_operators]

    @property
    def _peers(self) -> dict[str, dict[str, Any]]:
        return {
            name: {**timing.to_json(), "version": self.versions[name]}
            for name, timing in self.peers.items()
        }
