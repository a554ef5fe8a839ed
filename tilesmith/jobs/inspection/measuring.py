"""One configuration of one operator, measured beside the best that is known of it.

    ts.measure("matmul m=512 n=512 k=512", {"m_tile": 8}, database="tuning.db")

On a processor a worker times both in turns and checks their numbers; where the simulator measures,
a model of this one kernel is compiled and run functionally, and its numbers compared. Nothing is
written to the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from tilesmith.codegen.programs.structures import default_of, space_of
from tilesmith.jobs.databases import BY_DEFAULT, Named, here
from tilesmith.jobs.inspection.configurations import filled, parsed
from tilesmith.jobs.keywords import takes
from tilesmith.jobs.requests.request import Asked, Request, Resolved
from tilesmith.jobs.subjects.targets import check_schedulable
from tilesmith.search_space.hardware.target import HOST, Target
from tilesmith.search_space.results.measure import MeasuredBy, MeasureResult
from tilesmith.search_space.spaces.config import Config
from tilesmith.search_space.support.errors import InputError, TilesmithError
from tilesmith.search_space.support.json_object import JsonObject
from tilesmith.search_space.workloads.template import template_of
from tilesmith.search_space.workloads.workload import Workload

Way = Literal["hardware", "simulator"]

TOLERANCE = {"float16": 2e-3, "bfloat16": 3e-2}
"""Of the largest accumulated magnitude, as the conformance tests allow; of whole numbers nothing,
of other floats `_FLOAT32`."""

_FLOAT32 = 5e-5


@dataclass(frozen=True)
class Measured(
    JsonObject,
    keys="config status:result.status message:result.message latency_us gflops bound:result.bound "
    "samples_us:_samples_s numbers max_error",
):
    """A configuration and what came of it.

    Attributes:
        config: all its knobs.
        result: of measuring it.
        flops: of the operator.
        numbers: "right", or a sentence on what is wrong, or on why nobody looked.
        max_error: largest difference from the reference, relative to the largest accumulated
            magnitude; None where the runner checked.
    """

    config: Config
    result: MeasureResult
    flops: int
    numbers: str = ""
    max_error: float | None = None

    @property
    def latency_us(self) -> float | None:
        return None if self.result.latency is None else self.result.latency * 1e6

    @property
    def _samples_s(self) -> tuple[float, ...]:
        return self.result.samples

    @property
    def gflops(self) -> float | None:
        return self.flops / self.result.latency / 1e9 if self.result.latency else None


@dataclass(frozen=True)
class MeasureReport(
    JsonObject,
    keys="workload:workload.key target measured_by given *asked speedup base:_base notes",
):
    """A configuration beside its base.

    Attributes:
        measured_by: "hardware" or "simulator".
        given: the knobs that were named.
        base_is: where the base comes from, in words.
        notes: sentences for the reader.
    """

    workload: Workload
    target: str
    measured_by: MeasuredBy
    given: Mapping[str, str]
    asked: Measured
    base: Measured
    base_is: str
    notes: tuple[str, ...] = field(default=())

    @property
    def speedup(self) -> float | None:
        """How many times faster than the base."""
        one, other = self.base.latency_us, self.asked.latency_us
        return one / other if one and other else None

    @property
    def wrong(self) -> bool:
        """Whether it computes other numbers, or nothing at all."""
        return not self.asked.result.ok or self.asked.numbers.startswith("wrong")

    @property
    def _base(self) -> dict[str, Any]:
        return {**self.base.to_json(), "is": self.base_is}


@takes(Asked)
def measure(
    operator: str | Workload,
    config: Mapping[str, Any] | str | None = None,
    target: str | Target = HOST,
    database: Named = BY_DEFAULT,
    *,
    by: str | None = None,
    **asked: Unpack[Asked],
) -> MeasureReport:
    """Measure a configuration of an operator beside the best known.

    Args:
        operator: as `--op` takes it.
        config: knobs by name, or as text; the others are as in the fastest of the database, or as
            in the default. None: that itself.
        by: "hardware" or "simulator"; None: hardware on a processor that is this machine's.
        asked: `threads`, `settings`, as `tune`.

    Raises:
        ConfigError: an unknown knob, a value that it cannot have, or a limit that is broken.
        InputError: operator, target, database or way of measuring are wrong.
    """
    workload = Workload.parse(operator) if isinstance(operator, str) else operator
    text = [config] if isinstance(config, str) else []
    given = {n: str(v) for n, v in config.items()} if isinstance(config, Mapping) else parsed(text)
    return measured(Request(workload, target, here(database), **asked), given, by)


def measured(request: Request, given: Mapping[str, str], by: str | None = None) -> MeasureReport:
    """See `measure`; of a request for one operator."""
    asked = request.resolved(calibrate=True)
    workload, way = only_workload(asked), _way(by, asked.target)
    check_schedulable([workload], asked.target)
    base, base_is, notes = known_best(workload, asked)
    space = space_of(workload, asked.target)
    filling = filled(space, given, base, np.random.default_rng(0))
    config = _chosen(workload, asked.target, filling.candidates)
    if filling.open:
        choices = ", ".join(f"{name}={config[name]}" for name in filling.open)
        notes.append(f"the base has no value for these, which the simulator chose: {choices}")
    configs = [base, config] if config != base else [base]
    results = _measured(workload, asked, configs, way)
    of_base, of_config = results[0], results[-1]
    return MeasureReport(
        workload, asked.target.name, way, given, of_config, of_base, base_is, tuple(notes)
    )


def only_workload(asked: Resolved) -> Workload:
    """The one operator that a request is about.

    Raises:
        InputError: it is about a model, or about several.
    """
    subject = [asked.subject] if isinstance(asked.subject, Workload) else asked.subject
    if not isinstance(subject, list | tuple) or len(set(subject)) != 1:
        raise InputError("this is about a single operator; name one with --op")
    workload = subject[0]
    assert isinstance(workload, Workload)
    return workload


def known_best(workload: Workload, asked: Resolved) -> tuple[Config, str, list[str]]:
    """The fastest configuration on record that is still legal, or the default; what it is, in
    words; and what else there is to say."""
    default, notes = default_of(workload, asked.target), list[str]()
    if asked.database is None:
        return default, "default", notes
    from tilesmith.records.database import Database

    with Database.open(asked.database, create=False) as opened:
        best = opened.bests([workload], asked.target, asked.threads).get(workload.key)
    if best is None:
        return default, "default (the database has no trial of it)", notes
    if best.record.config not in space_of(workload, asked.target):
        notes.append(f"the best of record {best.record.id} is not of today's space any more")
        return default, "default", notes
    if best.stale:
        notes.append(f"record {best.record.id} was measured with other versions")
    return best.record.config, f"best of the database (record {best.record.id})", notes


def _way(by: str | None, target: Target) -> Way:
    """
    Raises:
        InputError: no such way for the target, or hardware that is not here.
    """
    from tilesmith.jobs.tuning.job import way_of_measuring
    from tilesmith.jobs.tuning.machines import can_measure_here, check_measurable_here

    if by not in (None, "hardware", "simulator"):
        raise InputError(f"--measure is hardware or simulator, not '{by}'")
    way = way_of_measuring(by, target)
    if way == "both":
        way = "hardware" if can_measure_here(target) else "simulator"
    if way == "hardware":
        check_measurable_here(target)
    return "hardware" if way == "hardware" else "simulator"


def _chosen(workload: Workload, target: Target, candidates: tuple[Config, ...]) -> Config:
    """The one that the simulator judges fastest."""
    from tilesmith.simulator import judge, simulators

    if len(candidates) == 1 or target.family not in simulators:
        return candidates[0]
    latency = judge(workload, target, candidates).latency
    return candidates[int(np.nanargmin(latency))] if np.isfinite(latency).any() else candidates[0]


def _measured(
    workload: Workload, asked: Resolved, configs: list[Config], way: Way
) -> list[Measured]:
    """All of them in turns."""
    from tilesmith.simulator import measure as judge
    from tilesmith.tuner.measurement.runner import RunnerOptions, runners

    flops = template_of(workload.operator).flops(workload)
    runner = runners[way](RunnerOptions(asked.target, threads=asked.threads, judge=judge))
    batch = [(workload, config) for config in configs]
    try:
        results = runner.measure(batch)
        if len(batch) > 1 and all(result.ok for result in results):
            again = runner.compare(batch)  # in turns, so that drift hits both alike
            results = [b if b.ok else a for a, b in zip(results, again, strict=True)]
    finally:
        runner.close()
    measured = [Measured(c, r, flops) for c, r in zip(configs, results, strict=True)]
    if way == "hardware":
        return [replace(one, numbers=_by_runner(one.result)) for one in measured]
    return [_checked(workload, asked.target, one) if one.result.ok else one for one in measured]


def _by_runner(result: MeasureResult) -> str:
    if result.ok:
        return "right"
    return f"wrong: {result.message}" if result.status == "wrong" else ""


def _checked(workload: Workload, target: Target, measured: Measured) -> Measured:
    """With its numbers compared: a model of this kernel alone, run as any model is."""
    try:
        inside = _inside(workload, target)
        got = _computed(workload, inside, target, measured.config)
    except TilesmithError as error:
        return replace(measured, numbers=f"not checked: {error}")
    inputs = {n: a.astype(np.float32) if a.dtype.kind == "V" else a
              for n, a in _inputs(workload).items()}  # fmt: skip
    want = np.asarray(_reference(workload, inputs, np.float64), np.float64)
    sums = {n: np.abs(a) if a.dtype.kind == "f" else a for n, a in inputs.items()}
    sizes = [np.abs(x[np.isfinite(x)]) for x in (want, _plain(workload, sums))]
    scale = max(float(size.max(initial=0)) for size in sizes)
    computed = got.astype(np.float64)
    same = (computed == want) | (np.isnan(computed) & np.isnan(want))  # infinities, too
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(computed - want))
    off = float(np.nan_to_num(difference, nan=np.inf).max(initial=0)) / (scale or 1.0)
    kind = got.dtype.kind
    allowed = 0.0 if kind in "iub" else TOLERANCE.get(inside.dtype, _FLOAT32)
    right = off <= allowed
    said = f"right, in {inside.dtype} as models there" if inside != workload else "right"
    numbers = said if right else f"wrong: off by {off:.3g} of the largest sum of terms"
    return replace(measured, numbers=numbers, max_error=off)


def _inputs(workload: Workload) -> dict[str, NDArray[Any]]:
    """Random operands; indices among them are of what there is, as models refuse others."""
    from tilesmith.tuner.measurement.checking import random_inputs

    inputs = random_inputs(workload)
    for name, extents in template_of(workload.operator).index_extents(workload).items():
        inputs[name] = np.fmod(inputs[name], np.resize(extents, inputs[name].shape)).astype(
            inputs[name].dtype
        )
    return inputs


def _reference(workload: Workload, inputs: Mapping[str, NDArray[Any]], dtype: Any) -> NDArray[Any]:
    from tilesmith.search_space.workloads import epilogue

    template = template_of(workload.operator)
    wide = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in inputs.items()}
    with np.errstate(all="ignore"):
        value = np.asarray(template.reference(workload, wide))
        if not workload.epilogue:
            return value
        axis = template.channel_axis(workload)
        return np.asarray(epilogue.reference(workload.epilogue, value, wide, axis))


def _plain(workload: Workload, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The operator without its epilogue, NaN where it is undefined."""
    with np.errstate(all="ignore"):
        expected = np.asarray(
            template_of(workload.operator).reference(workload, inputs), np.float64
        )
    return np.nan_to_num(expected, posinf=0.0, neginf=0.0)


def _inside(workload: Workload, target: Target) -> Workload:
    """What becomes of an operator in a model: some families compute float32 in less."""
    from tilesmith.compiler.backends.backend import backend_of
    from tilesmith.compiler.numerics.precision import in_precision, precision_dtype

    backend = backend_of(target)
    backend.check(target)
    return in_precision(workload, precision_dtype(backend.computes_in), only="float32")


def _computed(workload: Workload, inside: Workload, target: Target, config: Config) -> NDArray[Any]:
    """The result of a kernel in a model of its own.

    Args:
        inside: what becomes of it there.

    Raises:
        TilesmithError: no models run on the target here, or not this kernel.
    """
    from tilesmith.compiler.driver.build import fastest_recipe, scheduled
    from tilesmith.compiler.graph.graph import Graph, TensorInfo, kernel
    from tilesmith.compiler.runtime.executable import Executable
    from tilesmith.compiler.settling.chooser import ScheduleChooser

    inputs = _inputs(workload)
    template = template_of(workload.operator)
    output = template.output(workload)
    infos = [TensorInfo(o.name, o.dtype, o.shape) for o in template.operands(workload)]
    result = TensorInfo("result", output.dtype, output.shape)
    graph = Graph(
        name="alone",
        nodes=(kernel(workload, [info.name for info in infos], result.name, "kernel"),),
        inputs=tuple(info for info in infos if not workload.is_constant(info.name)),
        outputs=(result,),
        tensors={info.name: info for info in (*infos, result)},
        constants={name: inputs[name] for name in workload.constants},
        opsets=(("", 17),),
    )
    only = ScheduleChooser(
        target, None, 1, {inside: config}, measured_only=True
    )  # in no other layout
    model = Executable(fastest_recipe(scheduled(graph, target), only))
    keys = [getattr(step, "config", "") for step in model.recipe.steps]
    if config.key not in keys:
        raise InputError("a model of this kernel alone takes other layouts")
    (got,) = model.run({info.name: inputs[info.name] for info in model.inputs}).values()
    return np.asarray(got)
