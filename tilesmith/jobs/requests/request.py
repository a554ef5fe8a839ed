"""What a job is asked for: one frozen request, resolved once, passed whole.

    Request(subject, "trn1", "tuning.db", threads=2).resolved() -> Resolved, with a `Target`

The Python API and the command line make a `Request` of what they were given; names of targets are
looked up in one place, `Request.resolved`, and what jobs pass on is a `Resolved`. The dictionaries
say the same as the classes: they type the API's keyword arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tilesmith.search_space.hardware.target import HOST, FactValue, Target
from tilesmith.search_space.support.errors import InputError

if TYPE_CHECKING:
    from tilesmith.jobs.subjects.calibration_data import Data
    from tilesmith.jobs.subjects.subject import Model, Subject
    from tilesmith.tuner.tasks.options import TuneOptions

Shapes = Mapping[str, tuple[int | tuple[int, int], ...]]
"""By input: an extent, or (least, greatest), for each axis. By symbolic dimension: likewise, or the
two numbers alone: {"sequence": (1, 2048)}."""

IN_FLIGHT = 4
"""Rounds that a job with workers keeps in flight."""

PRECISIONS = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
    "int8": "int8",
    "float32": "fp32",
    "f32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "f16": "fp16",
    "half": "fp16",
    "i8": "int8",
}
"""Every name of a precision, and the one it goes by."""

BITS = ("any", "same")
"""What may become of the last bits of outputs: those of any schedule, or of all the same."""

MEASURED = frozenset({"bf16"})
"""Precisions for which this machine is measured (once) even where nothing is tuned or simulated:
processors differ in whether dot products or multiply-adds are their faster way."""

Settings = Mapping[str, str | FactValue]


class Asked(TypedDict, total=False):
    """What every job may be told, beside subject, target and database; see `Request`."""

    shapes: Shapes | None
    settings: Settings | None
    threads: int | None
    precision: str
    updates: Mapping[str, str] | None
    calibration: "Data | None"
    chips: int
    packs: Sequence[str | Path] | None
    bits: str


class AskedOfSearch(Asked, total=False):
    """What a tuning job may be told; see `TuneRequest`."""

    trials: int | None
    time_limit: float | None
    early_stopping: int | None
    measure: str | None
    seed: int
    resume: bool
    strategy: str
    scheduler: str
    cost_model: str
    in_flight: int | None
    choosing: int | None
    workers: str | int | None


class AskedOfReplay(TypedDict, total=False):
    """What a search in a recorded space may be told; see `TuneRequest`."""

    trials: int | None
    time_limit: float | None
    early_stopping: int | None
    seed: int
    strategy: str
    cost_model: str


def replay_options(asked: AskedOfReplay, started: float) -> "TuneOptions":
    """As `TuneRequest.options`."""
    return TuneRequest((), **asked).options(started)


def _extents(shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Shapes as `Shapes` has them, of lists, and of a size by itself: {"batch": 8}."""
    from tilesmith.search_space.expressions.sizes import Axes

    shapes_by_name = {}
    for name, said in shapes.items():
        alone = isinstance(said, int) and not isinstance(said, bool)
        extents = (said,) if alone else said
        kind = Axes if isinstance(said, Axes) else tuple
        shapes_by_name[name] = (
            kind(tuple(e) if isinstance(e, list) else e for e in extents)
            if isinstance(extents, list | tuple)
            else extents
        )
    return shapes_by_name


def _check_kinds(asked: "Request") -> None:
    """Refuse what is not of its kind by its name: Python's own errors would come from far below."""
    if not isinstance(asked.subject, tuple | list | str | Path) and isinstance(
        asked.subject, bytes | int | float | dict | None
    ):
        kind = type(asked.subject).__name__
        raise InputError(f"a model is named by its path, or given loaded; {kind} is neither")
    for name in ("shapes", "settings", "updates"):
        value = getattr(asked, name)
        if value is not None and not isinstance(value, Mapping):
            raise InputError(f"{name} = {value!r:.80} has no names; a dict is expected")
    packs = asked.packs
    if packs is not None and (isinstance(packs, str | Path) or not isinstance(packs, Sequence)):
        raise InputError(f"packs = {packs!r:.80} is no list of files; write packs=[FILE]")
    for name in ("threads", "chips"):
        value = getattr(asked, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"{name} = {value!r:.80} is not a whole number")


@dataclass(frozen=True)
class Request:
    """A job as its caller named it.

    Attributes:
        subject: path of an ONNX file or of an artifact, a loaded `onnx.ModelProto`, a `Workload`,
            or several.
        target: see `jobs.subjects.targets.resolve_target`.
        database: SQLite file or SQLAlchemy URL; None: no schedules on record.
        shapes: of inputs by name, or sizes of symbolic dimensions by theirs; ranges vary.
        settings: numbers of the target to change, by dotted name.
        threads: threads a kernel may use; None: 1, or what an artifact is for.
        precision: "fp32", "bf16" or, on CPUs, "fp16": of the kernels of an fp32 model. "int8": of
            a model that is quantised, or that `calibration` quantises.
        updates: by input the output that its array is to hold after a run (a cache).
        calibration: data that an fp32 model is quantised with for the precision "int8", in any form
            that `jobs.subjects.calibration_data` takes.
        chips: over how many of the target a model may go, in a pipeline.
        packs: files of packs that schedules are looked up in, too; None: those that the environment
            names; "none" in it: none, those that are installed included.
        bits: "same": schedules stay inside one order of summation for each operator, so that
            outputs are equal to the bit whatever was tuned, and on however many threads; "any".
    """

    subject: "Subject"
    target: str | Target = HOST
    database: str | Path | None = field(default=None, repr=False)  # it may hold a password
    shapes: Shapes | None = None
    settings: Settings | None = None
    threads: int | None = None
    precision: str = "fp32"
    updates: Mapping[str, str] | None = None
    calibration: "Data | None" = None
    chips: int = 1
    packs: Sequence[str | Path] | None = None
    bits: str = "any"

    def __post_init__(self) -> None:
        _check_kinds(self)
        if self.shapes:
            object.__setattr__(self, "shapes", _extents(self.shapes))

    def resolved(self, *, calibrate: bool = False) -> "Resolved":
        """The request with its target looked up and what was left out filled in.

        Args:
            calibrate: as `resolve_target`.

        Raises:
            TargetError: unknown name, bad file, unknown setting, or a value out of range.
            InputError: fewer threads than one; int8 without data, or data that does not fit; no
                such bits.
        """
        from tilesmith.jobs.subjects.targets import resolve_target

        database = None if self.database is None else str(self.database)
        calibrate = calibrate or PRECISIONS.get(self.precision) in MEASURED
        target = resolve_target(self.target, self.settings, calibrate=calibrate, database=database)
        return self.resolved_for(target)

    def resolved_for(self, target: Target) -> "Resolved":
        """The same where its target was looked up before; errors as `resolved`, but the first."""
        database = None if self.database is None else str(self.database)
        threads = 1 if self.threads is None else self.threads
        if threads < 1:
            raise InputError(f"threads = {threads} is out of range; at least 1")
        shapes, updates = self.shapes or {}, self.updates or {}
        precision = PRECISIONS.get(self.precision, self.precision)
        subject = self.subject
        if precision != "fp32" or self.calibration is not None:
            from tilesmith.jobs.requests.integers import in_integers

            subject, precision = in_integers(subject, precision, self.calibration, shapes)
        if self.bits not in BITS:
            raise InputError(f"bits = {self.bits!r} means nothing; use {' or '.join(BITS)}")
        if self.chips < 1:
            raise InputError(f"chips = {self.chips} is out of range; at least 1")
        packs = None if self.packs is None else tuple(map(str, self.packs))
        return Resolved(
            subject, target, database, shapes, threads, precision, updates, self.chips, packs,
            self.bits,
        )  # fmt: skip


@dataclass(frozen=True)
class TuneRequest(Request):
    """A tuning job as its caller named it; attributes as the arguments of `api.tune`."""

    trials: int | None = None
    time_limit: float | None = None
    early_stopping: int | None = None
    measure: str | None = None
    seed: int = 0
    resume: bool = False
    strategy: str = "evolutionary"
    scheduler: str = "expected_gain"
    cost_model: str = ""
    in_flight: int | None = None
    choosing: int | None = None
    workers: str | int | None = None

    def options(self, started: float) -> "TuneOptions":
        """What the search is told; `InputError` for a number that is out of range.

        Args:
            started: when the caller asked (`time.monotonic`), which a time limit counts from.
        """
        from tilesmith.tuner.tasks.options import TuneOptions

        return TuneOptions(
            trials=1000 if self.trials is None and self.time_limit is None else self.trials,
            time_limit_s=self.time_limit,
            early_stopping=self.early_stopping,
            seed=self.seed,
            strategy=self.strategy,
            scheduler=self.scheduler,
            cost_model=self.cost_model,
            in_flight=self._in_flight,
            choosing=self.choosing or 0,
            started=started,
        )

    @property
    def _in_flight(self) -> int | None:
        """As asked; else the same whatever the number of workers, and what the runner likes."""
        if self.in_flight is not None:
            return self.in_flight
        return None if self.workers is None else IN_FLIGHT


@dataclass(frozen=True)
class Resolved:
    """A request in which every name has become what it names; attributes as `Request`."""

    subject: "Subject"
    target: Target
    database: str | None = field(repr=False)
    shapes: Shapes
    threads: int
    precision: str
    updates: Mapping[str, str]
    chips: int = 1
    packs: tuple[str, ...] | None = None
    bits: str = "any"

    @property
    def model(self) -> "Model":
        """The subject, of whoever knows that it is a model."""
        return self.subject  # type: ignore[return-value]
